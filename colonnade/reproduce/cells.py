"""From results to numbers: cells with mean and deviation, claims, and what crossed the wire.

Accuracies are percentages here, as in the papers. A claim that one row is above another is judged
seed by seed, so that what two runs with one seed share cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from colonnade.report import overview
from colonnade.reproduce.exhibit import (
    ACCURACY,
    BALANCED,
    PSNR,
    SECONDS,
    Claim,
    Fill,
    Place,
    Planned,
    Results,
)

Result = Mapping[str, Any]  # a parsed result.json
Curve = tuple[list[int], list[float]]  # epochs, percentages
MEANS = ("messages_per_batch_and_passive", "models", "bytes_per_epoch", "bytes_train", "seconds")
HOLDS, FAILS, UNRESOLVED = "holds", "does not hold", "not resolved"


@dataclass(frozen=True)
class Cell:
    """One number of the table, over its seeds."""

    data: str
    split: str
    block: str
    row: str
    column: str
    metric: str
    values: list[float | None]  # by seed; None where a run is missing
    mean: float | None
    sd: float | None  # of the sample; None for fewer than two values
    range: list[float] | None  # the lowest and the highest, where they are to be shown
    paper: float | None
    paper_sd: float | None
    difference: float | None  # of the means, in points; None where they must not be compared
    variant: bool  # the paper's number belongs to another row
    runs: list[str]
    curve: Curve  # test accuracy by epoch, the mean over the seeds
    gain: list[float | None] | None = None  # paired difference to LOCAL, half of its interval

    @property
    def place(self) -> Place:
        return Place(self.data, self.split, self.block)

    @property
    def printed(self) -> float | None:
        """What the paper says of this very row."""
        return None if self.variant else self.paper


@dataclass(frozen=True)
class Printed:
    """The paper's number beside a cell."""

    mean: float | None
    deviation: float | None = None
    variant: bool = False  # it belongs to another row


def cells(
    planned: Sequence[Planned],
    results: Results,
    printed: Callable[[Place, str, str], Printed],
    comparable: bool,
) -> list[Cell]:
    """Every cell that the planned runs fill; `printed` finds the number in the paper."""
    filled: dict[tuple[Place, str, str], list[tuple[Planned, Fill]]] = {}
    for run in planned:
        for fill in run.fills:
            at = (fill.place or run.place, fill.row, fill.column)
            filled.setdefault(at, []).append((run, fill))
    found = []
    for (place, row, column), pairs in filled.items():
        made = [(results.get(run.key), fill) for run, fill in pairs]
        values = [None if result is None else value(result, fill) for result, fill in made]
        known = [v for v in values if v is not None]
        mean = fmean(known) if known else None
        paper = printed(place, row, column)
        both = comparable and mean is not None and paper.mean is not None
        found.append(
            Cell(
                **asdict(place),
                row=row,
                column=column,
                metric=pairs[0][1].metric,
                values=values,
                mean=mean,
                sd=stdev(known) if len(known) > 1 else None,
                range=None,
                paper=paper.mean,
                paper_sd=paper.deviation,
                difference=(mean or 0) - (paper.mean or 0) if both else None,
                variant=paper.variant,
                runs=[run.key for run, _ in pairs],
                curve=_mean_curve(curve(r, fill) for r, fill in made if r is not None),
            )
        )
    return found


def span(cell: Cell) -> list[float] | None:
    """The lowest and the highest of several values."""
    known = [v for v in cell.values if v is not None]
    return [min(known), max(known)] if len(known) > 1 else None


def value(result: Result, fill: Fill) -> float | None:
    """The number that a run gives to a cell: in per cent, or in dB."""
    test = result["metrics"].get("test", {})
    scale = 1 if fill.metric in (PSNR, SECONDS) else 100
    if fill.metric == ACCURACY:
        number = overview.number(test.get(ACCURACY))
        return None if number is None else 100 * number
    if fill.metric == BALANCED:
        recalls = [
            row[k] / sum(row) for k, row in enumerate(test.get("confusion") or ()) if sum(row)
        ]
        return 100 * fmean(recalls) if recalls else None
    scores = test.get(fill.metric, {})
    numbers = [overview.number(scores.get(party)) for party in fill.parties or scores]
    known = [scale * number for number in numbers if number is not None]
    return fmean(known) if known else None


def curve(result: Result, fill: Fill) -> Curve:
    """The same number after every epoch of the phase train; empty for what has no epochs."""
    if "history" not in result:
        return [], []
    logged = fill.metric in (ACCURACY, "per_party")
    name = "test_accuracy" if logged else f"test_{fill.metric}_accuracy"
    lines = [overview.curve(result, name, party, "train") for party in fill.parties or (None,)]
    return _mean_curve((x, [100 * accuracy for accuracy in y]) for x, y in lines)


def _mean_curve(curves: Iterable[Curve]) -> Curve:
    at: dict[int, list[float]] = {}
    for x, y in curves:
        for epoch, accuracy in zip(x, y, strict=True):
            at.setdefault(epoch, []).append(accuracy)
    return sorted(at), [fmean(at[epoch]) for epoch in sorted(at)]


def judged(claims: Sequence[Claim], found: Sequence[Cell]) -> list[dict[str, Any]]:
    """Whether each claim holds, section by section and column by column; and in the paper."""
    return [_judged(claim, found) for claim in claims]


def _judged(claim: Claim, found: Sequence[Cell]) -> dict[str, Any]:
    together: dict[tuple[Place, str], dict[str, Cell]] = {}
    for cell in found:
        together.setdefault((cell.place, cell.column), {})[cell.row] = cell
    verdicts, printed = [], dict[tuple[str, str], float]()
    for (place, column), rows in together.items():
        if column not in (claim.columns or [column]) or not rows.keys() >= set(claim.named):
            continue
        verdict = _verdict(claim, rows)
        if verdict is None:
            continue
        verdicts.append({**asdict(place), "column": column, **verdict})
        theirs = _margin(claim, {name: rows[name].printed for name in claim.named})
        if theirs is not None:
            printed[place.data, column] = theirs
    return {
        "text": claim.text,
        "holding": sum(verdict["holds"] for verdict in verdicts),
        "unresolved": sum(verdict["outcome"] == UNRESOLVED for verdict in verdicts),
        "of": len(verdicts),
        "paper_holding": sum(_holds(claim, margin) for margin in printed.values()),
        "paper_of": len(printed),
        "paper_margins": list(printed.values()),
        "within": claim.within,
        "verdicts": verdicts,
    }


def _verdict(claim: Claim, rows: Mapping[str, Cell]) -> dict[str, Any] | None:
    """Whether the claim holds in one column of one section; None where no seed is complete."""
    seeds = [
        _margin(claim, dict(zip(claim.named, values, strict=True)))
        for values in zip(*(rows[name].values for name in claim.named), strict=True)
    ]
    known = [margin for margin in seeds if margin is not None]
    if claim.within is not None:
        margin, half = _margin(claim, {name: rows[name].mean for name in claim.named}), None
    else:
        margin, half = fmean(known) if known else None, interval(known)
    if margin is None:
        return None
    return {
        "metric": rows[claim.named[0]].metric,
        "outcome": (outcome := _outcome(claim, margin, half)),
        "holds": outcome == HOLDS,
        "margin": margin,
        "apart": None if claim.within is None else claim.within - margin,
        "interval": half,
        "margins": seeds,
        "seeds": len(known),
        "seeds_holding": sum(_holds(claim, m) for m in known),
    }


def _margin(claim: Claim, values: Mapping[str, float | None]) -> float | None:
    """Points by which the claim holds; negative where it does not."""
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < len(set(claim.named)):
        return None
    if claim.within is not None:
        spread = [known[name] for name in claim.rows]
        return claim.within - (max(spread) - min(spread))
    return min(known[name] for name in claim.above) - max(known[name] for name in claim.below)


def _holds(claim: Claim, margin: float) -> bool:
    """As high is not above; as far apart as allowed is within."""
    return margin > claim.by if claim.within is None else margin >= 0


def interval(differences: Sequence[float]) -> float | None:
    """Half of the two-sided 95 % interval of the mean, by Student's t; None for one seed."""
    if len(differences) < 2:
        return None
    from scipy.stats import t  # type: ignore[import-untyped]  # slow to import; scikit-learn has it

    freedom = len(differences) - 1
    return float(t.ppf(0.975, freedom)) * stdev(differences) / math.sqrt(len(differences))


def _outcome(claim: Claim, margin: float, interval: float | None) -> str:
    """Not resolved where the interval contains what it must be above; one seed has none."""
    if interval is not None and abs(margin - claim.by) <= interval:
        return UNRESOLVED
    return HOLDS if _holds(claim, margin) else FAILS


def traffic(planned: Sequence[Planned], results: Results) -> list[dict[str, Any]]:
    """One line per run: what it sent and how long it took."""
    return [_traffic(run, results[run.key]) for run in planned if run.key in results]


def _traffic(run: Planned, result: Result) -> dict[str, Any]:
    train = result["wire"]["by_phase"].get("train", {"bytes": 0, "messages": 0})
    epochs, passives = overview.epochs(result), len(result["parties"]) - 1
    batches = epochs * math.ceil(result["data"]["train_rows"] / result["config"]["batch_size"])
    return {
        "key": run.key,
        **asdict(run.place),
        "rows": list(dict.fromkeys(fill.row for fill in run.fills)),
        "method": result["method"],
        "seed": run.seed,
        "models": len(overview.per_party_accuracy(result)),
        "per_party": overview.per_party_accuracy(result),
        "label_leak": overview.label_leak(result),
        "epochs": epochs,
        "messages_train": train["messages"],
        "messages_per_batch_and_passive": (
            train["messages"] / batches / passives if batches and passives else None
        ),
        "bytes": result["wire"]["bytes"],
        "bytes_train": train["bytes"],
        "bytes_per_epoch": train["bytes"] / epochs if epochs else None,
        "seconds": result["timing"]["seconds_total"],
        "config_sha256": result["config_sha256"],
        "commit": result["environment"]["commit"],
        "warnings": result["warnings"],
    }


def communication(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean of the runs of each data set and row; rows that one run fills stand together."""
    together: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        rows = "; ".join(run["rows"])
        together.setdefault((run["data"], run["block"], rows), []).append(run)
    lines = []
    for (data, block, rows), same in together.items():
        line: dict[str, Any] = {"data": data, "block": block, "rows": rows, "runs": len(same)}
        for name in MEANS:
            known = [run[name] for run in same if run[name] is not None]
            line[name] = fmean(known) if known else None
        lines.append(line)
    return lines
