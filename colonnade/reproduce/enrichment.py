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
from statistics import fmean, stdev
from typing import Any, Literal

from colonnade import store, toml
from colonnade.errors import ConfigError, RunError
from colonnade.reproduce import cells, plan, study, table
from colonnade.reproduce.cells import Cell, Results
from colonnade.reproduce.plan import Fill, Place, Planned, Size
from colonnade.reproduce.study import LOCAL, Setting
from colonnade.reproduce.table import SECONDS, Claim, Expected, Mode, Selection
from colonnade.results.environment import commit
from colonnade.version import __version__

KIND = "enrichment"
COMPARED = "all"  # the rows that the paper scores (§5.10-5)


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
                merged = plan.merge({"recipes": self.recipes}, self.common, own, at, mode.set)
                problems: list[str] = []
                setting: Setting | None = toml.read(Setting, merged, f"data.{data}.", problems)
                if setting is None or problems:
                    raise ConfigError(problems)
                found[data, point] = _selected(setting, bool(self.points), {**mode.only, **only})
        return found


def load(path: Path, tree: dict[str, Any]) -> Study:
    """A study from its parsed file; all mistakes at once."""
    problems: list[str] = []
    tree = {k: v for k, v in tree.items() if k != "kind"}
    tree["kind"] = tree.pop("shape", "table")
    claims = table.several(Claim, tree, "claims", problems)
    modes: dict[str, Any] = {
        m: toml.read(Mode, tree.get(m, {}), f"{m}.", problems) or Mode() for m in ("fast", "full")
    }
    numbers = table.expected(path.with_name("expected.json"), tree.get("expected"), problems)
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
        problems += table.check_selection(found, only, f"{size}.only")
    rows = found.names("rows")
    named = {row for claim in found.claims for row in claim.named} | set(found.alias)
    return problems + [f"there is no row '{row}'" for row in sorted(named) if row not in rows]


def _selected(setting: Setting, points: bool, only: Selection) -> Setting:
    """Fewer variants, classifiers or scores; LOCAL stays, since all is compared with it."""
    kept = {"scored": only.get("splits"), "variants": only.get("rows")}
    kept["classifiers"] = only.get("blocks" if points else "columns")
    changed: dict[str, Any] = {}
    for name, names in kept.items():
        if names is not None and not setting.seconds:
            wanted = {*names, LOCAL}
            changed[name] = tuple(one for one in getattr(setting, name) if one in wanted)
    return dataclasses.replace(setting, **changed)


def planned(found: Study, size: Size, seeds: int, only: Selection) -> list[Planned]:
    """All units, the first seed first."""
    mode = found.fast if size == "fast" else found.full
    chosen = {**mode.only, **only}
    units = []
    for seed in range(seeds):
        for (data, point), setting in found.settings(size, only).items():
            if data not in chosen.get("data", (data,)):
                continue
            if found.points and point not in chosen.get("columns", (point,)):
                continue
            units.append(
                Planned(
                    plan.key([data, point, f"seed{seed}"]),
                    Place(data, "", ""),
                    seed,
                    # As a run's configuration names its data set.
                    {"data": {"name": setting.name}, "study": dataclasses.asdict(setting)}
                    | {"seed": seed},
                    tuple(_fills(setting, point)),
                )
            )
    if not units:
        raise RunError("--only leaves nothing to measure: its choices exclude each other")
    return units


def _fills(setting: Setting, point: str) -> list[Fill]:
    if setting.seconds:
        return [Fill(name, point, SECONDS, (name,)) for name in study.TIMES]
    return [
        Fill(variant, point or name, f"{scored}/{name}", (variant,))
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


def found_cells(
    found: Study, units: Sequence[Planned], results: Results, comparable: bool
) -> list[Cell]:
    """Every cell with its mean, and its paired difference to LOCAL with the 95 % interval."""
    together: dict[tuple[str, str, str, str, str], list[tuple[Planned, Fill]]] = {}
    for unit in units:
        for fill in unit.fills:
            scored, _, name = fill.metric.partition("/")
            block = name if found.points else ""
            place = (unit.place.data, scored, block, fill.row, fill.column)
            together.setdefault(place, []).append((unit, fill))
    values: dict[tuple[str, str, str, str, str], list[float | None]] = {
        place: [cells.value(results[u.key], fill) if u.key in results else None for u, fill in same]
        for place, same in together.items()
    }
    made = []
    for place, same in together.items():
        data, scored, block, row, column = place
        known = [v for v in values[place] if v is not None]
        mean = fmean(known) if known else None
        theirs = found.alias.get(row, row) if scored == COMPARED else ""
        paper, deviation = found.numbers.get((data, theirs, column), (None, None))
        compared = comparable and mean is not None and paper is not None
        local = values.get((data, scored, block, LOCAL, column))
        made.append(
            Cell(
                data,
                f"{scored} rows" if scored in ("local", "all") else scored,
                block,
                row,
                column,
                metric=same[0][1].metric if scored == SECONDS else "accuracy",
                values=values[place],
                mean=mean,
                sd=stdev(known) if len(known) > 1 else None,
                range=None,
                paper=paper,
                paper_sd=deviation,
                difference=(mean or 0) - (paper or 0) if compared else None,
                variant=False,
                runs=[unit.key for unit, _ in same],
                curve=([], []),
                gain=None if local is None or row == LOCAL else paired(values[place], local),
            )
        )
    return made


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
