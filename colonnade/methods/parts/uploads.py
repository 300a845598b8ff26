"""How feature maps cross from a client of AdptVFedConv to its server, and how they are kept there.

The client codes the maps: as 32 or 16 bits, or as 8 bits with a scale for each channel. The server
keeps what is not 32 bits as 16.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import torch
from torch import Tensor, nn

from colonnade.data import Moves
from colonnade.errors import Untrusted
from colonnade.methods.parts.mean import Mean
from colonnade.methods.parts.tiles import Tiled, channels_of, check_maps, extractor_of
from colonnade.partition import Mosaic, Rectangle
from colonnade.partition.mosaic import mirrored
from colonnade.privacy.noise import secret_gaussian, secret_of
from colonnade.role.batches import Batch
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer, codec
from colonnade.wire.kind import DTYPES

NEXT = Kind("next", None, reveals="nothing: it asks for the next maps", paces=True, about="nothing")
SCALE = Kind(
    "scale",
    ("channels",),
    reveals="the largest value in each channel of some maps",
    about="batch",
    carries="features",
)
MAPS = Kind(
    "maps",
    ("batch", "channels", "height", "width"),
    dtype="any",
    reveals="the sender's tiles: a decoder gives them back, the better the earlier the cut",
    carries="features",
)
ROWS = 1000  # of stored maps that are worked on at once

Precision = Literal["float32", "float16", "int8"]


@dataclass(frozen=True)
class Upload:
    """What all parties agree on about the maps that cross."""

    precision: Precision
    chunk: int  # rows in one message

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What a client sends."""
        return (MAPS, SCALE) if self.precision == "int8" else (MAPS,)

    def send(self, active: Peer, maps: Tensor) -> None:
        if self.precision == "int8":
            scale = (maps.abs().amax((0, 2, 3)) / 127).clamp(min=1e-12)  # (channels,)
            active.send(SCALE, scale)
            maps = (maps / scale[:, None, None]).round().to(torch.int8)
        elif self.precision == "float16":
            maps = maps.half()
        active.send(MAPS, maps)

    async def receive(
        self, passives: Sequence[Peer], own: Tensor, slots: Sequence[Rectangle]
    ) -> list[Tensor]:
        """The maps of the tiles in these slots, of the same rows as the receiver's own maps."""
        pairs = zip(passives, slots, strict=True)
        return [await self._receive(passive, own, slot) for passive, slot in pairs]

    async def _receive(self, passive: Peer, own: Tensor, slot: Rectangle) -> Tensor:
        scale: Tensor | None = await passive.recv(SCALE) if self.precision == "int8" else None
        maps = check_maps(passive, await passive.recv(MAPS), own, slot)
        if maps.dtype != DTYPES[self.precision]:
            raise Untrusted(f"'{passive.name}' sent maps of {maps.dtype}, not {self.precision}")
        if scale is None:
            return maps.float()
        if len(scale) != own.shape[1]:
            raise Untrusted(f"'{passive.name}' sent a scale of {len(scale)} channels")
        return maps.float() * scale[:, None, None]

    def as_stored(self, maps: Tensor) -> Tensor:
        """Maps as they come back from where they are kept."""
        return maps if self.precision == "float32" else maps.half().float()

    async def store(
        self,
        me: Party,
        shape: tuple[int, ...],
        maps_of: Callable[[Batch], Awaitable[Tensor]],
        split: str,
        uploads: Sequence[Moves | None],
    ) -> Tensor:
        """The stitched maps of all rows of a split, (uploads, rows, height, width, channels).

        shape    of one stitched map, (channels, height, width)
        maps_of  gives the stitched maps of one batch, (batch, *shape)
        uploads  how the tiles are moved in each
        """
        dtype = torch.float32 if self.precision == "float32" else torch.float16
        channels, height, width = shape
        size = (len(uploads), len(me.splits[split]), height, width, channels)
        stored = torch.empty(size, dtype=dtype, device=me.device)
        with torch.no_grad():
            for upload, moves in zip(stored, uploads, strict=True):
                at = 0
                for batch in me.rows(split, self.chunk, moves):
                    upload[at : at + len(batch)] = (await maps_of(batch)).permute(0, 2, 3, 1)
                    at += len(batch)
        return stored


def noisy(me: Party, extractor: nn.Module, batch: Batch, maps: Tensor, sigma: float) -> Tensor:
    """Maps with Gaussian noise from a secret of the client. A tile has the same noise in whichever
    message it leaves, as long as the extractor is the same: its weights, layers and borders."""
    if not sigma:
        return maps
    made = sha256(repr(extractor).encode() + codec.encode(extractor.state_dict())).hexdigest()
    tiles = batch.x.detach().cpu().contiguous().numpy()
    flips = [False] * len(tiles) if batch.flips is None else batch.flips.tolist()
    names = [
        f"{made} {sha256(tile.tobytes()).hexdigest()}{' mirrored' * flip}"
        for tile, flip in zip(tiles, flips, strict=True)
    ]
    return secret_gaussian(maps, sigma, secret_of(me, lasting=True), names)


def mean_of(me: Party, mosaic: Mosaic, cfg: Tiled) -> Mean:
    """The mean of the stitched training maps: what stands in the slot of an absent client."""
    channels = channels_of(extractor_of(me, cfg))
    return me.keep("mean map", lambda: Mean(channels, mosaic.height, mosaic.width))


def add_stored(mean: Mean, upload: Tensor, moves: Moves | None) -> None:
    """Count all maps of one stored upload; those of mirrored images are mirrored back."""
    for start in range(0, len(upload), ROWS):
        some = slice(start, start + ROWS)
        flips = None if moves is None else moves.flips[some].to(upload.device)
        mean.add(mirrored(upload[some].permute(0, 3, 1, 2).double(), flips))


def stored_logits(me: Party, classifier: nn.Module, upload: Tensor) -> Tensor:
    """What a classifier says of one stored upload, (rows, classes)."""
    with me.evaluating():
        chunks = (some.permute(0, 3, 1, 2).float() for some in upload.split(ROWS))
        return torch.cat([classifier(some) for some in chunks])
