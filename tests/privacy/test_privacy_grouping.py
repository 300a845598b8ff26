"""Groups: every row in one of them, the same at two parties, and means that are means."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.errors import Diverged, WireError
from colonnade.privacy.grouping import (
    Grouping,
    class_groups,
    kmeans_groups,
    published,
    random_groups,
    single_groups,
)
from colonnade.wire import codec

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def blobs(centres: int, each: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points around far centres, in no order, and which centre each belongs to."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randperm(centres * each, generator=generator) % centres
    middle = 100 * torch.randn(centres, 8, generator=generator)
    return middle[truth] + torch.randn(len(truth), 8, generator=generator), truth


def spread(x: Tensor, grouping: Grouping) -> float:
    """The variance that is left within groups, as a share of all."""
    inner = (x - grouping.means(x)[grouping.membership]).square().sum()
    return float(inner / (x - x.mean(0)).square().sum())


def check(grouping: Grouping, rows: int) -> None:
    membership, sizes = grouping.membership, grouping.sizes
    assert membership.dtype == sizes.dtype == torch.int64
    assert membership.shape == (rows,) and sizes.shape == (grouping.groups,)
    assert sizes.tolist() == [int((membership == g).sum()) for g in range(grouping.groups)]
    assert int(sizes.min()) > 0
    assert int(sizes.sum()) == rows


# ---- means ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_means_are_those_of_a_loop(device: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (1000 + torch.randn(501, 7, generator=generator, dtype=torch.float64)).to(dtype)
    # Neither in the order of the groups nor of one size.
    membership = torch.cat([torch.arange(23), torch.randint(0, 23, (478,), generator=generator)])
    grouping = Grouping(membership.flip(0), 23)
    expected = []
    for group in range(23):
        members = x[grouping.membership == group].double().tolist()
        expected.append([math.fsum(column) / len(members) for column in zip(*members, strict=True)])
    means = grouping.means(x.to(device))
    assert means.dtype == dtype and means.device.type == device
    exact = torch.tensor(expected, dtype=torch.float64)
    assert torch.allclose(means.cpu().double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0)
    assert torch.equal(means, grouping.means(x.to(device)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("groups", [1, 600, 15_000])
def test_a_gpu_finds_the_same_means_to_the_bit(groups: int) -> None:
    x = torch.randn(60_000, 128, generator=torch.Generator().manual_seed(0))
    grouping = random_groups(60_000, groups, 0)
    on_gpu = grouping.means(x.cuda())
    assert torch.equal(on_gpu, grouping.means(x.cuda()))
    assert torch.equal(on_gpu.cpu(), grouping.means(x))


def test_means_have_no_gradient_and_leave_the_rows_alone() -> None:
    x = torch.randn(6, 3, requires_grad=True)
    before = x.detach().clone()
    assert not random_groups(6, 2, 0).means(x).requires_grad
    assert torch.equal(x, before)


def test_single_groups_give_the_rows_back() -> None:
    x = torch.randn(50, 4)
    grouping = single_groups(50)
    check(grouping, 50)
    assert torch.equal(grouping.means(x), x)


@pytest.mark.parametrize("rows", [3, 5])
def test_another_number_of_rows_is_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=rf"{rows} rows for a grouping of 4"):
        random_groups(4, 2, 0).means(torch.zeros(rows, 1))


# ---- random --------------------------------------------------------------------------------------


@given(rows=st.integers(1, 200), groups=st.integers(1, 300), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_random_groups_differ_by_one_row_at_most(rows: int, groups: int, seed: int) -> None:
    grouping = random_groups(rows, groups, seed)
    check(grouping, rows)
    assert grouping.groups == min(rows, groups)
    assert grouping.sizes.max() - grouping.sizes.min() <= 1


def test_random_groups_are_the_same_at_two_parties() -> None:
    """Whatever else each of them has drawn before, and with any number of threads."""
    torch.manual_seed(1)
    first = random_groups(60_000, 600, 7)
    torch.manual_seed(2)
    torch.rand(100)
    assert torch.equal(first.membership, random_groups(60_000, 600, 7).membership)
    program = (
        "from colonnade.privacy.grouping import random_groups as r;"
        "print(r(60_000, 600, 7).membership[:50].tolist())"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == str(first.membership[:50].tolist())


def test_random_groups_are_random() -> None:
    one, other = random_groups(1000, 10, 0).membership, random_groups(1000, 10, 1).membership
    assert 0.05 < (one == other).double().mean() < 0.15
    assert 0.05 < (one[1:] == one[:-1]).double().mean() < 0.15


@pytest.mark.parametrize(("rows", "groups"), [(0, 1), (5, 0), (5, -1)])
def test_no_rows_or_no_groups_are_refused(rows: int, groups: int) -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        random_groups(rows, groups, 0)


# ---- k-means -------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [40, 400])
def test_kmeans_groups_are_tighter_than_random_ones(groups: int) -> None:
    x, truth = blobs(20, 100)
    found = kmeans_groups(x, groups, 0)
    check(found, len(x))
    assert found.groups > 0.9 * groups
    assert spread(x, found) < 0.1 * spread(x, random_groups(len(x), groups, 0))
    assert spread(x, found) < 0.1
    # Far blobs are hardly ever mixed.
    mixed = sum(len(truth[found.membership == g].unique()) > 1 for g in range(found.groups))
    assert mixed < 0.1 * found.groups


def test_kmeans_is_the_same_twice_and_depends_on_the_seed() -> None:
    x, _ = blobs(20, 100)
    one, again, other = (kmeans_groups(x, 60, seed).membership for seed in (5, 5, 2**62 + 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_kmeans_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them sum in another order, and some rows end in another cluster."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_info

    threads: list[int] = []
    fit = KMeans.fit_predict

    def watched(self: KMeans, x: Any) -> Any:
        threads.extend(p["num_threads"] for p in threadpool_info() if p["user_api"] == "openmp")
        return fit(self, x)

    monkeypatch.setattr(KMeans, "fit_predict", watched)
    kmeans_groups(blobs(4, 10)[0], 4, 0)
    assert set(threads) == {1}


def test_kmeans_leaves_out_the_clusters_that_stay_empty() -> None:
    """Seven different rows make seven groups at most; sklearn's warning does not get out."""
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))[torch.arange(700) % 7]
    found = kmeans_groups(x, 50, 0)
    check(found, 700)
    assert found.groups == 7
    assert spread(x, found) < 1e-9


def test_kmeans_with_a_group_for_every_row_aggregates_nothing() -> None:
    x = torch.zeros(20, 3)
    for groups in (20, 21, 10_000):
        assert torch.equal(kmeans_groups(x, groups, 0).membership, torch.arange(20))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_kmeans_refuses_what_has_diverged(bad: float) -> None:
    x = torch.randn(20, 3)
    x[7, 1] = bad
    with pytest.raises(Diverged):
        kmeans_groups(x, 4, 0)


# ---- classes -------------------------------------------------------------------------------------


@given(
    labels=st.lists(st.integers(-1, 5), min_size=1, max_size=120),
    groups=st.integers(1, 150),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=100, deadline=None)
def test_class_groups_are_pure_and_in_proportion(labels: list[int], groups: int, seed: int) -> None:
    y = torch.tensor(labels)
    grouping = class_groups(y, groups, seed)
    check(grouping, len(y))
    classes = sorted(set(labels))
    assert grouping.groups == max(min(groups, len(y)), len(classes))
    owner = []
    for group in range(grouping.groups):
        (label,) = y[grouping.membership == group].unique().tolist()
        owner.append(label)
    assert owner == sorted(owner)  # class by class
    for label in classes:
        members, count = labels.count(label), owner.count(label)
        # One each, and of the others its part, give or take one.
        spare = (grouping.groups - len(classes)) * (members - 1) / max(1, len(y) - len(classes))
        assert abs(count - 1 - spare) < 1
        sizes = grouping.sizes[torch.tensor(owner) == label]
        assert sizes.max() - sizes.min() <= 1


def test_class_groups_are_random_within_a_class_and_the_same_at_two_parties() -> None:
    y = torch.arange(1000) % 2
    one, again, other = (class_groups(y, 20, seed) for seed in (0, 0, 1))
    assert torch.equal(one.membership, again.membership)
    assert 0.05 < (one.membership == other.membership).double().mean() < 0.15
    neighbours = one.membership[y == 0]
    assert 0.05 < (neighbours[1:] == neighbours[:-1]).double().mean() < 0.15


def test_class_groups_of_mnist_are_shared_out_by_class_size() -> None:
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    y = torch.arange(10).repeat_interleave(torch.tensor(counts))
    grouping = class_groups(y, 600, 0)
    assert grouping.groups == 600
    owner = torch.empty(600, dtype=torch.int64).scatter_(0, grouping.membership, y)
    assert owner.bincount().tolist() == [59, 67, 60, 61, 58, 54, 59, 63, 59, 60]
    assert int(grouping.sizes.min()) > 97 and int(grouping.sizes.max()) < 103


# ---- what another party sent ---------------------------------------------------------------------


@pytest.mark.parametrize("maker", ["random", "kmeans", "class", "single"])
def test_a_membership_crosses_the_wire_as_one_tensor(maker: str) -> None:
    x, y = blobs(5, 20)
    grouping = {
        "random": lambda: random_groups(100, 9, 0),
        "kmeans": lambda: kmeans_groups(x, 9, 0),
        "class": lambda: class_groups(y, 9, 0),
        "single": lambda: single_groups(100),
    }[maker]()
    there = published(codec.decode(codec.encode(grouping.membership)), 100)
    assert there.groups == grouping.groups
    assert torch.equal(there.means(x), grouping.means(x))


@pytest.mark.parametrize(
    "sent",
    [
        torch.tensor([0, 1, 3, 3]),  # nobody is in 2
        torch.tensor([1, 1, 2, 2]),
        torch.tensor([0, 1, -1, 1]),
        torch.tensor([0, 1, 2**62, 1]),  # must not be counted out
        torch.tensor([0, 1, 4, 1]),
        torch.tensor([0, 1, 1]),
        torch.tensor([[0], [1], [1], [0]]),
        torch.tensor([0, 1, 1, 0], dtype=torch.int32),
        torch.tensor([0.0, 1.0, 1.0, 0.0]),
        {"membership": torch.tensor([0, 1, 1, 0])},
        b"0110",
    ],
    ids=str,
)
def test_a_broken_membership_is_refused(sent: Any) -> None:
    with pytest.raises(WireError, match="membership"):
        published(sent, 4)
    assert published(torch.tensor([0, 1, 1, 0]), 4).groups == 2
