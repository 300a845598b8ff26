"""Joins groups of rows of different parties: group by group, or matched at random.

Where all parties group the same rows alike, group r of one belongs to group r of all. Elsewhere
nobody knows which rows belong together, and groups are joined at random.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from colonnade.errors import MethodError
from colonnade.role.seeds import derive


def alike(names: Sequence[str], counts: Sequence[int]) -> list[Tensor]:
    """The same order at all parties, which must have equally many groups."""
    for name, count in zip(names, counts, strict=True):
        if count != counts[0]:
            raise MethodError(
                f"'{names[0]}' sent {counts[0]} groups and '{name}' {count}: setting = 'vertical' "
                "needs the same rows at all clients"
            )
    return [torch.arange(count) for count in counts]


def matched(
    counts: Sequence[int], combinations: int, seed: int, looks: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """The groups of each party, in an order in which row r of all parties is joined.

    The orders are random, and the same in every call with one seed. They are drawn `combinations`
    times, one after another.

    counts  the groups of each party. As many are joined as the party with the fewest has
    looks   the class that each group looks like, by party: groups of one class are joined as far
            as there are any, and those that nobody can match come last
    """
    rows = min(counts)
    orders: list[list[Tensor]] = [[] for _ in counts]
    for turn in range(combinations):
        for number, count in enumerate(counts):
            generator = torch.Generator().manual_seed(derive(seed, "match", turn, number))
            order = torch.randperm(count, generator=generator)
            if looks is not None:
                order = order[_by_class(looks, number, order)]
            orders[number].append(order[:rows])
    return [torch.cat(order) for order in orders]


def side_by_side(values: Sequence[Tensor], orders: Sequence[Tensor]) -> Tensor:
    """What is joined, row by row: (rows, parties, …)."""
    ordered = [one[order.to(one.device)] for one, order in zip(values, orders, strict=True)]
    return torch.stack(ordered, 1)


def _by_class(looks: Sequence[Tensor], number: int, order: Tensor) -> Tensor:
    """Where, in a party's random order, the groups stand that are to come first, second, …"""
    classes = 1 + max(int(look.max()) for look in looks)
    sizes = torch.stack([look.bincount(minlength=classes) for look in looks])
    shared = sizes.min(0).values  # so many of a class are there at all parties
    look, by_class = looks[number][order].sort(stable=True)
    place = torch.arange(len(look)) - (sizes[number].cumsum(0) - sizes[number])[look]
    found = place < shared[look]
    return torch.cat([by_class[found], by_class[~found]])
