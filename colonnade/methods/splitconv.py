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

import torch
from torch import Tensor

from colonnade.methods.parts.tiles import (
    PLACE,
    Cut,
    Padding,
    check_maps,
    classifier_of,
    extract,
    extractor_of,
    mosaic_of,
    tell_place,
)
from colonnade.partition import Mosaic
from colonnade.role import stopping
from colonnade.role.method import About, Learning, Method, Network, Role
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

MAPS = Kind(
    "maps",
    ("batch", "channels", "height", "width"),
    reveals="the sender's tiles: a decoder gives them back, the better the earlier the cut",
    carries="features",
)
GRADIENT = Kind(
    "gradient",
    ("batch", "channels", "height", "width"),
    reveals="the labels, through dL/dH^k",
    carries="labels",
)


@dataclass(frozen=True)
class SplitConv:
    """Options of split learning over image tiles."""

    cut: Cut = "2C+1M"  # where the VGG-16 is cut: after two convolutions and one max-pool
    padding: Padding = "replicate"  # in W_e


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
        await stopping.follow(me, active)


async def active(me: Party, passives: list[Peer], cfg: SplitConv) -> None:
    mosaic = await mosaic_of(me, passives, cfg)
    extractor, classifier = extractor_of(me, cfg), classifier_of(me, mosaic, cfg)
    optimizer = me.optimizer(extractor, classifier)
    for _ in me.epochs():
        for batch in me.batches():
            own = extract(extractor, batch)  # 1.
            received = await received_maps(passives, own, mosaic)
            for leaf in received:
                leaf.requires_grad_()
            maps = mosaic.stitch([own, *received], flips=batch.flips)  # 2.
            loss = me.task.loss(classifier(maps), batch)
            optimizer.zero_grad()
            loss.backward()  # 3.
            optimizer.step()
            for peer, leaf in zip(passives, received, strict=True):
                assert leaf.grad is not None
                peer.send(GRADIENT, leaf.grad)  # 4.
            me.log(loss=loss)
        for name in me.evaluations:
            me.score(name, await active_logits(me, passives, mosaic, cfg, name))
        stopping.decide(me, passives)


def passive_maps(me: Party, active: Peer, cfg: SplitConv, name: str) -> None:
    with me.evaluating():
        for batch in me.rows(name):
            active.send(MAPS, extract(extractor_of(me, cfg), batch))


async def passive_predict(me: Party, active: Peer, cfg: SplitConv, split: str) -> None:
    tell_place(me, active, cfg)
    passive_maps(me, active, cfg, split)


async def active_predict(me: Party, passives: list[Peer], cfg: SplitConv, split: str) -> Tensor:
    mosaic = await mosaic_of(me, passives, cfg)
    return await active_logits(me, passives, mosaic, cfg, split)


async def active_logits(
    me: Party, passives: list[Peer], mosaic: Mosaic, cfg: SplitConv, name: str
) -> Tensor:
    extractor, classifier = extractor_of(me, cfg), classifier_of(me, mosaic, cfg)
    logits = []
    with me.evaluating():
        for batch in me.rows(name):
            own = extract(extractor, batch)
            received = await received_maps(passives, own, mosaic)
            logits.append(classifier(mosaic.stitch([own, *received])))
    return torch.cat(logits)  # (rows, classes)


async def received_maps(passives: list[Peer], own: Tensor, mosaic: Mosaic) -> list[Tensor]:
    slots = mosaic.slots[1:]
    return [
        check_maps(peer, await peer.recv(MAPS), own, slot)
        for peer, slot in zip(passives, slots, strict=True)
    ]


METHOD = Method(
    name="splitconv",
    summary="split learning over image tiles: maps up, gradients down, for every batch",
    options=SplitConv,
    roles={
        "active": Role(active, active_predict, sends=lambda *_: (GRADIENT,), every_epoch=True),
        "passive": Role(passive, passive_predict, sends=lambda *_: (PLACE, MAPS), every_epoch=True),
    },
    kinds=(PLACE, MAPS, GRADIENT),
    network=Network("vgg16", images=True),
    learning=Learning(stops="together", unprotected=lambda options: ""),
    about=About(
        title="SplitConv",
        reference="the counterpart of AdptVFedConv without its one-shot training",
    ),
)
