"""Centralised, the ceiling: one imagined party that holds all features and all labels.

    1. logits = head(embedding(x))      2. back-propagate, step

The same network family and recipe as the federation, on the data before it was split. No message
is sent; no real federation could run this.
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
class Centralised:
    """Options of centralised training."""

    # d, the width of the embedding before the decision layers.
    dim: Annotated[int, Bounds(least=1)] = 128


async def owner(me: Party, cfg: Centralised) -> None:
    model = whole_network(me, cfg.dim)
    optimizer = me.optimizer(model)
    for _ in me.epochs():
        for batch in me.batches():
            loss = me.task.loss(model(batch.x), batch)  # 1.
            optimizer.zero_grad()
            loss.backward()  # 2.
            optimizer.step()
            me.log(loss=loss)
        for split in me.evaluations:
            me.score(split, await owner_predict(me, cfg, split))
        stopping.decide(me)


async def owner_predict(me: Party, cfg: Centralised, split: str) -> Tensor:
    return logits_of(me, split, whole_network(me, cfg.dim))  # (rows, classes)


def one_owner(parties: Sequence[str], holder: str, options: Centralised) -> dict[str, str]:
    return dict.fromkeys(parties, "owner")


METHOD = Method(
    name="centralised",
    summary="the ceiling: one imagined party with all features and labels",
    options=Centralised,
    roles={"owner": Role(owner, owner_predict)},
    cast=one_owner,
    rows=RowRules(pooled=lambda options: True),
    learning=Learning(
        tasks=("binary", "multiclass", "regression"),
        stops="alone",
        unprotected=lambda options: "sends nothing, so no label leaves its owner",
    ),
    about=About(title="Centralised", trained="one network on the pooled data"),
)
