"""Divides rows among parties: evenly at random, with skewed labels, or with a common part."""

from __future__ import annotations

from math import isfinite

import numpy as np
import torch
from torch import Tensor

from colonnade.errors import PartitionError
from colonnade.partition.sizes import even, portion

ATTEMPTS = 1000  # draws of the Dirichlet proportions before giving up


def iid(n: int, parties: int, seed: int, minimum: int = 1) -> list[Tensor]:
    """Every row to one party at random; sizes differ by at most one; indices ascend."""
    _enough(n, parties, minimum)
    order = torch.from_numpy(np.random.default_rng((seed, 0)).permutation(n))
    return [block.sort().values for block in torch.split(order, even(n, parties))]


def dirichlet(
    labels: Tensor, parties: int, alpha: float, seed: int, minimum: int = 1
) -> list[Tensor]:
    """Every row to one party; each class is divided in proportions drawn from Dirichlet(alpha).

    A small alpha gives every party few classes, a large one approaches `iid`. Proportions are
    drawn again until every party has at least `minimum` rows.
    """
    if not (isfinite(alpha) and alpha > 0):
        raise PartitionError(f"rows: alpha must be a number above 0, not {alpha}.")
    _enough(len(labels), parties, minimum)
    random = np.random.default_rng((seed, 0))
    classes = torch.unique(labels)
    available = np.array([int((labels == c).sum()) for c in classes])  # rows of each class
    for _ in range(ATTEMPTS):
        shares = random.dirichlet([alpha] * parties, size=len(classes))
        # Rounding the running sums gives whole numbers that add up and are never negative.
        ends = np.rint(shares.cumsum(1) * available[:, None]).astype(np.int64)
        ends[:, -1] = available
        counts = np.diff(ends, axis=1, prepend=0)  # (classes, parties)
        if counts.sum(0).min() >= minimum:
            break
    else:
        raise PartitionError(
            f"rows: {ATTEMPTS} draws from Dirichlet({alpha}) left a party with fewer than "
            f"{minimum} of {len(labels)} rows. Use a larger alpha, fewer parties or more rows."
        )
    nothing = torch.empty(0, dtype=torch.int64)  # there may be no rows to divide at all
    found = [[nothing] for _ in range(parties)]
    for c, sizes in zip(classes, counts, strict=True):
        rows = (labels == c).nonzero().flatten().cpu()
        rows = rows[torch.from_numpy(random.permutation(len(rows)))]
        for mine, block in zip(found, torch.split(rows, sizes.tolist()), strict=True):
            mine.append(block)
    return [torch.cat(mine).sort().values for mine in found]


def overlap(
    n: int,
    parties: int,
    shared: float,
    seed: int,
    *,
    labels: Tensor | None = None,
    alpha: float | None = None,
) -> list[Tensor]:
    """Some random rows are common to all parties, the rest are divided.

    `shared` is a count when it is an int and a fraction of all rows when it is a float. The rest
    is divided evenly, or with `labels` and `alpha` as by `dirichlet`.
    """
    counted = isinstance(shared, int)
    if not 0 <= shared <= (n if counted else 1):
        raise PartitionError(
            f"rows: {shared} of {n} rows cannot be common to all parties. Give a fraction between "
            f"0.0 and 1.0, or a whole number of rows up to {n}."
        )
    common = int(shared) if counted else portion(n, shared)
    # A separate random stream, so that dividing the rest does not repeat this permutation.
    order = torch.from_numpy(np.random.default_rng((seed, 2)).permutation(n))
    both, rest = order[:common], order[common:].sort().values
    minimum = 0 if common else 1
    if alpha is None:
        blocks = iid(len(rest), parties, seed, minimum)
    elif labels is None:
        raise PartitionError("rows: alpha skews the labels, but there are none. Omit alpha.")
    else:
        blocks = dirichlet(labels.cpu()[rest], parties, alpha, seed, minimum)
    return [torch.cat([both, rest[block]]).sort().values for block in blocks]


def _enough(n: int, parties: int, minimum: int) -> None:
    if parties < 1:
        raise PartitionError(f"rows: {parties} parties. At least one is needed.")
    if n < parties * minimum:
        raise PartitionError(
            f"rows: {n} rows cannot give {parties} parties at least {minimum} each. "
            "Use fewer parties or more rows."
        )
