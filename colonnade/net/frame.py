"""Frames: the only thing that crosses a link between two parties.

    frame    tag:u8 number:u64 ack:u64 pair:u64 body
    number   counts on this link from 1; 0: never repeated (hello, refusal, bare ack)
    ack      all frames up to this number have been taken in
    pair     identifies the two processes: a frame of an older run is refused

    tag 1    nothing: a bare ack
    tag 2    Hello    first in both directions; facts that differ but must be equal are refused
    tag 3    Refusal  why the sender refuses to talk; the last frame of a connection
    tag 4    Part     a piece of one message: its key, its whole size and digest; its bytes follow
    tag 5    Control  how parties agree when to start, to go back and to end: a word and JSON

All numbers are little-endian, every text is UTF-8 after its length, and nothing names a class.
The parser reads untrusted bytes: it checks every length against the bytes present, refuses bytes
after the end, and has two outcomes only, a typed frame or a CodecError that names the sender. The
protocol's number comes first in a Hello, and nothing else is read of a Hello with another number,
so that an older or newer peer can be told so.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from colonnade.errors import CodecError

PROTOCOL = 2
PART_BYTES = 1 << 20
HEAD_BYTES = 1 << 20  # hellos and accounts are JSON
FRAME_BYTES = PART_BYTES + HEAD_BYTES
MOST_REASONS = 1000
PHASES = ("setup", "train", "eval")
NUMBER_BITS = 62  # of counters: adding one to any of them stays within 64 bits


class Hello(NamedTuple):
    protocol: int = PROTOCOL
    party: str = ""
    incarnation: bytes = b""  # identifies this process: a new one has lost the old one's memory
    expects: bytes = b""  # the peer's incarnation as last seen, or empty
    received: int = 0  # frames taken in from that incarnation
    agreed: str = ""  # JSON: the facts that must be equal at all parties, by name
    clock: float = 0.0  # seconds since 1970


class Refusal(NamedTuple):
    reasons: tuple[str, ...]


class Part(NamedTuple):
    run: int
    attempt: int
    sender: str
    receiver: str
    kind: str
    sequence: int  # within (sender, receiver, Kind) of this attempt
    phase: str  # one of PHASES
    epoch: int
    step: int
    hop: int
    size: int  # of the whole message
    sha256: bytes  # of the whole message
    offset: int = 0  # of the bytes that follow the frame


class Control(NamedTuple):
    word: str
    content: str = ""


Body = Hello | Refusal | Part | Control | None


class Frame(NamedTuple):
    number: int = 0
    ack: int = 0
    pair: int = 0
    body: Body = None


NOTHING, HELLO, REFUSAL, PART, CONTROL = range(1, 6)
INCARNATION_BYTES, DIGEST_BYTES = 16, 32
_HEAD = struct.Struct("<BQQQ")
_PROTOCOL = struct.Struct("<H")
_HELLO = struct.Struct("<QdBBBI")  # received, clock; lengths of party, incarnation, expects, agreed
_CONTROL = struct.Struct("<BI")
_COUNT = struct.Struct("<H")
_REASON = struct.Struct("<I")
# run, attempt, sequence, epoch, step, hop, size, offset, sha256, phase; lengths of three names
_PART = struct.Struct("<QIQIQQQQ32sBBBH")
_HEAD_AND_PART = struct.Struct(_HEAD.format + _PART.format[1:])
_PHASE_CODES = {name: code for code, name in enumerate(PHASES)}


# ---- out -----------------------------------------------------------------------------------------


def pack(frame: Frame, *tail: bytes | memoryview) -> bytes:
    """A frame and, after a part, its bytes, as one message of the stream."""
    number, ack, pair, body = frame
    if type(body) is Part:
        return pack_part(number, ack, pair, body, tail)
    try:
        if type(body) is Control:
            word, content = body.word.encode(), body.content.encode()
            tag, packed = CONTROL, _CONTROL.pack(len(word), len(content)) + word + content
        elif type(body) is Hello:
            tag, packed = HELLO, _pack_hello(body)
        elif type(body) is Refusal:
            tag, packed = REFUSAL, _pack_refusal(body)
        else:
            tag, packed = NOTHING, b""
        return b"".join((_HEAD.pack(tag, number, ack, pair), packed, *tail))
    except (struct.error, KeyError, UnicodeEncodeError) as error:
        raise _unfit(body, error) from None


def pack_part(
    number: int, ack: int, pair: int, part: Part, tail: Sequence[bytes | memoryview]
) -> bytes:
    """The same of a part, as most frames are."""
    run, attempt, sender, receiver, kind, sequence, phase, epoch, step, hop, size, sha256, at = part
    if len(sha256) != DIGEST_BYTES:
        raise CodecError(f"a digest of {len(sha256)} bytes; {DIGEST_BYTES} are a SHA-256")
    try:
        names = sender.encode(), receiver.encode(), kind.encode()
        lengths = map(len, names)
        code = _PHASE_CODES[phase]
        numbers = run, attempt, sequence, epoch, step, hop, size, at
        head = _HEAD_AND_PART.pack(PART, number, ack, pair, *numbers, sha256, code, *lengths)
    except (struct.error, KeyError, UnicodeEncodeError) as error:
        raise _unfit(part, error) from None
    return b"".join((head, *names, *tail))


def _unfit(body: Body, error: Exception) -> CodecError:
    return CodecError(f"{body!r:.200} does not fit a frame: {error}")


def _pack_hello(hello: Hello) -> bytes:
    party, agreed = hello.party.encode(), hello.agreed.encode()
    texts = party, hello.incarnation, hello.expects, agreed
    numbers = _HELLO.pack(hello.received, hello.clock, *map(len, texts))
    return b"".join((_PROTOCOL.pack(hello.protocol), numbers, *texts))


def _pack_refusal(refusal: Refusal) -> bytes:
    pieces = [_COUNT.pack(len(refusal.reasons))]
    for reason in refusal.reasons:
        text = reason.encode()
        pieces += [_REASON.pack(len(text)), text]
    return b"".join(pieces)


# ---- in ------------------------------------------------------------------------------------------


def parse(data: bytes, who: str = "a peer") -> tuple[Frame, memoryview]:
    """A frame and the bytes after it; anything else is an error that names `who` as the sender."""
    try:
        if len(data) > FRAME_BYTES:
            raise CodecError(f"a frame of {len(data)} bytes; {FRAME_BYTES} at most")
        if len(data) < _HEAD.size:
            raise CodecError(f"{len(data)} bytes that are not a frame")
        if data[0] == PART:
            return _parse_part(data)
        tag, number, ack, pair = _HEAD.unpack_from(data)
        if (number | ack) >> NUMBER_BITS:
            raise CodecError(f"a frame numbered {number} that acknowledges {ack}")
        if len(data) > HEAD_BYTES:
            raise CodecError(f"a frame of {len(data)} bytes without a part; {HEAD_BYTES} at most")
        read = _READERS.get(tag)
        if read is None:
            raise CodecError(f"a frame with the unknown tag {tag}")
        rest = _Reader(data, _HEAD.size)
        body = read(rest)
        if rest.left:
            raise CodecError(f"{rest.left} bytes after the end of a frame")
        return Frame(number, ack, pair, body), memoryview(b"")
    except CodecError as error:
        raise CodecError(f"{who} sent {error}") from None


class _Reader:
    """Walks through the bytes of a frame, and never past their end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise CodecError(f"a frame that announces {length} bytes more and has {self.left}")
        begin, self._at = self._at, self._at + length
        return self._data[begin : self._at]

    def text(self, length: int) -> str:
        return _text(self.take(length))


def _parse_part(data: bytes) -> tuple[Frame, memoryview]:
    """Parse a part in one step, because parts are the most frequent frames."""
    begin = _HEAD_AND_PART.size
    if len(data) < begin:
        raise CodecError(f"a part of {len(data)} bytes; {begin} at least")
    (
        _, number, ack, pair, run, attempt, sequence, epoch, step, hop, size, offset, sha256, phase,
        sender, receiver, kind,
    ) = _HEAD_AND_PART.unpack_from(data)  # fmt: skip
    if (number | ack | sequence | step | hop | size | offset) >> NUMBER_BITS:
        raise CodecError("a part with a number out of range")
    if phase >= len(PHASES):
        raise CodecError(f"a part of the unknown phase {phase}")
    to = begin + sender
    what = to + receiver
    end = what + kind
    if len(data) < end:
        raise CodecError(f"a part that announces {end} bytes of head and has {len(data)}")
    if len(data) - end > PART_BYTES:
        raise CodecError(f"a part of {len(data) - end} bytes; {PART_BYTES} at most")
    try:
        names = (
            str(data[begin:to], "utf-8"),
            str(data[to:what], "utf-8"),
            str(data[what:end], "utf-8"),
        )
    except UnicodeDecodeError as error:
        raise CodecError(f"a name that is not UTF-8: {error}") from None
    part = Part(
        run, attempt, *names, sequence, PHASES[phase], epoch, step, hop, size, sha256, offset
    )
    return Frame(number, ack, pair, part), memoryview(data)[end:]


def _parse_nothing(rest: _Reader) -> None:
    return None


def _parse_hello(rest: _Reader) -> Hello:
    (protocol,) = _PROTOCOL.unpack(rest.take(_PROTOCOL.size))
    if protocol != PROTOCOL:
        rest.take(rest.left)
        return Hello(protocol)
    received, clock, *lengths, agreed = _HELLO.unpack(rest.take(_HELLO.size))
    party, incarnation, expects = (
        rest.text(lengths[0]),
        rest.take(lengths[1]),
        rest.take(lengths[2]),
    )
    if len(incarnation) != INCARNATION_BYTES or len(expects) not in (0, INCARNATION_BYTES):
        raise CodecError("a hello without an incarnation")
    if received >> NUMBER_BITS or not math.isfinite(clock):
        raise CodecError(f"a hello with a number out of range ({received}, {clock})")
    return Hello(protocol, party, incarnation, expects, received, rest.text(agreed), clock)


def _parse_refusal(rest: _Reader) -> Refusal:
    (count,) = _COUNT.unpack(rest.take(_COUNT.size))
    if count > MOST_REASONS:
        raise CodecError(f"a refusal for {count} reasons; {MOST_REASONS} at most")
    lengths = (_REASON.unpack(rest.take(_REASON.size))[0] for _ in range(count))
    return Refusal(tuple(rest.text(length) for length in lengths))


def _parse_control(rest: _Reader) -> Control:
    word, content = _CONTROL.unpack(rest.take(_CONTROL.size))
    return Control(rest.text(word), rest.text(content))


_READERS: dict[int, Callable[[_Reader], Body]] = {
    NOTHING: _parse_nothing,
    HELLO: _parse_hello,
    REFUSAL: _parse_refusal,
    CONTROL: _parse_control,
}


def _text(raw: bytes) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise CodecError(f"a text that is not UTF-8: {error}") from None
