"""Parties that align their rows, all in one process, with somebody who may change what arrives.

One that fails does not stop the others, and what everybody has sent is kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from colonnade.align import KINDS, Alignment, common_rows
from colonnade.align.lists import Lists
from colonnade.errors import ColonnadeError
from colonnade.role import identity
from colonnade.role.journal import OwnJournal
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task
from colonnade.wire import Kind, Peer, Value, codec

NAMES = ("bank", "clinic", "shop", "tower", "union")
Ids = Mapping[str, Sequence[object]]
# (sender, receiver, Kind, how many of these went before, value): what arrives instead
Tamper = Callable[[str, str, str, int, Any], Any]
Role = Callable[[Party, Sequence[Peer], Sequence[object], Alignment], Any]


@dataclass
class Meeting:
    """
    tamper    what a relay, or a sender that lies, makes of a message
    liars     parties that play a role of their own
    journals  what parties remember of earlier meetings
    """

    tamper: Tamper | None = None
    liars: Mapping[str, Role] = field(default_factory=dict)
    journals: Mapping[str, OwnJournal] = field(default_factory=dict)
    queues: dict[tuple[str, str, str], deque[Value]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    sent: list[tuple[str, str, str, Any]] = field(default_factory=list)
    rows: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, ColonnadeError] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    most_unread: Counter[str] = field(default_factory=Counter)  # messages of a Kind at one party

    def hold(self, ids: Ids, options: Alignment) -> Meeting:
        known = identity.simulated(list(ids), "a session")
        roles: dict[str, Any] = {}
        for name in ids:
            peers = [Peer(other, Line(name, self)) for other in ids if other != name]
            me = party(name)
            me.identity, me.journal = known[name], self.journals.get(name)
            roles[name] = self.liars.get(name, common_rows)(me, peers, ids[name], options)
        wanted: dict[str, Any] = dict.fromkeys(ids)
        moved = True
        while moved:
            moved = False
            for name in [n for n in ids if n not in self.rows and n not in self.errors]:
                while True:
                    answer, want = None, wanted[name]
                    if want is not None:
                        queue = self.queues[want.peers[0].name, name, want.kind.name]
                        if not queue:
                            break
                        answer = queue.popleft()
                    moved = True
                    try:
                        wanted[name] = roles[name].send(answer)
                    except StopIteration as end:
                        assert end.value.dtype == torch.int64
                        self.rows[name] = end.value.tolist()
                        break
                    except ColonnadeError as error:
                        self.errors[name] = error
                        break
        self.waiting = set(ids) - self.rows.keys() - self.errors.keys()
        for role in roles.values():
            role.close()
        return self

    def values(self, kind: str, sender: str = "", receiver: str = "") -> list[Any]:
        """What was sent of a Kind, as it arrived."""
        return [
            value
            for one, other, name, value in self.sent
            if name == kind and sender in ("", one) and receiver in ("", other)
        ]


@dataclass
class Line:
    """A party's wire, through the codec."""

    sender: str
    meeting: Meeting

    def put(self, receiver: str, kind: Kind, value: Value) -> None:
        assert kind in KINDS
        kind.check(value, self.sender)
        meeting, lane = self.meeting, (self.sender, receiver, kind.name)
        value = codec.decode(codec.encode(value))
        before = sum(entry[:3] == lane for entry in meeting.sent)
        if meeting.tamper is not None:
            value = meeting.tamper(*lane, before, value)
        meeting.sent.append((*lane, value))
        meeting.queues[lane].append(value)
        unread = max(meeting.most_unread[kind.name], len(meeting.queues[lane]))
        meeting.most_unread[kind.name] = unread

    def reaches(self, receiver: str) -> bool:
        return True


def party(name: str) -> Party:
    recipe, schedule = Recipe(), Schedule(seed=1, epochs=1, batch_size=1)
    return Party(name, "passive", recipe, schedule, {}, None, Task.of(()), torch.device("cpu"))


def overlapping(size: int, parties: int = 2, seed: int = 0) -> dict[str, list[str]]:
    """Sets of about `size`, of which about half is common to all; each in an order of its own."""
    draw = np.random.default_rng(seed)
    shared = [f"common-{seed}-{i}" for i in range(size - size // 2)]
    ids = {}
    for name in NAMES[:parties]:
        own = [f"{name}-{seed}-{i}" for i in range(size // 2)]
        ids[name] = [(shared + own)[i] for i in draw.permutation(size)]
    return ids


def lying(
    patch: pytest.MonkeyPatch,
    sender: str,
    kind: str,
    number: int,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """This party changes one of its lists before it announces it, so that the signature fits."""
    exchange, send = Lists.exchange, Lists.send
    seen: Counter[str] = Counter()

    def told(self: Lists, of: Kind, array: Any) -> Any:
        if (self.me.name, of.name) != (sender, kind):
            return array
        seen[kind] += 1
        return change(torch.from_numpy(array)).numpy() if seen[kind] == number + 1 else array

    async def exchanged(self: Lists, of: Kind, after: Peer, array: Any, *rest: Any) -> Any:
        return await exchange(self, of, after, told(self, of, array), *rest)

    def sent(self: Lists, of: Kind, peer: Peer, array: Any) -> None:
        send(self, of, peer, told(self, of, array))

    patch.setattr(Lists, "exchange", exchanged)
    patch.setattr(Lists, "send", sent)
