"""Compressed vertical federated learning (C-VFL): a split network on a few bits per number.

Paper: Castiglia et al., "Compressed-VFL: Communication-Efficient Learning with Vertically
Partitioned Data" (2022). C is the compressor, Q the number of local steps on every batch.

    every passive party k                     the active party 0, also the server
    1. h_k = bottom_k(x_k)                    1. h_0 = bottom_0(x_0), where it has features
    2. send C(h_k)                       →    2. wait for every C(h_k)
    3. shared: wait for the view         ←    3. shared: send the view, C(top) and C(h_j), j ≠ k
                                              4. Q steps of bottom_0 and top on the true loss,
                                                 with the C(h_k) as they came
    5. holder: wait for C(dL/dh_k)       ←    5. holder: send C(dL/dh_k) of the first such step
    6. Q steps of bottom_k

`labels = "shared"` is the published method: all parties hold the labels, so step 6 is on the true
loss, with C(top) and the C(h_j) as they came. With `labels = "holder"` passive parties need none:
step 6 is on Σ h_k · C(dL/dh_k), a linear loss whose gradient stays as it came.

A party computes only its own embedding again in every local step. Two messages per batch and
passive party. Evaluation and prediction send C(h_k) too, since the top was trained on it. The
paper's top-k chooses by gradient, which nobody has before the embedding is sent: ours by magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from colonnade.methods.parts.compression import Compressor, compressor, sent_by
from colonnade.models import network
from colonnade.role import stopping
from colonnade.role.batches import Batch
from colonnade.role.method import About, Learning, Method, Role, RowRules
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.toml import Bounds
from colonnade.wire import Kind, Peer, Value

EMBEDDING = Kind(
    "embedding",
    None,
    dtype="any",
    reveals="the sender's features, through C(h_k)",
    about="batch",
    carries="features",
)
GRADIENT = Kind(
    "gradient",
    None,
    dtype="any",
    reveals="the labels, through C(dL/dh_k)",
    about="batch",
    carries="labels",
)
VIEW = Kind(  # the top is told at every step: counted as of the batch
    "view",
    None,
    dtype="any",
    reveals="the top and all others' features, through C(h_j)",
    about="batch",
    carries="features",
)


@dataclass(frozen=True)
class CVFL:
    """Options of compressed vertical federated learning."""

    compressor: Literal["scalar", "lattice", "topk", "none"] = "scalar"  # C
    bits: Annotated[int, Bounds(least=2, most=8)] = (
        3  # b per coordinate; the paper tries 2, 3 and 4
    )
    local_steps: Annotated[int, Bounds(least=1)] = 1  # Q
    labels: Literal["holder", "shared"] = "holder"  # who has them
    compress_gradient: bool = True  # labels = "holder": also what comes back
    dim: Annotated[int, Bounds(least=1)] = 128  # d, the width of every embedding
    hidden: Annotated[int, Bounds(least=0)] = (
        128  # width of the top's hidden layer; 0: a linear top
    )


async def passive(me: Party, active: Peer, cfg: CVFL) -> None:
    bottom = bottom_of(me, cfg)
    optimizer = me.optimizer(bottom)
    pack, pack_gradient = compressors(cfg)
    for _ in me.epochs():
        for batch in me.batches():
            embedding = bottom(batch.x)  # 1. forward to the cut
            active.send(EMBEDDING, pack.compress(embedding, dither(me, me.name)))  # 2. send C(h)
            if cfg.labels == "shared":
                view = await active.recv(VIEW)  # 3. wait for C(top) and C(h_j)
                loss_of = true_loss(me, view, active.name, batch, cfg)
            else:
                came = await active.recv(GRADIENT)  # 5. wait for C(dL/dh)
                seed = dither(me, active.name, me.name)
                with sent_by(active.name):
                    loss_of = linear_loss(pack_gradient.decompress(came, embedding.shape, seed))
            for step in range(cfg.local_steps):  # 6. Q steps
                optimizer.zero_grad()
                loss_of(bottom(batch.x) if step else embedding).backward()
                optimizer.step()
        for split in me.evaluations:
            await passive_predict(me, active, cfg, split)
        await stopping.follow(me, active)


async def active(me: Party, passives: list[Peer], cfg: CVFL) -> None:
    bottoms = {me.name: bottom_of(me, cfg)} if me.has_features else {}
    top = top_of(me, len(passives), cfg)
    optimizer = me.optimizer(*bottoms.values(), top)
    pack, pack_gradient = compressors(cfg)
    for _ in me.epochs():
        for batch in me.batches():
            own = {name: bottom(batch.x) for name, bottom in bottoms.items()}  # 1. to the cut
            came = {peer.name: await peer.recv(EMBEDDING) for peer in passives}  # 2. every C(h_k)
            shape = (len(batch), cfg.dim)
            others = {}
            for name, coded in came.items():
                with sent_by(name):
                    others[name] = pack.decompress(coded, shape, dither(me, name))
            if cfg.labels == "shared":
                send_views(me, passives, own, came, top, pack)  # 3. send C(top) and C(h_j)
            for step in range(cfg.local_steps):  # 4. Q steps
                if step:
                    own = {name: bottom(batch.x) for name, bottom in bottoms.items()}
                elif cfg.labels == "holder":
                    others = {name: leaf.requires_grad_() for name, leaf in others.items()}
                loss = me.task.loss(top(joined(own | others, cfg)), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step == 0:
                    me.log(loss=loss)
                    if cfg.labels == "holder":
                        send_gradients(me, passives, others, pack_gradient)  # 5. send C(dL/dh_k)
                    others = {name: leaf.detach() for name, leaf in others.items()}
        for split in me.evaluations:
            me.score(split, await active_predict(me, passives, cfg, split))
        stopping.decide(me, passives)


async def passive_predict(me: Party, active: Peer, cfg: CVFL, split: str) -> None:
    bottom = bottom_of(me, cfg)
    pack, _ = compressors(cfg)
    with me.evaluating():
        for number, batch in enumerate(me.rows(split)):
            seed = evaluation_dither(me, me.name, number)
            active.send(EMBEDDING, pack.compress(bottom(batch.x), seed))


async def active_predict(me: Party, passives: list[Peer], cfg: CVFL, split: str) -> Tensor:
    bottoms = {me.name: bottom_of(me, cfg)} if me.has_features else {}
    top = top_of(me, len(passives), cfg)
    pack, _ = compressors(cfg)
    logits = []
    with me.evaluating():
        for number, batch in enumerate(me.rows(split)):
            embeddings = {name: bottom(batch.x) for name, bottom in bottoms.items()}
            for peer in passives:
                came, seed = await peer.recv(EMBEDDING), evaluation_dither(me, peer.name, number)
                with sent_by(peer.name):
                    embeddings[peer.name] = pack.decompress(came, (len(batch), cfg.dim), seed)
            logits.append(top(joined(embeddings, cfg)))
    return torch.cat(logits)  # (rows, classes)


# ---- what a step computes ------------------------------------------------------------------------


def linear_loss(gradient: Tensor) -> Callable[[Tensor], Tensor]:
    """Σ h · g: its gradient is g, whatever h has become."""
    return lambda embedding: (embedding * gradient).sum()


def true_loss(
    me: Party, view: Mapping[str, Mapping[str, Value]], server: str, batch: Batch, cfg: CVFL
) -> Callable[[Tensor], Tensor]:
    """The loss as a function of this party's embedding, all else as the server sent it."""
    pack, _ = compressors(cfg)
    shape = (len(batch), cfg.dim)
    with sent_by(server):
        coded = view["embeddings"].items()
        others = {n: pack.decompress(c, shape, dither(me, n)) for n, c in coded}
        with torch.device("meta"):  # the form of the top alone; its numbers come from the server
            top = make_top(cfg.dim * (len(others) + 1), me.task.outputs, cfg)
        weights = {
            name: pack.decompress(view["top"][name], weight.shape, dither(me, server, name))
            for name, weight in top.named_parameters()
        }

    def loss(embedding: Tensor) -> Tensor:
        together = joined({me.name: embedding} | others, cfg)
        return me.task.loss(functional_call(top, weights, (together,)), batch)

    return loss


def send_gradients(
    me: Party, passives: list[Peer], leaves: Mapping[str, Tensor], pack: Compressor
) -> None:
    for peer in passives:
        gradient = leaves[peer.name].grad
        assert gradient is not None
        peer.send(GRADIENT, pack.compress(gradient, dither(me, me.name, peer.name)))


def send_views(
    me: Party,
    passives: list[Peer],
    own: Mapping[str, Tensor],
    came: Mapping[str, Value],
    top: nn.Module,
    pack: Compressor,
) -> None:
    """To every passive party C(top), and C(h_j) of all others as they came."""
    weights = {
        name: pack.compress(weight, dither(me, me.name, name))
        for name, weight in top.named_parameters()
    }
    packed = {name: pack.compress(embedding, dither(me, name)) for name, embedding in own.items()}
    for peer in passives:
        others = {n: c for n, c in {**packed, **came}.items() if n != peer.name}
        peer.send(VIEW, {"top": weights, "embeddings": others})


def joined(embeddings: Mapping[str, Tensor], cfg: CVFL) -> Tensor:
    """(batch, C·d): side by side; where all parties must agree on an order, by name."""
    names = sorted(embeddings) if cfg.labels == "shared" else list(embeddings)
    return torch.cat([embeddings[name] for name in names], dim=1)


def compressors(cfg: CVFL) -> tuple[Compressor, Compressor]:
    """C for embeddings and the top, and C for gradients."""
    pack = compressor(cfg.compressor, cfg.bits)
    return pack, pack if cfg.compress_gradient else compressor("none", cfg.bits)


def dither(me: Party, sender: str, what: str = "") -> int:
    """The seed of a message's dither: both ends know it, and a resumed run finds it again."""
    return derive(me.schedule.seed, "dither", *me.position, sender, what)


def evaluation_dither(me: Party, sender: str, number: int) -> int:
    """The same at every evaluation, so that a later prediction repeats the last one."""
    return derive(me.schedule.seed, "dither", "evaluation", number, sender)


def bottom_of(me: Party, cfg: CVFL) -> nn.Module:
    """b_k: the party's own network, up to an embedding of width d."""
    return me.keep(
        "bottom", lambda: network(me.recipe.model, me.shape, cfg.dim, **me.recipe.model_options)
    )


def top_of(me: Party, passives: int, cfg: CVFL) -> nn.Module:
    width = cfg.dim * (passives + me.has_features)
    return me.keep("top", lambda: make_top(width, me.task.outputs, cfg))


def make_top(width: int, classes: int, cfg: CVFL) -> nn.Module:
    """FC → ReLU → FC over the joined embeddings, as in a split network."""
    if not cfg.hidden:
        return nn.Linear(width, classes)
    return nn.Sequential(nn.Linear(width, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, classes))


METHOD = Method(
    name="cvfl",
    summary="compressed VFL: split learning on quantised embeddings, with several local steps",
    options=CVFL,
    roles={
        "active": Role(
            active,
            active_predict,
            features=False,
            sends=lambda cfg, _: (GRADIENT if cfg.labels == "holder" else VIEW,),
            every_epoch=True,
        ),
        "passive": Role(passive, passive_predict, sends=lambda *_: (EMBEDDING,), every_epoch=True),
    },
    kinds=(EMBEDDING, GRADIENT, VIEW),
    rows=RowRules(everyone_labelled=lambda options: options.labels == "shared"),
    learning=Learning(
        tasks=("binary", "multiclass", "regression"),
        stops="together",
        unprotected=lambda options: (
            "with labels = 'shared' gives all parties the labels"
            if options.labels == "shared"
            else ""
        ),
    ),
    about=About(
        title="C-VFL",
        trained="a split network with compressed embeddings",
        reference="Castiglia et al., Compressed-VFL, arXiv:2206.08330",
    ),
)
