"""ε at δ of what was spent, against computations that share no line with it."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.journal import Spending
from colonnade.privacy import accountant

DELTA = 1e-5


@pytest.mark.parametrize("size", [0.4, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("times", [1, 20])
def test_gaussian_noise_is_counted_as_privacy_losses_count_it(size: float, times: int) -> None:
    other = PLDAccountant(value_discretization_interval=1e-5 if times == 1 else 1e-4)
    other.compose(dp_accounting.GaussianDpEvent(size), times)
    found = accountant.epsilon([(Spending("gaussian", size), times)], DELTA)
    assert found == pytest.approx(other.get_epsilon(DELTA), rel=1e-3)


@pytest.mark.parametrize("size", [0.4, 1.0, 3.0, 12.0])
def test_discrete_noise_is_counted_as_renyi_divergences_count_it(size: float) -> None:
    orders = [1 + x / 100 for x in range(1, 20_000)]
    other = RdpAccountant(orders)
    other.compose(dp_accounting.GaussianDpEvent(size), 5)
    found = accountant.epsilon([(Spending("discrete", size), 5)], DELTA)
    assert found == pytest.approx(other.get_epsilon(DELTA), rel=1e-3)
    assert found >= accountant.epsilon([(Spending("gaussian", size), 5)], DELTA)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 16), st.integers(1, 1000), st.booleans())
def test_noise_for_a_budget_spends_it(epsilon: float, times: int, discrete: bool) -> None:
    size = accountant.noise_for(epsilon, DELTA, times, discrete=discrete)
    spent = [(Spending("discrete" if discrete else "gaussian", size), times)]
    assert epsilon * (1 - 1e-6) <= accountant.epsilon(spent, DELTA) <= epsilon * (1 + 1e-6)


def test_runs_with_other_noise_compose() -> None:
    both = [(Spending("gaussian", 2.0), 3), (Spending("gaussian", 5.0), 7)]
    one = 1 / math.sqrt(3 / 4 + 7 / 25)
    assert accountant.epsilon(both, DELTA) == pytest.approx(accountant.gaussian_epsilon(one, DELTA))


def test_answers_and_noise_compose_to_less_than_their_sum() -> None:
    response, noise = (Spending("response", 0.5), 4), (Spending("gaussian", 3.0), 2)
    apart = [accountant.epsilon([one], DELTA) for one in (response, noise)]
    together = accountant.epsilon([response, noise], DELTA)
    assert max(apart) < together < sum(apart)
    assert accountant.epsilon([(Spending("response", 2.0), 1)], 0.0) == 2.0
    assert accountant.epsilon([(Spending("laplace", 0.5), 2)], 0.0) == 4.0


def test_without_delta_gaussian_noise_guarantees_nothing() -> None:
    assert accountant.epsilon([(Spending("gaussian", 3.0), 1)], 0.0) == math.inf
    assert accountant.epsilon([(Spending("discrete", 3.0), 1)], 0.0) == math.inf
    assert accountant.epsilon([], 0.0) == 0.0
