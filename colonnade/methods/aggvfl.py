"""Prediction aggregation (aggVFL): every party classifies alone, the label holder averages.

Paper: Zhang et al., "Adaptive Vertical Federated Learning on Unbalanced Features" (2022), who let
every party take its own number of local updates; here that number n_k is an option, not solved for.

    every passive party k                     the active party 0
    1. o_k = p_k(h_k(x_k))                    1. o_0 = p_0(h_0(x_0)), where it has features
    2. send o_k                          →    2. wait for every o_k
                                              3. o = mean or sum of all o_k; L = loss(o, Y)
                                              4. back-propagate, step
    5. wait for dL/do_k                  ←    5. send dL/do_k
    6. back-propagate, step                   6. with n_0 > 1: n_0 − 1 further steps on the
    7. with n_k > 1: n_k − 1 further steps       true loss, the other o_k as they came
       on Σ o_k · dL/do_k, a linear loss
       with dL/do_k as it came

The loss needs labels, so a passive party holds dL/do_k fixed over its further steps. There is no
top to train. Two messages per batch and passive party. Evaluation and prediction send scores only;
the scores of every party alone are reported beside the aggregate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from colonnade.errors import ConfigError, unknown
from colonnade.methods.parts.scoring import whole_network
from colonnade.metrics.leakage import label_leak
from colonnade.role import stopping
from colonnade.role.method import About, Learning, Method, Role, active_and_passives
from colonnade.role.party import Party
from colonnade.toml import Bounds
from colonnade.wire import Kind, Peer

SCORES = Kind(
    "scores",
    ("batch", "classes"),
    reveals="what the sender alone would predict",
    carries="features",
)
GRADIENT = Kind(
    "gradient",
    ("batch", "classes"),
    reveals="the labels: softmax minus one-hot, or twice the error",
    carries="labels",
)


@dataclass(frozen=True)
class AggVFL:
    """Options of prediction aggregation."""

    aggregate: Literal["mean", "sum"] = "mean"  # how the scores meet
    # d, the width of every embedding before the decision layers.
    dim: Annotated[int, Bounds(least=1)] = 128
    # n_k, updates per batch of every party that local_steps does not name.
    steps: Annotated[int, Bounds(least=1)] = 1
    # n_k of single parties.
    local_steps: Mapping[str, Annotated[int, Bounds(least=1)]] = field(default_factory=dict)

    @property
    def calmer(self) -> list[str]:
        """What helps against a training that diverges: every party steps for the whole error, so
        that K parties together go K times too far, and farther with every further step."""
        return ['aggregate = "mean"'] if self.aggregate == "sum" else []

    def further(self, party: str) -> range:
        """The updates of a party after its first one on a batch."""
        return range(1, self.local_steps.get(party, self.steps))


async def passive(me: Party, active: Peer, cfg: AggVFL) -> None:
    model = whole_network(me, cfg.dim)
    optimizer = me.optimizer(model)
    me.checks.remedies += cfg.calmer
    for _ in me.epochs():
        for batch in me.batches():
            scores = model(batch.x)  # 1. class scores from its own embedding
            active.send(SCORES, scores.detach())  # 2. send them
            gradient = await active.recv(GRADIENT)  # 5. wait for dL/do
            optimizer.zero_grad()
            scores.backward(gradient)  # 6. back-propagate, step
            optimizer.step()
            for _ in cfg.further(me.name):  # 7. further steps, dL/do as it came
                optimizer.zero_grad()
                model(batch.x).backward(gradient)
                optimizer.step()
        for split in me.evaluations:
            await passive_predict(me, active, cfg, split)
        await stopping.follow(me, active)


async def active(me: Party, passives: list[Peer], cfg: AggVFL) -> None:
    models = [whole_network(me, cfg.dim)] if me.has_features else []
    optimizers = [me.optimizer(model) for model in models]
    me.checks.remedies += cfg.calmer
    for _ in me.epochs():
        for batch in me.batches():
            own = [model(batch.x) for model in models]  # 1. class scores from its own embedding
            received = [await peer.recv(SCORES) for peer in passives]  # 2. wait for every o_k
            leaves = [scores.requires_grad_() for scores in received]
            loss = me.task.loss(aggregated([*own, *leaves], cfg), batch)  # 3. the loss
            update(loss, optimizers)  # 4. back-propagate, step
            for peer, leaf in zip(passives, leaves, strict=True):
                peer.send(GRADIENT, leaf.grad)  # 5. send dL/do_k
            stale = [leaf.detach() for leaf in leaves]
            for _ in cfg.further(me.name) if models else ():  # 6. further steps, o_k as they came
                own = [model(batch.x) for model in models]
                again = me.task.loss(aggregated([*own, *stale], cfg), batch)
                update(again, optimizers)
            me.log(loss=loss)
            # Once per epoch, of classes: it is the same in every batch.
            if me.position[2] == 0 and me.task.classes:
                me.log(label_leak=label_leak([leaf.grad for leaf in leaves], batch.labels))
        for split in me.evaluations:
            scores_of = await gathered(me, passives, cfg, split)
            me.score(split, aggregated(scores_of.values(), cfg))
            for name, scores in scores_of.items():
                me.score(split, scores, of=name, measure="alone")
        stopping.decide(me, passives)


async def passive_predict(me: Party, active: Peer, cfg: AggVFL, split: str) -> None:
    model = whole_network(me, cfg.dim)
    with me.evaluating():
        for batch in me.rows(split):
            active.send(SCORES, model(batch.x))


async def active_predict(me: Party, passives: list[Peer], cfg: AggVFL, split: str) -> Tensor:
    return aggregated((await gathered(me, passives, cfg, split)).values(), cfg)


async def gathered(
    me: Party, passives: list[Peer], cfg: AggVFL, split: str
) -> dict[str, Tensor]:  # party: (rows, classes)
    """The scores of every party for all rows of a split."""
    models = [whole_network(me, cfg.dim)] if me.has_features else []
    parts: dict[str, list[Tensor]] = {}
    with me.evaluating():
        for batch in me.rows(split):
            for model in models:
                parts.setdefault(me.name, []).append(model(batch.x))
            for peer in passives:
                parts.setdefault(peer.name, []).append(await peer.recv(SCORES))
    return {name: torch.cat(some) for name, some in parts.items()}


def aggregated(scores: Iterable[Tensor], cfg: AggVFL) -> Tensor:
    """o: the scores of all parties as one, (batch, classes)."""
    stacked = torch.stack(list(scores))
    return stacked.mean(0) if cfg.aggregate == "mean" else stacked.sum(0)


def update(loss: Tensor, optimizers: list[torch.optim.Optimizer]) -> None:
    """One step of the active party, which has nothing to train where it brings labels only."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def known_parties(parties: Sequence[str], holder: str, options: AggVFL) -> dict[str, str]:
    """The usual cast, if local_steps names nobody else."""
    strangers = [name for name in options.local_steps if name not in parties]
    if strangers:
        where = "in aggvfl.local_steps"
        raise ConfigError([unknown(name, parties, where, "party") for name in strangers])
    return active_and_passives(parties, holder, options)


METHOD = Method(
    name="aggvfl",
    summary="prediction aggregation: every party's own class scores, averaged at the label holder",
    options=AggVFL,
    roles={
        "active": Role(
            active, active_predict, features=False, sends=lambda *_: (GRADIENT,), every_epoch=True
        ),
        "passive": Role(passive, passive_predict, sends=lambda *_: (SCORES,), every_epoch=True),
    },
    kinds=(SCORES, GRADIENT),
    cast=known_parties,
    learning=Learning(
        tasks=("binary", "multiclass", "regression"),
        stops="together",
        unprotected=lambda options: "",
    ),
    about=About(
        title="Agg-VFL",
        trained="networks whose predictions are averaged",
        reference="Zhang et al., Adaptive Vertical Federated Learning on Unbalanced Features, "
        "IEEE Transactions on Parallel and Distributed Systems 33(12), 2022",
        measures={"alone": "by the party's own scores, before they are averaged"},
    ),
)
