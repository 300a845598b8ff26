"""Reads the file of a table and the paper's numbers, and reports all mistakes at once."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade import toml
from colonnade.errors import ConfigError, unknown
from colonnade.reproduce.exhibit import CHOICES, Claim, Expected, Mode, check_selection
from colonnade.reproduce.table import Runs, Table
from colonnade.role.recipe import Recipe


def load(path: Path) -> Table:
    """Read a table and the paper's numbers; all mistakes at once."""
    tree = toml.load(path)
    if "method" in tree and "runs" not in tree:
        again = f"colonnade run {shlex.quote(str(path))}"
        raise ConfigError([f"{path} is the config of one run: train it with {again}"])
    problems: list[str] = []
    tree["runs"] = several(Runs, tree, "runs", problems)
    tree["claims"] = several(Claim, tree, "claims", problems)
    for mode in ("fast", "full"):
        tree[mode] = toml.read(Mode, tree.get(mode, {}), f"{mode}.", problems) or Mode()
    tree["numbers"] = expected(path.with_name("expected.json"), tree.get("expected"), problems)
    parsed = {k: tree.pop(k) for k in ("runs", "claims", "fast", "full", "numbers")}
    table: Table | None = toml.read(Table, tree, "", problems)
    if table is not None:
        table = dataclasses.replace(table, **parsed)
        problems += _check(table)
    if problems or table is None:
        raise ConfigError([f"{path.name}: {problem}" for problem in problems])
    return table


def several(cls: type, tree: Mapping[str, Any], key: str, problems: list[str]) -> tuple[Any, ...]:
    """All tables [[key]]."""
    found = [
        toml.read(cls, table, f"{key}[{number}].", problems)
        for number, table in enumerate(tree.get(key, []), start=1)
    ]
    return tuple(one for one in found if one is not None)


def expected(path: Path, key: str | None, problems: list[str]) -> Expected:
    """{"columns": […], "rows": {data: {row: [number, or [number, deviation], or null, …]}}}.

    A data set may name another instead of rows: then that one's numbers stand beside ours.
    """
    if not key:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))[key]
        columns, all_rows = found["columns"], found["rows"]
        return {
            (data, row, column): (float(n[0]), float(n[1])) if isinstance(n, list) else (n, None)
            for data, rows in all_rows.items()
            for row, numbers in (all_rows[rows] if isinstance(rows, str) else rows).items()
            for column, n in zip(columns, numbers, strict=True)
            if n is not None
        }
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        problems.append(f"{path}: the numbers of '{key}' cannot be read ({error!r})")
    return {}


def _check(table: Table) -> list[str]:
    """Every name must mean something, and no cell be filled twice."""
    problems = _check_members(table)
    return problems or [*_check_cells(table), *_check_claims(table)]


def _check_members(table: Table) -> list[str]:
    """What columns, recipes and mixes name."""
    problems = [
        f"[{key}] is empty" for key in ("data", "splits", "columns") if not table.names(key)
    ]
    problems += [] if table.runs else ["there are no [[runs]]"]
    valid = {field.name for field in dataclasses.fields(Recipe)}
    for what in ("columns", "recipes"):
        for name, recipe in getattr(table, what).items():
            problems += [unknown(k, valid, f"in [{what}.{name}]") for k in recipe if k not in valid]
    members = {*table.columns, *table.recipes}
    for mix, names in table.mixes.items():
        problems += [
            unknown(n, members, f"in mixes.{mix}", "name") for n in names if n not in members
        ]
        if len({name in table.columns for name in names}) > 1:
            problems.append(f"mixes.{mix} names columns and recipes: take one or the other")
    for number, runs in enumerate(table.runs, start=1):
        where = f"in runs[{number}]"
        problems += [
            unknown(m, table.mixes, where, "mix") for m in runs.mixes if m not in table.mixes
        ]
    return problems


def _check_cells(table: Table) -> list[str]:
    """What the [[runs]] fill, and the selections."""
    problems = list[str]()
    filled: set[tuple[str, str, str, str, str]] = set()
    for number, runs in enumerate(table.runs, start=1):
        problems += check_selection(table, runs.only, f"runs[{number}].only", CHOICES[:3])
        rows = table.rows(runs)
        problems += [f"runs[{number}].row is missing" for row in rows if not row.name]
        if runs.paper and not any(row.paper for row in rows):
            problems.append(
                f"runs[{number}].paper = '{runs.paper}' has no numbers in expected.json"
            )
        for _, _, columns in table.shapes(runs):
            for data in runs.only.get("data", tuple(table.data)):
                for split in runs.only.get("splits", tuple(table.splits)):
                    places = [(r.name, c) for r in rows for c in (*columns, *runs.parties)]
                    for row, column in places + [(rows[0].name, c) for c in runs.columns]:
                        cell = (data, split, runs.block, row, column)
                        if cell in filled:
                            problems.append(f"runs[{number}] fills {' / '.join(cell)} again")
                        filled.add(cell)
    for mode in ("fast", "full"):
        problems += check_selection(table, getattr(table, mode).only, f"{mode}.only")
    return problems


def _check_claims(table: Table) -> list[str]:
    """Claims speak of rows and columns that exist, and state one order."""
    problems = list[str]()
    for number, claim in enumerate(table.claims, start=1):
        problems += [
            unknown(name, table.names("rows"), f"in claims[{number}]", "row")
            for name in claim.named
            if name not in table.names("rows")
        ]
        problems += check_selection(table, {"columns": claim.columns}, f"claims[{number}]")
        if bool(claim.above and claim.below) == bool(claim.rows and claim.within is not None):
            problems.append(f"claims[{number}]: give above and below, or rows and within")
    return problems
