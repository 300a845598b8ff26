"""What is recorded of the papers' full-size runs: one small file for each run, beside its table.

    benchmarks/papers/<paper>/cells/<table>/<run>.json

It is the run's result.json under the key `result`, and how it was obtained. A record names a clean
commit, or it is not written. Older tables in benchmarks/papers/<paper>/results/ list their runs
without the settings: they count as recorded where they name a clean commit, and cannot be filled
into a table again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.errors import RunError
from colonnade.reproduce import work
from colonnade.reproduce.exhibit import Planned
from colonnade.results.result import read_json
from colonnade.wire import store

SCHEMA = 1
KEYS = ("schema", "table", "run", "seed", "settings_sha256", "command", "commit", "result")
CLEAN = re.compile(r"[0-9a-f]{7,40}")
STUDIED = "vfedtrans"  # what a study measures, whose units name no method
HERE = ("device", "name")  # settings that say where a run is made, not what it computes


@dataclass(frozen=True)
class Record:
    """One full-size run that was made."""

    table: str
    run: str
    commit: str
    seconds: float
    device: str
    method: str
    settings: str = ""  # their digest; empty in older tables
    result: Mapping[str, Any] | None = None  # None: an older table kept the numbers alone


def settings_sha256(config: Mapping[str, Any]) -> str:
    """Equal for runs of equal settings, wherever they are made and whatever the code is."""
    decisive = {key: value for key, value in config.items() if key not in HERE}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def write(table: str, run: Planned, result: Mapping[str, Any], command: str, out: Path) -> Path:
    """The record of one run; a commit that nobody can check out again is refused."""
    commit = result["environment"]["commit"]
    check_commit(commit, f"the run {run.key}")
    content = {
        "schema": SCHEMA,
        "table": table,
        "run": run.key,
        "seed": run.seed,
        "settings_sha256": settings_sha256(run.config),
        "command": command,
        "commit": commit,
        "result": result,
    }
    path = place(out, table, run.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", path)
    return path


def check_commit(commit: str, what: str) -> None:
    """RunError unless somebody else can check it out; `what` has it."""
    if not CLEAN.fullmatch(commit):
        raise RunError(
            f"{what} names no clean commit ({commit or 'none'!r}), so nothing of it is recorded. "
            "Commit first; where there is no repository (no .git), set COLONNADE_COMMIT"
        )


def place(papers: Path, table: str, run: str) -> Path:
    """Where the record of a run lies."""
    return papers / table.partition("-")[0] / "cells" / table / f"{run}.json"


def read(path: Path) -> Record:
    """A record; RunError names what is wrong with it."""
    content = read_json(path)
    missing = [key for key in KEYS if key not in content]
    if content.get("schema") != SCHEMA or missing:
        raise RunError(
            f"{path} is not the record of a run: {', '.join(missing) or 'another schema'}"
        )
    if not CLEAN.fullmatch(str(content["commit"])):
        raise RunError(f"{path} names no clean commit: {content['commit']!r}")
    result = content["result"]
    work.check(result)
    if result["environment"]["commit"] != content["commit"]:
        raise RunError(f"{path}: the run was made at {result['environment']['commit']!r}")
    return Record(
        content["table"],
        content["run"],
        content["commit"],
        result["timing"]["seconds_total"],
        result["environment"]["device"],
        str(result.get("method", STUDIED)),
        content["settings_sha256"],
        result,
    )


def all_of(papers: Path) -> dict[tuple[str, str], Record]:
    """The newest way of recording wins: (table, run) -> its record."""
    found = {(record.table, record.run): record for record in _listed(papers)}
    for path in sorted(papers.glob("*/cells/*/*.json")):
        record = read(path)
        found[record.table, record.run] = record
    return found


def _listed(papers: Path) -> Iterator[Record]:
    """The runs that older tables name, of full size and at a clean commit."""
    for path in sorted(papers.glob("*/results/*.json")):
        try:
            content = json.loads(path.read_text("utf-8"))
        except ValueError:
            continue
        if content.get("size") != "full":
            continue
        devices = [one["device"] for one in content.get("environments", [])]
        for run in content.get("runs", []):
            if CLEAN.fullmatch(str(run.get("commit", ""))):
                device = devices[0] if len(devices) == 1 else ""
                method = str(run.get("method", STUDIED))
                seconds = float(run["seconds"])
                yield Record(content["name"], run["key"], run["commit"], seconds, device, method)
