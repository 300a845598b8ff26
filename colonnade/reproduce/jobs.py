"""Performs several runs at once, each in its own process; finished runs are never repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import IO, Any

from colonnade.errors import RunError
from colonnade.reproduce import work
from colonnade.reproduce.exhibit import Planned
from colonnade.reproduce.worker import UNFINISHED, Failure
from colonnade.results.result import read_json

LOG = "workers.log"
PROGRAM = "from colonnade.reproduce import worker; worker.main()"


def finished(folder: Path) -> dict[str, dict[str, Any]]:
    """The results below folder/cells by the hash of their configuration."""
    found = {}
    for path in sorted(folder.glob("cells/*/result.json")):
        try:
            content = read_json(path)
            work.check(content)
        except RunError:
            continue  # of another version, or damaged: it is trained again
        if content.get("status") == "finished":
            found[content["config_sha256"]] = content
    return found


def result(folder: Path, run: Planned) -> dict[str, Any]:
    """What a finished run left."""
    return read_json(folder / "cells" / run.key / "result.json")


def perform(
    pending: Sequence[Planned],
    folder: Path,
    jobs: int,
    until: float | None = None,
    fits: Callable[[Planned], bool] = lambda run: True,
) -> Iterator[tuple[Planned, Failure | None]]:
    """Train all of `pending`, `jobs` at a time: (run, why it failed or None) as they end.

    until  by time.monotonic(): runs that have not ended by then are ended
    fits   asked when a run's turn has come; a run that does not fit is left out

    A caller that stops asking, or Ctrl-C, ends the processes; finished runs stay.
    """
    waiting: SimpleQueue[Planned] = SimpleQueue()
    for run in pending:
        waiting.put(run)
    ended: SimpleQueue[tuple[Planned, Failure | None] | None] = SimpleQueue()
    stop, workers = Event(), list[subprocess.Popen[str]]()
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    log = (folder / LOG).open("a", encoding="utf-8")
    threads = [
        Thread(target=_serve, args=(waiting, ended, folder, log, stop, workers, fits))
        for _ in range(min(jobs, len(pending)))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in pending:
            left = None if until is None else max(0.0, until - time.monotonic())
            one = ended.get(timeout=left)
            if one is not None:
                yield one
    except Empty:
        pass  # the time is over
    finally:
        stop.set()
        for worker in list(workers):
            worker.kill()
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.communicate()  # reaps it and closes its pipes
        log.close()
        _tidy(folder)


def _tidy(folder: Path) -> None:
    """A log or a folder for what failed stays only if there is something in it."""
    if not (folder / LOG).stat().st_size:
        (folder / LOG).unlink()
    with suppress(OSError):
        (folder / UNFINISHED).rmdir()


def _serve(
    waiting: SimpleQueue[Planned],
    ended: SimpleQueue[tuple[Planned, Failure | None] | None],
    folder: Path,
    errors: IO[str],
    stop: Event,
    workers: list[subprocess.Popen[str]],
    fits: Callable[[Planned], bool],
) -> None:
    """One worker at a time for all it can get; one that dies takes only its own run with it."""
    worker: subprocess.Popen[str] | None = None
    while not stop.is_set():
        try:
            run = waiting.get_nowait()
        except Empty:
            break
        if not fits(run):
            ended.put(None)
            continue
        if worker is None or worker.poll() is not None:
            worker = _start(errors)
            workers.append(worker)
            if stop.is_set():  # too late to be among those that were ended
                worker.kill()
        ended.put((run, _ask(worker, run.config, folder / "cells" / run.key)))
    if worker is not None:
        worker.kill()


def _start(errors: IO[str]) -> subprocess.Popen[str]:
    # Threads that spin while they wait slow a busy machine down; see the Makefile.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    # The very package that runs here, wherever the command was started (-P: not from there).
    source = os.fspath(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (source, environment.get("PYTHONPATH")))
    )
    return subprocess.Popen(
        (sys.executable, "-P", "-c", PROGRAM),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
        start_new_session=True,  # Ctrl-C is ours to handle, not the workers'
    )


def _ask(worker: subprocess.Popen[str], config: Mapping[str, Any], folder: Path) -> Failure | None:
    assert worker.stdin is not None and worker.stdout is not None
    answer = ""
    try:
        worker.stdin.write(json.dumps({"config": config, "folder": str(folder)}) + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
    except (OSError, ValueError):  # it is gone, or was stopped
        pass
    if answer:
        failure = Failure(**json.loads(answer))
        return failure if failure.error else None
    code = worker.wait()
    return Failure(f"its process ended with code {code}; see {folder.parents[1] / LOG}")
