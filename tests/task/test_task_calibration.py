"""Calibration: what it promises for ranks and sums, what scikit-learn makes of it, and its file."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from colonnade.errors import InputError
from colonnade.task.calibration import Calibration, fit, log_odds, problem
from colonnade.task.measures import (
    BINARY,
    MULTICLASS,
    REGRESSION,
    Floats,
    Scored,
    measure,
    scored,
)

SEEDS = st.integers(0, 2**32 - 1)
WAYS = ("platt", "isotonic")


def overconfident(kind: str, rows: int, seed: int, sharp: float = 3.0) -> Scored:
    """True probabilities, and scores that are sharper than they should be."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(rows, 2 if kind == BINARY else 4))
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = (generator.random((rows, 1)) > np.cumsum(true, axis=1)[:, :-1]).sum(1)
    told = np.exp(sharp * logits)
    return scored(kind, truth, told / told.sum(1, keepdims=True))


def again(rows: Scored, scores: Floats) -> Scored:
    return scored(rows.kind, rows.truth, scores, weights=rows.weights, positive=rows.positive)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [BINARY, MULTICLASS])
def test_overconfident_scores_are_mended_on_other_rows(kind: str, way: str) -> None:
    calibration = fit(way, overconfident(kind, 2000, 1))
    rows = overconfident(kind, 4000, 2)
    mended = again(rows, calibration.apply(rows.scores))
    for name in ("log_loss", "brier", "calibration_error"):
        before, after = measure(name, rows), measure(name, mended)
        assert before is not None and after is not None
        assert after < before, name
    assert calibration.note == ""
    if way == "platt":
        assert calibration.slope == pytest.approx(1 / 3, abs=0.05)


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.sampled_from(WAYS), st.sampled_from([BINARY, MULTICLASS]))
def test_calibrated_scores_are_probabilities(seed: int, way: str, kind: str) -> None:
    rows = overconfident(kind, 30, seed)
    scores = fit(way, rows).apply(rows.scores)
    assert scores.shape == rows.scores.shape
    assert scores.min() >= 0
    assert scores.sum(1) == pytest.approx(np.ones(30))


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.sampled_from(WAYS), st.integers(0, 1))
def test_of_two_classes_a_higher_score_stays_at_least_as_high(
    seed: int, way: str, positive: int
) -> None:
    some = overconfident(BINARY, 40, seed)
    rows = scored(BINARY, some.truth, some.scores, positive=positive)
    made = fit(way, rows).apply(rows.scores)[:, positive]
    steps = np.diff(made[np.argsort(rows.chances, kind="stable")])
    assert steps.min() >= 0
    if way == "platt":
        assert measure("auc", again(rows, fit(way, rows).apply(rows.scores))) == measure(
            "auc", rows
        )


@settings(deadline=None, max_examples=60)
@given(SEEDS)
def test_temperature_keeps_the_most_probable_class(seed: int) -> None:
    rows = overconfident(MULTICLASS, 30, seed)
    made = fit("platt", rows).apply(rows.scores)
    assert (made.argmax(1) == rows.scores.argmax(1)).all()


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.booleans())
def test_platt_is_the_one_of_scikit_learn(seed: int, weighted: bool) -> None:
    rows = overconfident(BINARY, 60, seed)
    weights = np.random.default_rng(seed).integers(1, 5, 60) + 0.0 if weighted else None
    mine = fit("platt", scored(BINARY, rows.truth, rows.scores, weights=weights))
    theirs = _SigmoidCalibration().fit(log_odds(rows.scores), rows.truth, weights)
    if not mine.note:
        expected = theirs.predict(log_odds(rows.scores))
        assert mine.apply(rows.scores)[:, 1] == pytest.approx(expected, abs=2e-3)


@settings(deadline=None, max_examples=60)
@given(SEEDS)
def test_isotonic_is_the_one_of_scikit_learn_on_groups_of_rows(seed: int) -> None:
    """On the means of ten rows each, which no row is told by."""
    rows, other = (overconfident(BINARY, 60, each) for each in (seed, seed + 1))
    limits = {"y_min": 1 / 62, "y_max": 61 / 62, "out_of_bounds": "clip"}
    order = np.argsort(rows.chances)
    chances, truth = (each[order].reshape(6, 10).mean(1) for each in (rows.chances, rows.truth))
    theirs = IsotonicRegression(**limits).fit(chances, truth)
    made = fit("isotonic", rows).apply(other.scores)[:, 1]
    assert made == pytest.approx(theirs.predict(other.chances))


@pytest.mark.parametrize("way", ["none", *WAYS])
@pytest.mark.parametrize("kind", [BINARY, MULTICLASS])
def test_a_calibration_survives_json(kind: str, way: str) -> None:
    rows = overconfident(kind, 100, 1)
    calibration = fit(way, rows)
    back = Calibration.from_told(json.loads(json.dumps(calibration.told(), allow_nan=False)))
    assert back == calibration
    assert (back.apply(rows.scores) == calibration.apply(rows.scores)).all()
    if way == "none":
        assert (back.apply(rows.scores) == rows.scores).all()


def test_perfectly_separated_rows_lead_to_finite_slopes() -> None:
    chance = np.repeat([0.0, 1.0], 50)
    rows = scored(BINARY, chance.astype(int), np.stack([1 - chance, chance], axis=1))
    for way in WAYS:
        calibration = fit(way, rows)
        json.dumps(calibration.told(), allow_nan=False)
        found = measure("log_loss", again(rows, calibration.apply(rows.scores)))
        assert found is not None and found < 0.1
        assert calibration.apply(rows.scores).min() > 0


def test_weights_count_as_rows() -> None:
    rows = overconfident(BINARY, 60, 1)
    times = np.random.default_rng(1).integers(0, 4, 60)
    weighed = fit("platt", scored(BINARY, rows.truth, rows.scores, weights=times))
    truth, scores = np.repeat(rows.truth, times), np.repeat(rows.scores, times, axis=0)
    repeated = fit("platt", scored(BINARY, truth, scores))
    assert weighed.apply(rows.scores) == pytest.approx(repeated.apply(rows.scores), abs=1e-3)


def test_weights_count_within_groups_of_rows() -> None:
    """Ten rows of one score are one group: their weights decide how often it came true."""
    scores = np.repeat([[0.7, 0.3], [0.2, 0.8]], 10, axis=0)
    truth = np.tile([0, 1], 10)
    weights = np.where(truth == 1, np.repeat([1, 3], 10), 1)
    made = fit("isotonic", scored(BINARY, truth, scores, weights=weights)).apply(scores)
    assert made[[0, 10], 1] == pytest.approx([0.5, 0.75])


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_allow_no_calibration_are_left_alone_with_a_note(way: str) -> None:
    rows = overconfident(BINARY, 50, 1)
    one_class = fit(way, scored(BINARY, np.ones(50), rows.scores))
    assert one_class.note == "not calibrated: all validation rows have one class"
    none = fit(way, scored(BINARY, np.empty(0), np.empty((0, 2))))
    assert "no validation rows" in none.note
    diverged = fit(way, scored(BINARY, rows.truth, rows.scores * math.nan))
    assert "finite" in diverged.note
    for calibration in (one_class, none, diverged):
        assert calibration.way == "none"
        assert (calibration.apply(rows.scores) == rows.scores).all()


def test_platt_never_turns_the_order_round() -> None:
    rows = overconfident(BINARY, 200, 1)
    calibration = fit("platt", scored(BINARY, 1 - rows.truth, rows.scores))
    assert calibration.way == "none"
    assert "came true less often" in calibration.note


def test_constant_scores_are_calibrated_to_the_share_that_came_true() -> None:
    rows = scored(BINARY, np.repeat([0, 1], [70, 30]), np.full((100, 2), 0.5))
    made = fit("isotonic", rows).apply(rows.scores)
    assert made[0, 1] == pytest.approx(0.3)


def test_other_ways_and_numbers_are_refused() -> None:
    assert problem("plat", BINARY) == "no way to calibrate 'plat': did you mean 'platt'?"
    assert problem("none", REGRESSION) == problem("platt", MULTICLASS) == ""
    with pytest.raises(InputError, match="this task is regression: remove it"):
        fit("platt", scored(REGRESSION, [1.0], [1.0]))
