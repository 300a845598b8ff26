"""AdptVFedConv: one convolutional network over images of which every party sees a tile.

Paper: "Adaptive Vertical Federated Learning via Feature Map Transferring in Mobile Edge
Computing". A VGG-16 is cut into a shallow extractor W_e and a deep classifier W_s. The active
party is the paper's server: it has the labels and a tile of its own.

    every passive party k (client)                the active party 1 (server)
                                                  1. train W_e^1 and a small classifier W_clst on
                                                     its own tile (Eq. 1); throw W_clst away
    2. W_e^k = W_e^1                         ←    2. send W_e^1, buffers included (Eq. 2)
    3. train W_e^k and a decoder W_g^k to
       reconstruct the tile (Eq. 3); freeze W_e^k
    4. send the maps H^k = W_e^k(tiles)      →    4. stitch all H^k by their places (Eq. 4)
                                                  5. train W_s on the stitched maps (Eq. 5)
    6. send the maps of the query            →    6. stitch them and predict with W_s

One upload, no gradient, no weights from the clients. Maps come in chunks, each when it is asked
for, so nobody holds more than one. Line 13 of the printed algorithm trains W_s on h^1 alone; that
is a misprint for the stitched maps of Eq. 5.

Training images are mirrored and shifted (data.flip, data.shift), although there is one upload;
methods/parts/views.py says how the values of `augment` do that. With `personalised` every client
that owns labels also trains a classifier on its own maps. With `inversion` the server tries to
reconstruct the clients' tiles (metrics/inversion.py); `noise`, from a client's secret, is its first
defence. An absent client sends nothing; the mean of its training maps stands in its slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade.data import Moves
from colonnade.methods.parts import tiles
from colonnade.methods.parts.participation import present
from colonnade.methods.parts.tiles import EXTRACTOR, PLACE, extract, extractor_of, frozen
from colonnade.methods.parts.uploads import (
    MAPS,
    NEXT,
    SCALE,
    Precision,
    Upload,
    add_stored,
    mean_of,
    noisy,
    stored_logits,
)
from colonnade.methods.parts.views import Augment, Views, check_views
from colonnade.metrics import inversion
from colonnade.models import vgg_decoder
from colonnade.partition import Mosaic
from colonnade.partition.mosaic import mirrored
from colonnade.role.batches import Batch
from colonnade.role.method import About, Learning, Membership, Method, Network, Role, RowRules
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer


@dataclass(frozen=True)
class AdptVFedConv:
    """Options of AdptVFedConv."""

    cut: tiles.Cut = "2C+1M"  # where the VGG-16 is cut: after two convolutions and one max-pool
    padding: tiles.Padding = "replicate"  # in W_e
    augment: Augment = "cached"
    views: int | None = None  # uploads of the training maps; 0: one every epoch; None: as usual
    upload_dtype: Precision = "float32"  # "int8": a scale per channel
    chunk: int = 500  # rows of maps in one message
    pretrain_epochs: int = 12  # of W_e^1 on the server's tile
    finetune_epochs: int = 5  # of W_e^k as an auto-encoder
    finetune_lr: float = 1e-5  # of W_e^k (§IV: 1e-5); without transfer it learns with decoder_lr
    decoder_lr: float = 1e-3  # of W_g^k (§IV: 1e-3)
    decoder: Literal["linear", "relu", "sigmoid"] = "linear"  # how W_g^k ends; printed: "relu"
    batchnorm: Literal["adapt", "frozen"] = "adapt"  # the statistics of W_e^k in step 3
    finetune_server: bool = False  # step 3 for W_e^1 as well, after it was sent
    transfer: bool = True  # False: the ablation without step 2
    personalised: bool = False  # clients with labels train a classifier of their own
    noise: float = 0.0  # σ of the Gaussian noise that clients add to their maps
    inversion: int = 0  # epochs of the server's attack; simulation only

    def __post_init__(self) -> None:
        low = {"views": 0, "chunk": 1, "pretrain_epochs": 0, "finetune_epochs": 0, "inversion": 0}
        for name, least in (low | {"finetune_lr": 0, "decoder_lr": 0, "noise": 0}).items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} = {value}: at least {least}")
        check_views(self.augment, self.views)


# ---- the clients ---------------------------------------------------------------------------------


async def passive(me: Party, active: Peer, cfg: AdptVFedConv) -> None:
    tiles.tell_place(me, active, cfg)
    me.pass_by("pretrain", cfg.pretrain_epochs)  # 1. is the server's
    for _ in me.epochs("transfer", 1):
        extractor = extractor_of(me, cfg)
        if cfg.transfer:
            tiles.adopt(extractor, await active.recv(EXTRACTOR), active)  # 2.
    fine_tune(me, cfg)  # 3.
    for _ in me.epochs("upload", 1):
        for name in evaluated(me):
            with me.evaluating():
                await passive_upload(me, active, cfg, name)
        for moves in Views.of(me, cfg.augment, cfg.views).uploads():
            await passive_upload(me, active, cfg, "train", moves)  # 4.
    personal = cfg.personalised and me.labelled
    if personal or Views.of(me, cfg.augment, cfg.views).streamed:
        await passive_epochs(me, active, cfg, personal)


async def passive_epochs(me: Party, active: Peer, cfg: AdptVFedConv, personal: bool) -> None:
    """5. While the server trains W_s: new maps for every batch, or a classifier of one's own."""
    streamed = Views.of(me, cfg.augment, cfg.views).streamed
    for _ in me.epochs():
        extractor = frozen(extractor_of(me, cfg))
        if personal:
            classifier = tiles.tile_classifier_of(me, "personal classifier", cfg)
            optimizer = me.optimizer(classifier)
        for batch in me.batches():
            with torch.no_grad():
                maps = extract(extractor, batch)
            if streamed:
                await active.recv(NEXT)
                upload_of(cfg).send(active, noisy(me, extractor, batch, maps, cfg.noise))  # 4.
            if personal:
                step(loss := me.task.loss(classifier(maps), batch), optimizer)
                me.log(personal_loss=loss)
        for name in me.evaluations if personal else []:
            me.score(name, tiles.logits_of(me, extractor, classifier, name), measure="personalised")


async def passive_upload(
    me: Party, active: Peer, cfg: AdptVFedConv, name: str, moves: Moves | None = None
) -> None:
    extractor = frozen(extractor_of(me, cfg))
    with torch.no_grad():
        for batch in me.rows(name, cfg.chunk, moves):
            await active.recv(NEXT)
            maps = noisy(me, extractor, batch, extract(extractor, batch), cfg.noise)
            upload_of(cfg).send(active, maps)


async def passive_predict(me: Party, active: Peer, cfg: AdptVFedConv, split: str) -> Tensor | None:
    tiles.tell_place(me, active, cfg)
    with me.evaluating():
        await passive_upload(me, active, cfg, split)  # 6.
    if not me.holds("personal classifier"):
        return None
    classifier = tiles.tile_classifier_of(me, "personal classifier", cfg)
    return tiles.logits_of(me, frozen(extractor_of(me, cfg)), classifier, split)


# ---- the server ----------------------------------------------------------------------------------


async def active(me: Party, passives: list[Peer], cfg: AdptVFedConv) -> None:
    mosaic = await tiles.mosaic_of(me, passives, cfg, one_extractor=True)
    if cfg.inversion:
        inversion.check(me)
    pretrain(me, cfg)  # 1.
    for _ in me.epochs("transfer", 1):
        weights = {k: v.clone() for k, v in extractor_of(me, cfg).state_dict().items()}
        for peer in present(passives) if cfg.transfer else []:
            peer.send(EXTRACTOR, weights)  # 2.
    if cfg.finetune_server:
        fine_tune(me, cfg)
    else:
        me.pass_by("finetune", cfg.finetune_epochs)  # 3. is the clients'
    plan = Views.of(me, cfg.augment, cfg.views)
    maps_of = partial(active_maps, me, passives, mosaic, cfg)
    for _ in me.epochs("upload", 1):
        mean = mean_of(me, mosaic, cfg)
        store = partial(upload_of(cfg).store, me, mean.total.shape, maps_of)
        for name in evaluated(me):
            with me.evaluating():
                me.shelf[name] = await store(name, [None])  # 4.
        if uploads := plan.uploads():
            me.shelf["train"] = await store("train", uploads)  # 4.
            add_stored(mean, me.shelf["train"][0], uploads[0])
    for epoch in me.epochs():
        classifier = tiles.classifier_of(me, mosaic, cfg)
        optimizer = me.optimizer(classifier)
        choice = plan.choose(epoch, mosaic.stride, me.device)
        for batch in me.batches():
            if plan.streamed:
                with torch.no_grad():
                    maps = await maps_of(batch)  # 4.
                if not epoch:  # of mirrored images, mirrored back: each map lies in its own slot
                    mean_of(me, mosaic, cfg).add(mirrored(maps, batch.flips))
            else:
                assert batch.rows is not None
                maps = choice.maps(me.shelf["train"], batch.rows)
            loss = me.task.loss(classifier(maps), batch)
            step(loss, optimizer)  # 5.
            me.log(loss=loss)
        for name in me.evaluations:
            me.score(name, stored_logits(me, classifier, me.shelf[name][0]))
    if cfg.inversion and "test" in me.shelf:
        invert(me, passives, mosaic, cfg)


def pretrain(me: Party, cfg: AdptVFedConv) -> None:
    """1. W_e^1 with W_clst, which only ever sees the server's tile (Eq. 1)."""
    for _ in me.epochs("pretrain", cfg.pretrain_epochs):
        extractor = extractor_of(me, cfg)
        classifier = tiles.tile_classifier_of(me, "tile classifier", cfg)
        optimizer = me.optimizer(extractor, classifier, name="pre-training")
        for batch in me.batches(shared=False):
            loss = me.task.loss(classifier(extract(extractor, batch)), batch)
            step(loss, optimizer)
            me.log(loss=loss)
        for name in me.evaluations:
            me.score(name, tiles.logits_of(me, extractor, classifier, name), measure="alone")
    me.drop("tile classifier", "pre-training")


async def active_maps(
    me: Party, passives: list[Peer], mosaic: Mosaic, cfg: AdptVFedConv, batch: Batch
) -> Tensor:
    """4. H = the stitched maps of one batch (Eq. 4), (batch, channels, height, width)."""
    there = present(passives)
    for peer in there:
        peer.send(NEXT, True)
    own = extract(frozen(extractor_of(me, cfg)), batch)  # H^1
    maps = [own, *await upload_of(cfg).receive(there, own, mosaic.slots[1:])]
    behind = None if len(there) == len(passives) else mean_of(me, mosaic, cfg).value()
    return mosaic.stitch(maps, behind, batch.flips)


async def active_predict(me: Party, passives: list[Peer], cfg: AdptVFedConv, split: str) -> Tensor:
    """6. Through the precision of stored maps, so that a query gets what it got in training."""
    mosaic = await tiles.mosaic_of(me, passives, cfg, one_extractor=True)
    classifier = tiles.classifier_of(me, mosaic, cfg)
    logits = []
    with me.evaluating():
        for batch in me.rows(split, cfg.chunk):
            maps = await active_maps(me, passives, mosaic, cfg, batch)
            logits.append(classifier(upload_of(cfg).as_stored(maps)))
    return torch.cat(logits)


def invert(me: Party, passives: list[Peer], mosaic: Mosaic, cfg: AdptVFedConv) -> None:
    """Attack the clients' test maps: W_e^k lies near W_e^1, so one decoder nearly fits both."""
    extractor = frozen(extractor_of(me, cfg))
    inversion.attack(
        me,
        [peer.name for peer in present(passives)],
        mosaic,
        me.shelf["test"][0],
        extract=partial(extract, extractor),
        decoder_for=lambda shape: vgg_decoder(extractor, shape, output=cfg.decoder),
        epochs=cfg.inversion,
        lr=cfg.decoder_lr,
        noise=cfg.noise,
    )


# ---- what both do --------------------------------------------------------------------------------


def fine_tune(me: Party, cfg: AdptVFedConv) -> None:
    """3. W_e^k as the first half of an auto-encoder, with a learning rate for each half (§IV)."""
    for _ in me.epochs("finetune", cfg.finetune_epochs):
        extractor = extractor_of(me, cfg)
        mirror = partial(vgg_decoder, extractor, tiles.tile_shape(me), output=cfg.decoder)
        decoder = me.keep("decoder", mirror)  # W_g^k
        # What was not transferred learns from scratch.
        rate = cfg.finetune_lr if cfg.transfer or me.role == "active" else cfg.decoder_lr
        halves = ((extractor, rate), (decoder, cfg.decoder_lr))
        groups = [{"params": list(half.parameters()), "lr": lr} for half, lr in halves]
        optimizer = me.keep("fine-tuning", partial(torch.optim.Adam, groups, fused=True))
        extractor.train(cfg.batchnorm == "adapt")
        for batch in me.batches(shared=False):
            loss = F.mse_loss(decoder(extract(extractor, batch)), batch.x)  # Eq. 3
            step(loss, optimizer)
            me.log(reconstruction=loss)
    me.drop("decoder", "fine-tuning")


def step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def evaluated(me: Party) -> list[str]:
    """The splits whose maps are uploaded with the training maps, and used after every epoch."""
    return [name for name in me.splits if name != "train"] if me.schedule.evaluate_every else []


def upload_of(cfg: AdptVFedConv) -> Upload:
    return Upload(cfg.upload_dtype, cfg.chunk)


def active_sends(cfg: AdptVFedConv, passives: int) -> list[Kind]:
    return [EXTRACTOR, NEXT] if cfg.transfer else [NEXT]


def passive_sends(cfg: AdptVFedConv, passives: int) -> list[Kind]:
    return [PLACE, *upload_of(cfg).kinds]


def simulated(cfg: AdptVFedConv) -> str:
    """What no protocol could do."""
    if cfg.augment == "oracle":
        return 'augment = "oracle" moves whole images before they are cut'
    return "inversion is scored with the clients' true tiles" if cfg.inversion else ""


METHOD = Method(
    name="adptvfedconv",
    summary="a VGG-16 over image tiles, by one upload of feature maps",
    options=AdptVFedConv,
    roles={
        "active": Role(
            active,
            active_predict,
            sends=active_sends,
            trains=lambda cfg, epochs: {"pre-training": cfg.pretrain_epochs},  # 1.
        ),
        "passive": Role(passive, passive_predict, sends=passive_sends),
    },
    kinds=(PLACE, EXTRACTOR, NEXT, SCALE, MAPS),
    rows=RowRules(everyone_labelled=lambda cfg: cfg.personalised),
    network=Network("vgg16", images=True, moved_whole=lambda cfg: cfg.augment == "oracle"),
    membership=Membership(absent=True),
    learning=Learning(
        unprotected=lambda options: (
            "hands an extractor down that is learnt from labels beside other trainings on them"
        ),
    ),
    simulated=simulated,
    about=About(
        title="AdptVFedConv",
        reference="Adaptive Vertical Federated Learning via Feature Map Transferring in Mobile "
        "Edge Computing",
        measures={
            "alone": "from the party's own tiles, before the others joined",
            "personalised": "by a classifier that the party trained for itself",
        },
    ),
)
