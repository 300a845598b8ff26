"""One party's post: what leaves is checked and recorded before it goes; what comes is put together,
checked and kept until its role asks for it. The same in one process and over a network.

    out   1. the party protects it   2. its Kind allows it   3. the party's policy allows it
          4. the ledger has it   5. the transport carries it
    in    1. it belongs to this run and attempt, and is due   2. its size and shape are allowed,
          before memory is taken   3. its digest fits   4. its Kind allows it   5. the ledger has it

What only the receiving role knows, such as how many rows are due, is checked when it takes the
message (role/checks.py). Until then a tree lies as bytes: made, it can be a hundred times as large.

Parts come in over a network only. In one process the value is handed over: its sender has checked
it, and all share one ledger with one row per message.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from colonnade.errors import CodecError, Denied, KindError, Untrusted, foreign
from colonnade.net.frame import Part
from colonnade.role.checks import Checks
from colonnade.role.party import Party
from colonnade.wire import Kind, Ledger, Message, Value, codec
from colonnade.wire.codec import Head
from colonnade.wire.gate import Gate
from colonnade.wire.kind import finite
from colonnade.wire.ledger import describe

LARGEST = 4 << 30  # bytes of one message
NAME = 100  # letters of a name that others made up
SMALL = 1 << 20  # bytes of a message that is kept in memory after it was sent
KNOWN_SORTS = 1 << 16  # verdicts on tensors of one Kind, shape and dtype that are kept
Bytes = bytes | memoryview


class Turn(NamedTuple):
    """Of which run a message is, and how often that run has begun."""

    run: int
    number: int


Sealed = tuple[int, bytes | None, Sequence[Bytes]]  # bytes on the wire, their SHA-256, themselves


class Transport(Protocol):
    """Carries what may leave to its receiver's post."""

    def seal(self, message: Message, size: int) -> Sealed:
        """What the ledger will say of a message of `size` bytes, and what will travel."""
        ...

    def send(self, message: Message, sealed: Sealed, row: int, turn: Turn) -> None:
        """Carry it; `row` is its place in the ledger."""
        ...


class Announced(NamedTuple):
    """The head of a tensor, as it came and as it was read."""

    data: bytes
    head: Head
    description: str = ""  # what the ledger says of such tensors, once one has come


@dataclass(slots=True, eq=False)
class Lane:
    """Messages of one Kind between two parties, in one direction."""

    queue: deque[Message] = field(default_factory=deque)  # that came and were not asked for yet
    count: int = 0  # sent, or arrived
    awaited: bool = False  # by a role of this process that goes on when one comes
    last: Announced | None = None  # the last head that came, if it was allowed

    def reset(self) -> None:
        self.queue.clear()
        self.count = 0


Known = tuple[Lane, str, int]  # where it goes, what the ledger says of it, its size


@dataclass(slots=True)
class Packed:
    """A checked value that nobody has asked for yet."""

    data: memoryview


@dataclass(slots=True)
class Parcel:
    """A message of which some parts have come."""

    key: tuple[Any, ...]
    memory: memoryview
    head: Head | None
    filled: int = 0


class Post:
    """
    members    all parties that this one may talk with, itself included
    kinds      what the method declares, by name
    ledger     this party's own; in one process, the one of all
    gate       the party's policy; None: whatever the method declares may leave
    transport  how what may leave gets to its receiver
    """

    def __init__(
        self,
        me: str,
        members: frozenset[str],
        kinds: Mapping[str, Kind],
        ledger: Ledger,
        gate: Gate | None,
        transport: Transport,
    ) -> None:
        self.ledger, self.gate = ledger, gate
        self.refused: Counter[str] = Counter()
        self._me, self._peers, self._kinds, self._transport = me, members - {me}, kinds, transport
        self._turn = Turn(0, 0)
        self._turns: dict[str, Turn] = {}  # with one peer, where that differs from all others
        self._later: list[tuple[Part, memoryview]] = []
        self._parcels: dict[str, Parcel] = {}
        self._in: dict[tuple[str, str], Lane] = {}  # by sender and Kind
        self._out: dict[tuple[str, str], Lane] = {}  # by receiver and Kind
        self._known: dict[tuple[Any, ...], Known] = {}
        self._sound: Sealed | None = None  # the last small message that was found to be finite
        self.checks: Checks | None = None  # of the party whose role receives, once there is one

    def begin(self, run: int, attempt: int) -> None:
        """From now on, messages of this attempt; those that came before their time are let in."""
        self._turn = Turn(run, attempt)
        if attempt != self.ledger.attempt:
            self.ledger.flush()  # rows that wait to be written are of the attempt before
            self.ledger.attempt = attempt
        self._parcels.clear()
        for lane in (*self._in.values(), *self._out.values()):
            lane.reset()
        later, self._later = self._later, []
        for part, data in later:
            self.accept(part, data)

    def admit(self, peer: str, run: int, attempt: int) -> None:
        """From now on, messages of this attempt with one peer; what has passed between the two
        before, and was not taken, is forgotten."""
        self._turn = self._turn._replace(run=run)
        self._turns[peer] = Turn(run, attempt)
        self.ledger.attempt = attempt  # of notes; messages carry their own
        self._parcels.pop(peer, None)
        self._later = [(part, data) for part, data in self._later if part.sender != peer]
        for (name, _), lane in (*self._in.items(), *self._out.items()):
            if name == peer:
                lane.reset()

    def attempt_with(self, peer: str) -> int:
        """The number of the attempt that this party and a peer are in."""
        return self._turns.get(peer, self._turn).number

    # ---- out ---------------------------------------------------------------------------------

    def put(self, party: Party, receiver: str, kind: Kind, value: Value) -> None:
        """Send a message of a role, or raise and have sent nothing."""
        me = self._me
        if receiver not in self._peers:
            raise KindError(f"'{me}' sent '{kind.name}' to '{receiver}', which is not a peer")
        if party.protection is not None:
            value = party.protection.applied(party, kind, value)
        progress = party.progress
        phase, (_, epoch, step) = progress.phase, progress.position
        # Rounds are those of training: keys agreed on again after a resume must not shift them.
        hop = progress.hop + (phase == "train" and not kind.paces)
        message = Message(me, receiver, kind, value, 0, phase, epoch, step, hop, progress.clock)
        lane, description, size = self._look(message)
        if party.protection is not None and (how := party.protection.named(kind)):
            description += f',"protected":{json.dumps(how)}'
        message.sequence = lane.count
        sealed = self._transport.seal(message, size)
        size, digest, _ = sealed
        turn = self._turns.get(receiver, self._turn) if self._turns else self._turn
        if self.gate is not None:
            try:
                self.gate.check(receiver, kind, value, size, party)
            except Denied as denied:
                self.ledger.deny(message, description, str(denied), turn.number)
                raise
        party.checks.sending(receiver, kind, value, party.at_hand, sealed is self._sound)
        self._sound = sealed if kind.finite and size <= SMALL else None
        told = None if digest is None else digest.hex()
        row = self.ledger.write(message, description, size, told, False, turn.number)
        lane.count += 1
        self._transport.send(message, sealed, row, turn)

    def _look(self, message: Message) -> Known:
        """Refuse what the method does not declare; a tensor like one that was looked at before
        needs no second look."""
        m, value = message, message.value
        if not isinstance(value, Tensor):
            return self._look_closely(m)
        sort = (m.sender, m.receiver, m.kind, value.shape, value.dtype, value.layout)
        known = self._known.get(sort)
        if known is None or value.requires_grad:
            known = self._look_closely(m)
            if len(self._known) >= KNOWN_SORTS:
                self._known.clear()
            self._known[sort] = known
        return known

    def _look_closely(self, message: Message) -> Known:
        kind = message.kind
        kind.check(message.value, message.sender)
        if self._kinds.get(kind.name) is not kind:
            raise KindError(
                f"'{message.sender}' sent '{kind.name}', which the method does not declare: add it "
                "to the kinds of its METHOD"
            )
        if message.sender == self._me:
            lane = self._out.setdefault((message.receiver, kind.name), Lane())
        else:
            lane = self.lane(message.sender, kind.name)
        return lane, describe(message), codec.size(message.value)

    # ---- in ----------------------------------------------------------------------------------

    def lane(self, sender: str, kind: str) -> Lane:
        """Where messages of one Kind from one party wait."""
        lane = self._in.get((sender, kind))
        if lane is None:
            lane = self._in[sender, kind] = Lane()
        return lane

    def accept(self, part: Part, data: memoryview) -> bool:
        """One part as it came over a link whose other end is known; whether it was kept."""
        mine = self._turns.get(part.sender, self._turn)
        if part.run != mine.run or part.attempt != mine.number:
            later = part.attempt > mine.number and (part.run == mine.run or not mine.run)
            if later:
                self._later.append((part, data))
            else:
                self.refused["another run or an older attempt"] += 1
            return later
        lane = self._due(part)
        if lane is None:
            return False
        parcel = self._parcels.get(part.sender)
        if parcel is None:
            head = self._check_head(part, data, lane)
            if len(data) == part.size:  # all of it
                self._close(part, data, lane, head, whole=True)
                return True
            parcel = Parcel(_key(part), codec.room(part.size, bytes(data[:3])), head)
            self._parcels[part.sender] = parcel
        if parcel.key != _key(part):
            raise CodecError(
                f"'{part.sender}' began a message '{part.kind}' in the middle of another one"
            )
        end = part.offset + len(data)
        if part.offset != parcel.filled or end > part.size or not len(data):
            raise CodecError(
                f"'{part.sender}' sent bytes {part.offset} to {end} of a '{part.kind}' of "
                f"{part.size}, of which {parcel.filled} had come"
            )
        parcel.memory[part.offset : end] = data
        parcel.filled = end
        if end == part.size:
            del self._parcels[part.sender]
            self._close(part, parcel.memory, lane, parcel.head, whole=False)
        return True

    def _due(self, part: Part) -> Lane | None:
        """Where a part belongs, if it is due; a message that came before is dropped."""
        if part.receiver != self._me or part.sender not in self._peers:
            raise CodecError(
                f"a message of '{foreign(part.sender, NAME)}' for '{foreign(part.receiver, NAME)}' "
                f"came to '{self._me}'"
            )
        if part.kind not in self._kinds:
            raise CodecError(
                f"'{part.sender}' sent a '{foreign(part.kind, NAME)}', which no Kind declares"
            )
        lane = self.lane(part.sender, part.kind)
        if part.sequence < lane.count:
            self.refused["duplicate message"] += 1
            return None
        if part.sequence > lane.count:
            raise CodecError(
                f"message {part.sequence} of '{part.kind}' from '{part.sender}' came where "
                f"{lane.count} was due"
            )
        return lane

    def _check_head(self, part: Part, data: memoryview, lane: Lane) -> Head | None:
        """What a message says about itself, before memory is taken for it."""
        if part.size > LARGEST:
            raise CodecError(
                f"'{part.sender}' announced a '{part.kind}' of {part.size} bytes; {LARGEST} at most"
            )
        if part.offset:
            raise CodecError(
                f"'{part.sender}' sent byte {part.offset} of a '{part.kind}' that has not begun"
            )
        kind = self._kinds[part.kind]
        if kind.shape is None:
            return None
        head = self._head(part, data, kind, lane)
        if self.checks is not None:
            self.checks.announced(kind, head.shape, part.sender)
        return head

    def _head(self, part: Part, data: memoryview, kind: Kind, lane: Lane) -> Head:
        """The head of a tensor that its Kind allows; one that came before is not read again."""
        last = lane.last
        if last is not None and data[: last.head.length] == last.data:
            head = last.head
        else:
            try:
                head = codec.announced(data[: codec.MAX_HEADER])
            except CodecError as error:
                raise self._malformed(part, error) from None
            kind.check_announced(head.dtype, head.shape, part.sender)
            lane.last = Announced(bytes(data[: head.length]), head)
        if head.size != part.size:
            fault = f"{part.size} bytes of a tensor of shape {head.shape}, which has {head.size}"
            raise self._malformed(part, fault)
        return head

    def _malformed(self, part: Part, fault: object) -> CodecError:
        """A fault in the bytes of a message is its sender's."""
        return CodecError(f"'{part.sender}' sent a '{part.kind}' that is not a message: {fault}")

    def _close(
        self, part: Part, data: memoryview, lane: Lane, head: Head | None, whole: bool
    ) -> None:
        digest = hashlib.sha256(data).digest()
        if digest != part.sha256:
            raise Untrusted(
                f"a '{part.kind}' from '{part.sender}' is not what its digest says: it was changed "
                "on the way, or its sender is broken"
            )
        kind = self._kinds[part.kind]
        try:
            if head is None:
                value = codec.decode(data, adopt=not whole)
            else:
                value = codec.decode_tensor(data, head, adopt=not whole)
        except CodecError as error:
            raise self._malformed(part, error) from None
        message = Message(
            part.sender,
            self._me,
            kind,
            value,
            part.sequence,
            part.phase,
            part.epoch,
            part.step,
            part.hop,
            0.0,
        )
        description = self._described(message, lane, head)
        if kind.finite and not finite(value):
            raise KindError(
                f"'{part.sender}' sent a '{part.kind}' that is not finite in epoch "
                f"{part.epoch + 1}, step {part.step + 1}: its training has diverged, or it lies"
            )
        self.ledger.write(message, description, part.size, digest.hex(), True, part.attempt)
        if not isinstance(value, Tensor):
            message.value = Packed(data)  # type: ignore[assignment]  # until it is taken
        lane.count += 1
        lane.queue.append(message)

    def _described(self, message: Message, lane: Lane, head: Head | None) -> str:
        """What the ledger says of it; a tensor with the head of the last one is like that one."""
        last = lane.last
        if head is None or last is None or last.head is not head:
            return self._look(message)[1]
        if not last.description:
            lane.last = last = last._replace(description=self._look(message)[1])
        return last.description

    def take(self, sender: str, kind: Kind) -> Message | None:
        """The next message, if it is there, in the order in which it was sent."""
        lane = self._in.get((sender, kind.name))
        if lane is None or not lane.queue:
            return None
        message = lane.queue.popleft()
        if isinstance(message.value, Packed):
            message.value = codec.decode(message.value.data)
        return message

    def first(self, sender: str, kind: Kind) -> Message | None:
        """The next message, left where it is."""
        lane = self._in.get((sender, kind.name))
        return lane.queue[0] if lane is not None and lane.queue else None

    def holds(self, sender: str, kind: Kind) -> bool:
        """Whether a message is there to be taken."""
        return self.first(sender, kind) is not None

    def unread(self) -> Iterator[tuple[str, str, int]]:
        """Sender, Kind and bytes of each message that has come and was not asked for yet."""
        for (sender, kind), lane in self._in.items():
            for value in (message.value for message in lane.queue):
                size = len(value.data) if isinstance(value, Packed) else codec.size(value)
                yield sender, kind, size

    def drop(self) -> None:
        """Nobody will ask for what has come."""
        for lane in self._in.values():
            lane.queue.clear()

    def leftover(self) -> list[str]:
        """What a method should know once its role has ended."""
        return [
            f"{len(lane.queue)} messages '{kind}' from '{sender}' to '{self._me}' were never "
            "received"
            for (sender, kind), lane in self._in.items()
            if lane.queue
        ]


def _key(part: Part) -> tuple[Any, ...]:
    return part.kind, part.sequence, part.size, part.sha256
