"""What a table or a figure of a paper is to everything that fills, shows and stores it.

`Exhibit` is the seam: `table.Table` compares training runs, `enrichment.Study` measures VFedTrans.
The rest of the package knows nothing else about either.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from colonnade.errors import ConfigError, RunError, unknown

if TYPE_CHECKING:
    from colonnade.reproduce.cells import Cell

ACCURACY = "accuracy"  # metrics.test.accuracy; any other metric is one number per party
BALANCED = "balanced"  # the mean over the classes of how many of each are found
PSNR, SSIM = "psnr", "ssim"  # in dB, and from 0 to 1: how alike an attacker's images are
SECONDS = "seconds"  # measured, of an enrichment's first two steps
Selection = Mapping[str, tuple[str, ...]]
Expected = Mapping[tuple[str, str, str], tuple[float, float | None]]
CHOICES = ("data", "splits", "columns", "rows", "blocks")
Size = Literal["fast", "full"]
LONGEST = 64  # letters in the name of a run
Results = Mapping[str, Mapping[str, Any]]  # parsed result.json by the run's key


@dataclass(frozen=True)
class Mode:
    """[fast] or [full]."""

    note: str = ""  # what this size leaves out
    seeds: int = 1
    only: Selection = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)


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
    parties: tuple[str, ...]  # the mean of their numbers; empty: of all parties
    place: Place | None = None  # None: the run's


@dataclass(frozen=True)
class Planned:
    """One run: a configuration as in a file, and the cells it fills."""

    key: str
    place: Place
    seed: int
    config: Mapping[str, Any]
    fills: tuple[Fill, ...]


@dataclass(frozen=True)
class Filled:
    """What the finished runs say."""

    cells: Sequence[Cell]
    runs: Sequence[Mapping[str, Any]]  # one line for each
    communication: Sequence[Mapping[str, Any]] = ()
    fits: Sequence[Mapping[str, Any]] = ()  # straight lines through the cells
    drawn: Sequence[str] = ()  # the rows to draw; empty: the first ones


class Exhibit(Protocol):
    """A dataclass read from benchmarks/papers/<paper>/<exhibit>.toml."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def title(self) -> str: ...
    @property
    def kind(self) -> Literal["table", "figure"]: ...
    @property
    def against(self) -> str: ...
    @property
    def paper(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def claims(self) -> tuple[Claim, ...]: ...
    @property
    def fast(self) -> Mode: ...
    @property
    def full(self) -> Mode: ...

    def names(self, what: str) -> list[str]:
        """The names that `--only what=…` can choose from, in the order of the file."""

    def plan(self, size: Size, seeds: int, only: Selection, device: str) -> list[Planned]:
        """All runs, the first seed first: an interrupted job leaves a whole table of few seeds."""

    def fill(self, planned: Sequence[Planned], results: Results, comparable: bool) -> Filled:
        """The cells of `planned`, and what else the results say; a missing result leaves a gap."""


def selection(texts: Sequence[str], exhibit: Exhibit) -> dict[str, tuple[str, ...]]:
    """`columns=CNN,MLP` texts as a selection; names may differ in case."""
    only: dict[str, tuple[str, ...]] = {}
    for text in texts:
        what, equals, listed = text.partition("=")
        if not equals or not listed:
            raise RunError(f"--only {text}: write KEY=VALUE, for example columns=CNN,MLP")
        valid = exhibit.names(what) if what in CHOICES else []
        alike = {name.lower(): name for name in valid}
        # A name may hold a comma itself.
        names = [listed] if listed in valid else [name.strip() for name in listed.split(",")]
        found = tuple(n if n in valid else alike.get(n.lower(), n) for n in names)
        only[what] = only.get(what, ()) + found
    if problems := check_selection(exhibit, only, "--only"):
        raise ConfigError(problems)
    return only


def check_selection(
    exhibit: Exhibit, only: Selection, where: str, choices: tuple[str, ...] = CHOICES
) -> list[str]:
    """What is wrong with a selection of data sets, splits, columns, rows or blocks."""
    problems = []
    for what, names in only.items():
        if what not in choices:
            problems.append(unknown(what, choices, f"in {where}"))
            continue
        valid = exhibit.names(what)
        one = "data set" if what == "data" else what.removesuffix("s")
        problems += [unknown(n, valid, f"in {where}", one) for n in names if n not in valid]
    return problems


def merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over each other; the later wins, tables inside are merged alike."""
    merged: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            old = merged.get(key)
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            merged[key] = merge(old or {}, value) if both else value
    return merged


def run_key(labels: Sequence[str]) -> str:
    """A readable name for the run's folder, unique also where it had to be shortened."""
    name = re.sub(r"[^a-z0-9]+", "-", "-".join(filter(None, labels)).lower()).strip("-")
    if len(name) > LONGEST:
        digest = hashlib.sha256("/".join(labels).encode()).hexdigest()[:8]
        end = labels[-1]
        name = f"{name[: LONGEST - len(end) - 10].rstrip('-')}-{digest}-{end}"
    return name
