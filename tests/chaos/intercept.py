"""What a hostile network could do to frames: they come twice, late, out of order, from long ago.

TLS over TCP does none of this, so it is done where frames come in, at `Link.incoming`. A frame is
dropped for good only if another numbered one follows it: what TCP loses last it loses by breaking
off, which `cut` does.
"""

from __future__ import annotations

import random
import struct
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.errors import CodecError
from colonnade.net.link import Connection, Link

LATE_SECONDS = 0.05
REMEMBERED = 200  # frames of this run that may be replayed
RECORDED = 2000  # frames that are written for a later run
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Noise:
    """How often each thing happens to a frame, as probabilities."""

    duplicate: float = 0.0
    reorder: float = 0.0
    drop: float = 0.0
    replay: float = 0.0  # an earlier frame comes once more
    cut: float = 0.0  # the connection breaks
    seed: int = 0
    record: str = ""  # a folder: what comes in is written there
    old: str = ""  # such a folder of an older run: what is replayed


@dataclass
class _Lane:
    """Frames of one link on their way."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    held: tuple[Connection, bytes, bool] | None = None  # the last: drop it if another one comes
    seen: deque[bytes] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    recorded: int = 0


def install(me: str, noise: Noise) -> Counter[str]:
    """Let all links of this process suffer; counts what was done to them."""
    plain = Link.incoming
    draw = random.Random(f"{noise.seed}/{me}")
    lanes: dict[Link, _Lane] = {}
    done: Counter[str] = Counter()
    old = read(Path(noise.old) / me) if noise.old else []

    def deliver(link: Link, connection: Connection, data: bytes) -> None:
        plain(link, connection, data)

    def release(link: Link, lane: _Lane, held: Any) -> None:
        """Nothing came after it: it was only late."""
        with lane.lock:
            if lane.held is not held:
                return
            lane.held = None
            try:
                deliver(link, held[0], held[1])
            except CodecError:
                held[0].close()

    def incoming(link: Link, connection: Connection, data: bytes) -> None:
        lane = lanes.setdefault(link, _Lane())
        with lane.lock:
            if noise.record and lane.recorded < RECORDED:
                lane.recorded += 1
                append(Path(noise.record) / me, data)
            before = None
            if not bare(data):  # an ack does not show that a frame before it is missing
                before, lane.held = lane.held, None
            lane.seen.append(data)
            if draw.random() < noise.replay:
                done["replay"] += 1
                deliver(link, connection, draw.choice(old or lane.seen))
            if draw.random() < noise.cut:
                done["cut"] += 1
                connection.close()
            if lane.held is before is None and draw.random() < noise.reorder + noise.drop:
                drop = draw.random() * (noise.reorder + noise.drop) < noise.drop
                done["drop" if drop else "reorder"] += 1
                lane.held = held = (connection, data, drop)
                timer = threading.Timer(LATE_SECONDS, release, (link, lane, held))
                timer.daemon = True
                timer.start()
                return
            deliver(link, connection, data)
            if draw.random() < noise.duplicate:
                done["duplicate"] += 1
                deliver(link, connection, data)
            if before is not None and not before[2]:
                deliver(link, before[0], before[1])

    Link.incoming = incoming  # type: ignore[method-assign]
    return done


def bare(data: bytes) -> bool:
    return data[1:9] == bytes(8)  # the frame's number, see frame.py


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(_LENGTH.pack(len(data)) + data)


def read(path: Path) -> list[bytes]:
    """The frames of an older run, as `append` wrote them."""
    frames, data, at = [], path.read_bytes(), 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        frames.append(data[at : at + size])
        at += size
    return frames
