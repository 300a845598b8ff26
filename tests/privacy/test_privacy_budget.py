"""The calibrated mode: a sample moves what is sent by Δ at most, and ε is what the books say."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from colonnade import errors
from colonnade.errors import BudgetSpent, ColonnadeError, Diverged, MethodError, SecurityError
from colonnade.privacy import budget as module
from colonnade.privacy.budget import DECIDED, Budget, clip_rows, in_steps, release, step_of, sums
from colonnade.privacy.grouping import Grouping, class_groups, random_groups
from colonnade.wire import store

SECRET = bytes(range(32))
DELTA = 1e-6


def accounted(releases: list[tuple[float, int]], delta: float, step: float = 1e-4) -> float:
    """The library's own answer, at its own default step."""
    accountant = PLDAccountant(value_discretization_interval=step)
    for epsilon, count in releases:
        event = dp_accounting.LaplaceDpEvent(1 / epsilon)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, count))
    return float(accountant.get_epsilon(delta))


def norms(x: Tensor) -> Tensor:
    return x.double().abs().sum(1)


# ---- 1. clip -------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 1 << 30),
    bound=st.floats(1e-3, 1e3),
    size=st.sampled_from((1e-6, 0.1, 1.0, 1e6)),
    dtype=st.sampled_from((torch.float32, torch.float64)),
)
@settings(max_examples=100, deadline=None)
def test_no_clipped_row_is_longer_than_the_bound(
    seed: int, bound: float, size: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (size * torch.randn(40, 129, generator=generator)).to(dtype)
    x[3] = 0
    before = x.clone()
    clipped = clip_rows(x, bound)
    assert torch.equal(x, before) and clipped.dtype == dtype
    rounding = 1e-13 if dtype == torch.float64 else 0.0  # of this sum itself
    assert float(norms(clipped).max()) <= bound * (1 + rounding)
    short = norms(x) <= bound
    assert short[3] and torch.equal(clipped[short], x[short])
    # Longer ones keep their direction and end at the bound.
    long = ~short
    if long.any():
        assert norms(clipped[long]).tolist() == pytest.approx([bound] * int(long.sum()), rel=1e-6)
        turned = torch.nn.functional.cosine_similarity(clipped[long].double(), x[long].double())
        assert float(turned.min()) > 1 - 1e-9


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_has_diverged_is_not_released(bad: float) -> None:
    x = torch.randn(4, 3)
    x[2, 1] = bad
    budget = Budget(1.0)
    with pytest.raises(Diverged):
        release(x, random_groups(4, 2, 0), 1.0, 0.5, budget, SECRET)
    assert budget.spent == 0


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_a_bound_must_be_a_positive_number(bound: float) -> None:
    with pytest.raises(ValueError, match="bound"):
        clip_rows(torch.zeros(2, 2), bound)


# ---- 2. sensitivity ------------------------------------------------------------------------------


def most_steps(bound: float) -> int:
    """C in whole steps."""
    return math.floor(bound / step_of(bound))


@given(
    seed=st.integers(0, 1 << 30),
    bound=st.floats(1e-6, 1e6),
    size=st.sampled_from((1e-6, 0.1, 1.0, 1e6)),
    width=st.sampled_from((1, 3, 1000)),
)
@settings(max_examples=100, deadline=None)
def test_a_row_has_no_more_steps_than_the_bound(
    seed: int, bound: float, size: float, width: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = size * torch.randn(40, width, generator=generator, dtype=torch.float64)
    x[0] = bound / width  # exactly as long as it may be, or a little longer by rounding
    steps = in_steps(x, bound)
    assert int(steps.abs().sum(1).max()) <= most_steps(bound)
    assert 2**16 <= most_steps(bound) < 2**17
    near = steps.double() * step_of(bound) - clip_rows(x, bound)
    assert float(near.abs().max()) <= step_of(bound) * 1.001


@given(seed=st.integers(0, 1 << 30), bound=st.floats(0.1, 10), groups=st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_a_sample_moves_the_sums_by_twice_the_bound_at_most(
    seed: int, bound: float, groups: int
) -> None:
    """Its own group's alone; and where its label changes with it, and its group, both groups'."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (30,), generator=generator)
    grouping = class_groups(labels, groups, seed)
    x = 3 * torch.randn(30, 5, generator=generator, dtype=torch.float64)
    row = seed % 30
    changed = x.clone()
    changed[row] = 50 * torch.randn(5, generator=generator, dtype=torch.float64)
    before = sums(x, grouping, bound)
    moved = (before - sums(changed, grouping, bound)).abs().sum(1)
    own = int(grouping.membership[row])
    assert int(moved[own]) <= 2 * most_steps(bound)
    others = torch.arange(grouping.groups) != own
    assert not moved[others].any()
    elsewhere = grouping.membership.clone()
    elsewhere[row] = (own + 1) % grouping.groups
    moved = (before - sums(changed, Grouping(elsewhere, grouping.groups), bound)).abs().sum(1)
    assert int(moved.sum()) <= 2 * most_steps(bound)


def test_the_sensitivity_is_reached() -> None:
    """From one corner to the opposite one, but for the little that is lost to rounding."""
    grouping = Grouping(torch.tensor([0, 0, 0, 0, 1]), 2)
    for row in (0, 4):
        x = torch.ones(5, 4, dtype=torch.float64)
        x[row] = torch.tensor([100.0, 0, 0, 0])
        y = x.clone()
        y[row] = torch.tensor([0.0, -100, 0, 0])
        moved = (sums(x, grouping, 3.0) - sums(y, grouping, 3.0)).abs().sum()
        assert float(moved * step_of(3.0)) == pytest.approx(6.0, rel=1e-4)


def test_sums_do_not_depend_on_the_order_of_rows() -> None:
    """Sums of floats do, and their sensitivity is larger than it looks."""
    x = torch.randn(1000, 7) * torch.logspace(-6, 6, 1000)[:, None]
    order = torch.randperm(1000)
    one, other = (
        sums(x[rows], Grouping(rows % 3, 3), 10.0) for rows in (torch.arange(1000), order)
    )
    assert torch.equal(one, other)


# ---- 3. noise ------------------------------------------------------------------------------------


def test_the_noise_of_a_release_has_the_scale_of_its_group() -> None:
    grouping = Grouping(torch.tensor([0] * 8 + [1] * 2), 2)
    x = torch.randn(10, 200_000)  # wide, for a good estimate
    bound, epsilon = 5.0, 0.5
    budget = Budget(1.0)
    sent = release(x, grouping, bound, epsilon, budget, SECRET)
    noise = sent - grouping.means(clip_rows(x, bound))
    # b = 2C / (s ε)
    assert noise.abs().mean(1).tolist() == pytest.approx([2.5, 10.0], rel=0.01)
    assert budget.spent == epsilon


def test_two_releases_have_noise_of_their_own() -> None:
    x, grouping, budget = torch.randn(20, 50), random_groups(20, 4, 0), Budget(9.0)
    first, second = (release(x, grouping, 1.0, 1.0, budget, SECRET) for _ in range(2))
    assert ((first - second).abs() > 1e-3).double().mean() > 0.9
    assert budget.released == [[1.0, 2]]


def test_a_mean_likelihood_ratio_stays_within_epsilon() -> None:
    """What the definition says, at random outcomes: |log p(out|x) − log p(out|x')| ≤ ε."""
    generator = torch.Generator().manual_seed(0)
    grouping, bound, epsilon = random_groups(12, 3, 0), 2.0, 0.7
    scale = 2 * bound / grouping.sizes[:, None] / epsilon
    largest = 0.0
    for trial in range(300):
        x = 2 * torch.randn(12, 4, generator=generator, dtype=torch.float64)
        y = x.clone()
        y[trial % 12] = -x[trial % 12]
        out = release(x, grouping, bound, epsilon, Budget(1.0), SECRET)
        exact = (
            sums(v, grouping, bound) * step_of(bound) / grouping.sizes[:, None] for v in (y, x)
        )
        far, near = (((out - means).abs() / scale).sum() for means in exact)
        largest = max(largest, abs(float(far - near)))
    assert 0.6 * epsilon < largest <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize(("change", "epsilon"), [(1, 1.0), (4, 0.3), (7, 2.0), (200, 1.0)])
def test_noise_in_whole_steps_loses_no_more_than_is_counted(change: int, epsilon: float) -> None:
    """Its privacy loss from the two laws themselves, against that of Laplace noise, which the
    accountant composes. Without the two steps more it would lose more."""

    def lost(decay: float, allowed: float) -> float:
        far = math.ceil(40 / decay) + change
        law = np.exp(-decay * np.abs(np.arange(-far, far + 1.0)))
        law /= law.sum()
        first, second = law[change:], law[:-change]
        return float(np.maximum(first - math.exp(allowed) * second, 0).sum())

    below = True
    for allowed in np.linspace(0, epsilon * 1.1, 200):
        laplace = max(0.0, 1 - math.exp((allowed - epsilon) / 2))
        assert lost(epsilon / (change + DECIDED), allowed) <= laplace + 1e-12
        below = below and lost(epsilon / change, allowed) <= laplace + 1e-12
    assert not below


# ---- 4. count ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "releases",
    [[(0.1, 40)], [(0.5, 10)], [(1.0, 4)], [(0.2, 10), (0.05, 20)], [(0.02, 100), (1.5, 1)]],
    ids=str,
)
def test_epsilon_is_that_of_the_accountant(releases: list[tuple[float, int]]) -> None:
    budget = Budget(1000.0, DELTA)
    for epsilon, count in releases:
        budget.spend(epsilon, count)
    assert budget.spent == pytest.approx(accounted(releases, DELTA), rel=1e-4)
    basic = sum(epsilon * count for epsilon, count in releases)
    assert budget.spent < basic
    assert Budget(1000.0, 0.0, budget.released).spent == pytest.approx(basic, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_of_one_release_is_the_closed_form(epsilon: float, delta: float) -> None:
    """δ(ε') = 1 − exp((ε' − ε) / 2) for a single Laplace mechanism."""
    budget = Budget(10.0, delta)
    budget.spend(epsilon)
    assert budget.spent == pytest.approx(epsilon + 2 * math.log1p(-delta), rel=1e-4)
    assert budget.spent <= epsilon


def test_releases_cost_the_same_one_by_one_and_at_once() -> None:
    once, singly = Budget(10.0, DELTA), Budget(10.0, DELTA)
    once.spend(0.2, 12)
    assert [singly.spend(0.2) for _ in range(12)] == list(range(12))
    assert singly.released == once.released == [[0.2, 12]]
    costs = [0.0]
    for epsilon in (0.1, 0.2, 0.1):
        singly.spend(epsilon)
        assert singly.spent > costs[-1]
        costs.append(singly.spent)
    assert singly.released == [[0.2, 13], [0.1, 2]]


@pytest.mark.parametrize(("total", "epsilon", "fit"), [(0.3, 0.1, 3), (1.0, 0.1, 10), (1, 0.3, 3)])
def test_the_release_that_exceeds_the_budget_is_refused(
    total: float, epsilon: float, fit: int
) -> None:
    budget = Budget(total)
    for _ in range(fit):
        budget.spend(epsilon)
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(BudgetSpent, match=rf"after {fit} releases, 1 more .*Nothing was"):
            budget.spend(epsilon)
        assert budget.released == [[epsilon, fit]]
    with pytest.raises(BudgetSpent):
        Budget(total).spend(epsilon, fit + 1)
    with pytest.raises(BudgetSpent):
        Budget(total).spend(total * 1.000001)
    Budget(total).spend(total)


def test_the_boundary_with_a_delta_is_the_accountants() -> None:
    total = accounted([(0.1, 30)], DELTA)
    allowed, refused = Budget(total * 1.0001, DELTA), Budget(total * 0.9999, DELTA)
    allowed.spend(0.1, 30)
    refused.spend(0.1, 29)
    for budget in (allowed, refused):
        with pytest.raises(BudgetSpent):
            budget.spend(0.1)


def test_nothing_is_made_once_the_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    x, grouping, budget = torch.randn(20, 5), random_groups(20, 4, 0), Budget(1.0)
    release(x, grouping, 1.0, 0.6, budget, SECRET)

    def never(*_: Any) -> Tensor:
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(module, "secret_steps", never)
    with pytest.raises(BudgetSpent):
        release(x, grouping, 1.0, 0.6, budget, SECRET)
    assert budget.spent == 0.6


@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_the_share_of_a_release_is_the_largest_that_fits(delta: float, count: int) -> None:
    epsilon = Budget(4.0, delta).share(count)
    assert epsilon >= 4.0 / count * (1 - 1e-9)
    Budget(4.0, delta).spend(epsilon, count)
    with pytest.raises(BudgetSpent):
        Budget(4.0, delta).spend(epsilon * 1.0001, count)
    if delta and count == 40:
        assert epsilon > 1.3 * 4.0 / count  # composition is worth it


def test_an_epsilon_that_bounds_nothing_is_counted_too() -> None:
    """One that only measures what clipping costs."""
    assert Budget(1e6, DELTA).share(2) == pytest.approx(5e5, rel=1e-4)
    assert Budget(1e9, DELTA, [[2e8, 2]]).spent == 4e8


def test_a_share_is_of_what_is_left() -> None:
    budget = Budget(4.0)
    budget.spend(3.0)
    assert budget.share(2) == 0.5
    budget.spend(0.5, 2)
    assert budget.share(1) == 0
    assert Budget(1.0, DELTA, [[2.0, 1]]).share(3) == 0  # a budget that was cut later


@pytest.mark.parametrize("delta", [0.0, DELTA])
def test_the_books_survive_a_checkpoint(tmp_path: Path, delta: float) -> None:
    """As a party keeps them: in its state, which is written and read."""
    kept: dict[str, Any] = {}
    budget = Budget(2.0, delta, kept.setdefault("released", []))
    grouping, x = random_groups(20, 4, 0), torch.randn(20, 5)
    release(x, grouping, 1.0, 0.1, budget, SECRET)
    release(x, grouping, 1.0, 1 / 3, budget, SECRET)
    store.save(kept, tmp_path / "party")
    after = release(x, grouping, 1.0, 0.1, budget, SECRET)

    found = store.load(tmp_path / "party")
    resumed = Budget(2.0, delta, found.setdefault("released", []))
    assert resumed.released == [[0.1, 1], [1 / 3, 1]]
    # The step that was lost is taken again: the same bytes, so nobody has learnt anything new.
    assert torch.equal(release(x, grouping, 1.0, 0.1, resumed, SECRET), after)
    assert resumed.spent == budget.spent
    assert found["released"] == kept["released"] == [[0.1, 2], [1 / 3, 1]]
    with pytest.raises(BudgetSpent):
        resumed.spend(2.0)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 0.0), (-1.0, 0.0), (math.inf, 0.0), (math.nan, 0.0), (1.0, -0.1), (1.0, 1.0)],
)
def test_a_budget_must_be_one(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon|delta"):
        Budget(epsilon, delta)


@pytest.mark.parametrize(("epsilon", "count"), [(0.0, 1), (-1.0, 1), (math.inf, 1), (1.0, -1)])
def test_nothing_is_paid_back(epsilon: float, count: int) -> None:
    budget = Budget(5.0)
    with pytest.raises(ValueError, match=r"epsilon|count"):
        budget.spend(epsilon, count)
    assert budget.released == []


def test_without_the_accountant_a_budget_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MethodError, match=r" -m pip install .*\[dp\]"):
        Budget(1.0)


def test_the_error_stands_in_the_tree() -> None:
    assert issubclass(BudgetSpent, SecurityError) and issubclass(BudgetSpent, ColonnadeError)
    assert "BudgetSpent" in (errors.__doc__ or "")
