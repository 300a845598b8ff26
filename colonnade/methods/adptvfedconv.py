"""AdptVFedConv: one convolutional network over images of which every party sees a tile.

Paper: "Adaptive Vertical Federated Learning via Feature Map Transferring in Mobile Edge
Computing". A VGG-16 is cut into a shallow extractor W_e and a deep classifier W_s. The active
party is the paper's server: it has the labels and a tile of its own.

    every passive party k (client)                the active party 1 (server)
                                                  1. train W_e^1 and a small classifier on its own
                                                     tile (Eq. 1); the classifier is thrown away
    2. W_e^k = W_e^1                         ←    2. send W_e^1, buffers included (Eq. 2)
    3. train W_e^k and a decoder to give the
       tile back (Eq. 3); freeze W_e^k
    4. send the maps H^k = W_e^k(tiles)      →    4. stitch all H^k by their places (Eq. 4)
                                                  5. train W_s on the stitched maps (Eq. 5)

One upload, no gradient, no weights from the clients. To predict, every party sends the maps of
the query. Maps come in chunks, each when it is asked for, so nobody holds more than one.

Training images are mirrored and shifted (data.flip, data.shift), and one upload is not many:

    cached       upload once. With views = 2 also the maps of mirrored tiles; a random one of the
                 views is shifted, cell by cell, after it was stitched. With views = 1 the
                 stitched map is mirrored instead. Further views are mirrored and shifted tiles.
    consistent   every party moves its own tile in the same way, from a common seed; mirrored
                 tiles change their slots. New maps every epoch, or `views` of them, once.
    oracle       whole images are moved, then cut: pixels cross between the parties. What the
                 paper's accuracy needs; no protocol can do it, only a simulation.

With `personalised` every client that owns labels also trains a classifier on its own maps.
`inversion` lets the server try to give the clients' tiles back from their maps, with a decoder
that it trains on its own; `noise` is the clients' first defence.

An absent client sends nothing; the mean of its training maps stands in its slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.data import Moves
from colonnade.errors import MethodError
from colonnade.models import EVERYWHERE, Sides, pools, split, tell_flips, vgg16, vgg_decoder
from colonnade.partition import Mosaic, View, margin
from colonnade.partition.mosaic import mirrored
from colonnade.role.batches import Batch
from colonnade.role.method import About, Membership, Method, Network, Role, RowRules
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.wire import Kind, Peer

PLACE = Kind("place", (7,), dtype="int64", reveals="where the sender's tile lies in the image")
EXTRACTOR = Kind("extractor", None, dtype="any", reveals="W_e^1, and through it the server's tile")
NEXT = Kind("next", None, reveals="nothing: it asks for the next maps", paces=True)
SCALE = Kind("scale", ("channels",), reveals="the largest value in each channel of some maps")
MAPS = Kind(
    "maps",
    ("batch", "channels", "height", "width"),
    dtype="any",
    reveals="the sender's tiles: a decoder gives them back, the better the earlier the cut",
)

Cut = Literal[
    "1C", "2C", "2C+1M", "3C+1M", "4C+1M", "4C+2M", "5C+2M", "6C+2M", "7C+2M", "7C+3M"
]  # fmt: skip
EXHIBITED = 1000  # reconstructed test tiles of each client


@dataclass(frozen=True)
class AdptVFedConv:
    """Options of AdptVFedConv."""

    cut: Cut = "2C+1M"  # where the VGG-16 is cut: after two convolutions and one max-pool
    padding: Literal["replicate", "zeros", "replicate-at-cuts"] = "replicate"  # in W_e
    augment: Literal["cached", "consistent", "oracle", "none"] = "cached"
    views: int | None = None  # uploads of the training maps; 0: one every epoch; None: as usual
    upload_dtype: Literal["float32", "float16", "int8"] = "float32"  # "int8": a scale per channel
    chunk: int = 500  # rows of maps in one message
    pretrain_epochs: int = 12  # of W_e^1 on the server's tile
    finetune_epochs: int = 5  # of W_e^k as an auto-encoder
    finetune_lr: float = 1e-5  # of W_e^k (§IV: 1e-5); without transfer it learns with decoder_lr
    decoder_lr: float = 1e-3  # of its decoder (§IV: 1e-3)
    decoder: Literal["linear", "relu", "sigmoid"] = "linear"  # how it ends (spec 1.8, 4)
    batchnorm: Literal["adapt", "frozen"] = "adapt"  # statistics while fine-tuning (spec 1.8, 5)
    finetune_server: bool = False  # W_e^1 is fine-tuned as well, after it was sent (spec 1.8, 6)
    transfer: bool = True  # False: the ablation without step 2
    personalised: bool = False  # clients with labels train a classifier of their own
    noise: float = 0.0  # σ of the Gaussian noise that clients add to their maps
    inversion: int = 0  # epochs of the server's attack; simulation only

    def __post_init__(self) -> None:
        low = {"views": 0, "chunk": 1, "pretrain_epochs": 0, "finetune_epochs": 0, "inversion": 0}
        for name, least in low.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} = {value}: at least {least}")
        for name in ("finetune_lr", "decoder_lr", "noise"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: at least 0")
        if self.views == 0 and self.augment in ("cached", "none"):
            raise ValueError(f'views = 0: augment = "{self.augment}" uploads once; give at least 1')
        if self.views and self.augment == "oracle":
            raise ValueError(f'views = {self.views}: augment = "oracle" uploads every epoch')
        if (self.views or 0) > 1 and self.augment == "none":
            raise ValueError(f'views = {self.views}: augment = "none" has one')


# ---- the clients ---------------------------------------------------------------------------------


async def passive(me: Party, active: Peer, cfg: AdptVFedConv) -> None:
    tell_place(me, active, cfg)
    me.pass_by("pretrain", cfg.pretrain_epochs)
    for _ in me.epochs("transfer", 1):
        extractor = extractor_of(me, cfg)
        if cfg.transfer:
            adopt(me, extractor, await active.recv(EXTRACTOR))  # 2.
    fine_tune(me, cfg)  # 3.
    for _ in me.epochs("upload", 1):
        for name in evaluated(me):
            with me.evaluating():
                await passive_upload(me, active, cfg, name)
        for moves in views_of(me, cfg):
            await passive_upload(me, active, cfg, "train", moves)  # 4.
    personal = cfg.personalised and me.labelled
    if personal or streams(cfg):
        await passive_epochs(me, active, cfg, personal)


async def passive_epochs(me: Party, active: Peer, cfg: AdptVFedConv, personal: bool) -> None:
    """While the server trains W_s: new maps for every batch, or a classifier of one's own."""
    for _ in me.epochs():
        extractor = frozen(extractor_of(me, cfg))
        if personal:
            classifier = tile_classifier_of(me, cfg, "personal classifier")
            optimizer = me.optimizer(classifier)
        for batch in me.batches():
            with torch.no_grad():
                maps = extract(extractor, batch)
            if streams(cfg):
                await active.recv(NEXT)
                passive_send(active, maps, cfg)
            if personal:
                me.log(personal_loss=step(classifier(maps), batch, optimizer))
        for name in me.evaluations if personal else []:
            me.score(name, passive_logits(me, cfg, name), measure="personalised")


async def passive_upload(
    me: Party, active: Peer, cfg: AdptVFedConv, name: str, moves: Moves | None = None
) -> None:
    extractor = frozen(extractor_of(me, cfg))
    with torch.no_grad():
        for batch in me.rows(name, cfg.chunk, moves):
            await active.recv(NEXT)
            passive_send(active, extract(extractor, batch), cfg)


def passive_send(active: Peer, maps: Tensor, cfg: AdptVFedConv) -> None:
    if cfg.noise:
        maps = maps + cfg.noise * torch.randn_like(maps)
    if cfg.upload_dtype == "int8":
        scale = (maps.abs().amax((0, 2, 3)) / 127).clamp(min=1e-12)  # (channels,)
        active.send(SCALE, scale)
        maps = (maps / scale[:, None, None]).round().to(torch.int8)
    elif cfg.upload_dtype == "float16":
        maps = maps.half()
    active.send(MAPS, maps)


async def passive_predict(me: Party, active: Peer, cfg: AdptVFedConv, split: str) -> Tensor | None:
    tell_place(me, active, cfg)
    with me.evaluating():
        await passive_upload(me, active, cfg, split)
    return passive_logits(me, cfg, split) if me.holds("personal classifier") else None


def passive_logits(me: Party, cfg: AdptVFedConv, name: str) -> Tensor:
    extractor = frozen(extractor_of(me, cfg))
    classifier = tile_classifier_of(me, cfg, "personal classifier")
    with me.evaluating():
        return torch.cat([classifier(extract(extractor, batch)) for batch in me.rows(name)])


# ---- the server ----------------------------------------------------------------------------------


async def active(me: Party, passives: list[Peer], cfg: AdptVFedConv) -> None:
    mosaic = await active_mosaic(me, passives, cfg)
    if cfg.inversion:
        check_inversion(me)
    pretrain(me, cfg)  # 1.
    for _ in me.epochs("transfer", 1):
        weights = {k: v.clone() for k, v in extractor_of(me, cfg).state_dict().items()}
        for peer in passives if cfg.transfer else []:
            if peer.present:
                peer.send(EXTRACTOR, weights)  # 2.
    if cfg.finetune_server:
        fine_tune(me, cfg)
    else:
        me.pass_by("finetune", cfg.finetune_epochs)
    for _ in me.epochs("upload", 1):
        mean = mean_of(me, mosaic, cfg)
        for name in evaluated(me):
            with me.evaluating():
                me.shelf[name] = await active_gather(me, passives, mosaic, cfg, name, [None])
        if views := views_of(me, cfg):
            me.shelf["train"] = await active_gather(me, passives, mosaic, cfg, "train", views)
            mean.set(me.shelf["train"][0], views[0])
    for epoch in me.epochs():
        classifier = classifier_of(me, mosaic, cfg)
        optimizer = me.optimizer(classifier)
        moves = map_moves(me, mosaic, cfg, epoch)
        for batch in me.batches():
            if streams(cfg):
                with torch.no_grad():
                    maps = await active_maps(me, passives, mosaic, cfg, batch)
                if not epoch:
                    mean_of(me, mosaic, cfg).add(maps, batch.flips)
            else:
                maps = cached(me.shelf["train"], batch, moves)
            me.log(loss=step(classifier(maps), batch, optimizer))  # 5.
        for name in me.evaluations:
            me.score(name, active_logits(me, classifier, me.shelf[name][0]))
    if cfg.inversion and "test" in me.shelf:
        invert(me, passives, mosaic, cfg)


def pretrain(me: Party, cfg: AdptVFedConv) -> None:
    """1. W_e^1 with a classifier that only ever sees the server's tile."""
    for _ in me.epochs("pretrain", cfg.pretrain_epochs):
        extractor, classifier = extractor_of(me, cfg), tile_classifier_of(me, cfg)
        optimizer = me.optimizer(extractor, classifier, name="pre-training")
        for batch in me.batches(shared=False):
            me.log(loss=step(classifier(extract(extractor, batch)), batch, optimizer))
        for name in me.evaluations:
            with me.evaluating():
                logits = [classifier(extract(extractor, batch)) for batch in me.rows(name)]
            me.score(name, torch.cat(logits), measure="alone")
    me.drop("tile classifier", "pre-training")


async def active_gather(
    me: Party,
    passives: list[Peer],
    mosaic: Mosaic,
    cfg: AdptVFedConv,
    name: str,
    views: Sequence[Moves | None],
) -> Tensor:
    """4. The stitched maps of a split, (views, rows, height, width, channels)."""
    dtype = torch.float32 if cfg.upload_dtype == "float32" else torch.float16
    size = (len(views), len(me.splits[name]), mosaic.height, mosaic.width, channels_of(me, cfg))
    store = torch.empty(size, dtype=dtype, device=me.device)
    with torch.no_grad():
        for view, moves in zip(store, views, strict=True):
            at = 0
            for batch in me.rows(name, cfg.chunk, moves):
                maps = await active_maps(me, passives, mosaic, cfg, batch)
                view[at : at + len(batch)] = maps.permute(0, 2, 3, 1)
                at += len(batch)
    return store


async def active_maps(
    me: Party, passives: list[Peer], mosaic: Mosaic, cfg: AdptVFedConv, batch: Batch
) -> Tensor:
    """The stitched maps of one batch, (batch, channels, height, width)."""
    for peer in passives:
        if peer.present:
            peer.send(NEXT, True)
    maps = [extract(frozen(extractor_of(me, cfg)), batch)]
    for peer in passives:
        if peer.present:
            maps.append(await active_receive(peer, cfg))
    everybody = all(peer.present for peer in passives)
    behind = None if everybody else mean_of(me, mosaic, cfg).value()
    return mosaic.stitch(maps, behind, batch.flips)


async def active_receive(peer: Peer, cfg: AdptVFedConv) -> Tensor:
    if cfg.upload_dtype == "int8":
        scale: Tensor = await peer.recv(SCALE)
        maps: Tensor = await peer.recv(MAPS)
        return maps.float() * scale[:, None, None]
    maps = await peer.recv(MAPS)
    return maps.float()


async def active_predict(me: Party, passives: list[Peer], cfg: AdptVFedConv, split: str) -> Tensor:
    mosaic = await active_mosaic(me, passives, cfg)
    classifier = classifier_of(me, mosaic, cfg)
    logits = []
    with me.evaluating():
        for batch in me.rows(split, cfg.chunk):
            maps = await active_maps(me, passives, mosaic, cfg, batch)
            logits.append(classifier(stored(maps, cfg)))
    return torch.cat(logits)


def active_logits(me: Party, classifier: nn.Module, maps: Tensor) -> Tensor:
    with me.evaluating():
        chunks = (some.permute(0, 3, 1, 2).float() for some in maps.split(1000))
        return torch.cat([classifier(some) for some in chunks])  # (rows, classes)


async def active_mosaic(me: Party, passives: list[Peer], cfg: AdptVFedConv) -> Mosaic:
    """Where the maps lie of all who are there: each client says where its tile does."""
    own, channels = place_of(me, cfg), me.shape[0]
    views = [own]
    for peer in passives:
        if not peer.present:
            continue
        place: Tensor = await peer.recv(PLACE)
        theirs, *numbers = place.tolist()
        view = View.of(numbers)
        if theirs != channels or (view.height, view.width) != (own.height, own.width):
            raise MethodError(
                f"'{peer.name}' has tiles of {theirs} channels from images of {view.height}×"
                f"{view.width}, '{me.name}' of {channels} channels from {own.height}×{own.width}: "
                "one extractor cannot fit both"
            )
        views.append(view)
    return Mosaic(tuple(views), 2 ** pools(cfg.cut))


# ---- what both do --------------------------------------------------------------------------------


def fine_tune(me: Party, cfg: AdptVFedConv) -> None:
    """3. W_e^k as the first half of an auto-encoder."""
    for _ in me.epochs("finetune", cfg.finetune_epochs):
        extractor = extractor_of(me, cfg)
        decoder = decoder_of(me, cfg, "decoder")
        # What was not transferred learns from scratch (spec 1.8, 10).
        rate = cfg.finetune_lr if cfg.transfer or me.role == "active" else cfg.decoder_lr
        optimizer = adam(me, "fine-tuning", {extractor: rate, decoder: cfg.decoder_lr})
        extractor.train(cfg.batchnorm == "adapt")
        for batch in me.batches(shared=False):
            made = decoder(extract(extractor, batch))
            loss = F.mse_loss(made, batch.x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            me.log(reconstruction=loss)
    me.drop("decoder", "fine-tuning")


def adam(me: Party, name: str, rates: Mapping[nn.Module, float]) -> torch.optim.Optimizer:
    """Adam with constant rates, as the paper has it for auto-encoders."""
    groups = [{"params": list(module.parameters()), "lr": lr} for module, lr in rates.items()]
    return me.keep(name, lambda: torch.optim.Adam(groups, fused=True))


def step(logits: Tensor, batch: Batch, optimizer: torch.optim.Optimizer) -> Tensor:
    loss = F.cross_entropy(logits, batch.labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def extract(extractor: nn.Module, batch: Batch) -> Tensor:
    """H = W_e(x), (batch, channels, height, width)."""
    tell_flips(extractor, batch.flips)
    maps: Tensor = extractor(batch.x)
    return maps


def adopt(me: Party, extractor: nn.Module, weights: Mapping[str, Tensor]) -> None:
    try:
        extractor.load_state_dict(weights)
    except RuntimeError as error:
        raise MethodError(
            f"the server's extractor does not fit into that of '{me.name}': give all parties the "
            f"same model_options ({str(error).splitlines()[-1].strip()})"
        ) from error


def frozen(extractor: nn.Sequential) -> nn.Sequential:
    return extractor.eval().requires_grad_(False)


def evaluated(me: Party) -> list[str]:
    """The splits whose maps are uploaded with the training maps, and used after every epoch."""
    return [name for name in me.splits if name != "train"] if me.schedule.evaluate_every else []


def streams(cfg: AdptVFedConv) -> bool:
    """Whether the clients send new maps every epoch."""
    return not cfg.views if cfg.augment in ("consistent", "oracle") else False


def views_of(me: Party, cfg: AdptVFedConv) -> list[Moves | None]:
    """How the tiles of each upload are moved, the same at all parties; none: they are as such."""
    if streams(cfg):
        return []
    flip, shift, rows = me.schedule.flip, me.schedule.shift, len(me.splits["train"])
    moved = []
    for number in range(cfg.views or (2 if flip and cfg.augment == "cached" else 1)):
        generator = torch.Generator().manual_seed(derive(me.schedule.seed, "view", number))
        moved.append(Moves.draw(rows, flip, shift, generator))
    if cfg.augment == "consistent":
        return list(moved)
    nothing = torch.zeros(rows, dtype=torch.int64)
    mirrored = Moves(torch.ones(rows, dtype=torch.bool), nothing, nothing) if flip else moved[-1]
    return [None, mirrored, *moved[2:]][: len(moved)]


def map_moves(
    me: Party, mosaic: Mosaic, cfg: AdptVFedConv, epoch: int
) -> tuple[Tensor, Moves | None]:
    """Which view of every row this epoch takes, and how its stitched map is moved."""
    rows, views = len(me.splits["train"]), len(views_of(me, cfg))
    generator = torch.Generator().manual_seed(derive(me.schedule.seed, "maps", epoch))
    view = torch.randint(max(views, 1), (rows,), generator=generator).to(me.device)
    if cfg.augment != "cached":
        return view, None
    shift = me.schedule.shift // 2 ** pools(cfg.cut)  # in cells
    flip = me.schedule.flip and views == 1
    if not (flip or shift):
        return view, None
    return view, Moves.draw(rows, flip, shift, generator).to(me.device)


def cached(store: Tensor, batch: Batch, moves: tuple[Tensor, Moves | None]) -> Tensor:
    """The maps of a batch, gathered and moved in one go, (batch, channels, height, width)."""
    assert batch.rows is not None
    view, moved = moves[0][batch.rows], moves[1]
    if moved is None:
        maps = store[view, batch.rows]
    else:
        y, x = moved.part(batch.rows).places(*store.shape[2:4])
        maps = store[view[:, None, None], batch.rows[:, None, None], y[:, :, None], x[:, None, :]]
    return maps.permute(0, 3, 1, 2).float()


def stored(maps: Tensor, cfg: AdptVFedConv) -> Tensor:
    """Maps as they come back from where they are kept."""
    return maps if cfg.upload_dtype == "float32" else maps.half().float()


def place_of(me: Party, cfg: AdptVFedConv) -> View:
    """What this party sees; from now on its tiles are enlarged to whole cells of the map."""
    assert me.view is not None
    me.margin = margin(me.view, 2 ** pools(cfg.cut))
    return me.view


def tell_place(me: Party, active: Peer, cfg: AdptVFedConv) -> None:
    active.send(PLACE, torch.tensor([me.shape[0], *place_of(me, cfg).numbers()]))


def tile_shape(me: Party) -> tuple[int, int, int]:
    left, right, top, bottom = me.margin
    channels, height, width = me.shape
    return channels, top + height + bottom, left + width + right


def channels_of(me: Party, cfg: AdptVFedConv) -> int:
    norms = [m for m in extractor_of(me, cfg).modules() if isinstance(m, nn.BatchNorm2d)]
    return norms[-1].num_features


# ---- networks ------------------------------------------------------------------------------------


def extractor_of(me: Party, cfg: AdptVFedConv) -> nn.Sequential:
    """W_e^k: the VGG-16 up to the cut."""
    assert me.view is not None
    sides: dict[str, Literal["zeros"] | Sides] = {
        "zeros": "zeros",
        "replicate": EVERYWHERE,
        "replicate-at-cuts": me.view.cuts,
    }

    def make() -> nn.Sequential:
        options = {**me.recipe.model_options, "padding": sides[cfg.padding], "fc": ()}
        return split(vgg16(tile_shape(me), 1, **options), cfg.cut)[0]

    return me.keep("extractor", make)


def tile_classifier_of(
    me: Party, cfg: AdptVFedConv, name: str = "tile classifier"
) -> nn.Sequential:
    """W_clst: the rest of a VGG-16 for images of the size of one tile."""

    def make() -> nn.Sequential:
        whole = vgg16(tile_shape(me), len(me.classes), activated=False, **me.recipe.model_options)
        return split(whole, cfg.cut)[1]

    return me.keep(name, make)


def classifier_of(me: Party, mosaic: Mosaic, cfg: AdptVFedConv) -> nn.Sequential:
    """W_s: the rest of the VGG-16 for whole images."""

    def make() -> nn.Sequential:
        shape = (me.shape[0], mosaic.height * mosaic.stride, mosaic.width * mosaic.stride)
        whole = vgg16(shape, len(me.classes), activated=False, **me.recipe.model_options)
        return split(whole, cfg.cut)[1]

    return me.keep("classifier", make)


def decoder_of(me: Party, cfg: AdptVFedConv, name: str) -> nn.Sequential:
    """W_g^k: the mirror image of the extractor."""
    extractor = extractor_of(me, cfg)
    return me.keep(name, lambda: vgg_decoder(extractor, tile_shape(me), output=cfg.decoder))


class MeanMap(nn.Module):
    """The mean of the stitched training maps: what stands in the slot of an absent client."""

    total: Tensor  # float64 (channels, height, width)
    rows: Tensor  # int64 ()

    def __init__(self, size: tuple[int, int, int]) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    def add(self, maps: Tensor, flips: Tensor | None) -> None:
        """Those of mirrored images are mirrored back: every client's lie in its own slot."""
        self.total.add_(mirrored(maps, flips).sum(0))
        self.rows.add_(len(maps))

    def set(self, maps: Tensor, moves: Moves | None) -> None:
        """Of all maps at once, (rows, height, width, channels)."""
        for start in range(0, len(maps), 1000):
            some = slice(start, start + 1000)
            flips = None if moves is None else moves.flips[some].to(maps.device)
            self.add(maps[some].permute(0, 3, 1, 2).double(), flips)

    def value(self) -> Tensor:
        return (self.total / self.rows.clamp(min=1)).float()


def mean_of(me: Party, mosaic: Mosaic, cfg: AdptVFedConv) -> MeanMap:
    size = (channels_of(me, cfg), mosaic.height, mosaic.width)
    return me.keep("mean map", lambda: MeanMap(size))


# ---- the attack ----------------------------------------------------------------------------------


def check_inversion(me: Party) -> None:
    """The attack is on maps of test rows, and is scored in pixels from 0 to 255."""
    if "test" not in evaluated(me):
        raise MethodError(
            "inversion is tried on the maps of the test rows, and evaluate_every = 0 asks for "
            "none: set it to at least 1"
        )
    if me.preparation is None or me.preparation.unit != 255:
        raise MethodError(
            f"inversion is scored in pixels from 0 to 255, and the images of '{me.name}' are "
            "numbers of another kind: give them as uint8"
        )


def invert(me: Party, passives: list[Peer], mosaic: Mosaic, cfg: AdptVFedConv) -> None:
    """The server gives the clients' test tiles back, knowing only its own tile and extractor.

    W_e^k lies near W_e^1, so a decoder of W_e^1 is nearly one of W_e^k (spec 1.8, 12).
    """
    extractor = frozen(extractor_of(me, cfg))
    decoder = decoder_of(me, cfg, "inversion")
    optimizer = adam(me, "inversion optimizer", {decoder: cfg.decoder_lr})
    for _ in me.epochs("inversion", cfg.inversion):
        for batch in me.batches(shared=False):
            maps = extract(extractor, batch)
            made = decoder(maps + cfg.noise * torch.randn_like(maps))
            loss = F.mse_loss(made, batch.x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            me.log(inversion=loss)
    me.drop("inversion optimizer")
    there = [peer for peer in passives if peer.present]
    tiles = zip(there, mosaic.views[1:], mosaic.slots[1:], strict=True)
    for peer, view, slot in tiles:
        left, right, top, bottom = margin(view, mosaic.stride)
        high, wide = view.part.size
        shape = (me.shape[0], top + high + bottom, left + wide + right)
        theirs = vgg_decoder(extractor, shape, output=cfg.decoder).to(me.device)  # of their size
        theirs.load_state_dict(decoder.state_dict())
        maps = me.shelf["test"][0, :EXHIBITED, slot.top : slot.bottom, slot.left : slot.right]
        with torch.no_grad():
            made = theirs.eval()(maps.permute(0, 3, 1, 2).float())
        assert me.preparation is not None
        pixels = me.preparation.to_pixels(made[..., top : top + high, left : left + wide])
        me.exhibits[peer.name] = pixels.cpu()


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
            sends=lambda cfg, _: (EXTRACTOR, NEXT) if cfg.transfer else (NEXT,),
        ),
        "passive": Role(
            passive,
            passive_predict,
            sends=lambda cfg, _: (
                (PLACE, MAPS, SCALE) if cfg.upload_dtype == "int8" else (PLACE, MAPS)
            ),
        ),
    },
    kinds=(PLACE, EXTRACTOR, NEXT, SCALE, MAPS),
    rows=RowRules(everyone_labelled=lambda cfg: cfg.personalised),
    network=Network("vgg16", images=True, moved_whole=lambda cfg: cfg.augment == "oracle"),
    membership=Membership(absent=True),
    simulated=simulated,
    about=About(
        title="AdptVFedConv",
        reference="Adaptive Vertical Federated Learning via Feature Map Transferring in Mobile "
        "Edge Computing",
    ),
)
