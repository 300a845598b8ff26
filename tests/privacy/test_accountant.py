"""The accountant against others that know nothing of it, and what must hold of any ε."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.journal import Spending
from colonnade.privacy import accountant

accounting = pytest.importorskip("dp_accounting")
ROOT = Path(__file__).resolve().parents[2]


def of(size: float, times: int = 1) -> tuple[Spending, int]:
    return Spending("gaussian", size), times


@pytest.mark.parametrize("delta", [1e-5, 1e-6])
@pytest.mark.parametrize(
    ("size", "times"), [(0.8, 1), (1.0, 1), (3.0, 10), (10.0, 10), (5.0, 100), (20.0, 200)]
)
def test_gaussian_noise_as_dp_accounting_counts_it(size: float, times: int, delta: float) -> None:
    """By privacy loss distributions, which are nearly exact, and by Rényi's, which is a bound."""
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    ours = accountant.epsilon([of(size, times)], delta)
    event = accounting.GaussianDpEvent(size)
    pld = PLDAccountant(value_discretization_interval=1e-4).compose(event, times)
    assert ours == pytest.approx(pld.get_epsilon(delta), rel=1e-3)
    rdp = RdpAccountant(list(range(2, 200)) + [1 + x / 50 for x in range(1, 500)])
    bound = rdp.compose(event, times).get_epsilon(delta)
    assert ours <= bound <= 1.25 * ours


def test_gaussian_and_laplace_together_as_dp_accounting_counts_them() -> None:
    from dp_accounting.pld import PLDAccountant

    spent = [of(2.0, 3), (Spending("laplace", 1.5), 4)]
    pld = PLDAccountant(value_discretization_interval=1e-4)
    pld.compose(accounting.GaussianDpEvent(2.0), 3)
    pld.compose(accounting.LaplaceDpEvent(1.5), 4)
    assert accountant.epsilon(spent, 1e-5) == pytest.approx(pld.get_epsilon(1e-5), rel=1e-3)


sizes, deltas = st.floats(0.05, 100), st.floats(1e-10, 1e-2)


@given(epsilon=st.floats(0.01, 200), delta=deltas, times=st.integers(1, 500))
@settings(max_examples=100, deadline=None)
def test_the_noise_for_an_epsilon_has_it(epsilon: float, delta: float, times: int) -> None:
    size = accountant.noise_for(epsilon, delta, times)
    found = accountant.epsilon([of(size, times)], delta)
    assert found <= epsilon * (1 + 1e-7)
    assert found == pytest.approx(epsilon, rel=1e-4)


@given(size=sizes, delta=deltas, times=st.integers(1, 50), more=st.floats(1.01, 3))
@settings(max_examples=100, deadline=None)
def test_more_of_anything_that_tells_costs_more(
    size: float, delta: float, times: int, more: float
) -> None:
    now = accountant.epsilon([of(size, times)], delta)
    assert accountant.epsilon([of(size, times + 1)], delta) >= now
    assert accountant.epsilon([of(size * more, times)], delta) <= now
    assert accountant.epsilon([of(size, times)], delta * more) <= now
    together = accountant.epsilon([of(size, times), of(size * more, times)], delta)
    assert now <= together
    order = accountant.epsilon([of(size * more, times), of(size, times)], delta)
    assert together == pytest.approx(order, rel=1e-12)


@given(size=sizes, times=st.integers(1, 50))
def test_n_releases_are_one_with_the_noise_over_the_root_of_n(size: float, times: int) -> None:
    many = accountant.epsilon([of(size, times)], 1e-5)
    assert many == pytest.approx(accountant.gaussian_epsilon(size / math.sqrt(times), 1e-5))


def test_nothing_costs_nothing_and_no_delta_has_no_end() -> None:
    assert accountant.epsilon([], 1e-5) == 0
    assert accountant.epsilon([of(1.0)], 0.0) == math.inf
    assert accountant.epsilon([of(1e9)], 1e-5) == 0


# ---- audit ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    path = ROOT / "benchmarks" / "privacy" / "audit.py"
    spec = importlib.util.spec_from_file_location("privacy_audit", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["privacy_audit"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("epsilon", "epochs"), [(1.0, 1), (2.0, 5), (8.0, 2)])
def test_what_the_noise_shows_is_within_what_is_stated(
    audit: ModuleType, epsilon: float, epochs: int
) -> None:
    """The noise follows from a seed: one audit of twenty may be wrong, and this is one audit."""
    found = audit.audit(epsilon, epochs, 40_000, root=b"seed 1")
    assert 0.3 * epsilon < found["lower"] <= epsilon
    assert 0.6 * epsilon < found["lower_as_gaussian"] <= epsilon


def test_the_audit_finds_noise_that_is_too_small(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the noise that is stated."""
    from colonnade.privacy import rows

    inner = rows.gaussian
    monkeypatch.setattr(rows, "gaussian", lambda *arguments: inner(*arguments) / 2)
    found = audit.audit(1.0, 1, 40_000, root=b"seed 1")
    assert found["lower_as_gaussian"] > 1.8 and found["lower"] > 0.9
