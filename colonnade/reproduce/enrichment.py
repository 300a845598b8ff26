"""The second kind of table, `kind = "enrichment"`: VFedTrans' studies, one TOML file for each.

[common]          of every measurement: the fields of study.Setting
[data.X]          a data set and its sizes                        one section of the table
[points.X]        a value of the x axis: what it changes          one column; without points, the
                                                                  classifiers are the columns
[recipes.X]       a further variant: options of Enricher; base = "paper" lays them over the paper's
[[claims]]        an order of rows that the paper states
[fast], [full]    two sizes of the whole: a note, seeds, a selection, settings

title, shape ("table" or "figure"), paper, expected and notes as in the other kind; alias, our row's
name in the paper; drawn, the lines of the plots; axis, what times are fitted against.

Settings are laid over each other in this order: common, data, point, fast or full. A unit of work
is (data, point, seed): all variants and classifiers on the same rows, so that every difference to
LOCAL is paired. What a unit leaves has the form of a run's result, as far as a table needs it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from colonnade import toml
from colonnade.errors import ConfigError, RunError
from colonnade.reproduce import cells, reading, study
from colonnade.reproduce.cells import Cell, Printed
from colonnade.reproduce.exhibit import (
    ACCURACY,
    SECONDS,
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
    check_selection,
    merge,
    run_key,
)
from colonnade.reproduce.study import LOCAL, Setting
from colonnade.results.environment import commit
from colonnade.version import __version__
from colonnade.wire import store

KIND = "enrichment"
COMPARED = "all rows"  # the split that the paper scores


@dataclass(frozen=True)
class Study:
    """A whole file, checked."""

    title: str
    kind: Literal["table", "figure"] = "table"  # `shape` in the file
    against: Literal["columns", "data"] = "columns"  # what the page draws
    paper: str = ""  # its title
    expected: str = ""  # the key in expected.json beside the file
    alias: Mapping[str, str] = field(default_factory=dict)  # our row: the paper's name of it
    axis: str = ""  # what the points are, for a linear fit: "data parties"
    drawn: tuple[str, ...] = (LOCAL, "distilled", "paper's settings", "FULL")
    notes: tuple[str, ...] = ()
    common: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    points: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fast: Mode = field(default_factory=Mode)
    full: Mode = field(default_factory=Mode)
    claims: tuple[Claim, ...] = ()
    numbers: Expected = field(default_factory=dict)

    def names(self, what: str) -> list[str]:
        """What `--only what=…` can choose from, in the order of the file."""
        first = next(iter(self.settings("full", {}).values()))
        if what == "data":
            return list(self.data)
        if what == "splits":
            return ["seconds"] if first.seconds else list(first.scored)
        if what == "rows":
            return list(study.TIMES if first.seconds else first.variants)
        # The classifiers are columns; or, where points are, blocks.
        inner = [""] if first.seconds else list(first.classifiers)
        if what == "columns":
            return list(self.points) or inner
        return inner if self.points else [""]

    def settings(self, size: Size, only: Selection) -> dict[tuple[str, str], Setting]:
        """By data set and point; a ValueError where one makes no sense."""
        mode = self.fast if size == "fast" else self.full
        found = {}
        for data, own in self.data.items():
            for point, at in (self.points or {"": {}}).items():
                merged = merge({"recipes": self.recipes}, self.common, own, at, mode.set)
                problems: list[str] = []
                setting: Setting | None = toml.read(Setting, merged, f"data.{data}.", problems)
                if setting is None or problems:
                    raise ConfigError(problems)
                found[data, point] = _selected(setting, bool(self.points), {**mode.only, **only})
        return found

    def plan(self, size: Size, seeds: int, only: Selection, device: str) -> list[Planned]:
        """All units of work, the first seed first; they run on the processor."""
        mode = self.fast if size == "fast" else self.full
        chosen = {**mode.only, **only}
        units = []
        for seed in range(seeds):
            for (data, point), setting in self.settings(size, only).items():
                if data not in chosen.get("data", (data,)):
                    continue
                if self.points and point not in chosen.get("columns", (point,)):
                    continue
                units.append(
                    Planned(
                        run_key([data, point, f"seed{seed}"]),
                        Place(data, "", ""),
                        seed,
                        # A run's configuration names its data set in the same way.
                        {"data": {"name": setting.name}, "study": dataclasses.asdict(setting)}
                        | {"seed": seed},
                        tuple(_fills(data, setting, point)),
                    )
                )
        if not units:
            raise RunError("--only leaves nothing to measure: its choices exclude each other")
        return units

    def fill(self, planned: Sequence[Planned], results: Results, comparable: bool) -> Filled:
        """Every cell beside LOCAL, and straight lines through times."""

        def printed(place: Place, row: str, column: str) -> Printed:
            theirs = self.alias.get(row, row) if place.split == COMPARED else ""
            return Printed(*self.numbers.get((place.data, theirs, column), (None, None)))

        found = cells.cells(planned, results, printed, comparable)
        at = {(cell.place, cell.row, cell.column): cell for cell in found}
        found = [_beside_local(cell, at) for cell in found]
        runs = unit_lines(planned, results)
        return Filled(found, runs, fits=fits(self, found), drawn=self.drawn)


def load(path: Path, tree: dict[str, Any]) -> Study:
    """A study from its parsed file; all mistakes at once."""
    problems: list[str] = []
    tree = {k: v for k, v in tree.items() if k != "kind"}
    tree["kind"] = tree.pop("shape", "table")
    claims = reading.several(Claim, tree, "claims", problems)
    modes: dict[str, Any] = {
        m: toml.read(Mode, tree.get(m, {}), f"{m}.", problems) or Mode() for m in ("fast", "full")
    }
    numbers = reading.expected(path.with_name("expected.json"), tree.get("expected"), problems)
    for key in ("claims", "fast", "full"):
        tree.pop(key, None)
    found: Study | None = toml.read(Study, tree, "", problems)
    if found is not None and not problems:
        found = dataclasses.replace(found, **modes, claims=claims, numbers=numbers)
        problems += [] if found.data else ["[data] is empty"]
        problems += [] if problems else _check(found)
    if problems or found is None:
        raise ConfigError([f"{path.name}: {problem}" for problem in problems])
    return found


def _check(found: Study) -> list[str]:
    try:
        for size in ("fast", "full"):
            found.settings(size, {})
    except ConfigError as error:
        return list(error.problems)
    problems = []
    for size in ("fast", "full"):
        only = getattr(found, size).only
        problems += check_selection(found, only, f"{size}.only")
    rows = found.names("rows")
    named = {row for claim in found.claims for row in claim.named} | set(found.alias)
    return problems + [f"there is no row '{row}'" for row in sorted(named) if row not in rows]


def _selected(setting: Setting, points: bool, only: Selection) -> Setting:
    """Fewer variants, classifiers or scores; LOCAL stays, since everything is compared with it."""
    kept = {"scored": only.get("splits"), "variants": only.get("rows")}
    kept["classifiers"] = only.get("blocks" if points else "columns")
    changed: dict[str, Any] = {}
    for name, names in kept.items():
        if names is not None and not setting.seconds:
            wanted = {*names, LOCAL}
            changed[name] = tuple(one for one in getattr(setting, name) if one in wanted)
    return dataclasses.replace(setting, **changed)


def _fills(data: str, setting: Setting, point: str) -> list[Fill]:
    if setting.seconds:
        place = Place(data, SECONDS, "")
        return [Fill(name, point, SECONDS, (name,), place) for name in study.TIMES]
    where = {scored: f"{scored} rows" for scored in ("local", "all")}
    return [
        Fill(
            variant,
            point or name,
            f"{scored}/{name}",
            (variant,),
            Place(data, where.get(scored, scored), name if point else ""),
        )
        for scored in setting.scored
        for name in setting.classifiers
        for variant in setting.variants
    ]


def digest(config: Mapping[str, Any]) -> str:
    """Equal for units that measure the same."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def perform(config: Mapping[str, Any], folder: Path) -> None:
    """Measure one unit, in a process of its own, and leave result.json."""
    import torch

    torch.set_num_threads(1)
    problems: list[str] = []
    setting: Setting | None = toml.read(Setting, config["study"], "", problems)
    if setting is None or problems:
        raise ConfigError(problems)
    began = time.perf_counter()
    scores = study.measure(setting, config["seed"])
    result = {
        "kind": KIND,
        "status": "finished",
        "config_sha256": digest(config),
        "config": config,
        "metrics": {"test": scores},
        "timing": {"seconds_total": time.perf_counter() - began},
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": "cpu",
            "threads": 1,
            "platform": f"{platform.system()} {platform.machine()}",
            "colonnade": __version__,
            "commit": commit(),
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps(result, indent=1), folder / "result.json")


# ---- numbers -------------------------------------------------------------------------------------


def _beside_local(cell: Cell, cells: Mapping[tuple[Place, str, str], Cell]) -> Cell:
    """An accuracy with its paired difference to LOCAL and the 95 % interval."""
    local = cells.get((cell.place, LOCAL, cell.column))
    gain = None if local is None or cell is local else paired(cell.values, local.values)
    metric = SECONDS if cell.metric == SECONDS else ACCURACY
    return dataclasses.replace(cell, metric=metric, gain=gain)


def paired(values: Sequence[float | None], base: Sequence[float | None]) -> list[float | None]:
    """[mean difference, half of its 95 % interval], seed by seed; of one seed without interval."""
    gaps = [a - b for a, b in zip(values, base, strict=True) if a is not None and b is not None]
    return [fmean(gaps) if gaps else None, cells.interval(gaps)]


def fits(found: Study, made: Sequence[Cell]) -> list[dict[str, Any]]:
    """Straight lines through the means against the points, where the points are numbers."""
    if not found.axis:
        return []
    import numpy as np

    lines = []
    for place in dict.fromkeys((cell.data, cell.split, cell.block, cell.row) for cell in made):
        same = [c for c in made if (c.data, c.split, c.block, c.row) == place]
        points = [(float(c.column), c.mean) for c in same if c.mean is not None]
        if len(points) < 3:
            continue
        x, y = (np.array(v) for v in zip(*points, strict=True))
        slope, start = (float(v) for v in np.polyfit(x, y, 1))
        left = float(((y - start - slope * x) ** 2).sum())
        whole = float(((y - y.mean()) ** 2).sum())
        r2 = 1 - left / whole if whole else 1.0
        text = (
            f"{place[0]}, {place[3]}: {start:.3g} s + {slope:.3g} s per {found.axis}, "
            f"R² = {r2:.4f} over {len(points)} points"
        )
        lines.append({"text": text, "row": place[3], "slope": slope, "start": start, "r2": r2})
    return lines


def unit_lines(units: Sequence[Planned], results: Results) -> list[dict[str, Any]]:
    """One line per finished unit, in place of a run's traffic."""
    return [
        {
            "key": unit.key,
            "data": unit.place.data,
            "seed": unit.seed,
            "seconds": results[unit.key]["timing"]["seconds_total"],
            "config_sha256": results[unit.key]["config_sha256"],
            "commit": results[unit.key]["environment"]["commit"],
        }
        for unit in units
        if unit.key in results
    ]
