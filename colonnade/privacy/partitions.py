"""Which classes the answer of a row tells apart: classes in groups, of which one is answered.

An answer is one of m groups, by randomised response, so it is right with a = e^ε / (e^ε + m - 1):
the fewer groups, the more often. What it says of the label is the mutual information

    I = H(answer) - H(answer | label)        P(answer = G) = b + (a - b) P(label in G)

where the second part depends on m alone. So for every m classes are put into groups that are as
equally likely as can be, the likeliest class first and each into the group that has least, and the
m with the most information is taken. With a prior that knows nothing this is local hashing into
about e^ε + 1 groups (Wang et al., 2017), which says more than an answer among all classes where ε
is small. Where one class is likely, it becomes a group beside that of all others.

Ghazi et al. (2021) answer among the k likeliest classes instead. Then a label that is not among
them is answered at random, and one that is nearly certain says nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIXED = 0.05  # the share of a prior that knows nothing: networks are surer than they are right
MOST_GROUPS = 32
SURE = 50.0  # an ε from which on every answer is right
Groups = NDArray[np.int64]


def single(rows: int, classes: int) -> Groups:
    """Each class a group of its own, in every row."""
    return np.tile(np.arange(classes), (rows, 1))


def balanced(
    prior: NDArray[np.float64], epsilon: float, ties: NDArray[np.uint64]
) -> tuple[Groups, NDArray[np.int64]]:
    """The group of each class, (rows, classes), and the number of groups, (rows,).

    prior  of each row, (rows, classes)
    ties   numbers at random, (rows, classes): of classes that are equally likely, which comes first
    """
    rows, classes = prior.shape
    prior = (1 - MIXED) * prior + MIXED / classes
    order = np.lexsort((ties, -prior.round(12)), axis=1)
    falling = np.take_along_axis(prior, order, 1)
    best, groups = np.full(rows, -np.inf), np.zeros((rows, classes), dtype=np.int64)
    counts = np.ones(rows, dtype=np.int64)
    for m in range(2, min(classes, MOST_GROUPS) + 1):
        found, shares = _divided(falling, m)
        worth = information(shares, min(epsilon, SURE))
        better = worth > best + 1e-12
        best[better], counts[better] = worth[better], m
        groups[better] = found[better]
    named = np.empty_like(groups)
    np.put_along_axis(named, order, groups, 1)
    return named, counts


def information(shares: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """What an answer says of the label, in nats, (rows,).

    shares  how likely each group is, (rows, groups)
    """
    m = shares.shape[1]
    kept = 1 / (1 + (m - 1) * np.exp(-epsilon))
    other = kept * np.exp(-epsilon)
    said = other + (kept - other) * shares
    noise = -kept * np.log(kept) - (m - 1) * other * np.log(other)
    found: NDArray[np.float64] = -(said * np.log(said)).sum(1) - noise
    return found


def _divided(falling: NDArray[np.float64], m: int) -> tuple[Groups, NDArray[np.float64]]:
    """Classes in falling order into m groups, and how likely each of these is."""
    rows, classes = falling.shape
    everybody, filled = np.arange(rows), 1e-9  # of equally likely groups that with fewer classes
    shares, loads = np.zeros((rows, m)), np.zeros((rows, m))
    groups = np.zeros((rows, classes), dtype=np.int64)
    for place in range(classes):
        least = loads.argmin(1)
        groups[:, place] = least
        shares[everybody, least] += falling[:, place]
        loads[everybody, least] += falling[:, place] + filled
    return groups, shares
