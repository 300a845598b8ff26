"""Predictions as a person reads them, and as JSON: what is predicted, and how good it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from colonnade.report import units
from colonnade.report.flows import cell, new_table
from colonnade.results.prediction import Prediction, Truth
from colonnade.task.measures import MEASURES, REGRESSION, names_for

SHARES = {"accuracy", "balanced_accuracy", "recall", "precision", "recall_at_rate"}


@dataclass(frozen=True, eq=False)
class Judged:
    """A prediction, and how good it is on the rows whose labels are known."""

    prediction: Prediction
    scored: int  # rows
    measures: Mapping[str, float | None]  # none if no row is scored
    strange: tuple[str, ...]  # labels that the training did not have, each once
    strangers: int  # rows with such labels

    @classmethod
    def by(cls, prediction: Prediction, truth: Truth | None) -> Judged:
        labels = () if truth is None else truth.labels
        fits = {label: prediction.knows(label) for label in set(labels) if label}
        known = [row for row, label in enumerate(labels) if fits.get(label)]
        others = [label for label in labels if label and not fits[label]]
        found: Mapping[str, float | None] = {}
        if truth is not None and known:
            weights = None if truth.weights is None else truth.weights[known]
            found = prediction.only(known).score([truth.labels[row] for row in known], weights)
        return cls(prediction, len(known), found, tuple(dict.fromkeys(others)), len(others))

    def warnings(self) -> list[str]:
        """What is to be said about labels that nothing was compared with."""
        if not self.strangers:
            return []
        shown = ", ".join(repr(units.plain(label)) for label in self.strange[:3])
        more = f" and {len(self.strange) - 3:,} more" if len(self.strange) > 3 else ""
        numbers = self.prediction.task.kind == REGRESSION
        what = "are not numbers" if numbers else "did not occur in training"
        return [
            f"{units.count(self.strangers)} rows of '{self.prediction.party}' have labels that "
            f"{what} ({shown}{more}): they are predicted, and left out of all measures"
        ]

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "party": self.prediction.party,
            "rows": len(self.prediction),
            "task": self.prediction.task.kind,
            "threshold": self.prediction.threshold,
            "accuracy": self.measures.get("accuracy"),
            "scored": self.scored,
            "measures": dict(self.measures),
        }


def show(console: Console, judged: Sequence[Judged], label: str = "") -> None:
    """One line per party, and one per measure where labels are known.

    label  what the predicted number is called, if anybody has said so
    """
    numbers = any(one.prediction.task.kind == REGRESSION for one in judged)
    _numbers(console, judged, label) if numbers else _classes(console, judged)
    if any(one.measures for one in judged):
        _measures(console, [one for one in judged if one.measures])
    for one in judged:
        for warning in one.warnings():
            console.print(Text(f"warning: {warning}"), soft_wrap=True)


def show_file(console: Console, out: Path) -> None:
    """Where the predictions lie, and whether older ones were left alone."""
    console.print(Text(f"\npredictions  {out}"), soft_wrap=True)
    if re.fullmatch(r"predictions-\d+", out.stem):
        console.print("earlier ones stay as they are; --overwrite replaces predictions.csv")


def _classes(console: Console, judged: Sequence[Judged]) -> None:
    """How many rows are decided how; of many classes the three most frequent ones."""
    two = any(one.prediction.threshold is not None for one in judged)
    table = new_table("Party", ">Rows", "Predicted", *[">Threshold"] * two)
    for one in judged:
        prediction = one.prediction
        counts = dict.fromkeys(prediction.classes, 0)
        for name in prediction.decisions:
            counts[name] += 1
        order = sorted(counts, key=lambda name: -counts[name])
        said = ", ".join(f"{units.count(counts[name])} {name}" for name in order[:3])
        others = sum(counts[name] for name in order[3:])
        said += f", {units.count(others)} others" if others else ""
        found = prediction.threshold
        chosen = prediction.decision.chosen_by
        way = "" if chosen in ("default", "fixed") else f", by {chosen}"
        limit = "" if found is None else f"{found:.3g} for {prediction.positive}{way}"
        table.add_row(
            cell(prediction.party), units.count(len(prediction)), cell(said), *[cell(limit)] * two
        )
    console.print(table)


def _numbers(console: Console, judged: Sequence[Judged], label: str) -> None:
    named = f"'{units.plain(label)}'" if label else "the label"
    table = new_table(
        "Party",
        ">Rows",
        ">Lowest",
        ">Mean",
        ">Highest",
        caption=f"Predicted numbers, in the unit of {named}.",
    )
    for one in judged:
        values = one.prediction.values
        spread = [values.min(), values.mean(), values.max()] if len(values) else []
        table.add_row(
            cell(one.prediction.party),
            units.count(len(values)),
            *(_number(float(value)) for value in spread),
        )
    console.print(table)


def _measures(console: Console, judged: Sequence[Judged]) -> None:
    """The measures, one line for each, and a column for each party."""
    counts = {one.scored for one in judged}
    rows = f" of {units.count(counts.pop())} rows with labels" if len(counts) == 1 else ""
    table = new_table(
        f"Measures{rows}", *(f">{units.plain(one.prediction.party)}" for one in judged)
    )
    for name in names_for(judged[0].prediction.task.kind):
        found = [one.measures.get(name) for one in judged]
        title = MEASURES[name].title
        if name == "recall_at_rate":
            title = f"Recall at a rate of {100 * judged[0].prediction.rate:.3g} %"
        table.add_row(cell(title), *(_value(name, value) for value in found))
    console.print(table)


def _value(name: str, value: float | None) -> str:
    if value is None:
        return units.MISSING
    if name in SHARES:
        return units.percent(value)
    return _number(value) if name in ("rmse", "mae") else f"{value:.3f}"


def _number(value: float) -> str:
    """Four digits at least, and no exponent where it can be avoided."""
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:.4g}"
