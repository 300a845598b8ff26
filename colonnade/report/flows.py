"""Who sent what to whom, in a terminal: what `colonnade ledger` shows.

Names come from users; they are `Text`, so neither markup nor control characters take effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from colonnade.report import units


def flows_table(flows: Sequence[Mapping[str, Any]], by_kind: Mapping[str, Any]) -> Table:
    """Who saw what: per Kind what it reveals, then every pair of parties that exchanged it."""
    table = new_table("Kind", "From", "To", ">Messages", ">Bytes", "Reveals")
    for name in table.columns[1:3]:  # the lines of a row must stay side by side
        name.no_wrap, name.overflow = True, "ellipsis"
    for kind in dict.fromkeys(flow["kind"] for flow in flows):
        same = [flow for flow in flows if flow["kind"] == kind]
        table.add_row(
            cell(kind),
            _lines(units.plain(flow["sender"]) for flow in same),
            _lines(units.plain(flow["receiver"]) for flow in same),
            _lines(units.count(flow["messages"]) for flow in same),
            _lines(units.size(flow["bytes"]) for flow in same),
            cell(_declaration(by_kind.get(kind, {}))),
            end_section=True,
        )
    if not flows:
        table.add_row(cell("nothing crossed the wire"), *[""] * 5)
    return table


def new_table(*headers: str, caption: str | None = None) -> Table:
    """Headers that begin with '>' are columns of numbers."""
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


def cell(text: object) -> Text:
    """Anything as a cell, without markup."""
    return Text(units.plain(text))


def _lines(lines: Iterable[str]) -> Text:
    return Text("\n".join(lines))


def _declaration(declared: Mapping[str, Any]) -> str:
    if not declared:
        return units.MISSING
    return f"{declared['reveals']} ({declared['shape']}, {declared['dtype']})"
