"""Views of images: cuts tiles, strips and rectangles, and puts them together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from colonnade.errors import PartitionError
from colonnade.partition.sizes import even


@dataclass(frozen=True)
class Rectangle:
    """What one party sees of every image."""

    top: int
    left: int
    height: int
    width: int

    @property
    def bottom(self) -> int:
        return self.top + self.height

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width

    def __str__(self) -> str:
        return f"{self.height}×{self.width} at (top {self.top}, left {self.left})"

    def common(self, other: Rectangle) -> Rectangle | None:
        """The part of the image that both see."""
        top, left = max(self.top, other.top), max(self.left, other.left)
        bottom, right = min(self.bottom, other.bottom), min(self.right, other.right)
        if bottom <= top or right <= left:
            return None
        return Rectangle(top, left, bottom - top, right - left)


@dataclass(frozen=True)
class View:
    """The rectangle that one party sees, and the size of the whole images."""

    part: Rectangle
    height: int
    width: int

    @staticmethod
    def of(numbers: Sequence[int]) -> View:
        """The inverse of `numbers`."""
        top, left, tall, wide, height, width = (int(n) for n in numbers)
        view = View(Rectangle(top, left, tall, wide), height, width)
        _inside(view.part, height, width)
        return view

    def numbers(self) -> list[int]:
        p = self.part
        return [p.top, p.left, p.height, p.width, self.height, self.width]

    @property
    def cuts(self) -> tuple[bool, bool, bool, bool]:
        """Which of its sides (left, right, top, bottom) are cuts through the image."""
        p = self.part
        return p.left > 0, p.right < self.width, p.top > 0, p.bottom < self.height


def tiles(height: int, width: int, grid: tuple[int, int] = (2, 2)) -> list[Rectangle]:
    """A grid of rows × columns, row by row; uneven tiles differ by at most one pixel a side."""
    rows = _intervals(height, grid[0], f"a grid of {grid[0]}×{grid[1]} tiles", "rows of pixels")
    columns = _intervals(width, grid[1], f"a grid of {grid[0]}×{grid[1]} tiles", "pixel columns")
    return [Rectangle(top, left, h, w) for top, h in rows for left, w in columns]


def strips(
    height: int, width: int, parties: int, axis: Literal["columns", "rows"] = "columns"
) -> list[Rectangle]:
    """`parties` strips of whole pixel columns (left to right) or whole rows (top to bottom)."""
    if axis == "columns":
        columns = _intervals(width, parties, f"{parties} strips of columns", "pixel columns")
        return [Rectangle(0, left, height, w) for left, w in columns]
    if axis == "rows":
        rows = _intervals(height, parties, f"{parties} strips of rows", "rows of pixels")
        return [Rectangle(top, 0, h, width) for top, h in rows]
    raise PartitionError(f"strips run along 'columns' or 'rows', not along '{axis}'.")


def rectangles(
    height: int, width: int, specs: Sequence[tuple[int, int, int, int]]
) -> list[Rectangle]:
    """Any rectangles, given as (top, left, height, width); they may overlap and leave gaps."""
    if not specs:
        raise PartitionError(
            "rectangles: none given. List one (top, left, height, width) for each party."
        )
    views = [Rectangle(*spec) for spec in specs]
    for view in views:
        _inside(view, height, width)
    return views


def cut(images: Tensor, rectangle: Rectangle) -> Tensor:
    """The pixels (or features) of a (..., height, width) tensor inside `rectangle`, copied."""
    _inside(rectangle, images.shape[-2], images.shape[-1])
    r = rectangle
    view = images[..., r.top : r.bottom, r.left : r.right]
    # A copy even where the rectangle is the whole image: a party's data is its own memory.
    return view.clone(memory_format=torch.contiguous_format)


def paste(
    parts: Sequence[Tensor],
    rectangles: Sequence[Rectangle],
    height: int,
    width: int,
    fill: float = 0,
    *,
    check: bool = True,
) -> Tensor:
    """Put views back at their places; pixels that nobody sees are `fill`.

    The inverse of `cut` where the rectangles cover the image. Overlapping parts must agree, unless
    `check` is off: then the later part wins. Gradients flow back to the parts.
    """
    if not parts or len(parts) != len(rectangles):
        raise PartitionError(
            f"paste: {len(parts)} parts for {len(rectangles)} rectangles. Give one part for each."
        )
    lead = parts[0].shape[:-2]
    for part, r in zip(parts, rectangles, strict=True):
        _inside(r, height, width)
        if part.shape != (*lead, r.height, r.width):
            raise PartitionError(
                f"paste: a part of shape {tuple(part.shape)} does not fit the rectangle {r}; "
                f"expected {(*lead, r.height, r.width)}."
            )
    if check:
        _agree(parts, rectangles)
    whole = parts[0].new_full((*lead, height, width), fill)
    for part, r in zip(parts, rectangles, strict=True):
        whole[..., r.top : r.bottom, r.left : r.right] = part
    return whole


def _agree(parts: Sequence[Tensor], views: Sequence[Rectangle]) -> None:
    for i, a in enumerate(views):
        for j in range(i):
            both = a.common(views[j])
            if both is None:
                continue
            if not same(_within(parts[i], a, both), _within(parts[j], views[j], both)):
                raise PartitionError(
                    f"paste: parts {j} and {i} differ where they overlap ({both}). They are not "
                    "cut from the same images in the same order; check=False lets the later win."
                )


def _within(part: Tensor, view: Rectangle, inner: Rectangle) -> Tensor:
    top, left = inner.top - view.top, inner.left - view.left
    return part[..., top : top + inner.height, left : left + inner.width]


def same(a: Tensor, b: Tensor) -> bool:
    """Equal everywhere, missing values (NaN) included."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _inside(r: Rectangle, height: int, width: int) -> None:
    fits = min(r.top, r.left) >= 0 and r.bottom <= height and r.right <= width
    if not fits or r.height < 1 or r.width < 1:
        raise PartitionError(
            f"the rectangle {r} does not lie inside an image of {height}×{width}. "
            "A rectangle is (top, left, height, width), counted from 0 at the upper left corner."
        )


def _intervals(length: int, count: int, what: str, of: str) -> list[tuple[int, int]]:
    """(start, size) of `count` even pieces."""
    if count < 1 or count > length:
        raise PartitionError(
            f"{what} cannot be cut from {length} {of}: each party needs at least one. "
            f"Use between 1 and {length}."
        )
    sizes = even(length, count)
    return list(zip(accumulate(sizes, initial=0), sizes, strict=False))
