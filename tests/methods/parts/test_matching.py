"""Groups of different parties that are joined: alike, at random, or by the class they look like."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from colonnade.errors import MethodError
from colonnade.methods.parts.matching import alike, matched, side_by_side


def looking(*counts: int) -> Tensor:
    """Groups of which so many look like each class."""
    looks = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    return looks[torch.randperm(len(looks), generator=torch.Generator().manual_seed(1))]


@pytest.mark.parametrize(
    "counts",
    [
        [(4, 3, 5), (4, 3, 5)],
        [(4, 3, 5), (5, 3, 4)],
        [(9, 9, 9), (2, 3, 4)],
        [(0, 9, 1), (5, 5, 0), (2, 6, 2)],
        [(6, 0), (0, 6)],
    ],
    ids=str,
)
def test_match_class_joins_groups_that_look_alike(counts: list[tuple[int, ...]]) -> None:
    """As many as there are, whatever the proportions of the classes; the rest as it comes."""
    looks = [looking(*one) for one in counts]
    sizes = [sum(one) for one in counts]
    found = sum(min(of_class) for of_class in zip(*counts, strict=True))
    orders = matched(sizes, 2, seed=5, looks=looks)
    for turn in range(2):
        chosen = [order[turn * min(sizes) : (turn + 1) * min(sizes)] for order in orders]
        assert all(len(set(order.tolist())) == min(sizes) for order in chosen)
        joined = side_by_side(looks, chosen)
        assert int((joined == joined[:, :1]).all(1).sum()) >= found
    assert not torch.equal(orders[0][: min(sizes)], orders[0][min(sizes) :])
    again = matched(sizes, 2, seed=5, looks=looks)
    assert all(torch.equal(a, b) for a, b in zip(orders, again, strict=True))


def test_random_orders_follow_from_the_seed_and_end_with_the_smallest_party() -> None:
    orders = matched([7, 5], 3, seed=1)
    assert [len(order) for order in orders] == [15, 15]
    assert sorted(orders[1][:5].tolist()) == list(range(5))
    assert all(torch.equal(a, b) for a, b in zip(orders, matched([7, 5], 3, seed=1), strict=True))
    assert not torch.equal(orders[0], matched([7, 5], 3, seed=2)[0])


def test_groups_that_are_alike_keep_their_order() -> None:
    x, y = torch.randn(4, 2), torch.randn(4, 2)
    joined = side_by_side([x, y], alike(["bank", "shop"], [4, 4]))
    assert torch.equal(joined, torch.stack([x, y], 1))
    with pytest.raises(MethodError, match=r"'bank' sent 4 groups and 'shop' 3: .* same rows"):
        alike(["bank", "shop"], [4, 3])
