"""Shares of noise on a grid: of the right distribution, from a secret, and exact in the ring."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from colonnade.privacy import sums
from colonnade.privacy.masking import MASKED, WEAKLY_MASKED, Ring
from colonnade.privacy.rows import cut
from colonnade.privacy.settings import Protect

SECRET = bytes(range(32))


def probabilities(sigma: float, reach: int) -> NDArray[np.float64]:
    """Of the whole numbers from -reach to reach, by the definition."""
    weights = np.array([math.exp(-(k**2) / (2 * sigma**2)) for k in range(-reach, reach + 1)])
    found: NDArray[np.float64] = weights / weights.sum()
    return found


@pytest.mark.parametrize("sigma", [0.7, 3.0, 40.0])
def test_noise_is_a_discrete_gaussian(sigma: float) -> None:
    drawn = sums.discrete(100_000, sigma, SECRET, f"chi-square {sigma}")
    reach = math.ceil(4 * sigma)
    expected = probabilities(sigma, math.ceil(9 * sigma)) * len(drawn)
    middle = len(expected) // 2
    inside = expected[middle - reach : middle + reach + 1]
    counts = np.array([(drawn == k).sum() for k in range(-reach, reach + 1)])
    tails = len(drawn) - counts.sum(), len(drawn) - inside.sum()
    enough = inside >= 5
    rest = counts[~enough].sum() + tails[0], inside[~enough].sum() + tails[1]
    observed, due = [*counts[enough], rest[0]], [*inside[enough], rest[1]]
    if due[-1] < 1e-6:
        observed, due = observed[:-1], due[:-1]
    assert stats.chisquare(observed, np.array(due) * sum(observed) / sum(due)).pvalue > 1e-4


def test_shares_of_honest_senders_are_all_of_the_noise() -> None:
    sigma, senders, colluding = 1000.0, 6, 2
    one = sums.share(sigma, senders, colluding)
    honest = sum(sums.discrete(50_000, one, SECRET, f"sender {k}") for k in range(4))
    assert float(np.std(honest)) == pytest.approx(sigma, rel=0.02)
    assert sums.share(sigma, 1, 1) == sums.share(sigma, 2, 2) == sigma


def test_what_a_ring_adds_up_is_the_sum_of_the_terms_to_the_bit() -> None:
    grid, ring = 2.0**-10, Ring(64, 24, 3)
    x = torch.randn(3, 40, 8, generator=torch.Generator().manual_seed(1))
    noise = [torch.from_numpy(sums.discrete(320, 2100.0, SECRET, f"{k}")) for k in range(3)]
    terms = [(cut(x[k], 1.0, grid) + noise[k].reshape(40, 8)) * grid for k in range(3)]
    encoded = [ring.encode(one.float()) for one in terms]
    total = ring.decode(sum(encoded[1:], encoded[0]))
    assert torch.equal(total, torch.stack(terms).sum(0).float())
    assert torch.equal(total / grid, (total / grid).round())


def test_noise_is_repeated_for_the_same_and_for_nothing_else() -> None:
    one = sums.discrete(100, 50.0, SECRET, "epoch 1")
    assert np.array_equal(one, sums.discrete(100, 50.0, SECRET, "epoch 1"))
    for other in (
        sums.discrete(100, 50.0, SECRET, "epoch 2"),
        sums.discrete(100, 50.0, SECRET[::-1], "epoch 1"),
    ):
        assert abs(float(np.corrcoef(one, other)[0, 1])) < 0.5


def test_a_policy_may_demand_noise_in_sums_and_gets_none_for_constant_masks() -> None:
    how = Protect(embedding_epsilon=8.0)
    assert how.guaranteed(MASKED) == (8.0, how.delta)
    assert how.guaranteed(WEAKLY_MASKED) is None
    assert Protect().guaranteed(MASKED) is None
