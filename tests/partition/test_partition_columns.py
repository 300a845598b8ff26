"""Blocks and groups of columns."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import PartitionError
from colonnade.partition import columns, cut_columns, join_columns, named_columns

NAMES = ["age", "income", "tBodyAcc-X", "tBodyAcc-Y", "tGravityAcc-X", "tBodyGyro-X", "mean[1]"]


def sizes(count: int, parties: int) -> list[int]:
    return [len(block) for block in columns(count, parties)]


def test_the_blocks_of_fedemb() -> None:
    assert sizes(41, 8) == [6, 5, 5, 5, 5, 5, 5, 5]
    assert sizes(41, 4) == [11, 10, 10, 10]
    assert sizes(784, 8) == [98] * 8


@settings(deadline=None)
@given(st.data(), st.integers(1, 60), st.none() | st.integers(0, 2**40))
def test_blocks_are_disjoint_complete_and_join_back(
    data: st.DataObject, count: int, shuffle: int | None
) -> None:
    parties = data.draw(st.integers(1, count))
    blocks = columns(count, parties, shuffle=shuffle)
    assert sorted(torch.cat(blocks).tolist()) == list(range(count))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
    assert all(block.tolist() == sorted(block.tolist()) for block in blocks)
    assert [b.tolist() for b in blocks] == [
        b.tolist() for b in columns(count, parties, shuffle=shuffle)
    ]
    x = torch.randn(3, count, generator=torch.Generator().manual_seed(0))
    assert torch.equal(join_columns([cut_columns(x, b) for b in blocks], blocks, count), x)


@settings(deadline=None)
@given(st.data(), st.integers(2, 60), st.floats(0.01, 1))
def test_every_party_shares_with_the_next(data: st.DataObject, count: int, overlap: float) -> None:
    parties = data.draw(st.integers(2, count))
    own, wide = columns(count, parties), columns(count, parties, overlap=overlap)
    for k in range(parties):
        following = (k + 1) % parties
        shared = set(own[k].tolist()) & set(wide[following].tolist())
        assert abs(len(shared) - overlap * len(own[k])) <= 0.5 or len(shared) == 1
        assert set(wide[following].tolist()) == shared | set(own[following].tolist())
        assert len(set(wide[following].tolist())) == len(wide[following])
    x = torch.arange(2 * count).reshape(2, count)
    assert torch.equal(join_columns([cut_columns(x, b) for b in wide], wide, count), x)


def test_a_seed_decides_the_permutation() -> None:
    def drawn(seed: int) -> list[list[int]]:
        return [b.tolist() for b in columns(40, 4, shuffle=seed)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_given_sizes() -> None:
    assert [b.tolist() for b in columns(5, sizes=[1, 3, 1])] == [[0], [1, 2, 3], [4]]


def test_pixels_are_read_row_by_row_and_stay_bytes() -> None:
    images = torch.arange(2 * 2 * 3, dtype=torch.uint8).reshape(2, 1, 2, 3)
    blocks = columns(6, 2)
    parts = [cut_columns(images, b) for b in blocks]
    assert parts[0].tolist() == [[0, 1, 2], [6, 7, 8]]
    assert parts[0].dtype is torch.uint8
    assert torch.equal(join_columns(parts, blocks, 6).reshape(images.shape), images)


def test_groups_by_name_and_pattern() -> None:
    groups = {"bank": ["income", "age"], "phone": ["*Acc*", "tBody*"], "lab": ["mean[1]"]}
    found = named_columns(NAMES, groups)
    assert {party: index.tolist() for party, index in found.items()} == {
        "bank": [0, 1],  # in the order of the table
        "phone": [2, 3, 4, 5],  # patterns of one party may meet
        "lab": [6],  # a name is literal before it is a pattern
    }


def test_groups_that_share() -> None:
    found = named_columns(NAMES, {"a": ["age", "income"], "b": ["*Acc-X"]}, overlap=0.5)
    assert {party: index.tolist() for party, index in found.items()} == {
        "a": [0, 1, 4],
        "b": [1, 2, 4],
    }


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({}, "none given"),
        ({"a": []}, "'a' names no column"),
        ({"a": ["incom"]}, "did you mean 'income'"),
        ({"a": ["*Magnet*"]}, "one of age, income"),
        ({"a": ["age"], "b": ["a*"]}, "'a' and 'b' both name the column 'age'"),
        ({"a": ["age", "age"]}, "'a' names 'age' twice"),
    ],
)
def test_groups_that_cannot_be(groups: dict[str, list[str]], said: str) -> None:
    with pytest.raises(PartitionError, match=said):
        named_columns(NAMES, groups)


def test_impossible_columns() -> None:
    with pytest.raises(PartitionError, match="5 columns cannot be divided among 6 parties"):
        columns(5, 6)
    with pytest.raises(PartitionError, match="add up to 4, there are 5"):
        columns(5, sizes=[2, 2])
    with pytest.raises(PartitionError, match="at least one"):
        columns(5, sizes=[5, 0])
    with pytest.raises(PartitionError, match=r"1\.5 is not a fraction"):
        columns(5, 2, overlap=1.5)
    with pytest.raises(PartitionError, match="nobody to share"):
        columns(5, 1, overlap=0.5)


def test_join_checks_what_it_is_given() -> None:
    first, second = torch.tensor([0, 1]), torch.tensor([1, 2])
    a, b = torch.zeros(2, 2), torch.ones(2, 2)
    with pytest.raises(PartitionError, match="part 1 differs"):
        join_columns([a, b], [first, second], 3)
    with pytest.raises(PartitionError, match="1 parts for 2"):
        join_columns([a], [first, second], 3)
    with pytest.raises(PartitionError, match="part 0 has the shape"):
        join_columns([torch.zeros(2, 3)], [first], 3)
    with pytest.raises(PartitionError, match="columns 1 to 2; the whole has 2"):
        join_columns([a], [second], 2)
    missing = torch.full((2, 2), torch.nan)  # equal to itself here: a missing value
    assert join_columns([missing, missing], [first, second], 3).isnan().all()
    assert join_columns([a], [first], 3, fill=7)[:, 2].tolist() == [7, 7]
