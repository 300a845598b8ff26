"""Feature maps of tiles, put together by their places in the image (AdptVFedConv, Eq. 4).

A max-pool turns 2×2 pixels into one cell, so after two of them a cell covers 4×4 pixels. A tile
that does not begin or end at the border of a cell is enlarged to it with copies of its outermost
pixels; where two maps then share a cell, or the tiles overlap, the cell is their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from colonnade.partition.images import Rectangle, View


@dataclass(frozen=True)
class Mosaic:
    """Where the maps of these tiles lie in the map of whole images; a cell is `stride` pixels."""

    views: tuple[View, ...]
    stride: int

    @property
    def height(self) -> int:
        return -(-self.views[0].height // self.stride)

    @property
    def width(self) -> int:
        return -(-self.views[0].width // self.stride)

    @cached_property
    def slots(self) -> tuple[Rectangle, ...]:
        """The place of every map, in cells."""
        found = []
        for view in self.views:
            left, right, top, bottom = margin(view, self.stride)
            p, s = view.part, self.stride
            across, down = left + p.width + right, top + p.height + bottom
            found.append(
                Rectangle((p.top - top) // s, (p.left - left) // s, down // s, across // s)
            )
        return tuple(found)

    def stitch(
        self,
        maps: Sequence[Tensor],
        behind: Tensor | None = None,
        flips: Tensor | None = None,
    ) -> Tensor:
        """Join the maps of the tiles, in their order: (rows, channels, height, width).

        behind  (channels, height, width): the values where no tile is (None: zeros)
        flips   bool (rows,): images of which every party mirrored its tile. Their slots change
                sides: each map is mirrored back, put at its place, and the whole mirrored.
        """
        first, there = maps[0], list(zip(maps, self.slots, strict=True))
        whole = torch.empty(
            (len(first), first.shape[1], self.height, self.width),
            dtype=first.dtype,
            device=first.device,
            memory_format=torch.channels_last,
        ).zero_()
        if behind is not None:
            whole = whole + behind
        if self._overlapping:
            count = torch.zeros(self.height, self.width, device=first.device, dtype=first.dtype)
            for _, slot in there:
                _at(count, slot).add_(1)
            # The background shows only where no tile is.
            whole = whole * (count == 0)
            for m, slot in there:
                _at(whole, slot).add_(mirrored(m, flips))
            whole = whole / count.clamp(min=1)
        else:
            for m, slot in there:
                _at(whole, slot).copy_(mirrored(m, flips))
        return mirrored(whole, flips)

    @cached_property
    def _overlapping(self) -> bool:
        return any(
            a.common(b) is not None for i, a in enumerate(self.slots) for b in self.slots[:i]
        )


def margin(view: View, stride: int) -> tuple[int, int, int, int]:
    """Pixels by which a tile is enlarged on its sides (left, right, top, bottom)."""
    p = view.part
    return p.left % stride, -p.right % stride, p.top % stride, -p.bottom % stride


def mirrored(images: Tensor, flips: Tensor | None) -> Tensor:
    """(rows, …, width), with the rows that `flips` names mirrored."""
    if flips is None:
        return images
    return torch.where(flips.view(-1, *[1] * (images.dim() - 1)), images.flip(-1), images)


def _at(whole: Tensor, slot: Rectangle) -> Tensor:
    return whole[..., slot.top : slot.bottom, slot.left : slot.right]
