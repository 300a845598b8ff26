"""How sure a measure is: bootstrap intervals over rows, t-intervals over seeds.

A bootstrap interval says what other rows of the same kind would have changed, and nothing about
other seeds of the training; an interval over seeds says the reverse.

    1. Draw as many rows as there are, with replacement, of every class as many as it has.
    2. Measure; do so up to 500 times.
    3. The interval reaches from the 2.5 % to the 97.5 % quantile of these values, moved so that
       their mean is the value of the rows themselves: repeated rows make some measures look better
       (average precision) and others worse (calibration error).

A draw is a count for each row, so that all draws are measured together, by sums over weighted rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.task import measures as point
from colonnade.task.measures import BINARY, REGRESSION, Codes, Floats, Scored

LEVEL = 0.95
DRAWS, FEWEST_DRAWS = 500, 100
CELLS = 20_000_000  # rows × classes × draws: fewer draws where there are more
ROWS = 20_000  # that are drawn from: of more, as many of every class, the small classes whole
FEWEST = 10  # rows; of fewer, no interval says anything
TOGETHER = 10  # draws that are made at once
HELD = 200_000  # rows × draws that are measured at once: what the caches hold

Weighed = Callable[[Floats], dict[str, Floats]]  # (draws, rows) weights to (draws,) values


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
    with np.errstate(all="ignore"):  # what overflows here is None in `values`
        measured = weighed(some, [name for name, value in values.items() if value is not None])
        blocks = _blocks(_draws(rows, drawn, generator))
        found = [measured(counts * some.weights) for counts in blocks]
    return {
        name: Interval(None)
        if value is None
        else _interval(name, value, np.concatenate([each[name] for each in found]))
        for name, value in values.items()
    }


def _interval(name: str, value: float, draws: Floats) -> Interval:
    draws = draws[np.isfinite(draws)]
    if not len(draws):
        return Interval(value)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(draws, [tail, 1 - tail]) + (value - draws.mean())
    least, most = bounds(name)
    return Interval(value, float(max(low, least)), float(min(high, most)))


def bounds(name: str) -> tuple[float, float]:
    """The least and the most that a measure can be."""
    most = math.inf if name in ("rmse", "mae", "log_loss", "brier") else 1.0
    return -math.inf if name == "r2" else 0.0, most


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


def _blocks(draws: Iterable[Floats]) -> Iterator[Floats]:
    """The same, more of them at a time where there are few rows."""
    block: list[Floats] = []
    for counts in draws:
        if block and (len(block) + 1) * counts.size > HELD:
            yield np.concatenate(block)
            block = []
        block.append(counts)
    if block:
        yield np.concatenate(block)


def _counts(draw: int, of: int, number: int, generator: np.random.Generator) -> NDArray[np.generic]:
    """How often each of `of` rows is among `draw` drawn ones, so divided that the mean is 1."""
    if draw != of:  # many rows stand behind each: one number for each instead of one for each draw
        return generator.multinomial(draw, np.full(of, 1 / of), size=number) * (of / draw)
    picked = generator.integers(0, of, (number, of)) + np.arange(number)[:, None] * of
    return np.bincount(picked.ravel(), minlength=number * of).reshape(number, of)


# Measures under many weightings at once; each equals its namesake in `measures`


def weighed(rows: Scored, names: Collection[str]) -> Weighed:
    """These measures as a function of the rows' weights, (draws, rows)."""
    ways = [_number_way(rows)] if rows.kind == REGRESSION else _class_ways(rows, names)

    def measured(weights: Floats) -> dict[str, Floats]:
        found: dict[str, Floats] = {}
        for way in ways:
            found |= way(weights)
        return {name: found[name] for name in names}

    return measured


def _means(rows: dict[str, Floats]) -> Weighed:
    return lambda weights: {name: weights @ each / weights.sum(1) for name, each in rows.items()}


def _number_way(rows: Scored) -> Weighed:
    error = rows.scores - rows.truth
    truth = rows.truth - rows.truth.mean()  # so that no digits are lost in the spread
    means = _means({"square": error**2, "mae": np.abs(error), "truth": truth, "truth²": truth**2})

    def way(weights: Floats) -> dict[str, Floats]:
        mean = means(weights)
        spread = mean["truth²"] - mean["truth"] ** 2
        r2 = np.full_like(spread, math.nan)
        np.divide(mean["square"], spread, out=r2, where=spread > 0)
        return {"rmse": np.sqrt(mean["square"]), "mae": mean["mae"], "r2": 1 - r2}

    return way


def _class_ways(rows: Scored, names: Collection[str]) -> list[Weighed]:
    plain = {name.removesuffix("_weighted") for name in names}
    ways = []
    if each := {name: _EACH_ROW[name](rows) for name in _EACH_ROW if name in plain}:
        ways.append(_means(each))
    if "calibration_error" in plain:
        ways.append(_gaps(rows))
    if plain & {"auc", "average_precision", "recall_at_rate"}:
        ways.append(_ranked(rows))
    if plain & {"f1", "precision", "recall", "balanced_accuracy"}:
        ways.append(_counted(rows))
    return ways


_EACH_ROW: Mapping[str, Callable[[Scored], Floats]] = MappingProxyType(
    {
        "log_loss": point.log_losses,
        "brier": point.squares,
        "accuracy": lambda rows: np.asarray(rows.truth == rows.decided, dtype=np.float64),
    }
)


def _gaps(rows: Scored) -> Weighed:
    found = point.bins(rows)
    gaps = np.zeros((len(found), found.max() + 1))
    gaps[np.arange(len(found)), found] = rows.chances - rows.hits
    return lambda weights: {"calibration_error": np.abs(weights @ gaps).sum(1) / weights.sum(1)}


class _Ranking:
    """Rows by falling score, in levels of equal scores; hits lie only on some of the levels."""

    def __init__(self, scores: Floats, hits: NDArray[np.bool_]) -> None:
        self.order = np.argsort(-scores, kind="stable")
        ordered = scores[self.order]
        starts = np.diff(ordered, prepend=math.inf) != 0
        level = np.cumsum(starts) - 1
        self.starts = np.flatnonzero(starts)
        where = np.flatnonzero(hits[self.order])
        self.hits = self.order[where]
        self.levels, self.hit_starts = np.unique(level[where], return_index=True)

    def __call__(self, weights: Floats, rate: float) -> dict[str, Floats]:
        """The measures of one class against the rest, (draws,) each."""
        steps = weights[:, self.order]
        if len(self.starts) < len(self.order):
            steps = np.add.reduceat(steps, self.starts, axis=1)
        flagged = np.cumsum(steps, axis=1)  # (draws, levels)
        hit = np.add.reduceat(weights[:, self.hits], self.hit_starts, axis=1)
        found = np.cumsum(hit, axis=1)  # (draws, levels with hits)
        here = flagged[:, self.levels]
        positives, all_ = found[:, -1], flagged[:, -1]
        # A hit beats all misses below it, and half of those beside it.
        beside = steps[:, self.levels] - hit
        below = (all_ - positives)[:, None] - (here - found)
        precision = np.divide(found, here, out=np.zeros_like(found), where=here > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            auc = (hit * (below + beside / 2)).sum(1) / (positives * (all_ - positives))
        # The last level that is flagged is so only in part.
        at = rate * all_
        last = np.minimum((flagged < at[:, None]).sum(1), flagged.shape[1] - 1)
        draws = np.arange(len(weights))
        part = 1 - (flagged[draws, last] - at) / steps[draws, last]
        share = np.where(self.levels < last[:, None], 1.0, 0.0)
        share[self.levels == last[:, None]] = part[(self.levels == last[:, None]).any(1)]
        return {
            "auc": auc,
            "average_precision": (hit * precision).sum(1) / positives,
            "recall_at_rate": (hit * share).sum(1) / positives,
        }


def _ranked(rows: Scored) -> Weighed:
    """Of the positive class, or the mean over each that has rows against the rest."""
    codes = [rows.positive] if rows.kind == BINARY else range(rows.scores.shape[1])
    truths = [(code, rows.truth == code) for code in codes]
    truths = [(code, hits) for code, hits in truths if hits.any()]
    rankings = [_Ranking(rows.scores[:, code], hits) for code, hits in truths]

    def way(weights: Floats) -> dict[str, Floats]:
        each = [ranking(weights, rows.rate) for ranking in rankings]
        sizes = np.stack([weights @ hits for _, hits in truths])
        found: dict[str, Floats] = {}
        for name in each[0]:
            values = np.stack([one[name] for one in each])
            found[name] = values.mean(0)
            found[f"{name}_weighted"] = (values * sizes).sum(0) / sizes.sum(0)
        return found

    return way


def _counted(rows: Scored) -> Weighed:
    """F1, precision, recall and balanced accuracy, from counts by class."""
    decided, width = rows.decided, rows.scores.shape[1]
    eye = np.eye(width)
    right = eye[decided] * (decided == rows.truth)[:, None]
    columns = np.concatenate([eye[rows.truth], eye[decided], right], axis=1)

    def way(weights: Floats) -> dict[str, Floats]:
        truth, said, both = np.split(weights @ columns, 3, axis=1)
        ratios = {
            "f1": (2 * both, truth + said),
            "precision": (both, said),
            "recall": (both, truth),
        }
        found = {"balanced_accuracy": _mean(*ratios["recall"], truth > 0)}
        for name, (above, below) in ratios.items():
            if rows.kind == BINARY:
                one = [rows.positive]
                found[name] = _mean(above[:, one], below[:, one], below[:, one] > 0)
            else:
                found[name] = _mean(above, below, (truth > 0) | (said > 0))
                found[f"{name}_weighted"] = _mean(above, below, truth)
        return found

    return way


def _mean(above: Floats, below: Floats, shares: NDArray[Any]) -> Floats:
    """(draws,): the mean of these ratios, (draws, classes), each with its share; NaN of nothing."""
    ratios = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    total = shares.sum(1).astype(np.float64)
    out = np.full(len(total), math.nan)
    return np.asarray(np.divide((ratios * shares).sum(1), total, out=out, where=total > 0))
