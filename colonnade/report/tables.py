"""The same numbers in a terminal: readable without colour, in 80 columns, in a pipe.

Names come from users; they are `Text`, so neither markup nor control characters take effect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from colonnade.report import units
from colonnade.report.flows import cell, new_table
from colonnade.report.overview import Overview, overviews, without
from colonnade.report.prose import about

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text


def summary(results: Sequence[Mapping[str, Any]]) -> Group:
    """One line per run: what it achieved, what it cost; and the first without each party."""
    from rich.console import Group

    table = new_table(
        "Run",
        "Method",
        ">Parties",
        ">Accuracy",
        ">Epoch",
        ">Bytes",
        ">Messages",
        caption="Epoch: median time. Bytes: all phases. Messages: training.",
    )
    for row, result in zip(overviews(results), results, strict=True):
        table.add_row(
            _name(row),
            cell(about(result)["title"]),
            units.count(row.parties),
            units.percent(row.accuracy),
            units.duration(row.seconds_per_epoch),
            units.size(row.bytes),
            units.count(row.messages),
        )
    return Group(table, *([absence(results[0])] if results and without(results[0]) else []))


def absence(result: Mapping[str, Any]) -> Table:
    """What is left of a run's accuracy while one of its parties is absent."""
    table = new_table("With one party absent", ">Accuracy", ">Points")
    for party, (left, difference) in without(result).items():
        table.add_row(cell(party), units.percent(left), units.points(difference))
    return table


def comparison(results: Sequence[Mapping[str, Any]]) -> Table:
    """Runs against the first: accuracy in points, time and bytes as factors."""
    table = new_table(
        "Run",
        "Method",
        ">Accuracy",
        ">Points",
        ">Epoch",
        ">Time",
        ">Bytes",
        ">Traffic",
        caption="Points, time and traffic are against the first run. Epoch: median time.",
    )
    rows = overviews(results)
    for row, result in zip(rows, results, strict=True):
        other = row is not rows[0]
        table.add_row(
            _name(row),
            cell(about(result)["title"]),
            units.percent(row.accuracy),
            units.points(row.difference_points) if other else "",
            units.duration(row.seconds_per_epoch),
            _factor(row.seconds_per_epoch, rows[0].seconds_per_epoch) if other else "",
            units.size(row.bytes),
            _factor(row.bytes, rows[0].bytes) if other else "",
        )
    return table


def as_json(results: Sequence[Mapping[str, Any]]) -> str:
    """The tables' numbers, not rounded, as a JSON list with one object per run."""
    rows = [{k: _finite(v) for k, v in asdict(row).items()} for row in overviews(results)]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False)


def _name(row: Overview) -> Text:
    return cell(row.name if row.status == "finished" else f"{row.name} ({row.status})")


def _factor(value: float | None, first: float | None) -> str:
    if value is None or not first:
        return units.MISSING
    return f"× {value / first:.2f}" if value < 99.5 * first else f"× {value / first:,.0f}"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
