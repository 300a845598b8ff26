"""The whole way: a data set, its parts, and back."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import colonnade.partition
from colonnade.data.types import Column, Dataset, Split
from colonnade.errors import PartitionError
from colonnade.partition import Part, Partition, Rectangle


def images(n: int = 40, c: int = 1, h: int = 8, w: int = 8) -> Dataset:
    def some(rows: int, start: int) -> Split:
        x = torch.randint(1, 256, (rows, c, h, w), dtype=torch.uint8, generator=generator)
        return Split(x, torch.arange(rows) % 4, torch.arange(start, start + rows).flip(0))

    generator = torch.Generator().manual_seed(0)
    return Dataset("pictures", some(n, 0), some(10, n), ("a", "b", "c", "d"))


def table(n: int = 40, width: int = 11) -> Dataset:
    def some(rows: int, start: int) -> Split:
        x = torch.randn(rows, width, generator=generator)
        return Split(x, torch.arange(rows) % 2, torch.arange(start, start + rows) * 7)

    generator = torch.Generator().manual_seed(0)
    columns = tuple(Column(f"c{i}", ("no", "yes") if i == 3 else ()) for i in range(width))
    return Dataset("table", some(n, 0), some(10, n), ("a", "b"), columns)


def partition(kind: Any, **options: Any) -> Partition:
    return Partition(kind=kind, **options)


def same(a: Split, b: Split) -> bool:
    assert a.y is not None
    assert b.y is not None
    return torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and torch.equal(a.ids, b.ids)


COMPLETE = {
    "tiles": (images(), partition("tiles")),
    "uneven tiles": (images(c=3, h=7, w=9), partition("tiles", grid=(3, 2))),
    "strips": (images(), partition("strips")),
    "rows of pixels": (images(), partition("strips", parties=3, axis="rows")),
    "rectangles": (
        images(),
        partition("rectangles", rectangles=((0, 0, 8, 5), (0, 3, 8, 5), (2, 2, 2, 2))),
    ),
    "pixels": (images(c=3), partition("columns", parties=5, shuffle=True)),
    "columns": (table(), partition("columns")),
    "sizes": (table(), partition("columns", sizes=(1, 8, 2), column_overlap=0.5)),
    "groups": (table(), partition("columns", groups={"x": ("c1*",), "y": ("c[02-9]",)})),
    "rows": (table(), partition("rows", parties=3)),
    "skewed rows": (images(), partition("rows", parties=3, alpha=0.5, row_overlap=0.25)),
    "whole": (table(), partition("whole")),
    "whole, thrice": (images(), partition("whole", parties=3)),
    "hybrid, all shared": (table(), partition("hybrid", parties=3, row_overlap=1.0)),
}


@pytest.fixture(params=COMPLETE)
def case(request: pytest.FixtureRequest) -> tuple[Dataset, Partition]:
    return COMPLETE[request.param]


def test_join_is_the_exact_inverse(case: tuple[Dataset, Partition]) -> None:
    dataset, how = case
    joined = how.join(how.split(dataset, seed=3), dataset)
    assert same(joined.train, dataset.train)
    assert same(joined.test, dataset.test)
    assert joined.columns == dataset.columns
    assert joined.train.x.dtype is dataset.train.x.dtype


def test_parts_keep_ids_labels_and_all_test_rows(case: tuple[Dataset, Partition]) -> None:
    dataset, how = case
    parts = how.split(dataset, seed=3)
    assert len(parts) == how.count(dataset)
    assert dataset.train.y is not None
    label_of = dict(zip(dataset.train.ids.tolist(), dataset.train.y.tolist(), strict=True))
    for part in parts:
        assert part.train.y is not None
        assert [label_of[i] for i in part.train.ids.tolist()] == part.train.y.tolist()
        assert torch.equal(part.test.ids, dataset.test.ids)
        assert part.train.x.shape[1:] == part.test.x.shape[1:]
        assert part.train.x.dtype is dataset.train.x.dtype
        assert part.train.x.is_contiguous()
        if dataset.columns:
            assert len(part.columns) == part.train.x.shape[1]


def test_no_two_parts_share_memory(case: tuple[Dataset, Partition]) -> None:
    dataset, how = case
    parts = how.split(dataset, seed=3)
    tensors = [t for p in parts for s in (p.train, p.test) for t in (s.x, s.y, s.ids)]
    given = [dataset.train.x, dataset.train.y, dataset.train.ids, dataset.test.x]
    places = [t.untyped_storage().data_ptr() for t in tensors + given if t is not None]
    assert len(set(places)) == len(places)


def test_the_same_seed_gives_the_same_parts(case: tuple[Dataset, Partition]) -> None:
    dataset, how = case
    for a, b in zip(how.split(dataset, 5), how.split(dataset, 5), strict=True):
        assert same(a.train, b.train)
        assert same(a.test, b.test)
        assert (a.columns, a.view) == (b.columns, b.view)


@pytest.mark.parametrize(
    "how",
    [
        partition("rows"),
        partition("rows", alpha=0.5),
        partition("hybrid"),
        partition("columns", shuffle=True),
    ],
)
def test_another_seed_gives_other_parts(how: Partition) -> None:
    a, b = how.split(table(), 1), how.split(table(), 2)
    assert any(not torch.equal(p.train.x, q.train.x) for p, q in zip(a, b, strict=True))


def test_a_column_travels_with_its_values() -> None:
    dataset = table()
    for part in partition("columns", shuffle=True).split(dataset, 1):
        assert part.index is not None
        assert part.columns == tuple(dataset.columns[i] for i in part.index.tolist())
        assert torch.equal(part.train.x, dataset.train.x[:, part.index])


def test_columns_that_nobody_has_are_left_out_of_the_union() -> None:
    dataset = table()
    how = partition("columns", groups={"a": ("c7",), "b": ("c1", "c3")})
    joined = how.join(how.split(dataset, 0), dataset)
    assert [column.name for column in joined.columns] == ["c1", "c3", "c7"]
    assert torch.equal(joined.train.x, dataset.train.x[:, [1, 3, 7]])
    assert torch.equal(joined.test.x, dataset.test.x[:, [1, 3, 7]])


def test_pixels_that_nobody_sees_are_zero_in_the_union() -> None:
    dataset = images(h=32, w=32)
    how = partition("rectangles", rectangles=((0, 0, 12, 32), (0, 12, 32, 20)))
    joined = how.join(how.split(dataset, 0), dataset)
    assert (joined.train.x[:, :, 12:, :12] == 0).all()
    assert int((joined.train.x != dataset.train.x).sum()) == 40 * 20 * 12


def test_hybrid_knows_blocks_of_the_table() -> None:
    dataset = table(n=40, width=12)
    how = partition("hybrid")
    parts = how.split(dataset, 0)
    assert [tuple(p.train.x.shape) for p in parts] == [(10, 3)] * 4
    assert [tuple(p.test.x.shape) for p in parts] == [(10, 3)] * 4
    joined = how.join(parts, dataset)
    assert torch.equal(joined.test.x, dataset.test.x)
    known = joined.train.x != 0
    assert known.sum() == 40 * 3
    assert torch.equal(joined.train.x[known], dataset.train.x[known])


def test_hybrid_cuts_views_where_rectangles_are_given() -> None:
    dataset = images(h=4, w=4)
    parts = partition("hybrid", rectangles=((0, 0, 4, 2), (0, 2, 4, 2))).split(dataset, 0)
    assert [tuple(p.train.x.shape) for p in parts] == [(20, 1, 4, 2)] * 2
    assert parts[1].view == Rectangle(0, 2, 4, 2)
    assert parts[1].index is None


def test_the_hybrid_split_of_fedemb() -> None:
    dataset = images(n=40, h=28, w=28)
    parts = partition("hybrid", parties=4).split(dataset, 0)
    assert [tuple(p.train.x.shape) for p in parts] == [(10, 196)] * 4
    assert len({i for p in parts for i in p.train.ids.tolist()}) == 40


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 5),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([None, 1.0]),
    st.integers(0, 100),
)
def test_the_hybrid_union_is_what_anybody_knows(
    parties: int, row: float, column: float, alpha: float | None, seed: int
) -> None:
    dataset = table()
    column = column if parties > 1 else 0.0
    how = partition("hybrid", parties=parties, row_overlap=row, column_overlap=column, alpha=alpha)
    parts = how.split(dataset, seed)
    place = {i: k for k, i in enumerate(dataset.train.ids.tolist())}
    expected = torch.zeros_like(dataset.train.x)
    for part in parts:
        assert part.index is not None
        for i in part.train.ids.tolist():
            expected[place[i], part.index] = dataset.train.x[place[i], part.index]
    assert torch.equal(how.join(parts, dataset).train.x, expected)


def test_how_many_parties() -> None:
    assert partition("tiles", grid=(2, 3)).count(images()) == 6
    assert partition("strips").count(images()) == 4
    assert partition("rectangles", rectangles=((0, 0, 1, 1),) * 2).count(images()) == 2
    assert partition("columns", sizes=(4, 7)).count(table()) == 2
    assert partition("columns", groups={"a": ("c1",)}).count(table()) == 1
    assert partition("rows", parties=7).count(table()) == 7
    assert partition("whole").count(table()) == 1


@pytest.mark.parametrize(
    ("dataset", "how", "said"),
    [
        (table(), partition("tiles"), "'table' is a table of 11 columns; 'tiles' cuts images"),
        (table(), partition("hybrid", rectangles=((0, 0, 1, 1),)), "'rectangles' cuts images"),
        (table(), partition("columns", parties=12), "11 columns cannot be divided among 12"),
        (table(), partition("columns", sizes=(1, 2)), "add up to 3"),
        (table(), partition("columns", parties=3, sizes=(1, 10)), "parties for 3 and sizes for 2"),
        (table(), partition("columns", groups={"a": ("d1",)}), "no column"),
        (table(), partition("columns", groups={"a": ("c1",)}, shuffle=True), "shuffle has no"),
        (images(), partition("columns", groups={"a": ("c1",)}), "no column names"),
        (images(), partition("tiles", parties=3), "parties for 3 and grid for 4"),
        (images(), partition("tiles", grid=(0, 2)), "grid of 0×2"),
        (images(), partition("strips", parties=9), "Use between 1 and 8"),
        (images(), partition("strips", parties=-1), "cannot be -1 parties"),
        (images(), partition("rectangles"), "none given"),
        (images(), partition("rectangles", rectangles=((0, 4, 4, 5),)), "4×5 at"),
        (table(3), partition("rows"), "3 rows cannot give 4 parties"),
        (table(), partition("rows", alpha=-1.0), "alpha"),
        (table(), partition("rows", row_overlap=1.5), "common to all"),
    ],
)
def test_impossible_partitions(dataset: Dataset, how: Partition, said: str) -> None:
    with pytest.raises(PartitionError, match=said):
        how.split(dataset, 0)


def test_label_skew_needs_labels() -> None:
    dataset = table()
    bare = Dataset("bare", dataset.train.without_labels(), dataset.test, ("a", "b"))
    with pytest.raises(PartitionError, match="there are none"):
        partition("rows", alpha=1.0).split(bare, 0)
    parts = partition("rows").split(bare, 0)
    assert all(part.train.y is None for part in parts)
    assert partition("rows").join(parts, bare).train.y is None


def test_join_refuses_what_does_not_belong_together() -> None:
    dataset, how = table(), partition("rows", parties=2, row_overlap=0.5)
    a, b = how.split(dataset, 0)
    changed = Part(Split(b.train.x + 1, b.train.y, b.train.ids), b.test, b.columns)
    with pytest.raises(PartitionError, match="differ in a value"):
        how.join([a, changed], dataset)
    stranger = Part(Split(b.train.x, b.train.y, b.train.ids + 1), b.test, b.columns)
    with pytest.raises(PartitionError, match="not in the data set"):
        how.join([a, stranger], dataset)
    with pytest.raises(PartitionError, match="no parts"):
        how.join([], dataset)
    whole = partition("whole", parties=2)
    c, d = whole.split(dataset, 0)
    other = Part(Split(d.train.x + 1, d.train.y, d.train.ids), d.test, d.columns)
    with pytest.raises(PartitionError, match="hold the same rows"):
        whole.join([c, other], dataset)


def test_the_public_names() -> None:
    assert colonnade.partition.__all__ == sorted(colonnade.partition.__all__)
    assert all(hasattr(colonnade.partition, name) for name in colonnade.partition.__all__)
