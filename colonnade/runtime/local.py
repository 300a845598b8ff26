"""All parties in one process, one after the other, always in the same order.

A role runs until it waits for a message that is not there; then the next role that has its
message goes on. Each party's random numbers and gradient mode are swapped in and out around it,
so dropout and initialisation draw the same bits as in a process of their own.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.errors import ColonnadeError, Deadlock, PeerLost, RoleFailed
from colonnade.role.party import Party
from colonnade.role.seeds import derive, random_state, set_random_state
from colonnade.runtime.drive import failed, handed_over, where
from colonnade.runtime.post import Post, Sealed, Turn
from colonnade.wire import Kind, Ledger, Message, Peer, Recv, Value, Wire, codec
from colonnade.wire.gate import Gate
from colonnade.wire.record import Recorder

Start = Callable[[Party, Wire], Coroutine[Any, Any, Any]]


@dataclass
class Mailboxes:
    """The transport within one process, and the things its parties share: Kinds, ledger and posts.
    It holds no party, so none can be reached through it."""

    kinds: Mapping[str, Kind]
    ledger: Ledger
    strict: bool = False  # every value passes through the codec
    recorder: Recorder | None = None
    gates: Mapping[str, Gate] = field(default_factory=dict)  # parties that have a policy
    posts: dict[str, Post] = field(default_factory=dict)
    ready: deque[str] = field(default_factory=deque)  # who can go on
    # (sender, receiver, Kind): messages received in another epoch than they were sent in
    crossed: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def open(self, names: Collection[str]) -> None:
        """A post for every party."""
        members = frozenset(names)
        for name in names:
            gate = self.gates.get(name)
            post = Post(name, members, self.kinds, self.ledger, gate, self)
            post.begin(0, self.ledger.attempt)
            self.posts[name] = post

    def seal(self, message: Message, size: int) -> Sealed:
        if not self.strict:
            return size, None, ()
        data = codec.encode(message.value)
        message.value = codec.decode(data)
        return len(data), hashlib.sha256(data).digest(), ()

    def send(self, message: Message, sealed: Sealed, row: int, turn: Turn) -> None:
        if self.recorder is not None:
            self.recorder.keep(row, message)
        lane = self.posts[message.receiver].lane(message.sender, message.kind.name)
        lane.queue.append(message)
        if lane.awaited:
            lane.awaited = False
            self.ready.append(message.receiver)

    def warnings(self, elastic: bool = False) -> list[str]:
        """The warnings about a method's messages once it has ended.

        elastic  the parties need not be in one epoch: one sentence reports all differences
        """
        unreceived = [line for post in self.posts.values() for line in post.leftover()]
        if elastic and self.crossed:
            text = "the parties were not in one epoch all the time: a resumed run may differ"
            return [text, *unreceived]
        found = [
            f"{count} of the messages '{kind}' from '{sender}' to '{receiver}' were received in "
            "another epoch than they were sent in: a resumed run may differ"
            for (sender, receiver, kind), count in self.crossed.items()
        ]
        return found + unreceived


class Outbox:
    """One party's end of the wire."""

    __slots__ = ("_party", "_post")

    def __init__(self, party: Party, post: Post) -> None:
        self._party, self._post = party, post

    def put(self, receiver: str, kind: Kind, value: Value) -> None:
        self._post.put(self._party, receiver, kind, value)

    def reaches(self, receiver: str) -> bool:
        return True


@dataclass(eq=False)
class Task:
    """A role under way."""

    party: Party
    post: Post
    role: Coroutine[Any, Any, Any]
    random: dict[str, Tensor]
    wanted: Recv | None = None
    gradients: bool = True  # torch's gradient mode inside this role
    finished: bool = False
    lost: bool = False
    result: Any = None


def run(
    parties: Mapping[str, Party],
    start: Start,
    mail: Mailboxes,
    lose: Mapping[str, int] | None = None,
    finished: Callable[[Party], None] | None = None,
) -> dict[str, Any]:
    """Start every party's role and run all to their end; returns their results by name.

    lose={"shop": 12} makes 'shop' vanish after 12 training steps, to rehearse the loss of a peer.
    `finished` is called for every role that ends.
    """
    outer = {party.device: random_state(party.device) for party in parties.values()}
    scheduler = _Scheduler(parties, start, mail, lose or {}, finished)
    try:
        # One thread for all backward passes: many small ones would each wait for a worker.
        with torch.autograd.set_multithreading_enabled(False):
            return scheduler.run()
    finally:
        scheduler.close()
        for device, state in outer.items():
            set_random_state(state, device)
        torch.set_grad_enabled(True)


class _Scheduler:
    def __init__(
        self,
        parties: Mapping[str, Party],
        start: Start,
        mail: Mailboxes,
        lose: Mapping[str, int],
        finished: Callable[[Party], None] | None,
    ) -> None:
        self.mail, self.lose, self.finished = mail, lose, finished
        mail.open(parties)
        self.tasks: dict[str, Task] = {}
        for name, party in parties.items():
            torch.manual_seed(derive(party.schedule.seed, "party", name))
            try:
                role = start(party, Outbox(party, mail.posts[name]))
            except ColonnadeError:
                self.close()
                raise
            self.tasks[name] = Task(party, mail.posts[name], role, random_state(party.device))
        mail.ready.extend(parties)

    def run(self) -> dict[str, Any]:
        while True:
            while self.mail.ready:
                self._resume(self.tasks[self.mail.ready.popleft()])
            unfinished = [task for task in self.tasks.values() if not task.finished]
            if not unfinished:
                return {name: task.result for name, task in self.tasks.items()}
            if not (self._tell_of_a_loss(unfinished) or self._answer_first_comer(unfinished)):
                raise Deadlock(_deadlock(unfinished, self.tasks))

    def close(self) -> None:
        """End the roles that did not reach their own end."""
        for task in self.tasks.values():
            task.role.close()

    def _resume(self, task: Task) -> None:
        """Run a role until it waits for a message that is not there, or ends."""
        if task.finished:
            return
        answer: Any = None
        if task.wanted is not None:  # woken because its message came
            message = task.post.take(task.wanted.peers[0].name, task.wanted.kind)
            answer = self._accept(task, message)
        self._run(task, task.role.send, answer)

    def _run(self, task: Task, request: Callable[[Any], Recv], answer: Any) -> None:
        party = task.party
        set_random_state(task.random, party.device)
        if not task.gradients:
            torch.set_grad_enabled(False)
        try:
            while True:
                wanted = request(answer)
                request = task.role.send
                if wanted.any:
                    break  # decided by the clock, when nobody else can go on
                lane = task.post.lane(wanted.peers[0].name, wanted.kind.name)
                if not lane.queue:
                    lane.awaited = True
                    break
                answer = self._accept(task, lane.queue.popleft())
            task.wanted = wanted
        except StopIteration as end:
            task.finished, task.result, task.wanted = True, end.value, None
            party.checks.settle(())  # what was sent since the last epoch, on a GPU
            if self.finished is not None:
                self.finished(party)
        except ColonnadeError as error:
            error.add_note(where(party, task.role, error))
            raise
        except Exception as error:
            raise failed(party, task.role, error) from error
        finally:
            task.random = random_state(party.device)
            task.gradients = torch.is_grad_enabled()
            if not task.gradients:
                torch.set_grad_enabled(True)
        if self.mail.strict and (torch.is_inference_mode_enabled() or torch.is_autocast_enabled()):
            raise RoleFailed(
                f"'{party.name}' waits for a peer inside inference_mode or autocast, which would "
                "leak into other parties: close it before `await`, or use me.evaluating()"
            )
        if (
            party.name in self.lose
            and party.progress.steps >= self.lose[party.name]
            and not task.finished
        ):
            task.role.close()
            task.finished = task.lost = True

    def _accept(self, task: Task, message: Message | None) -> Value:
        assert message is not None
        party = task.party
        phase, epoch, _ = party.position
        if phase and message.phase != "setup" and message.epoch != epoch:
            self.mail.crossed[message.sender, party.name, message.kind.name] += 1
        party.progress.clock = max(party.progress.clock, message.at)
        return handed_over(message, party)

    def _tell_of_a_loss(self, unfinished: list[Task]) -> bool:
        """Throw PeerLost into the first role that waits only for parties that are gone."""
        for task in unfinished:
            wanted = task.wanted
            if wanted is None or not all(self.tasks[peer.name].lost for peer in wanted.peers):
                continue
            if any(task.post.holds(peer.name, wanted.kind) for peer in wanted.peers):
                continue
            peer, party = wanted.peers[0], task.party
            task.post.lane(peer.name, wanted.kind.name).awaited = False
            loss = PeerLost(
                party.name, peer.name, wanted.kind.name, party.progress.steps, "it is gone"
            )
            task.wanted = None
            self._run(task, task.role.throw, loss)
            return True
        return False

    def _answer_first_comer(self, unfinished: list[Task]) -> bool:
        """Nobody else can go on: answer the `recv_any` whose virtual time comes first."""
        best: tuple[float, int] | None = None
        choice: tuple[Task, Peer | None] | None = None
        for order, task in enumerate(unfinished):
            wanted = task.wanted
            if wanted is None or not wanted.any:
                continue
            now = task.party.progress.clock
            deadline = None if wanted.within is None else now + wanted.within
            arrivals = [
                (max(now, message.at), peer)
                for peer in wanted.peers
                if (message := task.post.first(peer.name, wanted.kind)) is not None
            ]
            first = min(arrivals, key=lambda pair: pair[0], default=None)
            if first is not None and (deadline is None or first[0] <= deadline):
                moment, peer = first
            elif deadline is not None:
                moment, peer = deadline, None
            else:
                continue
            if best is None or (moment, order) < best:
                best, choice = (moment, order), (task, peer)
        if best is None or choice is None:
            return False
        task, peer = choice
        assert task.wanted is not None
        task.party.progress.clock = best[0]
        answer = None
        if peer is not None:
            message = task.post.take(peer.name, task.wanted.kind)
            answer = (peer, self._accept(task, message))
        task.wanted = None
        self._run(task, task.role.send, answer)
        return True


def _waiting_line(role: Any) -> str:
    """Where a role waits: the innermost `await` of its own file."""
    while getattr(role.cr_await, "cr_frame", None) is not None:
        role = role.cr_await
    frame = role.cr_frame
    return f" ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})" if frame else ""


def _deadlock(unfinished: list[Task], tasks: Mapping[str, Task]) -> str:
    waits = []
    for task in unfinished:
        assert task.wanted is not None
        names = [peer.name for peer in task.wanted.peers]
        ended = [name for name in names if tasks[name].finished]
        waits.append(
            f"{task.party.name} waits for '{task.wanted.kind.name}' from {' or '.join(names)}"
            + (f" (and {' and '.join(ended)} has ended)" if ended else "")
            + _waiting_line(task.role)
        )
    return "; ".join(waits)
