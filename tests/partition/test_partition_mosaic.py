"""Maps of tiles put together: every cell is the mean of those who see some of its pixels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from colonnade.errors import PartitionError
from colonnade.partition import Mosaic, Rectangle, View, cut, margin, strips, tiles
from colonnade.partition.mosaic import mirrored

STRIDES = (1, 2, 4, 8)


def mosaic(height: int, width: int, parts: Sequence[Rectangle], stride: int) -> Mosaic:
    return Mosaic(tuple(View(part, height, width) for part in parts), stride)


def pictures(rows: int, channels: int, height: int, width: int) -> Tensor:
    """No two pixels alike, in no order."""
    count = rows * channels * height * width
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return order.reshape(rows, channels, height, width).float()


def enlarged(images: Tensor, view: View, stride: int) -> Tensor:
    """What a party gives its extractor: its tile, in whole cells."""
    return F.pad(cut(images, view.part), margin(view, stride), mode="replicate")


def maps_of(images: Tensor, stitched: Mosaic) -> list[Tensor]:
    """The largest pixel of every cell: an extractor that looks at nothing but its own cell."""
    s = stitched.stride
    return [F.max_pool2d(enlarged(images, view, s), s) for view in stitched.views]


def cell_by_cell(images: Tensor, stitched: Mosaic, behind: Tensor | None) -> Tensor:
    """The same by hand: of every cell, what each tile sees of it, and the mean of that."""
    s = stitched.stride
    whole = torch.zeros(*images.shape[:2], stitched.height, stitched.width)
    for y in range(stitched.height):
        for x in range(stitched.width):
            cell = Rectangle(y * s, x * s, s, s)
            seen = []
            for view in stitched.views:
                both = cell.common(view.part)
                if both is not None:
                    seen.append(cut(images, both).amax((2, 3)))
            if seen:
                whole[..., y, x] = torch.stack(seen).sum(0) / len(seen)
            elif behind is not None:
                whole[..., y, x] = behind[:, y, x]
    return whole


def times_covered(stitched: Mosaic) -> Tensor:
    covered = torch.zeros(stitched.height, stitched.width, dtype=torch.int64)
    for slot in stitched.slots:
        covered[slot.top : slot.bottom, slot.left : slot.right] += 1
    return covered


# ---- stitching undoes cutting --------------------------------------------------------------------

CUT = {
    "2x2 of 32x32": (32, 32, tiles(32, 32, (2, 2))),
    "3x3 of 32x32": (32, 32, tiles(32, 32, (3, 3))),  # tiles of 11, 11 and 10
    "4x4 of 32x32": (32, 32, tiles(32, 32, (4, 4))),
    "2x2 of 28x28": (28, 28, tiles(28, 28, (2, 2))),
    "3x2 of 17x23": (17, 23, tiles(17, 23, (3, 2))),
    "5 columns of 32x32": (32, 32, strips(32, 32, 5)),
    "3 rows of 28x20": (28, 20, strips(28, 20, 3, "rows")),
    "1x1 of 9x9": (9, 9, tiles(9, 9, (1, 1))),
}


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("which", CUT)
def test_stitching_undoes_cutting(which: str, stride: int) -> None:
    """Exactly, in every cell through which no cut goes."""
    height, width, parts = CUT[which]
    stitched = mosaic(height, width, parts, stride)
    assert (stitched.height, stitched.width) == (-(-height // stride), -(-width // stride))
    covered = times_covered(stitched)
    assert (covered >= 1).all()
    images = pictures(2, 3, height, width)
    maps = maps_of(images, stitched)
    for one, slot in zip(maps, stitched.slots, strict=True):
        assert one.shape[-2:] == slot.size
    found = stitched.stitch(maps)
    whole = mosaic(height, width, [Rectangle(0, 0, height, width)], stride)
    wanted = maps_of(images, whole)[0]
    assert found.shape == wanted.shape
    assert torch.equal(found[..., covered == 1], wanted[..., covered == 1])
    aligned = all(p.top % stride == 0 and p.left % stride == 0 for p in parts)
    assert bool((covered == 1).all()) is aligned
    assert torch.equal(found, wanted) is aligned  # elsewhere, cells of two or four tiles


def test_margins_and_slots_of_uneven_tiles() -> None:
    views = [View(part, 8, 8) for part in tiles(8, 8, (3, 3))]  # 3, 3 and 2 pixels a side
    assert [margin(views[i], 2) for i in (0, 4, 8)] == [(0, 1, 0, 1), (1, 0, 1, 0), (0, 0, 0, 0)]
    assert [margin(views[i], 4) for i in (0, 4, 8)] == [(0, 1, 0, 1), (3, 2, 3, 2), (2, 0, 2, 0)]
    slots = Mosaic(tuple(views), 4).slots
    assert slots[0] == Rectangle(0, 0, 1, 1)
    assert slots[4] == Rectangle(0, 0, 2, 2)  # the middle touches all four cells
    assert slots[8] == Rectangle(1, 1, 1, 1)
    assert set(Mosaic(tuple(views), 8).slots) == {Rectangle(0, 0, 1, 1)}


@st.composite
def mosaics(draw: st.DrawFn, most: int = 13) -> Mosaic:
    """Any rectangles: they may overlap, and leave gaps."""
    height, width = draw(st.integers(1, most)), draw(st.integers(1, most))

    def part() -> Rectangle:
        top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
        down, across = draw(st.integers(1, height - top)), draw(st.integers(1, width - left))
        return Rectangle(top, left, down, across)

    parts = [part() for _ in range(draw(st.integers(1, 4)))]
    return mosaic(height, width, parts, draw(st.sampled_from(STRIDES)))


@settings(deadline=None, max_examples=60)
@given(mosaics(), st.booleans())
def test_every_cell_is_the_mean_of_those_who_see_it(stitched: Mosaic, with_behind: bool) -> None:
    first = stitched.views[0]
    images = pictures(2, 2, first.height, first.width)
    behind = None
    if with_behind:
        behind = -1 - pictures(1, 2, stitched.height, stitched.width)[0]
    found = stitched.stitch(maps_of(images, stitched), behind)
    torch.testing.assert_close(found, cell_by_cell(images, stitched, behind))


def test_overlaps_are_averaged_and_what_lies_behind_shows_in_the_gaps_only() -> None:
    parts = [Rectangle(0, 0, 2, 3), Rectangle(0, 2, 2, 2)]  # both see column 2, nobody column 4
    stitched = mosaic(2, 5, parts, 1)
    left, right = torch.full((1, 1, 2, 3), 2.0), torch.full((1, 1, 2, 2), 10.0)
    assert stitched.stitch([left, right]).tolist() == [[[[2, 2, 6, 10, 0]] * 2]]
    behind = torch.full((1, 2, 5), 77.0)
    assert stitched.stitch([left, right], behind).tolist() == [[[[2, 2, 6, 10, 77]] * 2]]
    alone = mosaic(2, 5, parts[:1], 1)  # the same without an overlap
    assert alone.stitch([left], behind).tolist() == [[[[2, 2, 2, 77, 77]] * 2]]
    assert behind.eq(77).all()


def test_maps_without_a_place_and_places_without_a_map() -> None:
    with pytest.raises(ValueError, match="zip"):
        mosaic(2, 2, tiles(2, 2, (1, 2)), 1).stitch([torch.zeros(1, 1, 2, 1)])
    with pytest.raises(PartitionError, match=r"3×1 at \(top 0, left 1\).*2×2"):
        View.of([0, 1, 3, 1, 2, 2])
    view = View(Rectangle(1, 2, 3, 4), 5, 6)
    assert View.of(view.numbers()) == view
    assert view.cuts == (True, False, True, True)


# ---- mirrored images -----------------------------------------------------------------------------


def random_maps(stitched: Mosaic, rows: int = 3, channels: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(stitched.views))
    return [torch.randn(rows, channels, *slot.size, generator=generator) for slot in stitched.slots]


@settings(deadline=None, max_examples=60)
@given(mosaics(), st.lists(st.booleans(), min_size=3, max_size=3), st.booleans())
def test_mirrored_tiles_make_the_mirrored_whole(
    stitched: Mosaic, which: list[bool], with_behind: bool
) -> None:
    """Whatever the rectangles are: some images of a batch are mirrored, the others are not."""
    flips, maps = torch.tensor(which), random_maps(stitched)
    behind = torch.randn(2, stitched.height, stitched.width) if with_behind else None
    found = stitched.stitch([mirrored(one, flips) for one in maps], behind, flips)
    plain = stitched.stitch(maps, behind)
    for row, flipped in enumerate(which):
        assert torch.equal(found[row], plain[row].flip(-1) if flipped else plain[row])


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_mirroring_every_tile_is_mirroring_the_image(stride: int) -> None:
    """Also where the cuts are not in the middle: mirrored, the narrow tile lies on the left."""
    parts = [Rectangle(0, 0, 4, 12), Rectangle(0, 12, 4, 4), Rectangle(4, 0, 12, 16)]
    stitched = mosaic(16, 16, parts, stride)
    images, flips = pictures(4, 3, 16, 16), torch.tensor([True, False, True, True])
    own = [
        F.max_pool2d(mirrored(enlarged(images, view, stride), flips), stride)
        for view in stitched.views
    ]
    wanted = F.max_pool2d(mirrored(images, flips), stride)
    assert torch.equal(stitched.stitch(own, flips=flips), wanted)
    assert not torch.equal(stitched.stitch(own), wanted)  # without a word the slots stay


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("with_behind", [False, True])
@pytest.mark.parametrize(
    "parts", [tiles(4, 6, (2, 2)), [Rectangle(0, 0, 3, 4), Rectangle(1, 2, 2, 3)]], ids=len
)
def test_gradients_flow_to_the_parts(
    parts: list[Rectangle], with_behind: bool, flipped: bool
) -> None:
    stitched = mosaic(4, 6, parts, 1)
    flips = torch.tensor([True, False]) if flipped else None
    behind = torch.ones(1, 4, 6, dtype=torch.float64) if with_behind else None
    own = [one.double().requires_grad_() for one in random_maps(stitched, 2, 1)]

    def whole(*maps: Tensor) -> Tensor:
        return stitched.stitch(maps, behind, flips)

    assert torch.autograd.gradcheck(whole, own)
    seen = torch.autograd.grad(whole(*own).sum(), own)
    covered = times_covered(stitched)
    for gradient, slot in zip(seen, stitched.slots, strict=True):
        share = 1 / covered[slot.top : slot.bottom, slot.left : slot.right]
        plain = share.expand(2, 1, *slot.size).double()
        torch.testing.assert_close(
            gradient, plain if flips is None else mirrored(plain, flips), rtol=1e-6, atol=0
        )


def test_the_stitched_map_has_its_channels_last() -> None:
    stitched = mosaic(4, 6, tiles(4, 6), 1)
    found = stitched.stitch(random_maps(stitched))
    assert found.is_contiguous(memory_format=torch.channels_last)
