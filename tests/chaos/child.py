"""A party with faults: installs what a plan says, then is `colonnade party` as it is.

python child.py PLAN --federation …
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import intercept
import points
from intercept import Noise
from points import Kill

from colonnade.cli.main import main as colonnade
from colonnade.runtime.network import Network
from colonnade.runtime.session import Session


@dataclass(frozen=True)
class Plan:
    """What goes wrong, in which process."""

    kills: Sequence[Kill] = ()
    noise: Noise | None = None
    part_bytes: int = 0  # cut messages into so small parts; 0: as usual
    patched: Mapping[str, Any] = field(default_factory=dict)  # {"runtime.watch.STUCK_SECONDS": 1.0}
    largest_file: Mapping[str, int] = field(default_factory=dict)  # by party: then its disk is full

    def write(self, folder: Path) -> Path:
        """To the folder in which the processes also say what has happened."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "plan.json"
        path.write_text(json.dumps(dataclasses.asdict(self)))
        return path


def read(path: Path) -> Plan:
    tree = json.loads(path.read_text())
    noise = tree.pop("noise")
    kills = [Kill(**kill) for kill in tree.pop("kills")]
    return Plan(kills, Noise(**noise) if noise else None, **tree)


def main(arguments: Sequence[str]) -> int:
    if arguments[0] == "supervise":
        return _supervise(*json.loads(arguments[1]))
    path = Path(arguments[0])
    plan, folder = read(path), path.parent
    me = arguments[arguments.index("--name") + 1]
    note(folder, me, "born", pid=os.getpid())
    for name, value in plan.patched.items():
        module, _, key = name.rpartition(".")
        setattr(importlib.import_module(f"colonnade.{module}"), key, value)
    if plan.part_bytes:
        _cut_small(plan.part_bytes)
    if plan.noise is not None:
        done = intercept.install(me, plan.noise)
    if plan.kills:
        killer = points.Killer(me, plan.kills, folder)
        points.install(killer)
        killer.watch_the_time()
    if me in plan.largest_file:
        most = plan.largest_file[me]
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    _note_starts(folder, me)
    code = colonnade(["party", *arguments[1:]])
    note(folder, me, "end", code=code, noise=dict(done) if plan.noise is not None else {})
    return code


def _supervise(tree: Mapping[str, Any], program: Sequence[str]) -> int:
    """All parties of a run, in a process that can be interrupted and killed itself."""
    from federations import Options, run

    try:
        run(tree, out="run", runtime="process", processes=Options(program=tuple(program)))
    except KeyboardInterrupt as stop:
        sys.stderr.write("\n".join(stop.__notes__))
        return 130
    return 0


def note(folder: Path, party: str, what: str, **more: Any) -> None:
    """One line, whole, whoever else writes."""
    line = json.dumps({"party": party, "what": what, "at": time.time(), **more}) + "\n"
    descriptor = os.open(folder / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def events(folder: Path) -> list[dict[str, Any]]:
    """What the processes of a plan have noted."""
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _note_starts(folder: Path, me: str) -> None:
    plain = Session.next_start

    def next_start(session: Session) -> Any:
        start = plain(session)
        if start is not None:
            note(folder, me, "start", attempt=start.attempt, label=start.label)
        return start

    Session.next_start = next_start  # type: ignore[method-assign]


def _cut_small(most: int) -> None:
    plain = Network.__init__

    def init(network: Network, mesh: Any) -> None:
        plain(network, mesh, most)

    Network.__init__ = init  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
