"""Local, the floor: every party that holds labels trains alone on its own features.

    1. logits = head(embedding(x))      2. back-propagate, step

No message is ever sent. Parties without labels do nothing, unless `oracle = true` lends them the
labels for reporting ("what could this party have reached alone?"; simulation only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.models import head, network
from colonnade.role.method import About, Method, Role, RowRules
from colonnade.role.party import Party
from colonnade.toml import Bounds


@dataclass(frozen=True)
class Local:
    """Options of local training."""

    # d, the width of the embedding before the decision layers.
    dim: Annotated[int, Bounds(least=1)] = 128
    oracle: bool = False  # lend the labels to every party, for reporting


async def alone(me: Party, cfg: Local) -> None:
    if not me.labelled:
        return
    model = model_of(me, cfg)
    optimizer = me.optimizer(model)
    for _ in me.epochs():
        for batch in me.batches(shared=False):
            loss = F.cross_entropy(model(batch.x), batch.labels)  # 1.
            optimizer.zero_grad()
            loss.backward()  # 2.
            optimizer.step()
            me.log(loss=loss)
        for split in me.evaluations:
            me.score(split, model_logits(me, model, split))


async def alone_predict(me: Party, cfg: Local, split: str) -> Tensor | None:
    if not me.holds("model"):
        return None  # it never had labels to learn from
    return model_logits(me, model_of(me, cfg), split)


def model_logits(me: Party, model: nn.Module, split: str) -> Tensor:
    with me.evaluating():
        return torch.cat([model(batch.x) for batch in me.rows(split)])  # (rows, classes)


def model_of(me: Party, cfg: Local) -> nn.Module:
    """The party's network with the decision layers of its family."""
    return me.keep(
        "model",
        lambda: nn.Sequential(
            network(me.recipe.model, me.shape, cfg.dim, **me.recipe.model_options),
            head(me.recipe.model, cfg.dim, len(me.classes)),
        ),
    )


def everyone_alone(parties: Sequence[str], holder: str, options: Local) -> dict[str, str]:
    return dict.fromkeys(parties, "alone")


METHOD = Method(
    name="local",
    summary="the floor: each labelled party alone, on its own features",
    options=Local,
    roles={"alone": Role(alone, alone_predict)},
    cast=everyone_alone,
    rows=RowRules(aligned=lambda options: False, everyone_labelled=lambda options: options.oracle),
    about=About(title="Local", trained="one network each"),
)
