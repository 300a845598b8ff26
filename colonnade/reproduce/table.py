"""A paper's table as one TOML file: what is run, which cell each run fills, what is claimed.

[common]          settings of every run, as in a config file
[data.X]          a data set: its settings                        one section of the table
[splits.X]        a way to divide it: its settings                one section of the table
[columns.X]       a column: the recipe of its network
[recipes.X]       further recipes, for rows that are parties
[mixes]           lists of columns or recipes, one for each party; seed s rotates a list by s
[[runs]]          a method, and the row it fills: one run per column, or one per mix
[[claims]]        an order of rows that the paper states
[fast], [full]    two sizes of the whole: a note, seeds, a selection, settings

Settings are laid over each other in this order: common, data, split, column, runs, fast or full,
and at last what a [[runs]] says for the fast size alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from colonnade.errors import ConfigError, RunError
from colonnade.reproduce import cells
from colonnade.reproduce.cells import Cell, Printed
from colonnade.reproduce.exhibit import (
    ACCURACY,
    CHOICES,
    Claim,
    Expected,
    Fill,
    Filled,
    Mode,
    Place,
    Planned,
    Results,
    Selection,
    Size,
    merge,
    run_key,
)


@dataclass(frozen=True)
class Runs:
    """[[runs]]: one method with its settings, and the cells it fills."""

    method: str
    row: str = ""  # omitted where the mixes list recipes: each recipe is a row
    metric: str = ""  # below metrics.test; omitted: accuracy, or per_party with mixes
    extra: Mapping[str, str] = field(default_factory=dict)  # further rows: their metric
    columns: Mapping[str, str] = field(default_factory=dict)  # further columns: their metric
    parties: Mapping[str, str] = field(default_factory=dict)  # columns of one party: its name
    mixes: tuple[str, ...] = ()
    each: Mapping[str, Any] = field(default_factory=dict)  # laid over every party's recipe
    set: Mapping[str, Any] = field(default_factory=dict)
    fast: Mapping[str, Any] = field(default_factory=dict)  # laid over [fast]
    block: str = ""  # rows of different blocks stand in different tables
    paper: str = ""  # the paper's name of the row, where ours is another
    variant: bool = False  # shown beside the paper's number without being its counterpart
    only: Selection = field(default_factory=dict)  # data, splits, columns


@dataclass(frozen=True)
class Row:
    """One row of a block: where its numbers come from, and what the paper calls it."""

    name: str
    metric: str
    recipe: str  # the party's recipe, where rows are parties
    paper: str
    variant: bool


@dataclass(frozen=True)
class Table:
    """A whole file, checked."""

    title: str
    kind: Literal["table", "figure"] = "table"
    against: Literal["epochs", "rows", "data"] = "epochs"  # what the page draws accuracy against
    show: Literal["deviation", "range"] = "deviation"  # of the seeds; or their lowest and highest
    paper: str = ""  # its title
    expected: str = ""  # the key in expected.json beside the file; empty: no numbers are given
    notes: tuple[str, ...] = ()  # how we differ from the paper
    common: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mixes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fast: Mode = field(default_factory=Mode)
    full: Mode = field(default_factory=Mode)
    runs: tuple[Runs, ...] = ()
    claims: tuple[Claim, ...] = ()
    numbers: Expected = field(default_factory=dict)  # (data, row, column): the paper's number

    def rows(self, runs: Runs) -> list[Row]:
        """The rows that one [[runs]] fills."""
        known = {row for _, row, _ in self.numbers}
        recipes = [name for mix in runs.mixes for name in self.mixes[mix] if name in self.recipes]
        metric = runs.metric or ("per_party" if runs.mixes else ACCURACY)
        found = [(name, metric, name) for name in dict.fromkeys(recipes)]
        found = found or [(runs.row, metric, "")]
        named = [Row(*one, runs.paper or one[0], runs.variant) for one in found]
        named += [Row(name, other, "", name, runs.variant) for name, other in runs.extra.items()]
        return [row if row.paper in known else dataclasses.replace(row, paper="") for row in named]

    def names(self, what: str) -> list[str]:
        """What `--only what=…` can choose from, in the order of the file."""
        if what == "rows":
            return list(dict.fromkeys(row.name for runs in self.runs for row in self.rows(runs)))
        if what == "blocks":
            return list(dict.fromkeys(runs.block for runs in self.runs))
        if what == "columns":
            further = [c for runs in self.runs for c in (*runs.parties, *runs.columns)]
            return list(dict.fromkeys([*self.columns, *further]))
        return list(getattr(self, what))

    def shapes(self, runs: Runs) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """(label, mix, the columns it fills) of every run of one [[runs]] in one section.

        A mix of columns is one run that fills them all; anything else is a run per column.
        """
        mixes = [(name, self.mixes[name]) for name in runs.mixes] or [("", ())]
        for name, mix in mixes:
            own = tuple(column for column in self.columns if column in mix)
            if own:
                yield name, mix, own
            else:
                yield from ((column, mix, (column,)) for column in self.columns)

    def plan(self, size: Size, seeds: int, only: Selection, device: str) -> list[Planned]:
        """All runs, the first seed first: an interrupted job leaves a whole table of few seeds."""
        mode = self.fast if size == "fast" else self.full
        chosen = _chosen(self, {**mode.only, **only})
        planned = [
            run
            for seed in range(seeds)
            for data in chosen["data"]
            for split in chosen["splits"]
            for runs in self.runs
            for run in _planned(self, runs, data, split, seed, chosen, mode, device)
        ]
        if not planned:
            raise RunError("--only leaves nothing to run: its choices exclude each other")
        keys = [run.key for run in planned]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ConfigError(
                [
                    f"two runs would be called '{key}': give their rows different names"
                    for key in twice
                ]
            )
        return planned

    def fill(self, planned: Sequence[Planned], results: Results, comparable: bool) -> Filled:
        """Every cell in the order of the file, and what crossed the wire."""
        named = {(runs.block, row.name): row for runs in self.runs for row in self.rows(runs)}
        order = {what: self.names(what) for what in ("data", "splits", "blocks", "rows", "columns")}

        def printed(place: Place, row: str, column: str) -> Printed:
            one = named[place.block, row]
            mean, deviation = self.numbers.get((place.data, one.paper, column), (None, None))
            return Printed(mean, deviation, one.variant)

        def rank(cell: Cell) -> tuple[int, ...]:
            labels = (cell.data, cell.split, cell.block, cell.row, cell.column)
            return tuple(order[what].index(name) for what, name in zip(order, labels, strict=True))

        found = sorted(cells.cells(planned, results, printed, comparable), key=rank)
        if self.show == "range":
            found = [dataclasses.replace(cell, range=cells.span(cell)) for cell in found]
        runs = cells.traffic(planned, results)
        return Filled(found, runs, communication=cells.communication(runs))


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
        name = run_key([data, split, runs.block, runs.row, label, f"seed{seed}"])
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
