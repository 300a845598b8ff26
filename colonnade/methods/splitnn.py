"""Split learning (SplitVFL): bottoms at all parties, one top at the label holder.

Paper: Romanini et al., "PyVertical: A Vertical Federated Learning Framework for Multi-headed
SplitNN" (2021); with `cut = "concat"` and the same network everywhere this is their model.

    every passive party k                     the active party 0
    1. h_k = bottom_k(x_k)                    1. h_0 = bottom_0(x_0), where it has features
    2. send h_k                          →    2. wait for every h_k
                                              3. logits = top(cut(h_0, …, h_K))
                                              4. back-propagate, step
    5. wait for dL/dh_k                  ←    5. send dL/dh_k
    6. back-propagate, step

Two messages per batch and passive party. Evaluation and prediction send embeddings only.

An absent party gets and sends nothing. In place of its h_k stands, in every row, the mean of all
that it sent during training; nothing is learnt through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from colonnade.methods.parts.mean import Mean
from colonnade.models import network
from colonnade.role import stopping
from colonnade.role.method import About, Learning, Membership, Method, Role
from colonnade.role.party import Party
from colonnade.toml import Bounds
from colonnade.wire import Kind, Peer

EMBEDDING = Kind(
    "embedding",
    ("batch", "dim"),
    reveals="the sender's features, through h_k",
    carries="features",
)
GRADIENT = Kind(
    "gradient", ("batch", "dim"), reveals="the labels, through dL/dh_k", carries="labels"
)


@dataclass(frozen=True)
class SplitNN:
    """Options of split learning."""

    cut: Literal["concat", "sum", "mean"] = "concat"  # how embeddings meet
    dim: Annotated[int, Bounds(least=1)] = 128  # d, the width of every embedding
    hidden: Annotated[int, Bounds(least=0)] = (
        128  # width of the top's hidden layer; 0: a linear top
    )


async def passive(me: Party, active: Peer, cfg: SplitNN) -> None:
    bottom = bottom_of(me, cfg)
    optimizer = me.optimizer(bottom)
    for _ in me.epochs():
        for batch in me.batches():
            embedding = bottom(batch.x)  # 1. forward to the cut
            active.send(EMBEDDING, embedding.detach())  # 2. send the embedding
            gradient = await active.recv(GRADIENT)  # 5. wait for dL/dh
            optimizer.zero_grad()
            embedding.backward(gradient)  # 6. back-propagate, step
            optimizer.step()
        for split in me.evaluations:
            await passive_predict(me, active, cfg, split)
        await stopping.follow(me, active)


async def active(me: Party, passives: list[Peer], cfg: SplitNN) -> None:
    bottoms = [bottom_of(me, cfg)] if me.has_features else []
    top, means = top_of(me, len(passives), cfg), means_of(me, passives, cfg)
    optimizer = me.optimizer(*bottoms, top)
    for _ in me.epochs():
        for batch in me.batches():
            own = [bottom(batch.x) for bottom in bottoms]  # 1. forward to the cut
            received = await gather(passives, means, len(batch))  # 2. wait for every h_k
            for peer, mean, embedding in zip(passives, means, received, strict=True):
                if peer.present:
                    mean.add(embedding)
                    embedding.requires_grad_()
            loss = me.task.loss(top(join([*own, *received], cfg)), batch)  # 3. the loss
            optimizer.zero_grad()
            loss.backward()  # 4. back-propagate, step
            optimizer.step()
            for peer, leaf in zip(passives, received, strict=True):
                if leaf.grad is not None:  # what stands in for an absent party has none
                    peer.send(GRADIENT, leaf.grad)  # 5. send dL/dh_k
            me.log(loss=loss)
        for split in me.evaluations:
            me.score(split, await active_predict(me, passives, cfg, split))
        stopping.decide(me, passives)


async def passive_predict(me: Party, active: Peer, cfg: SplitNN, split: str) -> None:
    bottom = bottom_of(me, cfg)
    with me.evaluating():
        for batch in me.rows(split):
            active.send(EMBEDDING, bottom(batch.x))


async def active_predict(me: Party, passives: list[Peer], cfg: SplitNN, split: str) -> Tensor:
    bottoms = [bottom_of(me, cfg)] if me.has_features else []
    top, means = top_of(me, len(passives), cfg), means_of(me, passives, cfg)
    logits = []
    with me.evaluating():
        for batch in me.rows(split):
            own = [bottom(batch.x) for bottom in bottoms]
            received = await gather(passives, means, len(batch))
            logits.append(top(join([*own, *received], cfg)))
    return torch.cat(logits)  # (rows, classes)


async def gather(passives: list[Peer], means: Sequence[Mean], rows: int) -> list[Tensor]:
    """Every h_k in the order of the parties, (rows, d); the mean where one is absent."""
    return [
        await peer.recv(EMBEDDING) if peer.present else mean.value().expand(rows, -1)
        for peer, mean in zip(passives, means, strict=True)
    ]


def bottom_of(me: Party, cfg: SplitNN) -> nn.Module:
    """b_k: the party's own network, up to an embedding of width d."""
    return me.keep(
        "bottom", lambda: network(me.recipe.model, me.shape, cfg.dim, **me.recipe.model_options)
    )


def top_of(me: Party, passives: int, cfg: SplitNN) -> nn.Module:
    """FC → ReLU → FC over the joined embeddings."""
    width = cfg.dim * (passives + me.has_features) if cfg.cut == "concat" else cfg.dim
    if not cfg.hidden:
        return me.keep("top", lambda: nn.Linear(width, me.task.outputs))
    return me.keep(
        "top",
        lambda: nn.Sequential(
            nn.Linear(width, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, me.task.outputs)
        ),
    )


def means_of(me: Party, passives: Sequence[Peer], cfg: SplitNN) -> list[Mean]:
    """What stands in for each passive party; kept with the weights, but no optimiser sees it."""
    return [me.keep(f"mean of {peer.name}", lambda: Mean(cfg.dim)) for peer in passives]


def join(embeddings: Sequence[Tensor], cfg: SplitNN) -> Tensor:
    """Let the embeddings meet at the cut: (batch, C·d) side by side, else (batch, d)."""
    if cfg.cut == "concat":
        return torch.cat(list(embeddings), dim=1)
    total = torch.stack(list(embeddings)).sum(0)
    return total / len(embeddings) if cfg.cut == "mean" else total


METHOD = Method(
    name="splitnn",
    summary="split learning: bottoms at all parties, one top at the label holder",
    options=SplitNN,
    roles={
        "active": Role(
            active, active_predict, features=False, sends=lambda *_: (GRADIENT,), every_epoch=True
        ),
        "passive": Role(
            passive,
            passive_predict,
            sends=lambda *_: (EMBEDDING,),
            every_epoch=True,
            trains=lambda cfg, epochs: {"optimizer": epochs},
        ),
    },
    kinds=(EMBEDDING, GRADIENT),
    membership=Membership(absent=True),
    learning=Learning(
        tasks=("binary", "multiclass", "regression"),
        stops="together",
        unprotected=lambda options: "",
    ),
    about=About(
        title="SplitNN",
        trained="a split network",
        reference="Romanini et al., PyVertical, arXiv:2104.00489",
    ),
)
