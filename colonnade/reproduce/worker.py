"""A process that performs one piece of work after the other: a line of JSON in, one out.

    in   {"config": {…}, "folder": "…/cells/<key>"}
    out  {"error": "", "diverged": false}           or why it failed

It keeps result.json of a run and nothing else: a table needs no weights and no ledger. It ends
when its input ends, at once, so that a stopped command leaves no process behind.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from colonnade.errors import ColonnadeError, Diverged
from colonnade.reproduce import work

KEPT = ("reconstruction.safetensors", "result.json")  # the last makes it count
UNFINISHED = "unfinished"  # beside cells/: runs in progress, and what failed ones left
STARTS = "starts"  # beside cells/: local training that runs have in common


@dataclass(frozen=True)
class Failure:
    """Why a run has no result."""

    error: str
    diverged: bool = False  # with the settings of its row, which is a result, too


def main() -> None:
    """Serve until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever prints must not disturb the answers
    lines: SimpleQueue[str] = SimpleQueue()
    Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        job = json.loads(lines.get())
        failure = train(job["config"], Path(job["folder"])) or Failure("")
        answers.write(json.dumps(asdict(failure)) + "\n")
        answers.flush()


def train(config: dict[str, Any], folder: Path) -> Failure | None:
    """Leave result.json, and pictures if there are any; what went wrong, or nothing."""
    draft = folder.parents[1] / UNFINISHED / folder.name
    shutil.rmtree(draft, ignore_errors=True)
    try:
        work.perform(config, draft, folder.parents[1] / STARTS)
    except ColonnadeError as error:
        return Failure(f"{type(error).__name__}: {error}", isinstance(error, Diverged))
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (draft / name).exists():
            (draft / name).replace(folder / name)
    shutil.rmtree(draft)
    return None


def _listen(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # the command has ended, so nobody would read the result
