"""Curves behind the measures, as short lists for JSON.

A curve with a point for every row would tell the rows' order and, from step to step, their labels.
Every point here stands for at least ten rows, and no curve has more than about a hundred points.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from colonnade.task.measures import (
    BINARY,
    REGRESSION,
    TOGETHER,
    Floats,
    Scored,
    bins,
    cuts,
    groups,
)

POINTS = 100
GROUPS = 20  # of residuals

Curve = dict[str, list[float]]
CURVES = {  # what each of them consists of
    "roc": ("false_positive_rate", "recall"),
    "precision_recall": ("recall", "precision"),
    "calibration": ("predicted", "observed", "share"),
    "residuals": ("predicted", "residual", "spread"),
    "residual_histogram": ("edges", "share"),
}

# Axes in the unit of the label; all others are shares, from 0 to 1
IN_UNITS = {"residuals": ("predicted", "residual", "spread"), "residual_histogram": ("edges",)}
LARGEST = 1e100  # larger numbers cannot be drawn


def curves(rows: Scored) -> dict[str, Curve]:
    """All curves of these rows; those that they do not define are missing."""
    if not rows.usable or len(rows.truth) < TOGETHER:
        return {}
    if rows.kind == REGRESSION:
        found = {"residuals": residuals(rows), "residual_histogram": residual_histogram(rows)}
    else:
        found = {
            "roc": roc(rows),
            "precision_recall": precision_recall(rows),
            "calibration": calibration(rows),
        }
    return {name: curve for name, curve in found.items() if curve}


def roc(rows: Scored) -> Curve:
    """The share of positives that is found, over the share of negatives that is flagged with them.

    Of many classes: the mean over those that have rows, each against the rest.
    """
    ways = [_sums(rows, code) for code in _codes(rows)]
    ways = [(found, missed) for found, missed in ways if found[-1] > 0 and missed[-1] > 0]
    if not ways:
        return {}
    shares = [(missed / missed[-1], found / found[-1]) for found, missed in ways]
    across, up = shares[0]
    if len(shares) > 1:
        across, up = (np.concatenate([[0.0], mean]) for mean in _mean(shares))
    return {"false_positive_rate": _plain(across), "recall": _plain(up)}


def precision_recall(rows: Scored) -> Curve:
    """The share of positives among the rows that are flagged, over the share of them found.

    Of many classes: the mean over those that have rows, each against the rest.
    """
    ways = [_sums(rows, code) for code in _codes(rows)]
    ways = [(found, missed) for found, missed in ways if found[-1] > 0]
    if not ways:
        return {}
    shares = []
    for found, missed in ways:
        precision = found[1:] / (found + missed)[1:]  # of no rows at all there is none
        shares.append((found / found[-1], np.concatenate([precision[:1], precision])))
    across, up = shares[0] if len(shares) == 1 else _mean(shares)
    return {"recall": _plain(across), "precision": _plain(up)}


def calibration(rows: Scored) -> Curve:
    """How often it came true, over what was predicted: the bins of the calibration error."""
    found = bins(rows)
    weight = np.bincount(found, rows.weights)
    predicted = np.bincount(found, rows.weights * rows.chances) / weight
    observed = np.bincount(found, rows.weights * rows.hits) / weight
    share = weight / weight.sum()
    return {"predicted": _plain(predicted), "observed": _plain(observed), "share": _plain(share)}


def residuals(rows: Scored) -> Curve:
    """Truth minus prediction, over the prediction: mean and standard deviation in each group."""
    order = np.argsort(rows.scores, kind="stable")
    group = groups(rows.scores[order], GROUPS)
    weights, scores = rows.weights[order], rows.scores[order]
    error = rows.truth[order] - scores
    weight = np.bincount(group, weights)
    mean = np.bincount(group, weights * error) / weight
    spread = np.sqrt(np.bincount(group, weights * (error - mean[group]) ** 2) / weight)
    predicted = np.bincount(group, weights * scores) / weight
    return {"predicted": _plain(predicted), "residual": _plain(mean), "spread": _plain(spread)}


def residual_histogram(rows: Scored) -> Curve:
    """How residuals are distributed: bars of about as many rows each, and their edges.

    The outer edges lie as far from the mean of their bar as its inner edge: the smallest and the
    largest residual are those of single rows.
    """
    error = rows.truth - rows.scores
    order = np.argsort(error, kind="stable")
    error, weights = error[order], rows.weights[order]
    group = groups(error, GROUPS)
    weight = np.bincount(group, weights)
    means = np.bincount(group, weights * error) / weight
    inner = [(error[group == n].max() + error[group == n + 1].min()) / 2 for n in range(group[-1])]
    if inner:
        edges = np.array([2 * means[0] - inner[0], *inner, 2 * means[-1] - inner[-1]])
    else:
        spread = math.sqrt(float(np.average((error - means[0]) ** 2, weights=weights)))
        edges = np.array([means[0] - spread, means[0] + spread])
    return {"edges": _plain(edges), "share": _plain(weight / weight.sum())}


def _codes(rows: Scored) -> list[int]:
    return [rows.positive] if rows.kind == BINARY else list(range(rows.scores.shape[1]))


def _sums(rows: Scored, code: int) -> tuple[Floats, Floats]:
    """The weight of rows of a class, and of others, down to falling scores; from 0 on."""
    order = np.argsort(-rows.scores[:, code], kind="stable")
    weights, hit = rows.weights[order], rows.truth[order] == code
    at = cuts(-rows.scores[order, code], POINTS) - 1
    found, missed = np.cumsum(weights * hit)[at], np.cumsum(weights * ~hit)[at]
    return np.concatenate([[0.0], found]), np.concatenate([[0.0], missed])


def _mean(shares: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """The mean of curves over common places."""
    places = np.linspace(0, 1, POINTS)
    return places, np.mean([np.interp(places, across, up) for across, up in shares], axis=0)


def _plain(values: NDArray[np.float64]) -> list[float]:
    """Six significant digits are more than a picture shows."""
    return [float(f"{value:.6g}") for value in values]
