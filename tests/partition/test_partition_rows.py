"""Rows: who has which, how skewed, how many in common."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.errors import PartitionError
from colonnade.partition import dirichlet, iid, overlap

seeds = st.integers(0, 2**40)


def listed(blocks: list[Tensor]) -> list[list[int]]:
    return [block.tolist() for block in blocks]


def labels(n: int, classes: int = 10) -> Tensor:
    return torch.arange(n) % classes


@settings(deadline=None)
@given(st.data(), st.integers(1, 80), seeds)
def test_iid_gives_every_row_once(data: st.DataObject, n: int, seed: int) -> None:
    parties = data.draw(st.integers(1, n))
    blocks = iid(n, parties, seed)
    assert sorted(torch.cat(blocks).tolist()) == list(range(n))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
    assert listed(iid(n, parties, seed)) == listed(blocks)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5), st.floats(0.3, 100), seeds, st.integers(0, 5))
def test_dirichlet_gives_every_row_once_and_everybody_enough(
    parties: int, alpha: float, seed: int, minimum: int
) -> None:
    blocks = dirichlet(labels(300), parties, alpha, seed, minimum)
    assert sorted(torch.cat(blocks).tolist()) == list(range(300))
    assert min(map(len, blocks)) >= minimum
    assert listed(dirichlet(labels(300), parties, alpha, seed, minimum)) == listed(blocks)


def test_a_small_alpha_skews_labels_and_a_large_one_does_not() -> None:
    y = labels(2000)

    def largest_share(alpha: float) -> float:
        blocks = dirichlet(y, 4, alpha, seed=3)
        return max(float(y[b].bincount(minlength=10).max()) / len(b) for b in blocks)

    assert largest_share(1e6) == pytest.approx(0.1, abs=0.01)
    assert largest_share(0.05) > 0.3


@settings(deadline=None)
@given(st.data(), st.integers(4, 80), st.integers(1, 4), seeds)
def test_overlap_is_as_large_as_asked(data: st.DataObject, n: int, parties: int, seed: int) -> None:
    shared = data.draw(st.integers(0, n) | st.floats(0, 1))
    blocks = [set(b.tolist()) for b in overlap(n, parties, shared, seed)]
    common = set.intersection(*blocks)
    assert set.union(*blocks) == set(range(n))
    if parties == 1:
        return
    if isinstance(shared, int):
        assert len(common) == shared
    else:
        assert abs(len(common) - shared * n) <= 0.5 or len(common) == 1
    rest = [block - common for block in blocks]
    assert sum(map(len, rest)) == n - len(common)  # disjoint but for the common rows


def test_seeds_decide() -> None:
    assert listed(iid(50, 3, 1)) != listed(iid(50, 3, 2))
    assert listed(dirichlet(labels(50), 3, 1.0, 1)) != listed(dirichlet(labels(50), 3, 1.0, 2))
    assert listed(overlap(50, 3, 0.2, 1)) != listed(overlap(50, 3, 0.2, 2))
    assert listed(overlap(50, 3, 5, 1)) == listed(overlap(50, 3, 0.1, 1))


def test_a_skewed_rest() -> None:
    y = labels(400, 2)
    blocks = overlap(400, 2, 100, 0, labels=y, alpha=0.1)
    common = set(blocks[0].tolist()) & set(blocks[1].tolist())
    assert len(common) == 100
    assert len(blocks[0]) + len(blocks[1]) == 500
    assert len(blocks[0]) != len(blocks[1])


def test_impossible_rows() -> None:
    with pytest.raises(PartitionError, match="3 rows cannot give 4 parties at least 1"):
        iid(3, 4, 0)
    with pytest.raises(PartitionError, match="0 parties"):
        iid(3, 0, 0)
    with pytest.raises(PartitionError, match="alpha must be a number above 0"):
        dirichlet(labels(10), 2, 0.0, 0)
    with pytest.raises(PartitionError, match="Use a larger alpha"):
        dirichlet(torch.zeros(40, dtype=torch.int64), 4, 0.001, 0, minimum=10)
    with pytest.raises(PartitionError, match="cannot give 2 parties at least 6"):
        dirichlet(labels(10), 2, 1.0, 0, minimum=6)
    for shared in (1.1, -0.1, 11, -1):
        with pytest.raises(PartitionError, match="cannot be common"):
            overlap(10, 2, shared, 0)
    with pytest.raises(PartitionError, match="there are none"):
        overlap(10, 2, 0.5, 0, alpha=1.0)
