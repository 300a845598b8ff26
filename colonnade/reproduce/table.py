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
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from colonnade import toml
from colonnade.errors import ConfigError, unknown
from colonnade.role.recipe import Recipe

ACCURACY = "accuracy"  # metrics.test.accuracy; any other metric is one number per party
BALANCED = "balanced"  # the mean over the classes of how many of each are found
PSNR, SSIM = "psnr", "ssim"  # in dB, and from 0 to 1: how alike an attacker's images are
SECONDS = "seconds"  # measured, of an enrichment's first two steps
Selection = Mapping[str, tuple[str, ...]]
Expected = Mapping[tuple[str, str, str], tuple[float, float | None]]
CHOICES = ("data", "splits", "columns", "rows", "blocks")


class Named(Protocol):
    """What a selection is made from."""

    def names(self, what: str) -> list[str]: ...


@dataclass(frozen=True)
class Mode:
    """[fast] or [full]."""

    note: str = ""  # what this size leaves out
    seeds: int = 1
    only: Selection = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Runs:
    """[[runs]]: one method with its settings, and the cells it fills."""

    method: str
    row: str = ""  # left out where the mixes are of recipes: each of them is a row
    metric: str = ""  # below metrics.test; left out: accuracy, with mixes per_party
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
class Claim:
    """[[claims]]: every row of `above` over every row of `below`; or `rows` within some points."""

    text: str
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    within: float | None = None  # points between the highest and the lowest
    by: float = 0.0  # points that `above` must be above; -0.5: at most so much below
    columns: tuple[str, ...] = ()  # where it is judged; empty: everywhere

    @property
    def named(self) -> tuple[str, ...]:
        return self.above + self.below + self.rows


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


def load(path: Path) -> Table:
    """Read a table and the paper's numbers; all mistakes at once."""
    tree = toml.load(path)
    if "method" in tree and "runs" not in tree:
        raise ConfigError([f"{path} is the config of one run: train it with colonnade run {path}"])
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
    if problems:
        return problems
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


def check_selection(
    table: Named, only: Selection, where: str, choices: tuple[str, ...] = CHOICES
) -> list[str]:
    """What is wrong with a selection of data sets, splits, columns, rows or blocks."""
    problems = []
    for what, names in only.items():
        if what not in choices:
            problems.append(unknown(what, choices, f"in {where}"))
            continue
        valid = table.names(what)
        one = "data set" if what == "data" else what.removesuffix("s")
        problems += [unknown(n, valid, f"in {where}", one) for n in names if n not in valid]
    return problems
