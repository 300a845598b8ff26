"""Among which classes a row is answered, from a prior that knows nothing of its label.

Ghazi et al. take the k likeliest classes, with the k that makes the true label the likeliest answer
(`chance`). With a loss that knows how answers are drawn, an answer is worth what it says: `told`
takes the k with the most mutual information between label and answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIXED = 0.05  # the share of the prior that knows nothing: networks are surer than they are right


def whole(rows: int, classes: int) -> NDArray[np.bool_]:
    """All classes for every row."""
    return np.ones((rows, classes), dtype=bool)


def chosen(prior: NDArray[np.float64], epsilon: float) -> NDArray[np.bool_]:
    """The candidates of each row, (rows, classes), by its prior, (rows, classes)."""
    rows, classes = prior.shape
    prior = (1 - MIXED) * prior + MIXED / classes
    order = np.argsort(-prior, axis=1, kind="stable")
    sizes = information(np.take_along_axis(prior, order, 1), epsilon).argmax(1) + 1
    found = np.zeros((rows, classes), dtype=bool)
    np.put_along_axis(found, order, np.arange(classes) < sizes[:, None], 1)
    return found


def information(falling: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """What an answer among the k likeliest classes says of the label, in nats, (rows, k - 1).

    falling  each row's probabilities, largest first
    """
    rows, classes = falling.shape
    inside = falling.cumsum(1)
    found = np.zeros((rows, classes))
    for k in range(1, classes + 1):
        kept = 1 / (1 + (k - 1) * np.exp(-epsilon))
        other = kept * np.exp(-epsilon)
        outside = 1 - inside[:, k - 1 : k]
        drawn = falling[:, :k] * (kept - other) + inside[:, k - 1 : k] * other + outside / k
        noise = -(_part(kept) + (k - 1) * _part(other))
        found[:, k - 1] = -_part(drawn).sum(1)
        found[:, k - 1] -= inside[:, k - 1] * noise + outside[:, 0] * np.log(k)
    return found


def _part(chance: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """p log p."""
    some = np.maximum(np.asarray(chance, dtype=np.float64), 1e-300)
    return np.asarray(chance * np.log(some))
