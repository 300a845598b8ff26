"""Probabilities that come true as often as they say: Platt and isotonic calibration.

Fitted by the label holder on validation rows, kept as plain numbers, applied without scikit-learn.

    two classes    platt     p' = σ(a · log(p / (1 − p)) + b), on Platt's softened targets
                   isotonic  p' = a rising step-free line through the means of neighbouring rows
    many classes   platt     temperature scaling, its form for many classes: p' ∝ p^(1/T)
                   isotonic  one line for each class against the rest, divided by their sum

Platt, "Probabilistic outputs for support vector machines" (1999); Zadrozny and Elkan,
"Transforming classifier scores into accurate multiclass probability estimates" (2002); Guo et
al., "On calibration of modern neural networks" (2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.errors import InputError, unknown
from colonnade.task.measures import BINARY, REGRESSION, Floats, Scored, array, groups

WAYS = ("none", "platt", "isotonic")
SMALLEST = float(np.finfo(np.float64).tiny)
FIT_WITHIN = 30.0  # log odds beyond it would steer the fit of all others
TEMPERATURES = (0.02, 50.0)

Line = tuple[tuple[float, ...], tuple[float, ...]]  # places and values, to be joined


@dataclass(frozen=True)
class Calibration:
    """A fitted map of probabilities; `way` "none" changes nothing."""

    way: str = "none"
    positive: int = 1
    slope: float = 1.0  # of platt: a, or 1/T
    offset: float = 0.0  # of platt: b
    # Of isotonic, for the positive class, or for every class: their places are scores of single
    # validation rows, so they are for the label holder alone.
    lines: tuple[Line, ...] = ()
    note: str = ""  # why the way that was asked for was not taken

    def apply(self, scores: Any) -> Floats:
        """(rows, classes): the calibrated probabilities."""
        given = array(scores)
        two = given.shape[1] == 2
        if self.way == "platt" and two:
            odds = self.slope * log_odds(given, 1) + self.offset * (1 if self.positive else -1)
            return np.stack([_sigmoid(-odds), _sigmoid(odds)], axis=1)
        if self.way == "platt":
            return _softmax(self.slope * np.log(np.maximum(given, SMALLEST)))
        if self.way == "isotonic" and two:
            chances = np.interp(given[:, self.positive], *self.lines[0])
            return np.stack([1 - chances, chances][:: 1 if self.positive else -1], axis=1)
        if self.way == "isotonic":
            made = np.stack(
                [np.interp(given[:, code], *line) for code, line in enumerate(self.lines)], axis=1
            )
            return np.asarray(made / made.sum(1, keepdims=True))
        return given

    def told(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        return {
            "way": self.way,
            "positive": self.positive,
            "slope": self.slope,
            "offset": self.offset,
            "lines": [[list(places), list(values)] for places, values in self.lines],
            "note": self.note,
        }

    @classmethod
    def from_told(cls, told: dict[str, Any]) -> Calibration:
        lines = tuple((tuple(places), tuple(values)) for places, values in told["lines"])
        plain = {name: value for name, value in told.items() if name != "lines"}
        return cls(**plain, lines=lines)


def problem(way: str, kind: str) -> str:
    """What is wrong with this way of calibrating, in one sentence; "" if nothing is."""
    if way not in WAYS:
        return unknown(way, WAYS, what="way to calibrate")
    if kind == REGRESSION and way != "none":
        return "calibrate is for probabilities of classes, and this task is regression: remove it"
    return ""


def fit(way: str, rows: Scored) -> Calibration:
    """The calibration of these validation rows; none, with a note, where they allow none."""
    if found := problem(way, rows.kind):
        raise InputError(found)
    if way == "none":
        return Calibration(positive=rows.positive)
    reason = ""
    if not rows.usable:
        reason = "there are no validation rows with finite probabilities"
    elif len(np.unique(rows.truth)) < 2:
        reason = "all validation rows have one class"
    if reason:
        return Calibration(positive=rows.positive, note=f"not calibrated: {reason}")
    if way == "isotonic":
        return _isotonic(rows)
    return _platt(rows) if rows.kind == BINARY else _temperature(rows)


def _platt(rows: Scored) -> Calibration:
    """Logistic regression on the log odds; the targets are softened as Platt (1999, §2.2) has it,
    so that perfectly separated rows do not lead to infinite slopes."""
    from sklearn.linear_model import LogisticRegression

    odds = np.clip(log_odds(rows.scores, rows.positive), -FIT_WITHIN, FIT_WITHIN)
    hits, weights = rows.hits, rows.weights
    positives, negatives = weights[hits].sum(), weights[~hits].sum()
    target = np.where(hits, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    # A row of target t is a positive of weight t and a negative of weight 1 − t.
    centre, scale = float(odds.mean()), float(odds.std()) or 1.0
    twice = np.concatenate([odds, odds])[:, None]
    model = LogisticRegression(C=math.inf, tol=1e-10, max_iter=1000).fit(
        (twice - centre) / scale,
        np.repeat([1, 0], len(odds)),
        sample_weight=np.concatenate([weights * target, weights * (1 - target)]),
    )
    slope = float(model.coef_[0, 0]) / scale
    offset = float(model.intercept_[0]) - slope * centre
    if slope <= 0:
        return Calibration(
            positive=rows.positive,
            note="not calibrated: validation rows with higher probabilities came true less often",
        )
    return Calibration("platt", rows.positive, slope, offset)


def _temperature(rows: Scored) -> Calibration:
    from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]

    logs = np.log(np.maximum(rows.scores, SMALLEST))
    at = np.arange(len(rows.truth)), rows.truth

    def loss(log_slope: float) -> float:
        chances = _softmax(math.exp(log_slope) * logs)[at]
        return float(np.average(-np.log(np.maximum(chances, SMALLEST)), weights=rows.weights))

    low, high = (-math.log(temperature) for temperature in reversed(TEMPERATURES))
    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-8})
    return Calibration("platt", rows.positive, math.exp(float(found.x)))


def _isotonic(rows: Scored) -> Calibration:
    from sklearn.isotonic import IsotonicRegression

    codes = [rows.positive] if rows.kind == BINARY else range(rows.scores.shape[1])
    total = float(rows.weights.sum())
    lowest = 1 / (total + 2)  # nothing is impossible after so few rows; Laplace's rule
    lines = []
    for code in codes:
        model = IsotonicRegression(y_min=lowest, y_max=1 - lowest, out_of_bounds="clip")
        chances, shares, weights = _grouped(rows, code)
        model.fit(chances, shares, sample_weight=weights)
        lines.append((_plain(model.X_thresholds_), _plain(model.y_thresholds_)))
    return Calibration("isotonic", rows.positive, lines=tuple(lines))


def _grouped(rows: Scored, code: int) -> tuple[Floats, Floats, Floats]:
    """Mean scores, shares that came true and weights of groups of ten rows or more, so that the
    line, which others may be told, shows no single row."""
    order = np.argsort(rows.scores[:, code], kind="stable")
    chances, weights = rows.scores[order, code], rows.weights[order]
    at = groups(chances, len(chances))
    sums: Floats = np.bincount(at, weights).astype(np.float64)
    hits = np.bincount(at, weights * (rows.truth[order] == code))
    known = sums > 0
    means = np.bincount(at, weights * chances)[known] / sums[known]
    return means, hits[known] / sums[known], sums[known]


def log_odds(scores: Floats, positive: int = 1) -> Floats:
    """(rows,): of two classes, from both columns: next to 1 the other one has the digits."""
    kept = np.log(np.maximum(scores, SMALLEST))
    return np.asarray(kept[:, positive] - kept[:, 1 - positive])


def _sigmoid(odds: Floats) -> Floats:
    small = np.exp(-np.abs(odds))
    return np.asarray(np.where(odds >= 0, 1, small) / (1 + small))


def _softmax(logs: Floats) -> Floats:
    small = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(small / small.sum(1, keepdims=True))


def _plain(values: Floats) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
