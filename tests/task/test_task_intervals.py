"""Intervals: the measures under every weighting, deterministic, and as sure as they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from colonnade.task.intervals import Interval, intervals, over_seeds, weighed
from colonnade.task.measures import (
    BINARY,
    MULTICLASS,
    REGRESSION,
    Scored,
    measures,
    names_for,
    scored,
)

TRIALS = 300
# Of 300 intervals of 95 %, 285 ± 3.8 hold the truth; the bootstrap is a little narrow in few rows.
LEAST, MOST = 0.90, 0.99


def two_classes(rows: int, seed: int, *, share: float = 0.5, apart: float = 1.0) -> Scored:
    """Log odds of unit variance, whose means are so far apart: AUC Φ(apart / √2)."""
    generator = np.random.default_rng(seed)
    truth = (generator.random(rows) < share).astype(np.int64)
    chance = 1 / (1 + np.exp(-generator.normal(apart * truth, 1.0)))
    return scored(BINARY, truth, np.stack([1 - chance, chance], axis=1))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 4),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 3, 1000]),
    st.none() | st.floats(0, 1),
    st.floats(0.01, 0.99),
)
def test_a_weighting_measures_what_a_measure_of_weighted_rows_does(
    classes: int, seed: int, finest: int, threshold: float | None, rate: float
) -> None:
    generator = np.random.default_rng(seed)
    truth = np.concatenate([np.arange(classes), generator.integers(0, classes, 30)])
    raw = generator.integers(0, finest + 1, (len(truth), classes)) + 0.01
    scores = raw / raw.sum(1, keepdims=True)
    weights = generator.integers(1, 5, (3, len(truth))) * generator.random(len(truth))
    kind = BINARY if classes == 2 else MULTICLASS
    plain = scored(kind, truth, scores, threshold=threshold, rate=rate)
    found = weighed(plain, names_for(kind))(weights)
    for draw, heavy in enumerate(weights):
        again = scored(kind, truth, scores, weights=heavy, threshold=threshold, rate=rate)
        for name, value in measures(again).items():
            expected = math.nan if value is None else value
            assert found[name][draw] == pytest.approx(expected, rel=1e-9, nan_ok=True), name


@settings(deadline=None, max_examples=60)
@given(arrays(np.float64, (2, 20), elements=st.integers(-99, 99)), st.integers(0, 2**32 - 1))
def test_so_does_a_weighting_of_numbers(drawn: Any, seed: int) -> None:
    weights = np.random.default_rng(seed).integers(0, 4, (3, 20)) + 0.25
    found = weighed(scored(REGRESSION, *drawn), names_for(REGRESSION))(weights)
    for draw, heavy in enumerate(weights):
        for name, value in measures(scored(REGRESSION, *drawn, weights=heavy)).items():
            if value is not None:
                assert found[name][draw] == pytest.approx(value, rel=1e-9, abs=1e-9), name


def test_equal_rows_and_seeds_have_equal_intervals() -> None:
    rows = two_classes(300, 1)
    first, again, other = (intervals(rows, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert {name: each.value for name, each in first.items()} == measures(rows)
    for each in first.values():
        assert each.value is not None and each.low is not None and each.high is not None
        assert each.low <= each.value <= each.high


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """AUC, accuracy and recall of two classes whose distributions are known."""
    truth = {
        "auc": stats.norm.cdf(1 / math.sqrt(2)),
        "accuracy": 0.5 * stats.norm.cdf(0) + 0.5 * stats.norm.cdf(1),
        "recall": stats.norm.cdf(1),
    }
    held = dict.fromkeys(truth, 0)
    for seed in range(TRIALS):
        for name, each in intervals(two_classes(200, seed), truth, seed=seed).items():
            assert each.low is not None and each.high is not None
            held[name] += each.low <= truth[name] <= each.high
    for name, times in held.items():
        assert LEAST <= times / TRIALS <= MOST, name


def test_intervals_of_numbers_hold_the_truth_as_often_as_they_say() -> None:
    truth = {"rmse": 2.0, "mae": 2.0 * math.sqrt(2 / math.pi), "r2": 1 - 4.0 / 29.0}
    held = dict.fromkeys(truth, 0)
    for seed in range(TRIALS):
        generator = np.random.default_rng(seed)
        predicted = 5 * generator.normal(size=200)
        rows = scored(REGRESSION, predicted + 2 * generator.normal(size=200), predicted)
        for name, each in intervals(rows, seed=seed).items():
            assert each.low is not None and each.high is not None
            held[name] += each.low <= truth[name] <= each.high
    for name, times in held.items():
        assert LEAST <= times / TRIALS <= MOST, name


@pytest.mark.parametrize("share", [0.5, 0.004])
def test_of_very_many_rows_an_interval_is_as_wide_as_theory_has_it(share: float) -> None:
    """60,000 rows, of which fewer are drawn from: a rare class is not thinned out."""
    rows = two_classes(60_000, 1, share=share)
    found = intervals(rows, ["recall", "accuracy", "precision"])
    # What is drawn of each class has its own share of rows that are flagged.
    many = [int((rows.truth == code).sum()) for code in (0, 1)]
    flagged = [int(((rows.truth == code) & (rows.decided == 1)).sum()) for code in (0, 1)]
    spread = [k * (1 - k / n) for n, k in zip(many, flagged, strict=True)]
    expected = {
        "recall": spread[1] / many[1] ** 2,
        "accuracy": sum(spread) / sum(many) ** 2,
        "precision": (flagged[0] ** 2 * spread[1] + flagged[1] ** 2 * spread[0])
        / sum(flagged) ** 4,
    }
    for name, each in found.items():
        assert each.value is not None and each.low is not None and each.high is not None
        assert each.low < each.value < each.high
        wide = 2 * 1.96 * math.sqrt(expected[name])
        assert each.high - each.low == pytest.approx(wide, rel=0.2), name


def test_weights_widen_an_interval() -> None:
    """Where few rows carry most of the weight, fewer rows speak."""
    rows = two_classes(400, 1)
    weights = np.where(np.arange(400) % 10, 0.01, 1.0)
    heavy = scored(BINARY, rows.truth, rows.scores, weights=weights)
    wide, narrow = (intervals(each, ["auc"])["auc"] for each in (heavy, rows))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_what_cannot_be_said_is_none() -> None:
    one_class = scored(BINARY, np.ones(50), two_classes(50, 1).scores)
    assert intervals(one_class)["auc"] == Interval(None)
    assert intervals(one_class)["accuracy"].low is not None
    few = two_classes(5, 1)
    assert intervals(few) == {name: Interval(value) for name, value in measures(few).items()}
    diverged = scored(REGRESSION, np.ones(50), np.full(50, math.inf))
    assert set(intervals(diverged).values()) == {Interval(None)}


def test_intervals_stay_within_what_a_measure_can_be() -> None:
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 3, 40)
    perfect = np.eye(3)[truth]
    for name, each in intervals(scored(MULTICLASS, truth, perfect)).items():
        assert each.low is not None and each.high is not None
        assert each.low >= 0, name
        assert each.high <= 1, name


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=10))
def test_over_seeds_is_the_t_interval(values: list[float]) -> None:
    found = over_seeds([*values, None])
    mean, wide = np.mean(values), stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, mean, wide) if wide else (mean, mean)
    expected = {"value": mean, "low": low, "high": high}
    assert found.told() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_one_seed_has_no_interval() -> None:
    assert over_seeds([0.8, None, math.nan]) == Interval(0.8)
    assert over_seeds([]) == Interval(None)


def test_numbers_that_are_all_but_infinite_are_measured_without_a_warning() -> None:
    found = intervals(scored(REGRESSION, np.arange(50.0), np.full(50, 1e200)))
    assert found["rmse"] == Interval(None)
    assert found["mae"].value == pytest.approx(1e200)
