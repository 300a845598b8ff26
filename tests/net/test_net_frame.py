"""Frames: what is packed is parsed, and everything else is refused, in the sender's name."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import CodecError
from colonnade.net import frame as frames
from colonnade.net.frame import (
    FRAME_BYTES,
    HEAD_BYTES,
    PART_BYTES,
    PROTOCOL,
    Control,
    Frame,
    Hello,
    Part,
    Refusal,
    pack,
    parse,
)

PART = Part(7, 1, "hospital", "bank", "embedding", 5, "train", 3, 812, 9, 65555, b"d" * 32, 0)
HELLO = Hello(PROTOCOL, "bank", b"i" * 16, b"", 12, '{"epochs": "3"}', 1e9)
ONE_OF_EACH = [
    Frame(0, 4, 99),
    Frame(body=HELLO),
    Frame(body=HELLO._replace(expects=b"e" * 16)),
    Frame(body=Refusal(())),
    Frame(body=Refusal(("another run", "größer", ""))),
    Frame(3, 2, 1 << 63, PART),
    Frame(8, 2, 1, Control("done", "{}")),
]

counts = st.integers(0, (1 << 62) - 1)
small = st.integers(0, (1 << 32) - 1)
texts = st.text(max_size=40).filter(lambda text: len(text.encode()) < 256)
heads = st.binary(min_size=32, max_size=32)
parts = st.builds(
    Part, st.integers(0, (1 << 64) - 1), small, texts, texts, texts, counts,
    st.sampled_from(frames.PHASES), small, counts, counts, counts, heads, counts,
)  # fmt: skip


@pytest.mark.parametrize("frame", ONE_OF_EACH)
def test_what_is_packed_is_parsed(frame: Frame) -> None:
    found, tail = parse(pack(frame))
    assert (found, bytes(tail), type(found.body)) == (frame, b"", type(frame.body))


@settings(max_examples=300, deadline=None)
@given(counts, counts, st.integers(0, (1 << 64) - 1), parts, st.binary(max_size=99))
def test_every_part_comes_back_with_its_bytes(
    number: int, ack: int, pair: int, part: Part, data: bytes
) -> None:
    found, tail = parse(pack(Frame(number, ack, pair, part), data))
    assert (found, bytes(tail)) == (Frame(number, ack, pair, part), data)


@settings(max_examples=300, deadline=None)
@given(texts, st.text(max_size=300))
def test_every_word_comes_back(word: str, content: str) -> None:
    frame = Frame(1, 0, 2, Control(word, content))
    assert parse(pack(frame))[0] == frame


def raw(tag: int, body: bytes = b"", number: int = 1, ack: int = 0) -> bytes:
    return struct.pack("<BQQQ", tag, number, ack, 0) + body


def part_with(at: int, value: bytes) -> bytes:
    """A part in which some bytes behind the frame's own numbers are others."""
    data = bytearray(pack(Frame(1, body=PART)))
    data[25 + at : 25 + at + len(value)] = value
    return bytes(data)


REFUSED = {
    "nothing": (b"", "0 bytes that are not a frame"),
    "too short": (b"\x01" * 24, "24 bytes that are not a frame"),
    "too long": (bytes(FRAME_BYTES + 1), "at most"),
    "an unknown tag": (raw(0), "the unknown tag 0"),
    "another unknown tag": (raw(6), "the unknown tag 6"),
    "more behind an ack": (raw(1, b"x"), "1 bytes after the end"),
    "more behind a word": (pack(Frame(1, body=Control("w"))) + b"xy", "2 bytes after the end"),
    "more behind a hello": (pack(Frame(body=HELLO)) + b"x", "1 bytes after the end"),
    "more behind a refusal": (raw(3, b"\0\0x"), "1 bytes after the end"),
    "a number that cannot be counted on": (raw(1, number=1 << 62), "numbered 46116860184"),
    "an ack that cannot be": (raw(1, ack=1 << 63), "that acknowledges 92233720368"),
    "a head that is too long": (raw(5, bytes(HEAD_BYTES)), "without a part"),
    "half a word": (raw(5, struct.pack("<BI", 4, 9) + b"done{}"), "announces 9 bytes more"),
    "a word that announces 4 GB": (
        raw(5, struct.pack("<BI", 1, 0xFFFFFFFF) + b"w"),
        "announces 4294967295 bytes more and has 0",
    ),
    "a word that is not UTF-8": (raw(5, struct.pack("<BI", 2, 0) + b"\xff\xfe"), "not UTF-8"),
    "a hello without an incarnation": (pack(Frame(body=Hello())), "without an incarnation"),
    "a hello with half an incarnation of ours": (
        pack(Frame(body=HELLO._replace(expects=b"half"))),
        "without an incarnation",
    ),
    "a hello without a time": (
        pack(Frame(body=HELLO._replace(clock=float("nan")))),
        "out of range",
    ),
    "a hello that has heard too much": (
        pack(Frame(body=HELLO._replace(received=1 << 62))),
        "out of range",
    ),
    "a refusal for a thousand reasons": (raw(3, b"\xff\xff"), "65535 reasons; 1000 at most"),
    "reasons that are not there": (raw(3, b"\x02\x00"), "announces 4 bytes more"),
    "a part that is too short": (raw(4, bytes(40)), "a part of 65 bytes"),
    "a sequence out of range": (part_with(12, b"\xff" * 8), "out of range"),
    "a step out of range": (part_with(24, b"\xff" * 8), "out of range"),
    "a hop out of range": (part_with(32, b"\xff" * 8), "out of range"),
    "a size out of range": (part_with(40, b"\xff" * 8), "out of range"),
    "an offset out of range": (part_with(48, b"\xff" * 8), "out of range"),
    "an unknown phase": (part_with(88, b"\x03"), "the unknown phase 3"),
    "names that are not there": (part_with(91, b"\xff\xff"), "bytes of head and has"),
    "a name that is not UTF-8": (part_with(93, b"\xff"), "not UTF-8"),
    "too many bytes of a part": (
        pack(Frame(1, body=PART), bytes(PART_BYTES + 1)),
        f"{PART_BYTES + 1} bytes; {PART_BYTES} at most",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    data, why = REFUSED[what]
    with pytest.raises(CodecError, match=r"^'shop' sent ") as refusal:
        parse(data, "'shop'")
    assert why in str(refusal.value)


def test_of_a_hello_of_another_protocol_nothing_else_is_read() -> None:
    """Whatever it will look like: it can be told that it does not fit."""
    other = raw(2, struct.pack("<H", PROTOCOL + 1) + b"\xff" * 50, number=0)
    assert parse(other)[0].body == Hello(PROTOCOL + 1)


@pytest.mark.parametrize(
    "body",
    [
        PART._replace(phase="party"),
        PART._replace(sha256=b"short"),
        PART._replace(sender="x" * 256),
        PART._replace(size=-1),
        PART._replace(attempt=1 << 32),
        Control("w" * 256),
        Control("\ud800"),
        HELLO._replace(protocol=1 << 16),
    ],
)
def test_what_does_not_fit_a_frame_does_not_leave(body: Any) -> None:
    with pytest.raises(CodecError):
        pack(Frame(1, body=body))


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_that_are_anything_at_all(data: bytes) -> None:
    try:
        frame, tail = parse(data)
    except CodecError:
        return
    again, rest = parse(pack(frame, tail))
    assert again == frame and rest == tail


def test_every_cut_and_every_flipped_byte_is_a_frame_or_refused() -> None:
    draw = random.Random(3)
    for frame in ONE_OF_EACH:
        data = pack(frame, *([b"tail"] if isinstance(frame.body, Part) else []))
        spoilt = [data[:end] for end in range(len(data))]
        for _ in range(2000):
            changed = bytearray(data)
            changed[draw.randrange(len(data))] = draw.randrange(256)
            spoilt.append(bytes(changed))
        for one in spoilt:
            try:
                parse(one)
            except CodecError as refusal:
                assert str(refusal).startswith("a peer sent ")
