"""A table in few noisy columns: what a row can change is bounded, and ε is what the books say."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade.journal import Spending
from colonnade.privacy import accountant
from colonnade.privacy.noise import gaussian
from colonnade.privacy.scores import DIRECTIONS, noisy_scores, shortened, sigmas

SECRET = bytes(range(32))


def normal(rows: int, columns: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=draw).double()


def delta_by_hand(epsilon: float, multiplier: float) -> float:
    """Balle and Wang's Theorem 8: P(loss ≥ ε) − e^ε P'(loss ≥ ε), of N(0, m²) and N(1, m²)."""
    half, whole = 1 / (2 * multiplier), epsilon * multiplier
    phi = NormalDist().cdf
    return phi(half - whole) - math.exp(epsilon) * phi(-half - whole)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-6])
def test_the_accountant_agrees_with_the_formula(epsilon: float, delta: float) -> None:
    size = accountant.noise_for(epsilon, delta, 1)
    assert delta_by_hand(epsilon * 1.001, size) < delta < delta_by_hand(epsilon * 0.999, size)
    found = accountant.epsilon([(Spending("gaussian", size), 1)], delta)
    assert found == pytest.approx(epsilon, rel=1e-3)


def test_an_accountant_of_privacy_losses_agrees_about_two_releases() -> None:
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    size, losses = accountant.noise_for(2.0, 1e-6, 1), PLDAccountant()
    for part in (DIRECTIONS, 1 - DIRECTIONS):
        losses.compose(GaussianDpEvent(size / part**0.5))
    assert losses.get_epsilon(1e-6) == pytest.approx(2.0, rel=1e-3)


@given(st.integers(0, 10**6), st.floats(0.1, 3.0), st.floats(0.01, 100.0))
@settings(max_examples=50, deadline=None)
def test_a_replaced_row_moves_no_more_than_the_noise_is_made_for(
    seed: int, clip: float, size: float
) -> None:
    """The moments by √2 · C² in the Frobenius norm, a row's scores by 2 c: rows of any length."""
    one, other = (normal(1, 6, s) * size for s in (seed, seed + 1))
    bound = clip * 6**0.5
    first, second = shortened(one, bound), shortened(other, bound)
    assert first.norm() <= bound and second.norm() <= bound
    moved = (first.mT @ first - second.mT @ second).norm()
    assert moved <= math.sqrt(2) * bound**2
    assert (first - second).norm() <= 2 * bound
    short = normal(1, 6, seed)
    assert torch.equal(shortened(short, 2 * float(short.norm())), short)


def test_noise_has_the_size_that_the_books_say() -> None:
    """Sensitivity over σ, squared and added up; and of a column of ±1 as much is left in the scores
    as σ₂ leaves of it."""
    bound, told, rows, size = 3.0, 1.5, 100, 4.0
    first, second = sigmas(bound, told, rows, size)
    pairs = ((math.sqrt(2) * bound**2 / rows, first), (2 * told, second))
    assert sum((moved / sigma) ** 2 for moved, sigma in pairs) == pytest.approx(size**-2)
    column = normal(20_000, 1).sign()
    found = noisy_scores(column, 1, 1.0, 1.0, SECRET, "key")
    left = float(torch.corrcoef(torch.cat([found, column], 1).mT)[0, 1])
    _, sigma = sigmas(1.0, 1.0, 20_000, 1.0)
    assert abs(left) == pytest.approx((1 + sigma**2) ** -0.5, rel=0.05)


def test_the_same_table_has_the_same_noise_and_others_have_other_noise() -> None:
    table, args = normal(50, 6), (2, 1.0, 1.0)
    first = noisy_scores(table, *args, SECRET, "key")
    assert torch.equal(first, noisy_scores(table, *args, SECRET, "key"))
    for secret, key in ((bytes(32), "key"), (SECRET, "other")):
        again = noisy_scores(table, *args, secret, key)
        gap = first - again
        assert float(gap.std() / first.std()) > 0.5 and float(gap.abs().min()) > 0
    assert first.shape == (50, 2) and noisy_scores(table[:, :1], *args, SECRET, "k").shape[1] == 1
    assert torch.allclose(first.std(0, correction=0), torch.ones(2).double())


def test_much_epsilon_gives_the_leading_scores() -> None:
    """With next to no noise, the columns are the table's own leading left singular vectors."""
    table = normal(300, 8) * torch.tensor([9.0, 5, 1, 1, 1, 1, 1, 1])
    found = noisy_scores(table, 2, 100.0, 1e-6, SECRET, "key")
    due = torch.linalg.svd(table, full_matrices=False).U[:, :2]
    due = due - due.mean(0)
    shared = torch.linalg.svdvals(torch.linalg.qr(found).Q.mT @ torch.linalg.qr(due).Q)
    assert float(shared.min()) > 0.999


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_an_audit_with_a_worst_case_row_finds_no_more_than_is_stated(epsilon: float) -> None:
    """A row at the bound, or its opposite: the best threshold on what is told of it gives a lower
    bound of ε, by counts of 4,000 releases each, with 95 % confidence (Clopper and Pearson)."""
    from scipy.stats import beta

    delta, count = 1e-5, 4000
    # What is told of one row, where all else is known: its scores along one axis, with their noise.
    sigma = 2 * accountant.noise_for(epsilon, delta, 1) / math.sqrt(1 - DIRECTIONS)
    plain = torch.full((count, 1), 1.0).double()
    told = torch.cat([plain, -plain])
    told = told + sigma * gaussian(told.shape, SECRET, "audit")
    best = 0.0
    for threshold in torch.linspace(-3 * sigma, 3 * sigma, 25):
        hits, misses = (int((part > threshold).sum()) for part in told.split(count))
        low = beta.ppf(0.025 / 25, hits, count - hits + 1) if hits else 0.0
        high = beta.ppf(1 - 0.025 / 25, misses + 1, count - misses) if misses < count else 1.0
        if low > delta:
            best = max(best, math.log((low - delta) / high))
    assert 0.1 * epsilon < best <= epsilon
