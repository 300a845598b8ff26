"""What is missing of all papers' tables at full size, cheapest first: `reproduce --missing`.

A run is missing where no record of it names a clean commit. Its time is estimated from recorded
runs: of the same cell with another seed, of its table, of its method. benchmarks/papers/held.toml
holds back tables whose numbers an open question may still change. Each run that ends is recorded at
once (records.py), so the queue can be stopped at any time and goes on where it was.
"""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from colonnade import data as datasets
from colonnade import toml
from colonnade.errors import RunError, unknown
from colonnade.reproduce import catalogue, jobs, records
from colonnade.reproduce.exhibit import Planned
from colonnade.reproduce.records import Record
from colonnade.results.environment import commit

HELD = "held.toml"
UNKNOWN_SECONDS = 600.0  # of a run like which none was recorded
SEED = re.compile(r"-seed\d+$")


@dataclass(frozen=True)
class Job:
    """One run that is missing."""

    table: str
    run: Planned
    seconds: float  # an estimate
    guessed: bool  # nothing like it was recorded
    held: str = ""  # why it is not to be run now

    @property
    def name(self) -> str:
        return f"{self.table}.{self.run.key}"

    @property
    def method(self) -> str:
        return _method(self.run)

    def line(self) -> dict[str, Any]:
        """For a program."""
        return {
            "table": self.table,
            "run": self.run.key,
            "method": self.method,
            "seed": self.run.seed,
            "seconds": round(self.seconds, 1),
            "guessed": self.guessed,
            "held": self.held,
        }


def missing(name: str | None, device: str, papers: Path | None = None) -> list[Job]:
    """Every run of full size that nobody has recorded, cheapest first, those held back last.

    name  a table, or the beginning of several: "easter"; None: all
    """
    papers = papers or catalogue.folder()
    known = records.all_of(papers)
    estimate = Estimate(known.values())
    held = _held(papers / HELD)
    found = []
    for table in _chosen(name):
        exhibit = catalogue.find(table)
        why = next((text for start, text in held.items() if table.startswith(start)), "")
        for run in exhibit.plan("full", exhibit.full.seeds, {}, device):
            record = known.get((table, run.key))
            if record and record.settings in ("", records.settings_sha256(run.config)):
                continue
            seconds = estimate(table, run)
            found.append(
                Job(table, run, seconds or UNKNOWN_SECONDS, seconds is None, why or _absent(run))
            )
    return sorted(found, key=lambda job: (bool(job.held), job.seconds, job.name))


def recorded(table: str, planned: Sequence[Planned], papers: Path | None = None) -> dict[str, Any]:
    """The recorded results of a table's runs, by the run's key; older tables kept none."""
    known = records.all_of(papers or catalogue.folder())
    found = {}
    for run in planned:
        record = known.get((table, run.key))
        if record is not None and record.settings == records.settings_sha256(run.config):
            found[run.key] = record.result
    return found


def perform(
    wanted: Sequence[Job],
    papers: Path,
    number: int,
    minutes: float | None,
    scratch: Path = Path("runs/reproduce/unrecorded"),
) -> Iterator[tuple[Job, str]]:
    """Make runs, `number` at a time, and record each: (the run, why it failed or "") as they end.

    scratch  where runs lie until they are recorded
    minutes  no run is begun that would end later; what has not ended by then is dropped

    Where no run could be recorded, RunError says so before the first begins.
    """
    records.check_commit(commit(), "the tree")
    until = None if minutes is None else time.monotonic() + 60 * minutes
    named = {job.name: job for job in wanted}

    def fits(run: Planned) -> bool:
        return until is None or time.monotonic() + named[run.key].seconds <= until

    pending = [replace(job.run, key=job.name) for job in wanted]
    for run, failure in jobs.perform(pending, scratch, number, until, fits):
        job = named[run.key]
        if failure is not None:
            yield job, failure.error
            continue
        result = jobs.result(scratch, run)
        try:
            records.write(job.table, job.run, result, command(job), papers)
        except RunError as error:
            yield job, f"{error}. Its result lies in {scratch / 'cells' / run.key}"
        else:
            shutil.rmtree(scratch / "cells" / run.key)
            yield job, ""


def command(job: Job) -> str:
    """What makes this very run again."""
    seeds = job.run.seed + 1
    device = str(job.run.config.get("device", "cpu"))
    parts = ["colonnade", "reproduce", job.table, "--full", "--seeds", str(seeds)]
    return shlex.join([*parts, "--device", device])


class Estimate:
    """Seconds of a run, from those that were recorded on the same kind of device."""

    def __init__(self, known: Iterable[Record]) -> None:
        self._alike: dict[tuple[str, ...], list[float]] = {}
        for record in known:
            for key in _alike(record.table, record.run, record.method, record.device == "cpu"):
                self._alike.setdefault(key, []).append(record.seconds)

    def __call__(self, table: str, run: Planned) -> float | None:
        """None where nothing like it is known."""
        on_cpu = run.config.get("device", "cpu") == "cpu"
        keys = _alike(table, run.key, _method(run), on_cpu)
        return next((median(self._alike[key]) for key in keys if key in self._alike), None)


def _alike(table: str, run: str, method: str, on_cpu: bool) -> list[tuple[str, ...]]:
    """What a run has in common with others, from the most alike to the least."""
    where = "cpu" if on_cpu else "gpu"
    cell = SEED.sub("", run)
    return [("cell", where, table, cell), ("table", where, table, method), ("any", where, method)]


def _method(run: Planned) -> str:
    return str(run.config.get("method", records.STUDIED))


def _chosen(name: str | None) -> list[str]:
    names = catalogue.names()
    chosen = [one for one in names if name is None or one == name or one.startswith(f"{name}-")]
    if not chosen:
        papers = {one.partition("-")[0] for one in names}
        raise RunError(unknown(str(name), [*names, *papers], "", "table"))
    return chosen


def _held(path: Path) -> dict[str, str]:
    """The beginning of a table's name -> why it is held back."""
    if not path.is_file():
        return {}
    return {start: str(entry["why"]) for start, entry in toml.load(path).items()}


def _absent(run: Planned) -> str:
    """Why it cannot be run on this machine."""
    name = str(run.config.get("data", {}).get("name", ""))
    row = next((row for row in datasets.available() if row.name == name), None)
    if row is None or row.status in ("embedded", "here"):
        return ""
    return f"the data set '{name}' is not on this machine"
