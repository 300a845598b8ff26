"""Groups of samples: a party sends the mean of a group, not a sample's own vector.

    random_groups    a random split that all parties derive from one seed; nothing is sent for it
    kmeans_groups    vectors that lie near each other; one party finds and publishes them
    class_groups     random within each class; equal where the labels and the seed are equal
    class_places     the same number of groups for every class; a row's own label and place decide
    single_groups    every sample on its own: no aggregation

A mean hides its members only among each other. A group of one hides nothing, and k-means makes
such groups. The membership itself reveals which samples are similar at one party (k-means), or
which have the same label (class groups).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade.errors import Diverged, WireError
from colonnade.wire import Value

ITERATIONS = 5  # of Lloyd's algorithm: groups must be similar, not optimal


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which group each sample belongs to; every group that is averaged has a member."""

    membership: Tensor  # int64 (rows,), on the CPU: 0 … groups - 1, row by row
    groups: int  # R; at most the number asked for

    @cached_property
    def sizes(self) -> Tensor:
        """The members of each group: int64 (groups,)."""
        return self.membership.bincount(minlength=self.groups)

    @cached_property
    def _by_group(self) -> tuple[Tensor, Tensor]:
        """The rows in the order of their groups, and where in it each group begins and ends."""
        return self.membership.argsort(stable=True), F.pad(self.sizes.cumsum(0), (1, 0))

    def means(self, x: Tensor) -> Tensor:
        """The mean of each group: (rows, width) → (groups, width).

        Summed in float64 and in the order of the rows, so that a GPU finds the same each time.
        """
        return (self._summed(x) / self.sizes.to(x.device)[:, None]).to(x.dtype)

    def sums(self, x: Tensor) -> Tensor:
        """The sum of each group: (rows, width) → (groups, width); 0 where nobody is in it."""
        return self._summed(x).to(x.dtype)

    def _summed(self, x: Tensor) -> Tensor:
        if len(x) != len(self.membership):
            raise ValueError(f"{len(x)} rows for a grouping of {len(self.membership)}")
        order, bounds = (part.to(x.device) for part in self._by_group)
        return F.embedding_bag(
            order, x.detach().double(), bounds, mode="sum", include_last_offset=True
        )


def random_groups(rows: int, groups: int, seed: int) -> Grouping:
    """Groups whose sizes differ by at most one; the same at every party with this seed."""
    groups = _at_most(rows, groups)
    membership = torch.empty(rows, dtype=torch.int64)
    membership[_shuffled(rows, seed)] = torch.arange(rows) % groups
    return Grouping(membership, groups)


def kmeans_groups(x: Tensor, groups: int, seed: int) -> Grouping:
    """k-means over the rows of x, (rows, width); clusters that end empty are omitted.

    It makes full passes from randomly drawn rows. Mini-batches lose many clusters where rows often
    repeat, as in KDD, and the start of k-means++ takes far longer than all of these passes.
    """
    groups = _at_most(len(x), groups)
    if groups == len(x):
        return single_groups(groups)
    if not x.isfinite().all():
        raise Diverged(
            "k-means over NaN or infinite values: the training has diverged; try a smaller lr"
        )
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    kmeans = KMeans(groups, init="random", n_init=1, max_iter=ITERATIONS, random_state=seed % 2**32)
    # With several threads sums differ in their last bits, and some rows change their cluster.
    with threadpool_limits(1, "openmp"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters
        found = torch.from_numpy(kmeans.fit_predict(x.detach().cpu().numpy()))
    left, membership = found.unique(return_inverse=True)
    return Grouping(membership, len(left))


def class_groups(labels: Tensor, groups: int, seed: int) -> Grouping:
    """Random groups of one label each, in proportion to the class sizes, one per class or more.

    There are at least as many groups as classes. The groups of a class follow each other, in the
    order of the labels, and their sizes differ by at most one.
    """
    _, classes, counts = labels.cpu().unique(return_inverse=True, return_counts=True)
    groups = max(_at_most(len(labels), groups), len(counts))
    shares = torch.tensor(_shares(counts.tolist(), groups))  # groups of each class
    first, begin = (each.cumsum(0) - each for each in (shares, counts))
    shuffled = _shuffled(len(labels), seed)
    order = shuffled[classes[shuffled].argsort(stable=True)]  # class by class, shuffled within
    of = classes[order]
    place = torch.arange(len(order)) - begin[of]  # within its class
    membership = torch.empty_like(order)
    membership[order] = first[of] + place % shares[of]
    return Grouping(membership, groups)


def class_places(labels: Tensor, classes: int, groups: int, seed: int) -> Grouping:
    """About `groups` groups, equally many of each class, one at least; those of a class follow each
    other, and may be empty.

    A row's place within its class follows from the seed and its number alone. So a row whose label
    changes moves from one group to another, and no other row does; and which group is of which
    class follows from no label at all.
    """
    each = max(1, groups // classes)
    places = torch.empty(len(labels), dtype=torch.int64)
    places[_shuffled(len(labels), seed)] = torch.arange(len(labels)) % each
    return Grouping(labels.cpu().long() * each + places, classes * each)


def single_groups(rows: int) -> Grouping:
    """Every row is a group: `means` returns the rows."""
    return Grouping(torch.arange(_at_most(rows, rows)), rows)


def published(membership: Value, rows: int) -> Grouping:
    """The grouping behind a membership that another party sent; an invalid one is refused."""
    if (
        not isinstance(membership, Tensor)
        or membership.dtype != torch.int64
        or membership.shape != (rows,)
    ):
        raise WireError(f"the membership of {rows} rows must be int64 of shape ({rows},)")
    membership = membership.cpu()
    lowest, highest = (int(end) for end in membership.aminmax())
    # Before counting: a single large number would ask for as much memory.
    if lowest < 0 or highest >= rows or not membership.bincount().all():
        raise WireError(
            f"a membership of {rows} rows came with groups {lowest} … {highest}, some of them "
            "empty or out of range: do both ends group the same rows?"
        )
    return Grouping(membership, highest + 1)


def _at_most(rows: int, groups: int) -> int:
    if rows < 1 or groups < 1:
        raise ValueError(f"{groups} groups of {rows} rows: at least one of each is needed")
    return min(rows, groups)


def _shuffled(rows: int, seed: int) -> Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed))


def _shares(counts: list[int], groups: int) -> list[int]:
    """One group for every class, the others by largest remainder; never more than it has rows."""
    spare, rows = groups - len(counts), sum(counts) - len(counts)
    exact = [divmod(spare * (count - 1), max(rows, 1)) for count in counts]
    left = spare - sum(whole for whole, _ in exact)
    favoured = sorted(range(len(counts)), key=lambda one: -exact[one][1])[:left]
    return [1 + whole + (one in favoured) for one, (whole, _) in enumerate(exact)]
