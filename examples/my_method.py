"""Sum of scores: every party scores rows by its own features, and the scores are added.

    every passive party k                     the active party 0
    1. s_k = f_k(x_k)                         1. s_0 = f_0(x_0)
    2. send s_k                          →    2. wait for every s_k, s = s_0 + … + s_K
    3. wait for dL/ds                    ←    3. L = loss of s; send dL/ds to everybody
    4. back-propagate, step                   4. step

A row has one score per class, or one where a number is predicted. With `model_options = { hidden =
[] }` this is logistic regression, or linear regression, over all parties' columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from colonnade import Batch, Kind, Learning, Method, Party, Peer, Role
from colonnade.models import network

SCORES = Kind("scores", ("batch", "classes"), reveals="the sender's features, through f_k")
GRADIENT = Kind("gradient", ("batch", "classes"), reveals="the labels: how far s is from them")


@dataclass(frozen=True)
class SumScores:
    shrink: float = 0.0  # keeps scores small; [sumscores] in a config file sets it


async def passive(me: Party, active: Peer, cfg: SumScores) -> None:
    model = scorer(me)
    optimizer = me.optimizer(model)
    for _ in me.epochs():
        for batch in me.batches():
            scores = model(batch.x)  # 1.
            active.send(SCORES, scores.detach())  # 2.
            gradient = await active.recv(GRADIENT)  # 3.
            optimizer.zero_grad()
            scores.backward(gradient)  # 4.
            optimizer.step()
        for split in me.evaluations:
            await passive_predict(me, active, cfg, split)


async def active(me: Party, passives: list[Peer], cfg: SumScores) -> None:
    optimizer = me.optimizer(scorer(me))
    for _ in me.epochs():
        for batch in me.batches():
            total = await summed(me, passives, batch)  # 1. and 2.
            total.retain_grad()
            loss = me.task.loss(total, batch) + cfg.shrink * total.square().mean()
            optimizer.zero_grad()
            loss.backward()
            for peer in passives:
                peer.send(GRADIENT, total.grad)  # 3.
            optimizer.step()  # 4.
            me.log(loss=loss)
        for split in me.evaluations:
            me.score(split, await active_predict(me, passives, cfg, split))


async def passive_predict(me: Party, active: Peer, cfg: SumScores, split: str) -> None:
    with me.evaluating():
        for batch in me.rows(split):
            active.send(SCORES, scorer(me)(batch.x))


async def active_predict(me: Party, passives: list[Peer], cfg: SumScores, split: str) -> Tensor:
    with me.evaluating():
        return torch.cat([await summed(me, passives, batch) for batch in me.rows(split)])


async def summed(me: Party, passives: list[Peer], batch: Batch) -> Tensor:
    own = scorer(me)(batch.x)
    return own + sum([await peer.recv(SCORES) for peer in passives])  # (batch, outputs)


def scorer(me: Party) -> nn.Module:
    options = {**me.recipe.model_options, "activated": False}  # scores may be negative
    return me.keep("scorer", lambda: network(me.recipe.model, me.shape, me.task.outputs, **options))


METHOD = Method(
    name="sumscores",
    summary="every party scores all rows, and the scores are added",
    options=SumScores,
    roles={"active": Role(active, active_predict), "passive": Role(passive, passive_predict)},
    kinds=(SCORES, GRADIENT),
    learning=Learning(tasks=("binary", "multiclass", "regression")),
)
