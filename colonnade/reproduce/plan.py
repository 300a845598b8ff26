"""From a table to its runs: one configuration for each, and the cells it will fill."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from colonnade.errors import ConfigError, RunError
from colonnade.reproduce.table import ACCURACY, CHOICES, Mode, Named, Row, Runs, Selection, Table
from colonnade.reproduce.table import check_selection as check

Size = Literal["fast", "full"]
LONGEST = 64  # letters of a run's name


@dataclass(frozen=True)
class Place:
    """One section: a rectangle of rows and columns."""

    data: str
    split: str
    block: str


@dataclass(frozen=True)
class Fill:
    """One cell of a section, and which number of the run goes into it."""

    row: str
    column: str
    metric: str
    parties: tuple[str, ...]  # their mean; none: of all


@dataclass(frozen=True)
class Planned:
    """One run: a configuration as in a file, and the cells it fills."""

    key: str
    place: Place
    seed: int
    config: Mapping[str, Any]
    fills: tuple[Fill, ...]


def plan(table: Table, size: Size, seeds: int, only: Selection, device: str) -> list[Planned]:
    """All runs, the first seed first: a job that is cut off leaves a whole table of fewer seeds."""
    mode = table.fast if size == "fast" else table.full
    chosen = _chosen(table, {**mode.only, **only})
    planned = [
        run
        for seed in range(seeds)
        for data in chosen["data"]
        for split in chosen["splits"]
        for runs in table.runs
        for run in _planned(table, runs, data, split, seed, chosen, mode, device)
    ]
    if not planned:
        raise RunError("--only leaves nothing to run: its choices exclude each other")
    keys = [run.key for run in planned]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ConfigError([f"two runs would be called '{key}': name rows apart" for key in twice])
    return planned


def selection(texts: Sequence[str], table: Named) -> dict[str, tuple[str, ...]]:
    """`columns=CNN,MLP` texts as a selection; names may differ in case."""
    only: dict[str, tuple[str, ...]] = {}
    for text in texts:
        what, equals, listed = text.partition("=")
        if not equals or not listed:
            raise RunError(f"--only {text}: write KEY=VALUE, for example columns=CNN,MLP")
        valid = table.names(what) if what in CHOICES else []
        alike = {name.lower(): name for name in valid}
        # A name may hold a comma itself.
        names = [listed] if listed in valid else [name.strip() for name in listed.split(",")]
        found = tuple(n if n in valid else alike.get(n.lower(), n) for n in names)
        only[what] = only.get(what, ()) + found
    if problems := check(table, only, "--only"):
        raise ConfigError(problems)
    return only


def merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other; the later wins, tables inside are merged alike."""
    merged: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            old = merged.get(key)
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            merged[key] = merge(old or {}, value) if both else value
    return merged


def rotated(names: Sequence[str], seed: int) -> list[str]:
    """The list begins `seed` places later, so that another one is the first party's."""
    start = seed % max(len(names), 1)
    return [*names[start:], *names[:start]]


def _chosen(table: Table, only: Selection) -> dict[str, list[str]]:
    return {w: [n for n in table.names(w) if n in only.get(w, table.names(w))] for w in CHOICES}


def _planned(
    table: Table,
    runs: Runs,
    data: str,
    split: str,
    seed: int,
    chosen: Mapping[str, list[str]],
    mode: Mode,
    device: str,
) -> Iterator[Planned]:
    """The runs of one [[runs]] in one section: one per column, or one per mix."""
    if runs.block not in chosen["blocks"]:
        return
    if data not in runs.only.get("data", (data,)) or split not in runs.only.get("splits", (split,)):
        return
    rows = table.rows(runs)
    first = rows[0].name
    for label, mix, columns in table.shapes(runs):
        own = [column for column in columns if column in runs.only.get("columns", columns)]
        if not own:
            continue
        parties = {f"party{i}": name for i, name in enumerate(rotated(mix, seed), start=1)}
        fills = [
            Fill(row.name, column, row.metric, _holders(row, column, parties))
            for row in rows
            for column in own
        ]
        fills += [
            Fill(row.name, column, "per_party" if row.metric == ACCURACY else row.metric, (party,))
            for row in rows
            for column, party in runs.parties.items()
        ]
        fills += [Fill(first, column, metric, ()) for column, metric in runs.columns.items()]
        fills = [f for f in fills if f.row in chosen["rows"] and f.column in chosen["columns"]]
        if not fills:
            continue
        name = key([data, split, runs.block, runs.row, label, f"seed{seed}"])
        config = merge(
            {"checkpoint": {"epochs": 0}},  # only the numbers of the table are kept
            table.common,
            table.data[data],
            table.splits[split],
            {} if label in table.mixes else table.columns[label],
            runs.set,
            mode.set,
            runs.fast if mode is table.fast else {},
            {"method": runs.method, "name": name, "seed": seed, "device": device},
            {"absence": False},
        )
        if parties:
            recipes = {**table.columns, **table.recipes}
            config["parties"] = {p: merge(recipes[n], runs.each) for p, n in parties.items()}
        yield Planned(name, Place(data, split, runs.block), seed, config, tuple(fills))


def _holders(row: Row, column: str, parties: Mapping[str, str]) -> tuple[str, ...]:
    """The parties whose numbers belong into the cell; none: the number of the whole run."""
    if row.metric == ACCURACY:
        return ()
    return tuple(party for party, name in parties.items() if name in (row.recipe, column))


def key(labels: Sequence[str]) -> str:
    """A readable name for the run's folder, unique also where it had to be shortened."""
    name = re.sub(r"[^a-z0-9]+", "-", "-".join(filter(None, labels)).lower()).strip("-")
    if len(name) > LONGEST:
        digest = hashlib.sha256("/".join(labels).encode()).hexdigest()[:8]
        end = labels[-1]
        name = f"{name[: LONGEST - len(end) - 10].rstrip('-')}-{digest}-{end}"
    return name
