"""From probabilities of two classes to decisions: a threshold, and who chose it.

A threshold is chosen on validation rows, never on those that it is judged by. Of many classes the
decision is the most probable one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.errors import InputError
from colonnade.task.measures import BINARY, REGRESSION, Codes, Floats, array, decide


@dataclass(frozen=True)
class Decision:
    """A threshold for the positive one of two classes; None: the most probable class."""

    threshold: float | None = None
    chosen_by: str = "default"  # default, fixed, rate or cost
    positive: int = 1

    def decide(self, scores: Any) -> Codes:
        """(rows,): the classes of probabilities, (rows, classes)."""
        return decide(array(scores), self.positive, self.threshold)

    def told(self) -> dict[str, Any]:
        return {
            "threshold": self.threshold,
            "chosen_by": self.chosen_by,
            "positive": self.positive,
        }

    @classmethod
    def from_told(cls, told: dict[str, Any]) -> Decision:
        return cls(told["threshold"], told["chosen_by"], told["positive"])


def problem(kind: str, way: str) -> str:
    """Why this way of deciding does not fit a kind of task; "" if it does.

    way  threshold, rate or cost
    """
    if kind == BINARY:
        return ""
    if kind == REGRESSION:
        return f"{way} decides between two classes, and this task is regression: remove {way}"
    instead = (
        "a cost for every pair of classes is not built in, so weigh the classes in training with "
        "class_weight instead"
        if way == "cost"
        else f"remove {way}"
    )
    return (
        f"{way} decides between two classes, and this task has more, of which the most probable "
        f"one is predicted: {instead}"
    )


def fixed(threshold: float, positive: int = 1) -> Decision:
    """A threshold that somebody knows."""
    return Decision(float(threshold), "fixed", positive)


def by_rate(scores: Any, rate: float, positive: int = 1, weights: Any = None) -> Decision:
    """The threshold that flags the share of validation rows nearest to `rate`.

    scores  of validation rows, (rows, 2)

    Rows of equal scores are flagged together or not at all.
    """
    ranked = _Ranked(scores, positive, weights, "rate")
    shares = np.cumsum(ranked.weights) / ranked.weights.sum()
    at = int(np.argmin(np.abs(np.concatenate([[0.0], shares[ranked.ends]]) - rate)))
    return Decision(float(ranked.thresholds[at]), "rate", positive)


def by_cost(
    truth: Any,
    scores: Any,
    *,
    false_positive: float,
    false_negative: float,
    positive: int = 1,
    weights: Any = None,
) -> Decision:
    """The threshold at which wrong decisions on validation rows cost least.

    Of several such thresholds, the one nearest to false_positive / (false_positive +
    false_negative), which would be the best one for perfect probabilities.
    """
    ranked = _Ranked(scores, positive, weights, "cost")
    hit = (array(truth) == positive)[ranked.order]
    found = np.concatenate([[0.0], np.cumsum(ranked.weights * hit)[ranked.ends]])
    wrong = np.concatenate([[0.0], np.cumsum(ranked.weights * ~hit)[ranked.ends]])
    cost = false_positive * wrong + false_negative * (found[-1] - found)
    least = cost <= cost.min() * (1 + 1e-12)  # equal but for rounding
    ideal = false_positive / (false_positive + false_negative)
    candidates = ranked.thresholds[least]
    return Decision(float(candidates[np.argmin(np.abs(candidates - ideal))]), "cost", positive)


class _Ranked:
    """Validation rows by falling score, and a threshold above, between and below their scores."""

    def __init__(self, scores: Any, positive: int, weights: Any, way: str) -> None:
        chances = array(scores)[:, positive]
        heavy = np.ones(len(chances)) if weights is None else array(weights)
        counted = np.flatnonzero(heavy > 0)
        if not len(counted):
            raise InputError(
                f"a threshold by {way} is chosen on validation rows, and there are none: set "
                "validation, the share of training rows that are set aside, or a fixed threshold"
            )
        if not np.isfinite(chances[counted]).all():
            raise InputError(
                f"a threshold by {way} needs finite probabilities of the validation rows, and some "
                "are not: the training has diverged; lower lr or set clip_norm"
            )
        self.order = counted[np.argsort(-chances[counted], kind="stable")]
        self.weights = heavy[self.order]
        ordered: Floats = chances[self.order]
        self.ends = np.flatnonzero(np.diff(ordered, append=-math.inf))
        levels = ordered[self.ends]
        between = (levels[:-1] + levels[1:]) / 2
        between = np.where(between > levels[1:], between, levels[:-1])
        # Nobody is flagged above the highest score, everybody at 0 or the lowest score.
        top = np.nextafter(levels[0], math.inf) if levels[0] >= 1 else (levels[0] + 1) / 2
        self.thresholds = np.array([top, *between, min(levels[-1] / 2, levels[-1])])
