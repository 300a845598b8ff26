"""A VGG-16 over images of which every party sees a tile: places, extractors, classifiers.

AdptVFedConv and SplitConv share it. The network is cut: every party runs a shallow extractor W_e
over its own tile, and a deep classifier W_s works on the maps of all parties, stitched by the
places of the tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from colonnade.errors import MethodError, PartitionError, Untrusted
from colonnade.methods.parts.trees import check_weights
from colonnade.models import EVERYWHERE, Sides, pools, split, tell_flips, vgg16
from colonnade.partition import Mosaic, Rectangle, View, margin
from colonnade.role.batches import Batch
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

PLACE = Kind(
    "place",
    (7,),
    dtype="int64",
    reveals="where the sender's tile lies in the image",
    about="nothing",
)
EXTRACTOR = Kind(
    "extractor",
    None,
    dtype="any",
    reveals="W_e^1, and through it the server's tile",
    carries="models",
)

Cut = Literal[
    "1C", "2C", "2C+1M", "3C+1M", "4C+1M", "4C+2M", "5C+2M", "6C+2M", "7C+2M", "7C+3M"
]  # fmt: skip
Padding = Literal["replicate", "zeros", "replicate-at-cuts"]


class Tiled(Protocol):
    """The options that both methods have."""

    @property
    def cut(self) -> Cut: ...

    @property
    def padding(self) -> Padding: ...


# ---- places --------------------------------------------------------------------------------------


def place_of(me: Party, cfg: Tiled) -> View:
    """What this party sees; from now on its tiles are enlarged to whole cells of the map."""
    assert me.view is not None
    me.margin = margin(me.view, 2 ** pools(cfg.cut))
    return me.view


def tell_place(me: Party, active: Peer, cfg: Tiled) -> None:
    active.send(PLACE, torch.tensor([me.shape[0], *place_of(me, cfg).numbers()]))


async def mosaic_of(
    me: Party, passives: list[Peer], cfg: Tiled, *, one_extractor: bool = False
) -> Mosaic:
    """Where the maps of all present parties lie: each passive party says where its tile does.

    one_extractor: all parties start from the same weights, so their tiles need equal channels.
    """
    own, channels = place_of(me, cfg), me.shape[0]
    views = [own]
    for peer in passives:
        if not peer.present:
            continue
        place: Tensor = await peer.recv(PLACE)
        theirs, *numbers = place.tolist()
        try:
            view = View.of(numbers)
        except PartitionError as error:
            raise Untrusted(f"'{peer.name}' sent a place that is none: {error}") from None
        same_image = (view.height, view.width) == (own.height, own.width)
        if not same_image or (one_extractor and theirs != channels):
            raise MethodError(
                f"'{peer.name}' has tiles of {theirs} channels from images of {view.height}×"
                f"{view.width}, '{me.name}' of {channels} channels from {own.height}×{own.width}: "
                + ("one extractor cannot fit both" if same_image else "they cannot be put together")
            )
        views.append(view)
    return Mosaic(tuple(views), 2 ** pools(cfg.cut))


def tile_shape(me: Party) -> tuple[int, int, int]:
    """Of this party's tiles, enlarged to whole cells: (channels, height, width)."""
    left, right, top, bottom = me.margin
    channels, height, width = me.shape
    return channels, top + height + bottom, left + width + right


def check_maps(peer: Peer, maps: Tensor, own: Tensor, slot: Rectangle) -> Tensor:
    """Refuse maps of another size than their slot: what is smaller would be spread over it.

    own  this party's maps of the same rows, which have the same channels
    """
    due = (*own.shape[:2], *slot.size)
    if tuple(maps.shape) != due:
        raise Untrusted(
            f"'{peer.name}' sent maps of shape {tuple(maps.shape)}; by its place they are {due}"
        )
    return maps


# ---- networks ------------------------------------------------------------------------------------


def extractor_of(me: Party, cfg: Tiled) -> nn.Sequential:
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


def classifier_of(me: Party, mosaic: Mosaic, cfg: Tiled) -> nn.Sequential:
    """W_s: the rest of the VGG-16 for whole images."""
    shape = (me.shape[0], mosaic.height * mosaic.stride, mosaic.width * mosaic.stride)
    return me.keep("classifier", lambda: _rest(me, shape, cfg))


def tile_classifier_of(me: Party, name: str, cfg: Tiled) -> nn.Sequential:
    """The rest of a VGG-16 for images of the size of one tile."""
    return me.keep(name, lambda: _rest(me, tile_shape(me), cfg))


def _rest(me: Party, shape: tuple[int, int, int], cfg: Tiled) -> nn.Sequential:
    """What lies behind the cut of a VGG-16 for images of this shape."""
    whole = vgg16(shape, len(me.task.classes), activated=False, **me.recipe.model_options)
    return split(whole, cfg.cut)[1]


def extract(extractor: nn.Module, batch: Batch) -> Tensor:
    """H = W_e(x), (batch, channels, height, width)."""
    tell_flips(extractor, batch.flips)
    maps: Tensor = extractor(batch.x)
    return maps


def logits_of(me: Party, extractor: nn.Module, classifier: nn.Module, name: str) -> Tensor:
    """What a classifier says of this party's own tiles, (rows, classes)."""
    with me.evaluating():
        return torch.cat([classifier(extract(extractor, batch)) for batch in me.rows(name)])


def adopt(extractor: nn.Module, weights: Mapping[str, Tensor], active: Peer) -> None:
    """Take the active party's weights for one's own (Eq. 2)."""
    check_weights(active.name, "extractor", weights, extractor.state_dict())
    extractor.load_state_dict(weights)


def frozen(extractor: nn.Sequential) -> nn.Sequential:
    """The extractor, from now on as it is: neither weights nor statistics change."""
    return extractor.eval().requires_grad_(False)


def channels_of(extractor: nn.Module) -> int:
    """How many channels its maps have."""
    convolutions = [layer for layer in extractor.modules() if isinstance(layer, nn.Conv2d)]
    return convolutions[-1].out_channels
