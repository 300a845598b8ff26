"""One party's post office: what leaves is checked, recorded and cut into parts; what comes is put
together, checked and kept until its role asks for it.

    out   1. its Kind allows it   2. the party's policy allows it   3. the ledger has it
          4. it goes
    in    1. it belongs to this run and attempt, and is due   2. its size is allowed, before
          memory is taken   3. its digest fits   4. its Kind allows it   5. the ledger has it

Nothing here knows how parts travel.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from colonnade.errors import CodecError, Denied, KindError, Untrusted
from colonnade.role.party import Party
from colonnade.wire import Kind, Ledger, Message, Value, codec
from colonnade.wire.ledger import describe
from colonnade.wire.policy import Gate

LARGEST = 4 << 30  # bytes of one message
LATER_BYTES = 64 << 20  # of an attempt that the sender has begun and we have not
PHASES = ("setup", "train", "eval")
Bytes = bytes | memoryview
SendPart = Callable[[str, dict[str, Any], Sequence[Bytes]], None]  # to whom, a Part, its bytes


@dataclass(slots=True)
class Lane:
    """Messages of one Kind from one party."""

    queue: deque[Message] = field(default_factory=deque)
    arrived: int = 0


@dataclass(slots=True)
class Parcel:
    """A message of which some parts have come."""

    key: tuple[Any, ...]
    memory: memoryview
    filled: int = 0


class Post:
    def __init__(
        self,
        me: str,
        members: frozenset[str],
        kinds: Mapping[str, Kind],
        ledger: Ledger,
        gate: Gate,
        send: SendPart,
        part_bytes: int,
    ) -> None:
        self.ledger, self.gate = ledger, gate
        self.refused: Counter[str] = Counter()
        self._me, self._members, self._kinds, self._send = me, members, kinds, send
        self._part_bytes = part_bytes
        self._run, self._attempt = 0, 0
        self._attempts: dict[str, int] = {}  # with one peer, where that is another than with all
        self._known: dict[tuple[Any, ...], str] = {}
        self._later: list[tuple[Any, memoryview]] = []
        self._clear()

    def _clear(self) -> None:
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._sent: Counter[tuple[str, str]] = Counter()
        self._parcels: dict[str, Parcel] = {}
        self._last: tuple[Tensor, int, tuple[Sequence[Bytes], int, bytes]] | None = None

    def begin(self, run: int, attempt: int) -> None:
        """From now on, messages of this attempt; those that came before their time are let in."""
        self._run, self._attempt = run, attempt
        self.ledger.flush()  # rows that wait to be written are of the attempt before
        self.ledger.attempt = attempt
        self._clear()
        later, self._later = self._later, []
        for part, data in later:
            self.accept(part, data)

    def admit(self, peer: str, run: int, attempt: int) -> None:
        """From now on, messages of this attempt with one peer; what has passed between the two
        before, and was not taken, is forgotten."""
        self._run, self._attempts[peer] = run, attempt
        self.ledger.attempt = attempt  # of notes; messages carry their own
        self._lanes = {key: lane for key, lane in self._lanes.items() if key[0] != peer}
        self._sent = Counter({key: sent for key, sent in self._sent.items() if key[0] != peer})
        self._parcels.pop(peer, None)

    # ---- out ---------------------------------------------------------------------------------

    def put(self, party: Party, receiver: str, kind: Kind, value: Value) -> None:
        if receiver not in self._members or receiver == self._me:
            raise KindError(f"'{self._me}' sent '{kind.name}' to '{receiver}', which is no peer")
        lane = (receiver, kind.name)
        attempt = self._attempts.get(receiver, self._attempt)
        _, epoch, step = party.position
        hop = party.progress.hop + (party.progress.phase == "train" and not kind.paces)
        message = Message(
            self._me,
            receiver,
            kind,
            value,
            self._sent[lane],
            party.progress.phase,
            epoch,
            step,
            hop,
            party.progress.clock,
        )
        description = self._check(message)
        pieces, size, digest = self._encoded(value)
        try:
            self.gate.check(receiver, kind, value, size)
        except Denied as denied:
            self.ledger.deny(message, description, str(denied), attempt)
            raise
        self.ledger.write(message, description, size, digest.hex(), attempt=attempt)
        self._sent[lane] += 1
        head = {
            "run": self._run,
            "attempt": attempt,
            "sender": self._me,
            "receiver": receiver,
            "kind": kind.name,
            "sequence": message.sequence,
            "phase": party.progress.phase,
            "epoch": epoch,
            "step": step,
            "hop": hop,
            "size": size,
            "sha256": digest,
        }
        if size <= self._part_bytes:
            self._send(receiver, head, pieces)
            return
        for offset, data in _cut(pieces, self._part_bytes):
            self._send(receiver, head | {"offset": offset}, (data,))

    def _encoded(self, value: Value) -> tuple[Sequence[Bytes], int, bytes]:
        """Pieces, size and digest; what is sent to several parties in turn is encoded once."""
        last = self._last
        if last is not None and value is last[0] and last[0]._version == last[1]:
            return last[2]
        pieces = codec.parts(value)
        size = sum(len(piece) for piece in pieces)
        found = pieces, size, _sha256(pieces)
        if isinstance(value, Tensor) and size <= self._part_bytes:
            self._last = value, value._version, found
        else:
            self._last = None
        return found

    def _check(self, message: Message) -> str:
        """Refuse what the method does not declare; else what the ledger will say."""
        value, kind = message.value, message.kind
        if isinstance(value, Tensor) and not value.requires_grad and value.layout is torch.strided:
            sort = (message.sender, message.receiver, kind, value.shape, value.dtype)
            if (known := self._known.get(sort)) is None:
                known = self._known[sort] = self._check_anew(message)
            return known
        return self._check_anew(message)

    def _check_anew(self, message: Message) -> str:
        kind = message.kind
        kind.check(message.value, message.sender)
        if self._kinds.get(kind.name) is not kind:
            raise KindError(
                f"'{message.sender}' sent '{kind.name}', which the method does not declare: add it "
                "to the kinds of its METHOD"
            )
        return describe(message)

    # ---- in ----------------------------------------------------------------------------------

    def accept(self, part: Any, data: memoryview) -> None:
        """One part as it came over a link whose other end is known."""
        attempt = self._attempts.get(part.sender, self._attempt)
        if part.run != self._run or part.attempt != attempt:
            later = part.attempt > attempt and (part.run == self._run or not self._run)
            if later:
                if sum(len(bytes_) for _, bytes_ in self._later) > LATER_BYTES:
                    raise CodecError(f"'{part.sender}' is far ahead of '{self._me}'")
                self._later.append((part, data))
            else:
                self.refused["another run or an older attempt"] += 1
            return
        lane = self._lane(part)
        if lane is None:
            return
        parcel = self._parcels.get(part.sender)
        if parcel is None:
            self._check_head(part)
            if len(data) == part.size:  # all of it
                self._close(part, data, lane, whole=True)
                return
            parcel = Parcel(_key(part), codec.room(part.size, bytes(data[:3])))
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
            self._close(part, parcel.memory, lane, whole=False)

    def _lane(self, part: Any) -> Lane | None:
        """Where a part belongs, if it is due; a message that came before is dropped."""
        if part.receiver != self._me or part.sender not in self._members:
            raise CodecError(
                f"a message of '{part.sender}' for '{part.receiver}' came to '{self._me}'"
            )
        if part.kind not in self._kinds:
            raise CodecError(f"'{part.sender}' sent a '{part.kind}', which no Kind declares")
        lane = self._lanes.get((part.sender, part.kind))
        if lane is None:
            lane = self._lanes[part.sender, part.kind] = Lane()
        if part.sequence < lane.arrived:
            self.refused["duplicate message"] += 1
            return None
        if part.sequence > lane.arrived:
            raise CodecError(
                f"message {part.sequence} of '{part.kind}' from '{part.sender}' came where "
                f"{lane.arrived} was due"
            )
        return lane

    def _check_head(self, part: Any) -> None:
        """What a message says about itself, before memory is taken for it."""
        if part.size > LARGEST:
            raise CodecError(
                f"'{part.sender}' announced a '{part.kind}' of {part.size} bytes; {LARGEST} at most"
            )
        if len(part.sha256) != 32 or part.phase not in PHASES or part.offset:
            raise CodecError(f"'{part.sender}' sent a '{part.kind}' without a proper beginning")

    def _close(self, part: Any, data: memoryview, lane: Lane, whole: bool) -> None:
        digest = hashlib.sha256(data).digest()
        if digest != part.sha256:
            raise Untrusted(
                f"a '{part.kind}' from '{part.sender}' is not what its digest says: it was changed "
                "on the way, or its sender is broken"
            )
        kind = self._kinds[part.kind]
        value = codec.decode(data, adopt=not whole)
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
        description = self._check(message)
        self.ledger.write(
            message, description, part.size, digest.hex(), received=True, attempt=part.attempt
        )
        lane.arrived += 1
        lane.queue.append(message)

    def take(self, sender: str, kind: Kind) -> Message | None:
        """The next message, if it is there."""
        lane = self._lanes.get((sender, kind.name))
        return lane.queue.popleft() if lane is not None and lane.queue else None

    def holds(self, sender: str, kind: Kind) -> bool:
        """Whether a message is there to be taken."""
        lane = self._lanes.get((sender, kind.name))
        return lane is not None and bool(lane.queue)

    def waiting(self) -> int:
        """How many bytes have come and were not asked for yet."""
        return sum(
            codec.size(message.value) for lane in self._lanes.values() for message in lane.queue
        )

    def leftover(self) -> list[str]:
        """What a method should know once its role has ended."""
        return [
            f"{len(lane.queue)} messages '{kind}' from '{sender}' to '{self._me}' were never "
            "received"
            for (sender, kind), lane in self._lanes.items()
            if lane.queue
        ]


def _key(part: Any) -> tuple[Any, ...]:
    return part.kind, part.sequence, part.size, part.sha256


def _sha256(pieces: list[bytes | memoryview]) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _cut(pieces: Sequence[Bytes], most: int) -> Iterator[tuple[int, bytes]]:
    """All pieces, as blocks of `most` bytes and their places; copies one block at a time."""
    block, offset = bytearray(), 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(view):
            free = most - len(block)
            block += view[:free]
            view = view[free:]
            if len(block) == most:
                yield offset, bytes(block)
                offset += most
                block.clear()
    if block:
        yield offset, bytes(block)
