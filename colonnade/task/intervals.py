"""How sure a measure is: bootstrap intervals over rows, t-intervals over seeds.

A bootstrap interval says what other rows of the same kind would have changed, and nothing about
other seeds of the training; an interval over seeds says the reverse.

    1. Draw as many rows as there are, with replacement, of every class as many as it has.
    2. Measure; do so up to 1,000 times.
    3. The interval reaches from the 2.5 % to the 97.5 % quantile of these values, moved so that
       their mean is the value of the rows themselves: repeated rows make some measures look better
       (average precision) and others worse (calibration error).

A draw is a count for each row, so that all draws are measured together, by sums over weighted rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from colonnade.task import measures as point
from colonnade.task.measures import BINARY, REGRESSION, Codes, Floats, Scored

LEVEL = 0.95
DRAWS, FEWEST_DRAWS = 1000, 100
CELLS = 10_000_000  # rows × classes × draws: fewer draws where there are more
ROWS = 20_000  # that are drawn from: of more, as many of every class, the small classes whole
FEWEST = 10  # rows; of fewer, no interval says anything
TOGETHER = 50  # draws that are measured at once: what the caches hold
SMALLEST = float(np.finfo(np.float64).eps)  # probability in a log loss, as scikit-learn has it

Many = Callable[[Floats], Floats]  # (draws, rows) weights to (draws,) values


@dataclass(frozen=True)
class Interval:
    """A value and how sure it is; None where there is nothing to say."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def told(self) -> dict[str, float | None]:
        return {"value": self.value, "low": self.low, "high": self.high}


def intervals(
    rows: Scored, names: Iterable[str] | None = None, *, seed: int = 0
) -> dict[str, Interval]:
    """The measures of these rows with their 95 % intervals, equal for equal rows and seeds."""
    values = point.measures(rows, names)
    if len(rows.truth) < FEWEST or not rows.usable:
        return {name: Interval(value) for name, value in values.items()}
    generator = np.random.default_rng(seed)
    drawn = _drawn_from(rows, generator)
    some = rows if drawn is None else _part(rows, drawn)
    measured = {name: many(name, some) for name, value in values.items() if value is not None}
    found: dict[str, list[Floats]] = {name: [] for name in measured}
    for counts in _draws(rows, drawn, generator):
        weights = counts * some.weights
        for name, measure in measured.items():
            found[name].append(measure(weights))
    result = {}
    for name, value in values.items():
        draws = np.concatenate(found[name]) if name in found else np.empty(0)
        result[name] = _interval(name, value, draws)
    return result


def _interval(name: str, value: float | None, draws: Floats) -> Interval:
    draws = draws[np.isfinite(draws)]
    if value is None or not len(draws):
        return Interval(value)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(draws, [tail, 1 - tail]) + (value - draws.mean())
    if name != "r2":
        low = max(low, 0.0)
    if name not in ("rmse", "mae", "log_loss", "brier"):
        high = min(high, 1.0)
    return Interval(value, float(low), float(high))


def over_seeds(values: Sequence[float | None]) -> Interval:
    """The mean over several runs, and where the mean over all seeds lies: Student's t, 95 %."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if len(known) < 2:
        return Interval(float(known[0]) if len(known) else None)
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    mean = float(known.mean())
    wide = stdtrit(len(known) - 1, (1 + LEVEL) / 2) * known.std(ddof=1) / math.sqrt(len(known))
    return Interval(mean, mean - float(wide), mean + float(wide))


# Draws


def _strata(rows: Scored) -> list[Codes]:
    """The rows of every class that is there; of numbers all rows."""
    if rows.kind == REGRESSION:
        return [np.arange(len(rows.truth))]
    return [np.flatnonzero(rows.truth == code) for code in np.unique(rows.truth)]


def _drawn_from(rows: Scored, generator: np.random.Generator) -> list[Codes] | None:
    """The rows of each stratum that draws are made from; None: all."""
    strata = _strata(rows)
    if len(rows.truth) <= ROWS:
        return None
    most, left = ROWS, len(strata)
    kept: dict[int, Codes] = {}
    for number in sorted(range(len(strata)), key=lambda number: len(strata[number])):
        stratum = strata[number]
        share = min(len(stratum), max(1, most // left))
        kept[number] = np.sort(generator.choice(stratum, share, replace=False))
        most, left = most - share, left - 1
    return [kept[number] for number in range(len(strata))]


def _part(rows: Scored, drawn: list[Codes]) -> Scored:
    """Only the rows that are drawn from; each stands for as many as its stratum has of them."""
    of = np.concatenate(drawn)
    pairs = zip(_strata(rows), drawn, strict=True)
    each = np.concatenate([np.full(len(few), len(all_) / len(few)) for all_, few in pairs])
    weights = rows.weights[of] * each
    return replace(rows, truth=rows.truth[of], scores=rows.scores[of], weights=weights)


def _draws(
    rows: Scored, drawn: list[Codes] | None, generator: np.random.Generator
) -> Iterator[Floats]:
    """Counts of the rows, (draws, rows) at a time, whose mean is 1."""
    strata = _strata(rows)
    few = strata if drawn is None else drawn
    total = sum(len(stratum) for stratum in few)
    width = 1 if rows.kind == REGRESSION else rows.scores.shape[1]
    draws = int(min(DRAWS, max(FEWEST_DRAWS, CELLS // (total * width))))
    for start in range(0, draws, TOGETHER):
        number = min(TOGETHER, draws - start)
        counts = np.empty((number, total))
        place = 0
        for all_, part in zip(strata, few, strict=True):
            where = np.arange(place, place + len(part)) if drawn is not None else part
            counts[:, where] = _counts(len(all_), len(part), number, generator)
            place += len(part)
        yield counts


def _counts(draw: int, of: int, number: int, generator: np.random.Generator) -> NDArray[np.generic]:
    """How often each of `of` rows is among `draw` drawn ones, so divided that the mean is 1."""
    if draw != of:  # many rows stand behind each: one number for each instead of one for each draw
        return generator.multinomial(draw, np.full(of, 1 / of), size=number) * (of / draw)
    picked = generator.integers(0, of, (number, of)) + np.arange(number)[:, None] * of
    return np.bincount(picked.ravel(), minlength=number * of).reshape(number, of)


# Measures of many weightings at once; each equals its namesake in `measures`


def many(name: str, rows: Scored) -> Many:
    """A measure as a function of weights, (draws, rows), so that rows are prepared only once."""
    if name == "recall_at_rate":
        return _recall_at_rate(rows)
    if name == "calibration_error":
        return _calibration_error(rows)
    if name in ("r2", "rmse", "mae"):
        return _numbers(name, rows)
    if name in ("log_loss", "brier", "accuracy"):
        return _mean(_each_row(name, rows))
    plain = name.removesuffix("_weighted")
    weighted = plain != name
    if plain in ("auc", "average_precision"):
        return _ranked(plain, rows, weighted)
    return _counted(plain, rows, weighted)


def _each_row(name: str, rows: Scored) -> Floats:
    if name == "brier":
        return point.squares(rows)
    if name == "accuracy":
        return np.asarray(rows.truth == rows.decided, dtype=np.float64)
    chances = rows.scores[np.arange(len(rows.truth)), rows.truth] / rows.scores.sum(1)
    return np.asarray(-np.log(np.clip(chances, SMALLEST, 1 - SMALLEST)))


def _mean(values: Floats) -> Many:
    return lambda weights: weights @ values / weights.sum(1)


def _numbers(name: str, rows: Scored) -> Many:
    error = rows.scores - rows.truth
    if name == "mae":
        return _mean(np.abs(error))
    squared = _mean(error**2)
    if name == "rmse":
        return lambda weights: np.sqrt(squared(weights))
    truth = (
        rows.truth - rows.truth.mean()
    )  # so that no digits are lost in the difference of squares
    mean, square = _mean(truth), _mean(truth**2)

    def r2(weights: Floats) -> Floats:
        spread = square(weights) - mean(weights) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(spread > 0, 1 - squared(weights) / spread, math.nan)

    return r2


def _calibration_error(rows: Scored) -> Many:
    found = point.bins(rows)
    gaps = np.zeros((len(found), found.max() + 1))
    gaps[np.arange(len(found)), found] = rows.chances - rows.hits
    return lambda weights: np.abs(weights @ gaps).sum(1) / weights.sum(1)


class _Ranking:
    """Rows by falling score: what is flagged, and found, down to every score that occurs."""

    def __init__(self, scores: Floats, hits: NDArray[np.bool_]) -> None:
        self.order = np.argsort(-scores, kind="stable")
        self.ends = np.flatnonzero(np.diff(scores[self.order], append=-math.inf))
        self.found = np.flatnonzero(hits[self.order])

    def sums(self, weights: Floats) -> tuple[Floats, Floats]:
        """(draws, scores that occur): the weight of the rows flagged, and of the hits in them."""
        ordered = weights[:, self.order]
        flagged = np.cumsum(ordered, axis=1)[:, self.ends]
        hits = np.zeros_like(ordered)
        hits[:, self.found] = ordered[:, self.found]
        return flagged, np.cumsum(hits, axis=1)[:, self.ends]


def _auc(flagged: Floats, found: Floats) -> Floats:
    missed = flagged - found
    steps = np.diff(missed, axis=1, prepend=0)
    area = (steps * found).sum(1) - (steps * np.diff(found, axis=1, prepend=0)).sum(1) / 2
    return np.asarray(area / (found[:, -1] * missed[:, -1]))


def _average_precision(flagged: Floats, found: Floats) -> Floats:
    steps = np.diff(found, axis=1, prepend=0)
    precision = np.divide(found, flagged, out=np.zeros_like(found), where=flagged > 0)
    return np.asarray((steps * precision).sum(1) / found[:, -1])


def _ranked(name: str, rows: Scored, weighted: bool) -> Many:
    """AUC and average precision: of the positive class, or the mean over each against the rest."""
    value = _auc if name == "auc" else _average_precision
    codes = [rows.positive] if rows.kind == BINARY else range(rows.scores.shape[1])
    rankings, truths = [], []
    for code in codes:
        hits = rows.truth == code
        if hits.any() and not (name == "auc" and hits.all()):
            rankings.append(_Ranking(rows.scores[:, code], hits))
            truths.append(hits)

    def each(weights: Floats) -> Floats:
        found = np.stack([value(*ranking.sums(weights)) for ranking in rankings])
        shares = np.stack([weights @ hits for hits in truths]) if weighted else np.ones_like(found)
        return np.asarray((found * shares).sum(0) / shares.sum(0))

    return each


def _recall_at_rate(rows: Scored) -> Many:
    ranking = _Ranking(rows.chances, rows.hits)

    def value(weights: Floats) -> Floats:
        flagged, found = ranking.sums(weights)
        at = rows.rate * flagged[:, -1]
        pairs = zip(at, flagged, found, strict=True)
        return np.array([np.interp(x, [0, *xs], [0, *ys]) / ys[-1] for x, xs, ys in pairs])

    return value


def _counted(name: str, rows: Scored, weighted: bool) -> Many:
    """F1, precision, recall and balanced accuracy, from counts by class."""
    decided, width = rows.decided, rows.scores.shape[1]
    eye = np.eye(width)
    columns = np.concatenate(
        [eye[rows.truth], eye[decided], eye[decided] * (decided == rows.truth)[:, None]], axis=1
    )

    def value(weights: Floats) -> Floats:
        truth, said, both = np.split(weights @ columns, 3, axis=1)
        above, below = {
            "f1": (2 * both, truth + said),
            "precision": (both, said),
            "recall": (both, truth),
            "balanced_accuracy": (both, truth),
        }[name]
        if rows.kind == BINARY and name != "balanced_accuracy":
            above, below = above[:, [rows.positive]], below[:, [rows.positive]]
            each = np.divide(above, below, out=np.full_like(above, math.nan), where=below > 0)
            return np.asarray(each[:, 0])
        each = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        shares = truth if weighted else (truth > 0) | (said > 0)
        if name == "balanced_accuracy":
            shares = truth > 0
        return np.asarray((each * shares).sum(1) / shares.sum(1))

    return value
