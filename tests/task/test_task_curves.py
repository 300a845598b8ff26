"""Curves: short, finite, close to the measures, and never a point for a single row."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc

from colonnade.task.curves import curves, precision_recall, residual_histogram, roc
from colonnade.task.measures import BINARY, MULTICLASS, REGRESSION, Scored, measure, scored

KINDS = st.sampled_from([BINARY, MULTICLASS, REGRESSION])


def rows_of(kind: str, rows: int, seed: int, finest: int = 1000) -> Scored:
    generator = np.random.default_rng(seed)
    if kind == REGRESSION:
        predicted = np.round(generator.normal(size=rows), 1 if finest < 1000 else 9)
        return scored(kind, predicted + generator.normal(size=rows), predicted)
    classes = 2 if kind == BINARY else 4
    truth = generator.integers(0, classes, rows)
    raw = generator.integers(1, finest + 1, (rows, classes)).astype(np.float64)
    raw[np.arange(rows), truth] += finest / 2
    return scored(kind, truth, raw / raw.sum(1, keepdims=True))


@settings(deadline=None, max_examples=60)
@given(KINDS, st.integers(0, 400), st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 1000]))
def test_curves_are_short_finite_and_plain(kind: str, rows: int, seed: int, finest: int) -> None:
    found = curves(rows_of(kind, rows, seed, finest))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for curve in found.values():
        assert all(1 <= len(values) <= 101 for values in curve.values())
    assert bool(found) == (rows >= 10)


@settings(deadline=None, max_examples=60)
@given(st.integers(10, 400), st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 1000]))
def test_every_step_of_a_curve_stands_for_ten_rows(rows: int, seed: int, finest: int) -> None:
    given_rows = rows_of(BINARY, rows, seed, finest)
    found, positives = curves(given_rows), int((given_rows.truth == 1).sum())
    share = np.array(found["calibration"]["share"]) * rows
    assert share.min() > 9.99
    if 0 < positives < rows:
        up = np.diff(found["roc"]["recall"]) * positives
        across = np.diff(found["roc"]["false_positive_rate"]) * (rows - positives)
        assert (up + across).min() > 9.98


@settings(deadline=None, max_examples=60)
@given(st.integers(10, 400), st.integers(0, 2**32 - 1))
def test_every_bar_of_residuals_stands_for_ten_rows(rows: int, seed: int) -> None:
    given_rows = rows_of(REGRESSION, rows, seed)
    found = residual_histogram(given_rows)
    error = given_rows.truth - given_rows.scores
    assert np.array(found["share"]).min() * rows > 9.99
    assert math.isclose(sum(found["share"]), 1, abs_tol=1e-4)
    assert found["edges"] == sorted(found["edges"])
    inside, _ = np.histogram(error, found["edges"])
    assert inside[1:-1] == pytest.approx(np.array(found["share"][1:-1]) * rows, abs=1.01)


@pytest.mark.parametrize("kind", [BINARY, MULTICLASS])
def test_thinned_curves_keep_their_area(kind: str) -> None:
    rows = rows_of(kind, 5000, 1)
    curve = roc(rows)
    assert auc(curve["false_positive_rate"], curve["recall"]) == pytest.approx(
        measure("auc", rows), abs=0.005
    )
    curve = precision_recall(rows)
    assert auc(curve["recall"], curve["precision"]) == pytest.approx(
        measure("average_precision", rows), abs=0.01
    )
    assert roc(rows)["recall"][0] == 0 and roc(rows)["recall"][-1] == 1


def test_a_weight_counts_as_rows() -> None:
    rows = rows_of(BINARY, 500, 1)
    doubled = scored(BINARY, rows.truth, rows.scores, weights=np.full(500, 2.0))
    assert curves(doubled) == curves(rows)
    without = scored(BINARY, rows.truth, rows.scores, weights=np.arange(500) % 2)
    kept = scored(BINARY, rows.truth[1::2], rows.scores[1::2])
    assert curves(without) == curves(kept)


def test_what_rows_do_not_define_is_missing() -> None:
    rows = rows_of(BINARY, 100, 1)
    assert "roc" not in curves(scored(BINARY, np.ones(100), rows.scores))
    assert set(curves(scored(BINARY, np.zeros(100), rows.scores))) == {"calibration"}
    assert curves(scored(BINARY, rows.truth, rows.scores * math.nan)) == {}


def test_residuals_show_a_bias_that_grows() -> None:
    predicted = np.linspace(0, 10, 1000)
    found = curves(scored(REGRESSION, 1.5 * predicted, predicted))["residuals"]
    assert found["residual"] == pytest.approx([value / 2 for value in found["predicted"]], abs=0.01)
    assert max(found["spread"]) < 0.1
