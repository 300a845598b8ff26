"""The same numbers in a terminal: readable without colour, in 80 columns, in a pipe.

Names come from users; they are `Text`, so neither markup nor control characters take effect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from colonnade.report import units
from colonnade.report.overview import Overview, overviews, without
from colonnade.report.prose import about

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text


def summary(results: Sequence[Mapping[str, Any]]) -> Group:
    """One line per run: what it achieved, what it cost; and the first without each party."""
    from rich.console import Group

    table = _table(
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
            _text(about(result)["title"]),
            units.count(row.parties),
            units.percent(row.accuracy),
            units.duration(row.seconds_per_epoch),
            units.size(row.bytes),
            units.count(row.messages),
        )
    return Group(table, *([absence(results[0])] if results and without(results[0]) else []))


def absence(result: Mapping[str, Any]) -> Table:
    """What is left of a run's accuracy while one of its parties is absent."""
    table = _table("With one party absent", ">Accuracy", ">Points")
    for party, (left, difference) in without(result).items():
        table.add_row(_text(party), units.percent(left), units.points(difference))
    return table


def comparison(results: Sequence[Mapping[str, Any]]) -> Table:
    """Runs against the first: accuracy in points, time and bytes as factors."""
    table = _table(
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
            _text(about(result)["title"]),
            units.percent(row.accuracy),
            units.points(row.difference_points) if other else "",
            units.duration(row.seconds_per_epoch),
            _factor(row.seconds_per_epoch, rows[0].seconds_per_epoch) if other else "",
            units.size(row.bytes),
            _factor(row.bytes, rows[0].bytes) if other else "",
        )
    return table


def flows_table(flows: Sequence[Mapping[str, Any]], by_kind: Mapping[str, Any]) -> Table:
    """Who saw what: per Kind what it reveals, then every pair of parties that exchanged it."""
    table = _table("Kind", "From", "To", ">Messages", ">Bytes", "Reveals")
    for name in table.columns[1:3]:  # the lines of a row must stay side by side
        name.no_wrap, name.overflow = True, "ellipsis"
    for kind in dict.fromkeys(flow["kind"] for flow in flows):
        same = [flow for flow in flows if flow["kind"] == kind]
        table.add_row(
            _text(kind),
            _lines(units.plain(flow["sender"]) for flow in same),
            _lines(units.plain(flow["receiver"]) for flow in same),
            _lines(units.count(flow["messages"]) for flow in same),
            _lines(units.size(flow["bytes"]) for flow in same),
            _text(_declaration(by_kind.get(kind, {}))),
            end_section=True,
        )
    if not flows:
        table.add_row(_text("nothing crossed the wire"), *[""] * 5)
    return table


def as_json(results: Sequence[Mapping[str, Any]]) -> str:
    """The tables' numbers, not rounded, as a JSON list with one object per run."""
    rows = [{k: _finite(v) for k, v in asdict(row).items()} for row in overviews(results)]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False)


def _table(*headers: str, caption: str | None = None) -> Table:
    """Headers that begin with '>' are columns of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        caption=caption,
        caption_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    for header in headers:
        if header.startswith(">"):
            table.add_column(header[1:], justify="right", no_wrap=True)
        else:
            table.add_column(header, overflow="fold")
    return table


def _name(row: Overview) -> Text:
    return _text(row.name if row.status == "finished" else f"{row.name} ({row.status})")


def _text(text: object) -> Text:
    from rich.text import Text

    return Text(units.plain(text))


def _lines(lines: Iterable[str]) -> Text:
    from rich.text import Text

    return Text("\n".join(lines))


def _declaration(declared: Mapping[str, Any]) -> str:
    if not declared:
        return units.MISSING
    return f"{declared['reveals']} ({declared['shape']}, {declared['dtype']})"


def _factor(value: float | None, first: float | None) -> str:
    if value is None or not first:
        return units.MISSING
    return f"× {value / first:.2f}" if value < 99.5 * first else f"× {value / first:,.0f}"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
