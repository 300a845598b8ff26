"""A mesh of the imagination, and a session on it: no process, no socket, no role."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from colonnade.journal import Journal
from colonnade.net.frame import Control
from colonnade.net.link import Arrived, Up
from colonnade.runtime.checkpoint import OwnCheckpoints
from colonnade.runtime.control import Join, Patience, Start
from colonnade.runtime.session import Membership, Session

MEMBERS = ("bank", "shop", "telco")
RUN = "00000000000000ab"


class FakeLink:
    """Remembers what was said to its peer."""

    def __init__(self, peer: str) -> None:
        self.peer, self.life, self.up, self.since = peer, 1, True, 0.0
        self.trouble = self.move = ""
        self.sent: list[Any] = []
        self.full = 0.0

    def send(self, wait: Any, body: Any, tail: Any = ()) -> None:
        self.sent.append(body)

    def words(self) -> list[str]:
        return [control.word for control in self.sent]

    def life_of(self) -> str:
        return f"life {self.life} of {self.peer}"

    def took(self, event: Any) -> None: ...

    def stuck(self, now: float) -> float:
        return self.full


class FakeMesh:
    def __init__(self, me: str) -> None:
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.links = {peer: FakeLink(peer) for peer in MEMBERS if peer != me}
        self.incarnation, self.barred = b"me", dict[str, str]()

    def start(self) -> None: ...
    def close(self, seconds: float) -> None: ...
    def expect_end(self) -> None: ...

    def bar(self, peer: str, why: str) -> None:
        self.barred[peer] = why

    def refused(self) -> dict[str, int]:
        return {}

    def up(self, peer: str, new: bool = True) -> None:
        self.inbox.put(Up(self.links[peer], new))  # type: ignore[arg-type]

    def say(self, peer: str, word: str, content: Any) -> None:
        control = Control(word, json.dumps(content))
        link: Any = self.links[peer]
        self.inbox.put(Arrived(link, link.life, 1, 1, control, memoryview(b"")))


class Case:
    """A session, its mesh, and what it has noted; it keeps its own records."""

    def __init__(
        self,
        me: str,
        folder: Path,
        membership: Membership,
        run: str = "",
        accounts: Any = None,
        **patience: Any,
    ) -> None:
        self.marks, self.lines = list[int](), list[str]()
        self.admitted = list[tuple[str, int]]()
        self.mesh: Any = FakeMesh(me)
        post: Any = SimpleNamespace(
            refused={},
            unread=lambda: (),
            holds=lambda peer, kind: False,
            admit=lambda peer, run, attempt: self.admitted.append((peer, attempt)),
            ledger=SimpleNamespace(note=lambda text, **more: None),
        )
        self.session = Session(
            me,
            MEMBERS,
            "bank",
            self.mesh,
            post,
            OwnCheckpoints(folder / "checkpoints", lambda: None),
            membership,
            Patience(**patience),
            self,
            self.lines.append,
            Journal(folder / "journal"),
            told={"classes": ["no", "yes"]},
            run=run,
            accounts=accounts,
        )

    def mark(self, start: Start) -> None:
        self.marks.append(start.attempt)

    def publish(self, party: Any) -> None: ...

    def may_lose(self, absent: frozenset[str]) -> str:
        return ""

    def check_account(self, sender: str, told: Any) -> Any:
        return told

    def serve(self) -> None:
        """Take part in a run in which nothing is left to do."""
        with self.session.connected():
            assert self.session.next_start() is None
            self.session.leave()

    def hear(self, sender: str, word: str, content: str = "{}") -> None:
        self.session.hear(sender, Control(word, content))

    def joins(self, peer: str, run: str = "", attempt: int = 0) -> None:
        join = Join(self.mesh.links[peer].life_of(), run, attempt, (), False)
        self.mesh.say(peer, "join", asdict(join))

    def words(self, peer: str) -> list[str]:
        words: list[str] = self.mesh.links[peer].words()
        return words


def start(attempt: int, **more: Any) -> dict[str, Any]:
    return asdict(Start(RUN, attempt, None, **more))
