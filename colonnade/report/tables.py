"""The same numbers in a terminal: readable without colour, in 80 columns, in a pipe.

Names come from users; they are `Text`, so neither markup nor control characters take effect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from colonnade.report import measured, units
from colonnade.report.flows import cell, new_table
from colonnade.report.overview import Overview, deciding, majority, overviews, without
from colonnade.report.prose import about
from colonnade.task.measures import REGRESSION

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text


def summary(results: Sequence[Mapping[str, Any]]) -> Group:
    """One line per run: what it achieved, what it cost; and the first without each party."""
    from rich.console import Group

    rows = overviews(results)
    heads = _heads(rows)
    table = new_table(
        "Run",
        "Method",
        ">Parties",
        *heads,
        ">Epoch",
        ">Bytes",
        ">Messages",
        caption="Epoch: median time. Bytes: all phases. Messages: training.",
    )
    for row, result in zip(rows, results, strict=True):
        table.add_row(
            _name(row),
            cell(about(result)["title"]),
            units.count(row.parties),
            *_worth(row, heads),
            units.duration(row.seconds_per_epoch),
            units.size(row.bytes),
            units.count(row.messages),
        )
    return Group(table, *([absence(results[0])] if results and without(results[0]) else []))


def absence(result: Mapping[str, Any]) -> Table:
    """What a run's predictions are worth while one of its parties is absent."""
    metric, left, known = deciding(result), without(result), majority(result)
    more = [] if metric == "accuracy" else [f">{measured.column(metric)}", ">Difference"]
    shares = any(one.accuracy is not None for one in left.values())
    said = [f"Without {units.plain(p)}: {one.constant}" for p, one in left.items() if one.constant]
    if said and known is not None:
        said.append(f"which is right for {units.percent(known[1])}")
    table = new_table(
        "With one party absent",
        *more,
        *([">Accuracy", ">Points"] if shares else []),
        caption=f"{', '.join(said)}." if said else None,
    )
    for party, one in left.items():
        cells = [
            measured.value(metric, one.value),
            measured.change(metric, one.difference, one.value),
        ]
        table.add_row(
            cell(party),
            *(cells if more else []),
            *([units.percent(one.accuracy), units.points(one.points)] if shares else []),
        )
    return table


def comparison(results: Sequence[Mapping[str, Any]]) -> Table:
    """Runs against the first: by the measure that decides; time and bytes as factors."""
    rows = overviews(results)
    metric = rows[0].metric if rows else "accuracy"
    heads = _heads(rows)
    against = "Points" if metric == "accuracy" else "Difference"
    caption = f"{against}, time and traffic are against the first run. Epoch: median time."
    if measured.lower_is_better(metric):
        caption += f" {measured.column(metric)}: lower is better."
    table = new_table(
        "Run",
        "Method",
        heads[0],
        f">{against}",
        *heads[1:],
        ">Epoch",
        ">Time",
        ">Bytes",
        ">Traffic",
        caption=caption,
    )
    for row, result in zip(rows, results, strict=True):
        other = row is not rows[0]
        table.add_row(
            _name(row),
            cell(about(result)["title"]),
            _worth(row, heads)[0],
            measured.change(metric, row.difference, row.value) if other else "",
            *_worth(row, heads)[1:],
            units.duration(row.seconds_per_epoch),
            _factor(row.seconds_per_epoch, rows[0].seconds_per_epoch) if other else "",
            units.size(row.bytes),
            _factor(row.bytes, rows[0].bytes) if other else "",
        )
    return table


def _heads(rows: Sequence[Overview]) -> list[str]:
    """The measure that decides, and the accuracy beside it where there are classes."""
    metric = rows[0].metric if rows else "accuracy"
    beside = metric != "accuracy" and any(row.accuracy is not None for row in rows)
    return [f">{measured.column(metric)}", *([">Accuracy"] if beside else [])]


def _worth(row: Overview, heads: Sequence[str]) -> list[str]:
    """What a run achieved, below these headings."""
    return [measured.value(row.metric, row.value), units.percent(row.accuracy)][: len(heads)]


def different_data(results: Sequence[Mapping[str, Any]]) -> str:
    """What makes these runs hard to compare; empty if they are of the same rows and task."""
    numbers = {_predicts_numbers(result): str(result["name"]) for result in results}
    if len(numbers) == 2:
        return incomparable(numbers[True], numbers[False])
    data = {tuple(r["data"][key] for key in ("name", "train_rows", "test_rows")) for r in results}
    if len(data) < 2:
        return ""
    kinds = "; ".join(f"{name}, {train:,} + {test:,} rows" for name, train, test in sorted(data))
    return f"the runs are of different data ({kinds})"


def incomparable(numbers: str, classes: str) -> str:
    """Why such runs have no measure in common, so that tables show dashes."""
    names = units.plain(numbers), units.plain(classes)
    return (
        f"these runs cannot be compared: '{names[0]}' predicts numbers and '{names[1]}' classes, "
        "so that no measure is common to both"
    )


def _predicts_numbers(result: Mapping[str, Any]) -> bool:
    return bool(result["data"].get("task", {}).get("kind") == REGRESSION)


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
