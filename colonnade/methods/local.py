"""Local, the floor: every party that holds labels trains alone on its own features.

    1. logits = head(embedding(x))      2. back-propagate, step

No message is ever sent. Parties without labels do nothing, unless `oracle = true` lends them the
labels for reporting ("what could this party have reached alone?"; simulation only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from colonnade.methods.parts.scoring import logits_of, whole_network
from colonnade.role import stopping
from colonnade.role.method import About, Learning, Method, Role, RowRules
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
    model = whole_network(me, cfg.dim)
    optimizer = me.optimizer(model)
    for _ in me.epochs():
        for batch in me.batches(shared=False):
            loss = me.task.loss(model(batch.x), batch)  # 1.
            optimizer.zero_grad()
            loss.backward()  # 2.
            optimizer.step()
            me.log(loss=loss)
        for split in me.evaluations:
            me.score(split, logits_of(me, split, model))
        stopping.decide(me)


async def alone_predict(me: Party, cfg: Local, split: str) -> Tensor | None:
    if not me.holds("model"):
        return None  # it never had labels to learn from
    return logits_of(me, split, whole_network(me, cfg.dim))


def everyone_alone(parties: Sequence[str], holder: str, options: Local) -> dict[str, str]:
    return dict.fromkeys(parties, "alone")


METHOD = Method(
    name="local",
    summary="the floor: each labelled party alone, on its own features",
    options=Local,
    roles={"alone": Role(alone, alone_predict)},
    cast=everyone_alone,
    rows=RowRules(aligned=lambda options: False, everyone_labelled=lambda options: options.oracle),
    learning=Learning(
        tasks=("binary", "multiclass", "regression"),
        stops="alone",
        unprotected=lambda options: "sends nothing, so no label leaves its owner",
    ),
    about=About(title="Local", trained="one network each"),
)
