"""Split learning over image tiles: one VGG-16, trained end to end across the parties.

The same network, cut and tiles as AdptVFedConv, without its one-shot training: what that costs,
and what it saves.

    every passive party k                     the active party 1
    1. H^k = W_e^k(tile)                 →    1. H^1 = W_e^1(tile)
                                              2. stitch all H^k by their places
                                              3. L = loss(W_s(H), Y); back-propagate, step
    4. wait for dL/dH^k                  ←    4. send dL/dH^k
    5. back-propagate, step

Two messages per batch and passive party. Every extractor is its own. Images are mirrored and
shifted alike at all parties (data.flip, data.shift): mirrored tiles change their slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import MethodError
from colonnade.models import EVERYWHERE, Sides, pools, split, tell_flips, vgg16
from colonnade.partition import Mosaic, View, margin
from colonnade.role.batches import Batch
from colonnade.role.method import About, Method, Network, Role
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

PLACE = Kind("place", (7,), dtype="int64", reveals="where the sender's tile lies in the image")
MAPS = Kind(
    "maps",
    ("batch", "channels", "height", "width"),
    reveals="the sender's tiles: a decoder gives them back, the better the earlier the cut",
)
GRADIENT = Kind(
    "gradient",
    ("batch", "channels", "height", "width"),
    reveals="the labels, through dL/dH^k",
)

Cut = Literal[
    "1C", "2C", "2C+1M", "3C+1M", "4C+1M", "4C+2M", "5C+2M", "6C+2M", "7C+2M", "7C+3M"
]  # fmt: skip


@dataclass(frozen=True)
class SplitConv:
    """Options of split learning over image tiles."""

    cut: Cut = "2C+1M"  # where the VGG-16 is cut: after two convolutions and one max-pool
    padding: Literal["replicate", "zeros", "replicate-at-cuts"] = "replicate"  # in W_e


async def passive(me: Party, active: Peer, cfg: SplitConv) -> None:
    tell_place(me, active, cfg)
    extractor = extractor_of(me, cfg)
    optimizer = me.optimizer(extractor)
    for _ in me.epochs():
        for batch in me.batches():
            maps = extract(extractor, batch)
            active.send(MAPS, maps.detach())  # 1.
            gradient = await active.recv(GRADIENT)  # 4.
            optimizer.zero_grad()
            maps.backward(gradient)  # 5.
            optimizer.step()
        for name in me.evaluations:
            passive_maps(me, active, cfg, name)


async def active(me: Party, passives: list[Peer], cfg: SplitConv) -> None:
    mosaic = await active_mosaic(me, passives, cfg)
    extractor, classifier = extractor_of(me, cfg), classifier_of(me, mosaic, cfg)
    optimizer = me.optimizer(extractor, classifier)
    for _ in me.epochs():
        for batch in me.batches():
            own = extract(extractor, batch)  # 1.
            received = [(await peer.recv(MAPS)).requires_grad_() for peer in passives]
            maps = mosaic.stitch([own, *received], flips=batch.flips)  # 2.
            loss = F.cross_entropy(classifier(maps), batch.labels)
            optimizer.zero_grad()
            loss.backward()  # 3.
            optimizer.step()
            for peer, leaf in zip(passives, received, strict=True):
                peer.send(GRADIENT, leaf.grad)  # 4.
            me.log(loss=loss)
        for name in me.evaluations:
            me.score(name, await active_logits(me, passives, mosaic, cfg, name))


def passive_maps(me: Party, active: Peer, cfg: SplitConv, name: str) -> None:
    with me.evaluating():
        for batch in me.rows(name):
            active.send(MAPS, extract(extractor_of(me, cfg), batch))


async def passive_predict(me: Party, active: Peer, cfg: SplitConv, split: str) -> None:
    tell_place(me, active, cfg)
    passive_maps(me, active, cfg, split)


async def active_predict(me: Party, passives: list[Peer], cfg: SplitConv, split: str) -> Tensor:
    mosaic = await active_mosaic(me, passives, cfg)
    return await active_logits(me, passives, mosaic, cfg, split)


async def active_logits(
    me: Party, passives: list[Peer], mosaic: Mosaic, cfg: SplitConv, name: str
) -> Tensor:
    extractor, classifier = extractor_of(me, cfg), classifier_of(me, mosaic, cfg)
    logits = []
    with me.evaluating():
        for batch in me.rows(name):
            maps = [extract(extractor, batch), *[await peer.recv(MAPS) for peer in passives]]
            logits.append(classifier(mosaic.stitch(maps)))
    return torch.cat(logits)  # (rows, classes)


async def active_mosaic(me: Party, passives: list[Peer], cfg: SplitConv) -> Mosaic:
    """Where everybody's map lies: each passive party says where its tile does."""
    own = place_of(me, cfg)
    views = [own]
    for peer in passives:
        place: Tensor = await peer.recv(PLACE)
        view = View.of(place.tolist()[1:])
        if (view.height, view.width) != (own.height, own.width):
            raise MethodError(
                f"'{peer.name}' has tiles of images of {view.height}×{view.width}, '{me.name}' of "
                f"{own.height}×{own.width}: they cannot be put together"
            )
        views.append(view)
    return Mosaic(tuple(views), 2 ** pools(cfg.cut))


def place_of(me: Party, cfg: SplitConv) -> View:
    """What this party sees; from now on its tiles are enlarged to whole cells of the map."""
    assert me.view is not None
    me.margin = margin(me.view, 2 ** pools(cfg.cut))
    return me.view


def tell_place(me: Party, active: Peer, cfg: SplitConv) -> None:
    active.send(PLACE, torch.tensor([me.shape[0], *place_of(me, cfg).numbers()]))


def extract(extractor: nn.Module, batch: Batch) -> Tensor:
    """H = W_e(x), (batch, channels, height, width)."""
    tell_flips(extractor, batch.flips)
    maps: Tensor = extractor(batch.x)
    return maps


def extractor_of(me: Party, cfg: SplitConv) -> nn.Sequential:
    """W_e^k: the VGG-16 up to the cut."""
    assert me.view is not None
    sides: dict[str, Literal["zeros"] | Sides] = {
        "zeros": "zeros",
        "replicate": EVERYWHERE,
        "replicate-at-cuts": me.view.cuts,
    }

    def make() -> nn.Sequential:
        left, right, top, bottom = me.margin
        channels, height, width = me.shape
        shape = (channels, top + height + bottom, left + width + right)
        options = {**me.recipe.model_options, "padding": sides[cfg.padding], "fc": ()}
        return split(vgg16(shape, 1, **options), cfg.cut)[0]

    return me.keep("extractor", make)


def classifier_of(me: Party, mosaic: Mosaic, cfg: SplitConv) -> nn.Sequential:
    """W_s: the rest of the VGG-16, for whole images."""

    def make() -> nn.Sequential:
        shape = (me.shape[0], mosaic.height * mosaic.stride, mosaic.width * mosaic.stride)
        whole = vgg16(shape, len(me.classes), activated=False, **me.recipe.model_options)
        return split(whole, cfg.cut)[1]

    return me.keep("classifier", make)


METHOD = Method(
    name="splitconv",
    summary="split learning over image tiles: maps up, gradients down, for every batch",
    options=SplitConv,
    roles={
        "active": Role(active, active_predict, sends=lambda *_: (GRADIENT,)),
        "passive": Role(passive, passive_predict, sends=lambda *_: (PLACE, MAPS)),
    },
    kinds=(PLACE, MAPS, GRADIENT),
    network=Network("vgg16", images=True),
    about=About(
        title="SplitConv",
        reference="the counterpart of AdptVFedConv without its one-shot training",
    ),
)
