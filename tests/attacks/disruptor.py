"""A certified member that disturbs: patches what a plan says, then is `colonnade party` as it is.
Every process notes how much memory it had at most, above what it had when it began.

python disruptor.py '{"folder": …, "party3": ["ignore_windows"], "patched": {"net.link.X": 1}}' …
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colonnade.cli.main import main as colonnade
from colonnade.net import link
from colonnade.net.frame import Control
from colonnade.runtime.control import MORE, WORD_BYTES
from colonnade.runtime.session import Session


def main(arguments: Sequence[str]) -> int:
    plan = json.loads(arguments[0])
    me = arguments[arguments.index("--name") + 1]
    for name, value in plan.get("patched", {}).items():
        module, _, key = name.rpartition(".")
        setattr(importlib.import_module(f"colonnade.{module}"), key, value)
    for disturbance in plan.get(me, ()):
        globals()[disturbance]()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory()
    noted = Path(plan["folder"]) / f"{me}.peak"

    def note() -> None:
        while True:  # it may be killed at any time
            noted.with_suffix(".new").write_text(str(memory() - before))
            noted.with_suffix(".new").rename(noted)
            time.sleep(0.05)

    threading.Thread(target=note, daemon=True).start()
    return colonnade(["party", *arguments[1:]])


def memory() -> float:
    """MB that this process has held at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError("VmHWM")


# ---- floods --------------------------------------------------------------------------------------


def ignore_windows() -> None:
    """Send on, whatever the other end has taken in."""
    link.Link._full = lambda *_: False  # type: ignore[method-assign]


def never_finish_a_word() -> None:
    """Pieces of a word that has no end, once all have begun."""

    def flood(session: Session) -> None:
        said: Any = Control(f"{MORE}done", "x" * WORD_BYTES)
        for _ in range(600):
            session.mesh.links[session.hub].send(session._no_room, said)

    _once_it_plays(flood)


# ---- words ---------------------------------------------------------------------------------------


def join_a_fellow() -> None:
    """Say to another passive party what only the hub is told."""

    def say(session: Session) -> None:
        for peer in session.mesh.links:
            if peer != session.hub:
                session.tell(peer, session.join())

    _once_it_plays(say)


def _once_it_plays(what: Any) -> None:
    plain = Session.play

    def play(session: Session, *rest: Any) -> Any:
        what(session)
        return plain(session, *rest)

    Session.play = play  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
