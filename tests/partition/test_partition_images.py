"""Tiles, strips, rectangles: complete, disjoint where promised, and put back exactly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.errors import PartitionError
from colonnade.partition import Rectangle, cut, paste, rectangles, strips, tiles

JOVE = {  # the views of JoVe-FL's five experiments on 32×32 images: (top, left, height, width)
    1: [(0, 0, 12, 32), (0, 0, 20, 32)],
    2: [(0, 0, 16, 32), (16, 0, 16, 32)],
    3: [(0, 0, 16, 32), (0, 16, 32, 16)],
    4: [(0, 0, 12, 32), (0, 12, 32, 20)],
    5: [(0, 0, 12, 32), (12, 0, 20, 32)],
}


def pictures(n: int, c: int, h: int, w: int) -> Tensor:
    return torch.arange(n * c * h * w).reshape(n, c, h, w)


def times_seen(views: list[Rectangle], height: int, width: int) -> Tensor:
    seen = torch.zeros(height, width, dtype=torch.int64)
    for v in views:
        seen[v.top : v.bottom, v.left : v.right] += 1
    return seen


sides = st.integers(1, 20)


@settings(deadline=None, max_examples=60)
@given(st.data(), sides, sides)
def test_tiles_cover_every_pixel_once_and_paste_back(data: st.DataObject, h: int, w: int) -> None:
    grid = data.draw(st.tuples(st.integers(1, h), st.integers(1, w)))
    views = tiles(h, w, grid)
    assert len(views) == grid[0] * grid[1]
    assert (times_seen(views, h, w) == 1).all()
    for size in ("height", "width"):
        lengths = [getattr(v, size) for v in views]
        assert max(lengths) - min(lengths) <= 1
    images = pictures(3, 2, h, w)
    assert torch.equal(paste([cut(images, v) for v in views], views, h, w), images)


@settings(deadline=None, max_examples=60)
@given(st.data(), sides, sides)
def test_strips_are_whole_columns_or_rows(data: st.DataObject, h: int, w: int) -> None:
    images = pictures(2, 1, h, w)
    upright = strips(h, w, data.draw(st.integers(1, w)), "columns")
    level = strips(h, w, data.draw(st.integers(1, h)), "rows")
    assert {v.height for v in upright} == {h}
    assert {v.width for v in level} == {w}
    for views in (upright, level):
        assert (times_seen(views, h, w) == 1).all()
        assert torch.equal(paste([cut(images, v) for v in views], views, h, w), images)


@settings(deadline=None, max_examples=60)
@given(st.data(), sides, sides)
def test_any_rectangles_paste_to_their_union(data: st.DataObject, h: int, w: int) -> None:
    def spec() -> tuple[int, int, int, int]:
        top, left = data.draw(st.integers(0, h - 1)), data.draw(st.integers(0, w - 1))
        return top, left, data.draw(st.integers(1, h - top)), data.draw(st.integers(1, w - left))

    views = rectangles(h, w, [spec() for _ in range(data.draw(st.integers(1, 4)))])
    images = pictures(2, 3, h, w) + 1
    union = paste([cut(images, v) for v in views], views, h, w)
    assert torch.equal(union, images * (times_seen(views, h, w) > 0))


def test_the_quadrants_of_the_papers() -> None:
    assert tiles(28, 28) == [
        Rectangle(0, 0, 14, 14),
        Rectangle(0, 14, 14, 14),
        Rectangle(14, 0, 14, 14),
        Rectangle(14, 14, 14, 14),
    ]
    assert [v.width for v in strips(28, 28, 4)] == [7, 7, 7, 7]
    assert [v.height for v in tiles(8, 8, (3, 1))] == [3, 3, 2]  # the larger first


@pytest.mark.parametrize("experiment", JOVE)
def test_the_views_of_jove(experiment: int) -> None:
    views = rectangles(32, 32, JOVE[experiment])
    seen = times_seen(views, 32, 32)
    assert (seen == 2).any() == (experiment in (1, 3, 4))
    assert (seen == 0).sum() == {1: 12 * 32, 2: 0, 3: 16 * 16, 4: 20 * 12, 5: 0}[experiment]
    images = pictures(1, 3, 32, 32).float()
    assert torch.equal(paste([cut(images, v) for v in views], views, 32, 32), images * (seen > 0))


def test_a_cut_is_a_contiguous_copy() -> None:
    images = pictures(2, 1, 4, 4)
    for view in (Rectangle(0, 0, 4, 4), Rectangle(1, 1, 2, 2)):
        part = cut(images.contiguous(memory_format=torch.channels_last), view)
        assert part.is_contiguous()
        part.zero_()
    assert torch.equal(images, pictures(2, 1, 4, 4))


def test_overlaps_must_agree() -> None:
    views = rectangles(2, 3, [(0, 0, 2, 2), (0, 1, 2, 2)])
    a, b = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    with pytest.raises(PartitionError, match="parts 0 and 1 differ"):
        paste([a, b], views, 2, 3)
    assert paste([a, b], views, 2, 3, check=False).tolist() == [[[[0, 1, 1], [0, 1, 1]]]]


def test_paste_fills_and_lets_gradients_through() -> None:
    part = torch.ones(1, 1, 1, 2, requires_grad=True)
    whole = paste([part], [Rectangle(0, 1, 1, 2)], 1, 4, fill=-1)
    assert whole.tolist() == [[[[-1, 1, 1, -1]]]]
    (gradient,) = torch.autograd.grad(whole.sum(), part)
    assert gradient.eq(1).all()


@pytest.mark.parametrize(
    "spec", [(0, 20, 32, 16), (-1, 0, 4, 4), (0, -1, 4, 4), (30, 0, 4, 4), (0, 0, 0, 4)]
)
def test_a_rectangle_outside_the_image_is_named(spec: tuple[int, int, int, int]) -> None:
    named = rf"{spec[2]}×{spec[3]} at \(top {spec[0]}, left {spec[1]}\).*32×32"
    with pytest.raises(PartitionError, match=named):
        rectangles(32, 32, [spec])
    with pytest.raises(PartitionError, match=named):
        cut(torch.zeros(1, 3, 32, 32), Rectangle(*spec))


def test_impossible_views() -> None:
    with pytest.raises(PartitionError, match="Use between 1 and 8"):
        tiles(8, 8, (9, 1))
    with pytest.raises(PartitionError, match="Use between 1 and 8"):
        strips(8, 8, 0)
    with pytest.raises(PartitionError, match="'columns' or 'rows', not along 'depth'"):
        strips(8, 8, 2, "depth")  # type: ignore[arg-type]
    with pytest.raises(PartitionError, match="none given"):
        rectangles(8, 8, [])
    with pytest.raises(PartitionError, match="2 parts for 1 rectangles"):
        paste([torch.zeros(1, 1, 2, 2)] * 2, [Rectangle(0, 0, 2, 2)], 2, 2)
    with pytest.raises(PartitionError, match="does not fit"):
        paste([torch.zeros(1, 1, 2, 3)], [Rectangle(0, 0, 2, 2)], 2, 2)
