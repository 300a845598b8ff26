"""How good predictions are: every measure by name, for two classes, many classes, and numbers.

The values are those of scikit-learn, which takes a second to import and checks every array again,
so it is not asked. What a measure cannot say about some rows (an AUC where only one class is
present) is None: measuring never raises and never warns. `docs/reference/measures.md` has
the definitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.errors import nearest, unknown

BINARY, MULTICLASS, REGRESSION = "binary", "multiclass", "regression"
CLASSES = (BINARY, MULTICLASS)

RATE = 0.1  # the share of rows that `recall_at_rate` flags where nobody chooses another
BINS = 15  # of the calibration error, as in Guo et al., "On calibration of modern networks" (2017)
SMALLEST = float(np.finfo(np.float64).eps)  # probability in a log loss, as scikit-learn has it
TOGETHER = 10  # rows in a bin or behind a point of a curve, at least: no point shows a single row

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

SAID = {BINARY: "two classes", MULTICLASS: "many classes", REGRESSION: "regression"}
CALLED = {  # names of other libraries, which no spelling leads to
    "acc": "accuracy",
    "ap": "average_precision",
    "pr_auc": "average_precision",
    "prauc": "average_precision",
    "ece": "calibration_error",
    "cross_entropy": "log_loss",
    "nll": "log_loss",
    "sensitivity": "recall",
    "r_squared": "r2",
}


@dataclass(frozen=True)
class Measure:
    """What there is to know about a measure without any rows."""

    title: str
    higher: bool  # is better
    kinds: tuple[str, ...]  # of tasks
    decided: bool = False  # of decisions, not of scores: for two classes a threshold moves it


_MEASURES = {
    "auc": Measure("ROC AUC", True, CLASSES),
    "auc_weighted": Measure("ROC AUC, weighted", True, (MULTICLASS,)),
    "average_precision": Measure("Average precision", True, CLASSES),
    "average_precision_weighted": Measure("Average precision, weighted", True, (MULTICLASS,)),
    "log_loss": Measure("Log loss", False, CLASSES),
    "brier": Measure("Brier score", False, CLASSES),
    "calibration_error": Measure("Calibration error", False, CLASSES),
    "accuracy": Measure("Accuracy", True, CLASSES, decided=True),
    "balanced_accuracy": Measure("Balanced accuracy", True, CLASSES, decided=True),
    "f1": Measure("F1", True, CLASSES, decided=True),
    "f1_weighted": Measure("F1, weighted", True, (MULTICLASS,), decided=True),
    "precision": Measure("Precision", True, CLASSES, decided=True),
    "precision_weighted": Measure("Precision, weighted", True, (MULTICLASS,), decided=True),
    "recall": Measure("Recall", True, CLASSES, decided=True),
    "recall_weighted": Measure("Recall, weighted", True, (MULTICLASS,), decided=True),
    "recall_at_rate": Measure("Recall at a rate", True, (BINARY,)),
    "rmse": Measure("RMSE", False, (REGRESSION,)),
    "mae": Measure("MAE", False, (REGRESSION,)),
    "r2": Measure("R²", True, (REGRESSION,)),
}
MEASURES: Mapping[str, Measure] = MappingProxyType(_MEASURES)


def names_for(kind: str) -> tuple[str, ...]:
    """The measures of a kind of task, in the order in which they are shown."""
    return tuple(name for name, measure in MEASURES.items() if kind in measure.kinds)


def problem(name: str, kind: str = "") -> str:
    """What is wrong with this name of a metric, in one sentence; "" if nothing is.

    kind  of the task; "" while that is not known, and then every measure will do
    """
    valid = names_for(kind) if kind else tuple(MEASURES)
    if name in valid:
        return ""
    where = f"for {SAID[kind]}" if kind else ""
    known = MEASURES.get(name)
    if known is None:
        if (meant := CALLED.get(name.casefold())) in valid:
            return f"no metric '{name}'{' ' if where else ''}{where}: did you mean '{meant}'?"
        return unknown(name, valid, where, what="metric")
    near = nearest(name, valid)
    hint = f"did you mean '{near}'?" if near else f"one of {', '.join(valid)}"
    others = " and ".join(SAID[other] for other in known.kinds)
    return f"metric '{name}' is for {others}, and this task is {SAID[kind]}: {hint}"


def better(name: str, value: float | None, than: float | None, by: float = 0.0) -> bool:
    """Whether a value of this measure beats another one by more than `by`; None beats nothing."""
    if value is None or not math.isfinite(value):
        return False
    if than is None or not math.isfinite(than):
        return True
    return value - than > by if MEASURES[name].higher else than - value > by


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows whose truth is known, beside what was predicted for them; made by `scored`."""

    kind: str
    truth: NDArray[Any]  # (rows,): codes of classes, or numbers
    scores: Floats  # (rows, classes) probabilities, or (rows,) numbers
    weights: Floats  # (rows,), each above 0
    positive: int  # of two classes
    threshold: float | None  # for the positive class; None: the most probable class
    rate: float  # of `recall_at_rate`

    @property
    def usable(self) -> bool:
        """Whether there are rows, and only finite scores."""
        return len(self.truth) > 0 and bool(np.isfinite(self.scores).all())

    @property
    def chances(self) -> Floats:
        """(rows,): the probability of the positive class; of many classes the highest one."""
        return self.scores[:, self.positive] if self.kind == BINARY else self.scores.max(1)

    @property
    def hits(self) -> NDArray[np.bool_]:
        """(rows,): whether what `chances` speaks about is true."""
        said = self.positive if self.kind == BINARY else self.scores.argmax(1)
        return np.asarray(self.truth == said)

    @cached_property
    def levels(self) -> list[tuple[Floats, Floats]]:
        """The weight of hits and of misses at every score, from the highest one down: of the
        positive class, or of each of many, against the rest."""
        codes = [self.positive] if self.kind == BINARY else range(self.scores.shape[1])
        return [self._level(code) for code in codes]

    def _level(self, code: int) -> tuple[Floats, Floats]:
        order = np.argsort(-self.scores[:, code], kind="stable")
        starts = np.flatnonzero(np.diff(self.scores[order, code], prepend=math.inf))
        weights = self.weights[order]
        hits = weights * (self.truth[order] == code)
        return np.add.reduceat(hits, starts), np.add.reduceat(weights - hits, starts)

    @property
    def decided(self) -> Codes:
        """(rows,): the classes that the scores amount to."""
        return decide(self.scores, self.positive, self.threshold)


def scored(
    kind: str,
    truth: Any,
    scores: Any,
    *,
    weights: Any = None,
    positive: int = 1,
    threshold: float | None = None,
    rate: float = RATE,
) -> Scored:
    """Arrays or tensors as `Scored`; rows of weight 0 do not count and are left out."""
    numbers = array(scores)
    exact = array(truth) if kind == REGRESSION else array(truth).astype(np.int64)
    heavy = np.ones(len(exact)) if weights is None else array(weights)
    if not heavy.all():
        numbers, exact, heavy = numbers[heavy > 0], exact[heavy > 0], heavy[heavy > 0]
    if kind == REGRESSION:
        numbers = numbers.reshape(len(exact))
    return Scored(kind, exact, numbers, heavy, positive, threshold, rate)


def array(values: Any) -> Floats:
    """Numbers of any origin, in double precision."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def decide(scores: Floats, positive: int = 1, threshold: float | None = None) -> Codes:
    """(rows,): the most probable class, or the positive one of two where it reaches a threshold."""
    if threshold is None:
        return np.asarray(scores.argmax(1), dtype=np.int64)
    flagged = scores[:, positive] >= threshold
    return np.where(flagged, positive, 1 - positive).astype(np.int64)


def measures(rows: Scored, names: Iterable[str] | None = None) -> dict[str, float | None]:
    """The measures of these rows by name, all that the kind of task has or only some."""
    wanted = names_for(rows.kind) if names is None else tuple(names)
    return {name: measure(name, rows) for name in wanted}


def measure(name: str, rows: Scored) -> float | None:
    """One measure; None where these rows do not define it."""
    if not rows.usable:
        return None
    with np.errstate(all="ignore"):  # squares of numbers that are all but infinite
        value = _VALUES[name](rows)
    if value is None or not math.isfinite(value):
        return None
    return min(float(value), 1.0) if MEASURES[name].higher else float(value)  # sums are rounded


# Scores of classes


def _each_class(
    rows: Scored, value: Callable[[Floats, Floats], float], *, weighted: bool, both: bool
) -> float | None:
    """A measure of two classes: of the positive one, or the mean over all, each against the rest.

    both  it needs rows of the class and others; classes without them do not count
    """
    sums = [(hits.sum(), misses.sum()) for hits, misses in rows.levels]
    counted = [n for n, (hits, misses) in enumerate(sums) if hits > 0 and (misses > 0 or not both)]
    if not counted:
        return None
    found = [value(*rows.levels[n]) for n in counted]
    return float(np.average(found, weights=[sums[n][0] for n in counted] if weighted else None))


def _area(hits: Floats, misses: Floats) -> float:
    """ROC AUC: a hit beats all misses below it, and half of those beside it."""
    above = np.cumsum(misses)
    below = above[-1] - above
    return float((hits * (below + misses / 2)).sum() / (hits.sum() * above[-1]))


def _precision(hits: Floats, misses: Floats) -> float:
    """The mean over all hits of the precision at their score."""
    found = np.cumsum(hits)
    return float((hits * found / (found + np.cumsum(misses))).sum() / found[-1])


def _auc(rows: Scored, weighted: bool = False) -> float | None:
    return _each_class(rows, _area, weighted=weighted, both=True)


def _average_precision(rows: Scored, weighted: bool = False) -> float | None:
    return _each_class(rows, _precision, weighted=weighted, both=False)


def log_losses(rows: Scored) -> Floats:
    """(rows,): minus the logarithm of the probability of what is true."""
    # Softmax in single precision misses a sum of 1 by 1e-7.
    chances = rows.scores[np.arange(len(rows.truth)), rows.truth] / rows.scores.sum(1)
    return np.asarray(-np.log(np.clip(chances, SMALLEST, 1 - SMALLEST)))


def _log_loss(rows: Scored) -> float | None:
    if not (rows.scores.sum(1) > 0).all():
        return None
    return float(np.average(log_losses(rows), weights=rows.weights))


def squares(rows: Scored) -> Floats:
    """(rows,): the squared distance of the probabilities from the truth, as Brier has it."""
    if rows.kind == BINARY:
        return np.asarray((rows.chances - rows.hits) ** 2)
    truth = np.eye(rows.scores.shape[1])[rows.truth]
    return np.asarray(((rows.scores - truth) ** 2).sum(1))


def _brier(rows: Scored) -> float:
    return float(np.average(squares(rows), weights=rows.weights))


def bins(rows: Scored) -> Codes:
    """(rows,): the bin of each row, by its chance: as many rows in each, ties together."""
    chances = rows.chances
    order = np.argsort(chances, kind="stable")
    found = np.empty(len(order), dtype=np.int64)
    found[order] = groups(chances[order], BINS)
    return found


def groups(ordered: Floats, most: int) -> Codes:
    """(rows,): the group of each of these sorted values, as `cuts` has them."""
    ends = cuts(ordered, most)
    return np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))


def cuts(ordered: Floats, most: int) -> Codes:
    """Where sorted values end a group: at most so many groups of about as many rows, equal values
    together, at least `TOGETHER` rows in each if there are as many. The last end is the number of
    rows."""
    rows = len(ordered)
    ends = [0]
    for left in range(max(1, min(most, rows // TOGETHER)), 0, -1):
        last = ends[-1] + max(TOGETHER, (rows - ends[-1]) // left) - 1
        if left == 1 or last + TOGETHER >= rows:
            break
        ends.append(int(np.searchsorted(ordered, ordered[last], side="right")))
        if rows - ends[-1] < TOGETHER:  # too few are left for a group of their own
            ends.pop()
            break
    return np.array([*ends[1:], rows], dtype=np.int64)


def _calibration_error(rows: Scored) -> float:
    gaps = np.bincount(bins(rows), rows.weights * (rows.chances - rows.hits))
    return float(np.abs(gaps).sum() / rows.weights.sum())


# Decisions


def _accuracy(rows: Scored) -> float:
    return float(np.average(rows.truth == rows.decided, weights=rows.weights))


def _counted(rows: Scored) -> tuple[Floats, Floats, Floats]:
    """By class, the weight of its rows, of those that are decided to be of it, and of both."""
    decided, width = rows.decided, rows.scores.shape[1]
    right = rows.weights * (decided == rows.truth)

    def sums(codes: Codes, weights: Floats) -> Floats:
        return np.asarray(np.bincount(codes, weights, width), dtype=np.float64)

    return sums(rows.truth, rows.weights), sums(decided, rows.weights), sums(decided, right)


def _balanced_accuracy(rows: Scored) -> float:
    truth, _, both = _counted(rows)
    return float((both[truth > 0] / truth[truth > 0]).mean())


def _decided(name: str, weighted: bool = False) -> Callable[[Scored], float]:
    """F1, precision or recall: of the positive class, or the mean over all classes."""

    def value(rows: Scored) -> float:
        truth, said, both = _counted(rows)
        above = 2 * both if name == "f1" else both
        below = {"f1": truth + said, "precision": said, "recall": truth}[name]
        ratios = np.full_like(above, math.nan if rows.kind == BINARY else 0.0)
        np.divide(above, below, out=ratios, where=below > 0)
        if rows.kind == BINARY:
            return float(ratios[rows.positive])
        there = (truth > 0) | (said > 0)
        return float(np.average(ratios[there], weights=truth[there] if weighted else None))

    return value


def _recall_at_rate(rows: Scored) -> float | None:
    """The share of positives among the top rows. Of rows with equal scores that do not all fit in,
    each counts for the share that does: the mean over all orders among them."""
    hits = rows.hits
    if not hits.any():
        return None
    order = np.argsort(-rows.chances, kind="stable")
    ends = np.flatnonzero(np.diff(rows.chances[order], append=-math.inf))
    flagged = np.cumsum(rows.weights[order])[ends]
    found = np.cumsum((rows.weights * hits)[order])[ends]
    at = rows.rate * flagged[-1]
    return float(np.interp(at, [0, *flagged], [0, *found]) / found[-1])


# Numbers


def _rmse(rows: Scored) -> float:
    return math.sqrt(np.average((rows.scores - rows.truth) ** 2, weights=rows.weights))


def _mae(rows: Scored) -> float:
    return float(np.average(np.abs(rows.scores - rows.truth), weights=rows.weights))


def _r2(rows: Scored) -> float | None:
    if np.ptp(rows.truth) == 0:
        return None
    around = rows.truth - np.average(rows.truth, weights=rows.weights)
    missed = rows.weights @ (rows.scores - rows.truth) ** 2
    return float(1 - missed / (rows.weights @ around**2))


_VALUES: Mapping[str, Callable[[Scored], float | None]] = MappingProxyType(
    {
        "auc": _auc,
        "auc_weighted": lambda rows: _auc(rows, weighted=True),
        "average_precision": _average_precision,
        "average_precision_weighted": lambda rows: _average_precision(rows, weighted=True),
        "log_loss": _log_loss,
        "brier": _brier,
        "calibration_error": _calibration_error,
        "accuracy": _accuracy,
        "balanced_accuracy": _balanced_accuracy,
        "f1": _decided("f1"),
        "f1_weighted": _decided("f1", weighted=True),
        "precision": _decided("precision"),
        "precision_weighted": _decided("precision", weighted=True),
        "recall": _decided("recall"),
        "recall_weighted": _decided("recall", weighted=True),
        "recall_at_rate": _recall_at_rate,
        "rmse": _rmse,
        "mae": _mae,
        "r2": _r2,
    }
)
