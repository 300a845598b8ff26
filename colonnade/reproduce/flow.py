"""One command, top to bottom: plan, skip what is finished, train the rest, write the table."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colonnade import data as datasets
from colonnade.errors import ColonnadeError, DataMissing, InputError, RunError
from colonnade.reproduce import catalogue, jobs, queue, work, write
from colonnade.reproduce.cells import judged
from colonnade.reproduce.exhibit import Exhibit, Planned, Size, selection
from colonnade.reproduce.page import write_page
from colonnade.reproduce.worker import Failure
from colonnade.results.environment import commit
from colonnade.version import __version__

SCHEMA = 1
MOST_ON_GPU = 4  # by default: more small runs at once only wait for the same device


class Watch:
    """What a display may override; the default displays nothing."""

    def note(self, text: str) -> None: ...

    def began(self, total: int, reused: int) -> None: ...

    def ended(self, run: Planned, result: Mapping[str, Any] | None, error: str) -> None: ...

    def closed(self) -> None: ...


@dataclass(frozen=True)
class Request:
    """What the command line says."""

    name: str
    size: Size = "fast"
    seeds: int | None = None  # None: as the table says
    only: tuple[str, ...] = ()
    jobs: int | None = None  # None: one per core
    device: str | None = None  # None: cpu for fast; cuda for full where there is one
    out: Path | None = None  # None: runs/reproduce/<name>-<size>
    reuse: tuple[Path, ...] = ()  # folders of other reproductions
    recorded: bool = False  # fill the table from the records, and train nothing

    def command(self) -> str:
        """The same as text, to be run again."""
        parts = ["colonnade", "reproduce", self.name, f"--{self.size}"]
        for option in ("seeds", "jobs", "device", "out"):
            if getattr(self, option) is not None:
                parts += [f"--{option}", str(getattr(self, option))]
        for option in ("reuse", "only"):
            if getattr(self, option):
                parts += [f"--{option}", *map(str, getattr(self, option))]
        parts += ["--recorded"] * self.recorded
        return shlex.join(parts)


def reproduce(request: Request, watch: Watch | None = None) -> tuple[dict[str, Any], Path]:
    """Fill the table as far as possible; its content and the folder it lies in."""
    watch = watch or Watch()
    commit()  # a wrong COLONNADE_COMMIT is reported now, not after the first training
    # 1. What is to be run.
    exhibit = catalogue.find(request.name)
    mode = exhibit.fast if request.size == "fast" else exhibit.full
    seeds = mode.seeds if request.seeds is None else request.seeds
    device = request.device or device_for(request.size)
    only = selection(request.only, exhibit)
    planned = exhibit.plan(request.size, seeds, only, device)
    planned, skipped = (planned, []) if request.recorded else _on_this_machine(planned)
    for text in skipped:
        watch.note(text)
    out = request.out or Path("runs/reproduce") / f"{Path(request.name).stem}-{request.size}"
    # 2. What is finished already, here or in another folder.
    digests, failures = _digests(planned)
    known = _known((*request.reuse, out))
    results = {key: known[digest] for key, digest in digests.items() if digest in known}
    if request.recorded:
        _check_recorded(request)
        results, failures = queue.recorded(request.name, planned), {}
    if not results and not digests:
        raise RunError(f"no run can be made: {next(iter(failures.values())).error}")
    # 3. The rest.
    try:
        if not request.recorded:
            _perform(planned, results, failures, out, request.jobs or jobs_for(device), watch)
    except KeyboardInterrupt as stop:
        stop.add_note(f"{len(results)} of {len(planned)} runs are kept in {out}")
        stop.add_note(f"go on with: {request.command()}")
        raise
    finally:
        watch.closed()
    # 4. The table.
    filled = exhibit.fill(planned, results, request.size == "full")
    content = {
        **_head(exhibit, request, seeds),
        "commits": sorted({run["commit"] for run in filled.runs if run["commit"]}),
        "environments": _environments(results),
        "settings": _settings(exhibit, request.size),
        "cells": [asdict(cell) for cell in filled.cells],
        "claims": judged(exhibit.claims, filled.cells),
        "runs": list(filled.runs),
        "communication": list(filled.communication),
        "fits": list(filled.fits),
        "drawn": list(filled.drawn),
        "failures": [{"run": key, **asdict(failure)} for key, failure in failures.items()],
        "skipped": skipped,
        "notes": list(exhibit.notes),
    }
    write.write(content, out)
    write_page(content, out / "report.html")
    return content, out


def _check_recorded(request: Request) -> None:
    if request.size != "full" or request.name not in catalogue.names():
        raise RunError(
            "--recorded fills a paper's table from benchmarks/papers: give its name and --full"
        )


def _known(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Finished results by digest; the last folder is our own, which may be empty as yet."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders[:-1]:
        if not (folder / "cells").is_dir():
            raise RunError(f"--reuse {folder}: it has no cells/, so it holds no reproduced table")
    for folder in folders:
        found |= jobs.finished(folder)
    return found


def _perform(
    planned: Sequence[Planned],
    results: dict[str, Any],
    failures: dict[str, Failure],
    out: Path,
    number: int,
    watch: Watch,
) -> None:
    """Make the runs that have neither a result nor a failure, and add what becomes of them."""
    pending = [run for run in planned if run.key not in results and run.key not in failures]
    watch.began(len(planned), len(results))
    for run in planned:
        if run.key in failures:
            watch.ended(run, None, failures[run.key].error)
    for run, failure in jobs.perform(_in_order(pending), out, number):
        if failure is not None:
            failures[run.key] = failure
        else:
            results[run.key] = jobs.result(out, run)
        watch.ended(run, results.get(run.key), "" if failure is None else failure.error)


def _head(exhibit: Exhibit, request: Request, seeds: int) -> dict[str, Any]:
    """What table.json begins with: what was asked for."""
    mode = exhibit.fast if request.size == "fast" else exhibit.full
    return {
        "schema": SCHEMA,
        "name": Path(request.name).stem,
        "title": exhibit.title,
        "kind": exhibit.kind,
        "against": exhibit.against,
        "paper": exhibit.paper,
        "size": request.size,
        "comparable": request.size == "full",
        "note": mode.note,
        "unit": "percent; dB for the metric psnr",
        "seeds": list(range(seeds)),
        "command": request.command(),
        "colonnade": __version__,
    }


def check(content: Mapping[str, Any], out: Path) -> None:
    """Raise unless every run could be made; the table has been written by then.

    A training that diverges with the settings of its row is a result, and leaves a gap too.
    """
    if failures := [failure for failure in content["failures"] if not failure["diverged"]]:
        first = failures[0]
        raise ColonnadeError(
            f"{len(failures)} of {len(failures) + len(content['runs'])} runs failed and left gaps "
            f"in {out / 'table.md'}: {first['run']}: {first['error']}. The same command tries "
            "them again"
        )


def device_for(size: Size) -> str:
    """Where runs of this size are made, unless the command says otherwise."""
    import torch

    return "cuda" if size == "full" and torch.cuda.is_available() else "cpu"


def jobs_for(device: str) -> int:
    """How many runs are made at once, unless the command says otherwise."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST_ON_GPU) if device == "cuda" else cores or 1


def _on_this_machine(planned: Sequence[Planned]) -> tuple[list[Planned], list[str]]:
    """The runs whose data set is here, and a sentence for each that is not."""
    known = {row.name: row for row in datasets.available()}
    absent: dict[str, str] = {}
    for run in planned:
        label, row = run.place.data, known.get(run.config.get("data", {}).get("name", ""))
        if row is None or row.status in ("embedded", "here"):
            continue
        fetched = row.status == "can be fetched"
        how = f"run: colonnade data fetch {row.name}" if fetched else f"place {row.where}"
        absent[label] = (
            f"{label} is omitted: the data set '{row.name}' is not on this machine. To get it, "
            f"{how}; or set COLONNADE_DATA to the folder that has it"
        )
    here = [run for run in planned if run.place.data not in absent]
    if not here:
        raise DataMissing("\n".join(["nothing can be run", *absent.values()]))
    return here, list(absent.values())


def _digests(planned: Sequence[Planned]) -> tuple[dict[str, str], dict[str, Failure]]:
    """The hash of every configuration by the run's key; what is wrong with the others."""
    digests, failures = {}, dict[str, Failure]()
    for run in planned:
        try:
            digests[run.key] = work.digest(run.config)
        except InputError as error:
            failures[run.key] = Failure(f"{type(error).__name__}: {error}")
    return digests, failures


def _in_order(pending: Sequence[Planned]) -> list[Planned]:
    """One run of each shared start first: parallel runs then seldom train the same start twice."""
    begun, later, seen = list[Planned](), list[Planned](), set[str]()
    for run in pending:
        start = work.start(run.config)
        (later if start in seen else begun).append(run)
        seen |= {start} - {""}
    return begun + later


def _environments(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Where the runs were made; usually one place."""
    found: list[dict[str, Any]] = []
    for result in results.values():
        environment = {k: v for k, v in result["environment"].items() if k != "commit"}
        if environment not in found:
            found.append(environment)
    return found


def _settings(exhibit: Exhibit, size: Size) -> dict[str, Any]:
    """The table's file, without the paper's numbers and the other size."""
    plain = asdict(exhibit)
    left = {"numbers", "notes", "claims", "title", "kind", "against", "show", "paper", "expected"}
    left |= {"fast", "full", "drawn"}
    return {k: v for k, v in plain.items() if k not in left} | {size: plain[size]}
