"""Labelled places at which a party kills itself: no clean-up, no last word, as a power cut.

A plan lists kills in their order; one is armed when all before it have fired, or together with
the one before it. A file per kill says that it has fired, so each does so once, although the party
is started again.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colonnade.deploy.records import Records
from colonnade.net.mesh import Mesh
from colonnade.privacy.keys import Agreement
from colonnade.role.stopping import Stopping
from colonnade.runtime import checkpoint, control
from colonnade.runtime.checkpoint import OwnCheckpoints
from colonnade.runtime.elastic import Elastic
from colonnade.runtime.fixed import Fixed
from colonnade.runtime.post import Post
from colonnade.runtime.session import Session
from colonnade.wire import Ledger, seals, store

POINTS = {
    "folder: begun": "its folder is there, and is no run yet",
    "folder: made": "its folder says that it is a run, and of nothing else",
    "join: told": "the hub knows what it holds (not the hub itself)",
    "start: heard": "all start, and it has not noted so",
    "start: told": "the hub has told where all begin (the hub only)",
    "start: marked": "it has noted which attempt this is",
    "go back": "what lies behind the common checkpoint is removed",
    "keys: signed": "in the middle of the key agreement (easter)",
    "keys: agreed": "at its end (easter)",
    "ledger: before": "a message is checked, and not recorded",
    "ledger: after": "it is recorded, and has not left",
    "part: before": "the first part of a message is about to leave",
    "part: middle": "some parts of a message have left, and some have not",
    "received": "a message has come in and is recorded",
    "seal: before": "a peer's seal, or its own, is not on the disk yet",
    "seal: after": "it is on the disk, and nobody was told",
    "checkpoint: before": "nothing of a checkpoint is written",
    "checkpoint: middle": "its tensors are on disk, and what makes them count is not",
    "checkpoint: rename": "all of it is written, and the last file not renamed",
    "checkpoint: after": "it is written, and nobody knows",
    "saved: told": "the hub knows",
    "commit: before": "all have it, and nothing older is removed",
    "commit: middle": "some of what is older is removed",
    "verdict: heard": "a verdict is told or heard, and nothing follows yet (patience)",
    "verdict: taken": "it has remembered the weights, or that this epoch is the last (patience)",
    "verdict: ended": "its weights are those of the best epoch, and not saved (patience)",
    "role: ended": "its models are saved, and it has not finished",
    "finish: before": "its last word is not written",
    "finish: middle": "half of its last word is written",
    "finish: after": "its last word is written, and nobody knows",
    "done: told": "the hub knows that it has ended",
    "conclude: before": "all have ended, and its results are not written",
    "conclude: middle": "its result is written, and the run is not marked as finished",
    "conclude: after": "its results are written",
    "end: told": "the hub has told that all have ended (the hub only)",
    "bye: before": "it is about to say that it needs nobody any more (not the hub)",
    "bye: after": "it has said so (not the hub)",
}
AT_A_TIME = "time"  # no place: so many seconds after it was armed


@dataclass(frozen=True)
class Kill:
    point: str
    party: str
    nth: float = 1  # time it passes there while armed; seconds for AT_A_TIME
    together: bool = False  # with the one before it


class Killer:
    """Ends this process where the plan says so."""

    def __init__(self, me: str, kills: Sequence[Kill], folder: Path) -> None:
        self._me, self._kills, self._folder = me, list(kills), folder
        self._passed: Counter[int] = Counter()

    def __call__(self, point: str) -> None:
        for number in self._armed():
            kill = self._kills[number]
            if (kill.point, kill.party) == (point, self._me):
                self._passed[number] += 1
                if self._passed[number] >= kill.nth:
                    self._fire(number)

    def watch_the_time(self) -> None:
        """Kills at a time instead of a place."""

        def watch() -> None:
            while armed := self._armed():
                for number in armed:
                    kill = self._kills[number]
                    if (kill.point, kill.party) == (AT_A_TIME, self._me):
                        time.sleep(kill.nth)
                        self._fire(number)
                time.sleep(0.01)

        threading.Thread(target=watch, daemon=True).start()

    def _armed(self) -> list[int]:
        found: list[int] = []
        for number, kill in enumerate(self._kills):
            if found and not kill.together:
                break
            if not self._mark(number).exists():
                found.append(number)
        return found

    def _fire(self, number: int) -> None:
        content = asdict(self._kills[number]) | {"at": time.time()}
        with self._mark(number).open("x") as file:
            file.write(json.dumps(content))
        os.kill(os.getpid(), signal.SIGKILL)

    def _mark(self, number: int) -> Path:
        return self._folder / f"kill-{number:03d}.json"


def fired(folder: Path) -> list[dict[str, Any]]:
    """The kills that have happened, in their order."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("kill-*.json"))]


def install(hit: Callable[[str], None]) -> None:
    """Make this process pass all points."""
    around = functools.partial(_around, hit)
    around(Ledger, "write", "ledger: before", "ledger: after", when=_leaves)
    around(Mesh, "send_part", "part: before", when=lambda m, to, part, data: not part.offset)
    around(Mesh, "send_part", "part: middle", when=lambda m, to, part, data: part.offset)
    around(Post, "_close", after="received")
    around(seals, "append", "seal: before", "seal: after", when=lambda path, made: made)
    around(OwnCheckpoints, "save", "checkpoint: before", "checkpoint: after")
    around(OwnCheckpoints, "go_back", after="go back")
    around(OwnCheckpoints, "commit", "commit: before")
    around(OwnCheckpoints, "finish", "finish: before", "finish: after")
    around(checkpoint, "_remove", after="commit: middle")
    around(store, "write_tensors", after="checkpoint: middle", when=_of_a_checkpoint)
    around(store, "write_tensors", after="finish: middle", when=_of_the_last_word)
    around(store, "_rename", "checkpoint: rename", when=_makes_it_count)
    around(store, "write_text", after="folder: begun", when=_named("config.toml"))
    around(store, "write_text", after="folder: made", when=_named("run.json"))
    around(store, "write_text", after="conclude: middle", when=_named("result.json"))
    around(Fixed, "checkpoint", after="saved: told")
    around(Elastic, "checkpoint", after="saved: told")
    around(Session, "tell", after="join: told", when=_says(control.Join))
    around(Session, "tell", after="done: told", when=_says(control.Done))
    around(Session, "tell", "bye: before", "bye: after", when=_says(control.Bye))
    around(Session, "tell_all", after="start: told", when=_tells(control.Start))
    around(Session, "tell_all", after="end: told", when=_tells(control.End))
    around(Records, "mark", "start: heard", "start: marked")
    around(Records, "account", after="role: ended")
    around(Records, "conclude", "conclude: before", "conclude: after")
    around(Stopping, "take", "verdict: heard", "verdict: taken")
    around(Stopping, "end", after="verdict: ended")
    around(Agreement, "sign", after="keys: signed")
    around(Agreement, "secrets", after="keys: agreed")


def _around(
    hit: Callable[[str], None],
    owner: Any,
    name: str,
    before: str = "",
    after: str = "",
    when: Callable[..., Any] | None = None,
) -> None:
    setattr(owner, name, _passing(hit, getattr(owner, name), before, after, when))


def _passing(
    hit: Callable[[str], None],
    plain: Callable[..., Any],
    before: str,
    after: str,
    when: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    for point in (before, after):
        assert not point or point in POINTS, point

    @functools.wraps(plain)
    def passing(*given: Any, **named: Any) -> Any:
        counts = when is None or when(*given, **named)
        if counts and before:
            hit(before)
        answer = plain(*given, **named)
        if counts and after:
            hit(after)
        return answer

    return passing


def _leaves(*given: Any, received: bool = False, attempt: int = 0) -> bool:
    return not received


def _of_a_checkpoint(tensors: Any, path: Path) -> bool:
    return path.parent.name == "checkpoints" and path.stem != "finished"


def _of_the_last_word(tensors: Any, path: Path) -> bool:
    return path.parent.name == "checkpoints" and path.stem == "finished"


def _makes_it_count(temporary: Path, path: Path) -> bool:
    return path.parent.name == "checkpoints" and path.suffix == ".json"


def _named(name: str) -> Callable[..., bool]:
    return lambda text, path: path.name == name


def _tells(wanted: type) -> Callable[..., bool]:
    return lambda session, said: isinstance(said, wanted)


def _says(wanted: type) -> Callable[..., bool]:
    return lambda session, peer, said: isinstance(said, wanted) and peer != session.me
