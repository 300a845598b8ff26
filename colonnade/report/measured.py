"""Measures as a person reads them: their titles, their numbers, and what a difference means."""

from __future__ import annotations

import math

from colonnade.report import units
from colonnade.task.measures import MEASURES

SHORT = {  # in the head of a column
    "auc": "AUC",
    "average_precision": "Av. precision",
    "calibration_error": "Calibration",
    "balanced_accuracy": "Balanced",
}
SHARES = ("accuracy", "balanced_accuracy", "precision", "recall", "recall_at_rate")
SIZES = ("rmse", "mae")  # in the unit of the label

MEANING = {
    "auc": "how often a positive row has the higher score than another one; 0.5 is chance",
    "average_precision": "the mean precision over all shares of positives found",
    "log_loss": "how surprising the true classes are",
    "brier": "the squared error of the probabilities",
    "calibration_error": "how far probabilities are from how often they come true",
    "accuracy": "the share of rows that are decided rightly",
    "balanced_accuracy": "the same as the mean over the classes",
    "f1": "precision and recall in one number",
    "precision": "of the rows that are flagged, the share of positives",
    "recall": "of the positives, the share that is flagged",
    "recall_at_rate": "the share of positives among the highest scores",
    "rmse": "the root of the mean squared error, in the label’s unit",
    "mae": "the mean absolute error, in the label’s unit",
    "r2": "the share of the label’s variance that is explained; 0 is always the mean",
}
MANY = {  # of many classes some are means over them
    "auc": "how often a row of a class has the higher score for it than another row; 0.5 is chance",
    "average_precision": "the mean precision over all shares found, as the mean over the classes",
    "precision": "of the rows predicted as a class, the share that is right: the mean over classes",
    "recall": "of the rows of a class, the share that is found: the mean over classes",
}


def title(name: str) -> str:
    """`ROC AUC`."""
    return MEASURES[name].title if name in MEASURES else name


def column(name: str) -> str:
    """The same in the head of a column."""
    return SHORT.get(name, title(name))


def meaning(name: str, classes: int = 2) -> str:
    """What the measure is, in one line."""
    plain = name.removesuffix("_weighted")
    if plain != name:
        return "the same, every class counting by its rows"
    return (MANY.get(name) if classes > 2 else None) or MEANING.get(name, "")


def value(name: str, number: float | None) -> str:
    """`98.61 %`, `0.771`, `1,131`."""
    if number is None or not math.isfinite(number):
        return units.MISSING
    if name.removesuffix("_weighted") in SHARES:
        return units.percent(number)
    return _size(number) if name in SIZES else units.decimal(number, 3)


def interval(name: str, low: float | None, high: float | None) -> str:
    """`0.751 to 0.789`; empty where there is none."""
    if low is None or high is None:
        return ""
    return f"{value(name, low).removesuffix(' %')} to {value(name, high)}"


def change(name: str, difference: float | None, of: float | None = None) -> str:
    """A difference, always with its sign: in points of a percentage, or in the measure's unit.

    of  the number from which the other one was taken away; the difference has at most one digit
        more than the larger of both is written with
    """
    if difference is None or not math.isfinite(difference):
        return units.MISSING
    if name.removesuffix("_weighted") in SHARES:
        return units.points(100 * difference)
    if name not in SIZES:
        shown = f"{abs(difference):.3f}"
    elif of is None or not math.isfinite(of):
        shown = _size(abs(difference))
    else:
        most = _digits(max(abs(of), abs(of - difference))) + 1
        shown = f"{abs(difference):,.{min(most, _digits(difference))}f}"
    if not float(shown.replace(",", "")):
        return shown
    return f"{'+' if difference > 0 else units.MINUS}{shown}"


def lower_is_better(name: str) -> bool:
    """Whether a negative difference is an improvement."""
    return name in MEASURES and not MEASURES[name].higher


def _size(number: float) -> str:
    """Four significant digits, in plain writing."""
    if number == 0 or not math.isfinite(number):
        return "0"
    return f"{number:,.{_digits(number)}f}".replace("-", units.MINUS)


def _digits(number: float) -> int:
    """How many of the four stand behind the point."""
    return min(8, max(0, 3 - math.floor(math.log10(abs(number))))) if number else 0
