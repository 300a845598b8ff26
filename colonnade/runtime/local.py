"""All parties in one process, one after the other, always in the same order.

A role runs until it waits for a message that is not there; then the next role that has its
message goes on. Each party's random numbers and gradient mode are swapped in and out around it,
so dropout and initialisation draw the same bits as in a process of their own.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.errors import ColonnadeError, Deadlock, KindError, PeerLost, RoleFailed
from colonnade.role.party import Party
from colonnade.role.seeds import derive, random_state, set_random_state
from colonnade.runtime.drive import failed, to_device, where
from colonnade.wire import Kind, Ledger, Message, Peer, Recv, Value, Wire, codec
from colonnade.wire.ledger import describe
from colonnade.wire.record import Recorder

Key = tuple[str, str, str]  # sender, receiver, Kind
Start = Callable[[Party, Wire], Coroutine[Any, Any, Any]]


@dataclass(slots=True)
class Lane:
    """Messages of one Kind from one party to another, on their way."""

    queue: deque[Message] = field(default_factory=deque)
    sent: int = 0
    taken: int = 0
    waiter: str = ""  # the party to wake when something comes


@dataclass
class Mailboxes:
    """All lanes, and who can go on; holds no party, so none can be reached through it."""

    kinds: Mapping[str, Kind]
    ledger: Ledger
    strict: bool = False  # every value passes through the codec
    recorder: Recorder | None = None
    lanes: dict[Key, Lane] = field(default_factory=dict)
    ready: deque[str] = field(default_factory=deque)
    # A tensor of a shape and dtype that was checked before on this lane needs no second look.
    known: dict[tuple[Any, ...], tuple[Lane, str, int]] = field(default_factory=dict)
    crossed: dict[Key, int] = field(default_factory=dict)  # received in a later epoch than sent

    def lane(self, key: Key) -> Lane:
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane()
        return lane

    def post(self, message: Message) -> None:
        """Record a message, then deliver it."""
        value = message.value
        if isinstance(value, Tensor) and not value.requires_grad and value.layout is torch.strided:
            sort = (message.sender, message.receiver, message.kind, value.shape, value.dtype)
            found = self.known.get(sort)
            if found is None:
                found = self.known[sort] = self._check(message)
        else:
            found = self._check(message)
        lane, description, size = found
        message.sequence = lane.sent
        lane.sent += 1
        digest = None
        if self.strict:
            data = codec.encode(value)
            digest = hashlib.sha256(data).hexdigest()
            message.value = codec.decode(data)
            size = len(data)
        row = self.ledger.write(message, description, size, digest)
        if self.recorder is not None:
            self.recorder.keep(row, message)
        lane.queue.append(message)
        if lane.waiter:
            self.ready.append(lane.waiter)
            lane.waiter = ""

    def _check(self, message: Message) -> tuple[Lane, str, int]:
        """Refuse what the method does not declare; else the lane, and what the ledger will say."""
        kind = message.kind
        kind.check(message.value, message.sender)
        if self.kinds.get(kind.name) is not kind:
            raise KindError(
                f"'{message.sender}' sent '{kind.name}', which the method does not declare: "
                "add it to the kinds of its METHOD"
            )
        lane = self.lane((message.sender, message.receiver, kind.name))
        return lane, describe(message), codec.size(message.value)

    def warnings(self, loose: bool = False) -> list[str]:
        """What a method should know about its messages once it has ended.

        loose  its parties need not be in one epoch: that they were not is worth one sentence
        """
        if loose and self.crossed:
            text = "the parties were not in one epoch all the time: a resumed run may differ"
            return [text, *self._unreceived()]
        found = [
            f"{count} of the messages '{kind}' from '{sender}' to '{receiver}' were received in "
            "another epoch than they were sent in: a resumed run may differ"
            for (sender, receiver, kind), count in self.crossed.items()
        ]
        return found + self._unreceived()

    def _unreceived(self) -> list[str]:
        return [
            f"{len(lane.queue)} messages '{kind}' from '{sender}' to '{receiver}' were never "
            "received"
            for (sender, receiver, kind), lane in self.lanes.items()
            if lane.queue
        ]

    def first(self, key: Key) -> Message | None:
        queue = self.lane(key).queue
        return queue[0] if queue else None

    def take(self, key: Key) -> Message | None:
        """The next message, if it is there, in the order it was sent."""
        lane = self.lane(key)
        if not lane.queue:
            return None
        message = lane.queue.popleft()
        if message.sequence != lane.taken:
            raise RoleFailed(f"{key}: message {message.sequence} came where {lane.taken} was due")
        lane.taken += 1
        return message


class Outbox:
    """One party's end of the wire."""

    __slots__ = ("_mail", "_members", "_party")

    def __init__(self, party: Party, members: frozenset[str], mail: Mailboxes) -> None:
        self._party, self._members, self._mail = party, members, mail

    def put(self, receiver: str, kind: Kind, value: Value) -> None:
        me = self._party
        if receiver not in self._members or receiver == me.name:
            raise KindError(f"'{me.name}' sent '{kind.name}' to '{receiver}', which is no peer")
        _, epoch, step = me.position
        # Rounds are those of training: keys agreed on anew after a resume must not shift them.
        hop = me.progress.hop + (me.progress.phase == "train" and not kind.paces)
        self._mail.post(
            Message(
                me.name,
                receiver,
                kind,
                value,
                0,
                me.progress.phase,
                epoch,
                step,
                hop,
                me.progress.clock,
            )
        )

    def reaches(self, receiver: str) -> bool:
        return True


@dataclass(eq=False)
class Task:
    """A role under way."""

    party: Party
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
    """Start every party's role and run them all to their end; what each returned, by name.

    lose={"shop": 12} makes 'shop' vanish when it has taken 12 training steps: a rehearsal of
    what a lost peer does to the others. `finished` is told of every role that ends.
    """
    outer = {party.device: random_state(party.device) for party in parties.values()}
    scheduler = _Scheduler(parties, start, mail, lose or {}, finished)
    try:
        # One thread for all backward passes: many small ones would wait for a worker each time.
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
        members = frozenset(parties)
        self.tasks: dict[str, Task] = {}
        for name, party in parties.items():
            torch.manual_seed(derive(party.schedule.seed, "party", name))
            try:
                role = start(party, Outbox(party, members, mail))
            except ColonnadeError:
                self.close()
                raise
            self.tasks[name] = Task(party, role, random_state(party.device))
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
        """Run a role until it waits for what is not there, or ends."""
        if task.finished:
            return
        answer: Any = None
        if task.wanted is not None:  # woken because its message came
            answer = self._accept(task, self._take(task, task.wanted))
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
                message = self._take(task, wanted)
                if message is None:
                    self._lane(task, wanted).waiter = party.name
                    break
                answer = self._accept(task, message)
            task.wanted = wanted
        except StopIteration as end:
            task.finished, task.result, task.wanted = True, end.value, None
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

    def _take(self, task: Task, wanted: Recv) -> Message | None:
        return self.mail.take((wanted.peers[0].name, task.party.name, wanted.kind.name))

    def _lane(self, task: Task, wanted: Recv) -> Lane:
        return self.mail.lane((wanted.peers[0].name, task.party.name, wanted.kind.name))

    def _accept(self, task: Task, message: Message | None) -> Value:
        assert message is not None
        party = task.party
        phase, epoch, _ = party.position
        if phase and message.phase != "setup" and message.epoch != epoch:
            lane = (message.sender, party.name, message.kind.name)
            self.mail.crossed[lane] = self.mail.crossed.get(lane, 0) + 1
        if not message.kind.paces:
            party.progress.hop = max(party.progress.hop, message.hop)
        party.progress.clock = max(party.progress.clock, message.at)
        if message.kind.host:
            return message.value
        return to_device(message.value, party.device)

    def _tell_of_a_loss(self, unfinished: list[Task]) -> bool:
        """Throw PeerLost into the first role that waits only for parties that are gone."""
        for task in unfinished:
            wanted = task.wanted
            if wanted is None or not all(self.tasks[peer.name].lost for peer in wanted.peers):
                continue
            if any(self._waiting_message(task, peer) for peer in wanted.peers):
                continue
            peer, party = wanted.peers[0], task.party
            self._lane(task, wanted).waiter = ""
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
                if (message := self._waiting_message(task, peer)) is not None
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
            key = (peer.name, task.party.name, task.wanted.kind.name)
            answer = (peer, self._accept(task, self.mail.take(key)))
        task.wanted = None
        self._run(task, task.role.send, answer)
        return True

    def _waiting_message(self, task: Task, peer: Peer) -> Message | None:
        assert task.wanted is not None
        return self.mail.first((peer.name, task.party.name, task.wanted.kind.name))


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
