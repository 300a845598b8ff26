"""The link to one peer, over any number of connections: every frame arrives once, and in order.

Frames are numbered, kept until the peer has taken them in, and sent again after a broken
connection. A duplicate is dropped and counted. A frame that comes too early waits for the missing
ones; if these do not come, the link breaks the connection so that they are sent again. A peer that
was restarted (another incarnation) begins at one: its memory is lost, and the runtime goes back to
a checkpoint.

A link knows nothing of gRPC: a connection is a queue to put bytes into and a way to close it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from colonnade.errors import CodecError
from colonnade.net.frame import (
    FRAME_BYTES,
    PROTOCOL,
    Control,
    Frame,
    Hello,
    Part,
    pack,
    pack_part,
    parse,
)

WINDOW_BYTES = 8 << 20  # sent and not yet taken in by the peer
WINDOW_FRAMES = 1024
# The same in elastic runs, where a busy peer must not block a sender
ELASTIC_BYTES, ELASTIC_FRAMES = 48 << 20, 32 * 1024
ACK_BYTES, ACK_FRAMES = WINDOW_BYTES // 4, WINDOW_FRAMES // 16
EARLY_FRAMES = 256
GAP_SECONDS = 2.0


@dataclass(eq=False)
class Connection:
    """Where outgoing bytes go; None ends it."""

    close: Callable[[], None]
    queue: SimpleQueue[bytes | None] = field(default_factory=SimpleQueue)


@dataclass(slots=True, eq=False)
class Arrived:
    """A frame that arrived; the runtime takes it in when it is ready."""

    link: Link
    life: int
    number: int
    size: int
    content: Part | Control
    tail: memoryview  # the bytes after a part


@dataclass(frozen=True, slots=True)
class Up:
    """A connection is up; `restarted`: there is a new process at its other end."""

    link: Link
    restarted: bool


@dataclass(frozen=True, slots=True)
class Down:
    link: Link
    why: str


@dataclass(frozen=True, slots=True)
class Room:
    """The peer has taken in something, so the window has room again."""


@dataclass(frozen=True, slots=True)
class Foul:
    """The peer's process has sent what no honest one sends."""

    link: Link
    why: str


Event = Arrived | Up | Down | Room | Foul


class Inbox(Protocol):
    """Where a link reports its events."""

    def put(self, item: Event, /) -> None: ...


@dataclass(frozen=True)
class Astray:
    """Takes in what may not have come, and says whom to blame."""

    why: str
    inbox: Inbox

    def put(self, item: Event) -> None:
        assert isinstance(item, Arrived)
        item.link.refused["message that may not come this way"] += 1
        item.link.took(item)
        self.inbox.put(Foul(item.link, self.why))


class Link:
    """One end of the link between this party and one peer."""

    def __init__(
        self,
        me: str,
        peer: str,
        incarnation: bytes,
        inbox: Inbox,
        route: Callable[[Part], Inbox] | None = None,
    ) -> None:
        """route: where a part goes, if not to the inbox."""
        self.me, self.peer = me, peer
        self.refused: Counter[str] = Counter()
        self.life = 0  # how many incarnations of the peer there have been
        self.since = time.monotonic()  # when the link last came up or went down
        self.trouble = "it has not been reached yet"
        self.move = ""  # what mends that, where starting it again is not enough
        self.barred = ""  # why this peer is not talked with any more
        self.elastic = False  # a sender waits for nobody, see `_full`
        self._incarnation, self._inbox, self._route = incarnation, inbox, route
        self._lock = threading.RLock()  # whoever gets a frame may take it in at once
        self._peer_incarnation = b""
        self._pair = self._stamp = 0  # of incoming and outgoing frames: none can be reflected
        self._connection: Connection | None = None
        self._spoke = self._heard = 0.0  # when something last left, and last arrived
        self._reset()

    def _reset(self) -> None:
        self._unacked: deque[tuple[int, bytes]] = deque()
        self._unacked_bytes = 0
        self._behind: deque[bytes] = deque()  # the last of them, which no connection has carried
        self._behind_bytes = 0
        self._sent = 0  # number of the last frame made
        self._arrived = 0  # … of the last frame in order
        self._taken = 0  # … of the last frame up to which the runtime has taken all in
        self._ahead: set[int] = set()  # taken in before others: what is relayed takes its time
        self._told = 0  # … of the last ack that left
        self._taken_bytes = 0
        self._open_bytes = self._open = 0  # of frames that have come and are not taken in
        self._early: dict[int, tuple[Arrived, Inbox]] = {}
        self._gap_since = 0.0
        self._full_since = 0.0  # since when the window is full and nothing taken in; 0: it is not

    # ---- connections -------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self._connection is not None

    def life_of(self) -> str:
        """Identifies the peer's process, once it has said hello."""
        return self._peer_incarnation.hex() if self.up else ""

    def hello(self, agreed: str) -> bytes:
        """The hello that this end sends first."""
        with self._lock:
            hello = Hello(
                protocol=PROTOCOL,
                party=self.me,
                incarnation=self._incarnation,
                expects=self._peer_incarnation,
                received=self._arrived,
                agreed=agreed,
                clock=time.time(),
            )
        return pack(Frame(body=hello))

    def attach(self, connection: Connection, hello: Hello) -> None:
        """Continue over a new connection to a peer that has just said hello."""
        with self._lock:
            if self.barred:
                raise CodecError(self.barred)
            restarted = hello.incarnation != self._peer_incarnation
            if restarted:
                self._peer_incarnation = hello.incarnation
                self.life += 1
                self._reset()
                self._pair = _pair(hello.incarnation, self._incarnation)
                self._stamp = _pair(self._incarnation, hello.incarnation)
            elif hello.expects == self._incarnation:
                self._drop_until(hello.received)  # raises before anything has changed
            before, self._connection = self._connection, connection
            self._behind = deque(data for _, data in self._unacked)
            self._behind_bytes = self._unacked_bytes
            self._catch_up()
            self.since, self.trouble, self.move = time.monotonic(), "", ""
            self._spoke = self._heard = self.since
            self._inbox.put(Up(self, restarted))
        if before is not None:
            before.close()

    def detach(self, connection: Connection, why: str) -> None:
        """The connection has ended; another may follow."""
        with self._lock:
            if self._connection is not connection:
                return
            self._connection = None
            self._behind.clear()
            self._behind_bytes = 0
            self.since, self.trouble = time.monotonic(), why
            for event, _ in self._early.values():  # all of it will be sent again
                self._open, self._open_bytes = self._open - 1, self._open_bytes - event.size
            self._early.clear()
            self._gap_since = 0.0
            self._inbox.put(Down(self, why))

    def carried_by(self, connection: Connection) -> bool:
        return self._connection is connection

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def bar(self, why: str) -> None:
        """For good: what is sent from now on goes nowhere."""
        with self._lock:
            self.barred, self.trouble, self.since = why, why, time.monotonic()
            self._reset()
        self.close()

    def break_off(self) -> None:
        """End the connection in order to get another one."""
        with self._lock:
            connection, self._gap_since = self._connection, 0.0
        if connection is not None:
            connection.close()

    # ---- out ---------------------------------------------------------------------------------

    def send(
        self,
        wait: Callable[[], None],
        body: Part | Control,
        tail: Sequence[bytes | memoryview] = (),
    ) -> None:
        """Queue a frame; `wait` is called while there is no room, and may raise."""
        while not self._try(body, tail):
            wait()

    def _try(self, body: Part | Control, tail: Sequence[bytes | memoryview]) -> bool:
        with self._lock:
            if self.barred:
                return True
            if self._full(isinstance(body, Control)):
                self._full_since = self._full_since or time.monotonic()
                return False
            if isinstance(body, Part):
                data = pack_part(self._sent + 1, self._taken, self._stamp, body, tail)
            else:
                data = pack(Frame(self._sent + 1, self._taken, self._stamp, body), *tail)
            self._sent += 1
            self._told = self._taken
            self._taken_bytes = 0
            self._unacked.append((self._sent, data))
            self._unacked_bytes += len(data)
            if self._behind:
                self._behind.append(data)
                self._behind_bytes += len(data)
            elif self._connection is not None:
                self._connection.queue.put(data)
                self._spoke = time.monotonic()
            return True

    def _catch_up(self) -> None:
        """Send again what an earlier connection has lost, as far as the window reaches: while a
        peer of an elastic run was away, more than that may have been kept for it."""
        most_bytes, most_frames = self._window()
        while self._connection is not None and self._behind:
            under_way = self._unacked_bytes - self._behind_bytes
            frames = len(self._unacked) - len(self._behind)
            if frames and (under_way >= 2 * most_bytes or frames >= 2 * most_frames):
                return
            data = self._behind.popleft()
            self._behind_bytes -= len(data)
            self._connection.queue.put(data)

    def _full(self, control: bool) -> bool:
        """Whether the peer must take something in first. Control frames have a window of their own
        behind that of the parts, so that they pass whatever the peer has not read.

        A peer that has gone in the middle of a large message may never take it in: the rest is kept
        here until the link is repaired or another process takes the peer's place."""
        if not self._unacked or (self.elastic and not self.up):
            return False
        most_bytes, most_frames = self._window()
        times = 2 if control else 1
        return (
            self._unacked_bytes >= times * most_bytes or len(self._unacked) >= times * most_frames
        )

    def _window(self) -> tuple[int, int]:
        return (ELASTIC_BYTES, ELASTIC_FRAMES) if self.elastic else (WINDOW_BYTES, WINDOW_FRAMES)

    def took(self, event: Arrived) -> None:
        """Note that the runtime has taken a frame in, so that the peer may send as much again."""
        with self._lock:
            if event.life != self.life:
                return
            self._open, self._open_bytes = self._open - 1, self._open_bytes - event.size
            if event.number == self._taken + 1:
                self._taken += 1
            else:
                self._ahead.add(event.number)
            while self._ahead and self._taken + 1 in self._ahead:
                self._taken += 1
                self._ahead.remove(self._taken)
            self._taken_bytes += event.size
            if (
                isinstance(event.content, Part)
                and self._taken_bytes < ACK_BYTES
                and self._taken - self._told < ACK_FRAMES
            ):
                return  # the next frame will carry the ack
            self._say_ack()

    def beat(self, seconds: float) -> None:
        """Send an ack if nothing was sent for so many seconds, so that the peer hears this end."""
        with self._lock:
            if time.monotonic() - self._spoke > seconds:
                self._say_ack()

    def _say_ack(self) -> None:
        self._told, self._taken_bytes = self._taken, 0
        if self._connection is not None:
            self._connection.queue.put(pack(Frame(0, self._taken, self._stamp)))
            self._spoke = time.monotonic()

    def stuck(self, now: float) -> float:
        """How many seconds a connected peer has taken in nothing of a full window."""
        full = self._full_since
        return now - max(full, self.since) if full and self.up else 0.0

    def flushed(self) -> bool:
        """Whether the peer has taken in everything."""
        return not self._unacked

    # ---- in ----------------------------------------------------------------------------------

    def incoming(self, connection: Connection, data: bytes) -> None:
        """Take one incoming frame; a malformed one raises CodecError and changes nothing."""
        frame, tail = parse(data, f"'{self.peer}'")
        body = frame.body
        with self._lock:
            if connection is not self._connection:
                return
            self._heard = time.monotonic()
            if frame.pair != self._pair:
                self.refused["another run or process"] += 1
                return
            if not frame.number:
                if body is not None:
                    raise CodecError(
                        f"'{self.peer}' sent a {type(body).__name__} without a number in the "
                        "middle of a connection"
                    )
                self._drop_until(frame.ack)
                return
            if not isinstance(body, (Part, Control)):  # a union would be made for every frame
                what = "an ack" if body is None else f"a {type(body).__name__}"
                raise CodecError(f"'{self.peer}' sent {what} as a numbered frame")
            before = frame.number <= self._arrived or frame.number in self._early
            early = not before and frame.number > self._arrived + 1
            if early and len(self._early) >= EARLY_FRAMES:
                raise CodecError(f"'{self.peer}' sent frame {frame.number} far too early")
            place = self._inbox
            if isinstance(body, Part) and self._route is not None:
                place = self._route(body)
            self._drop_until(frame.ack)
            if before:
                self.refused["duplicate"] += 1
                return
            self._check_window(len(data))
            event = Arrived(self, self.life, frame.number, len(data), body, tail)
            if early:
                self._early[frame.number] = event, place
                self._gap_since = self._gap_since or time.monotonic()
                return
            place.put(event)  # under the lock, lest another connection deliver the next one first
            self._arrived += 1
            while self._arrived + 1 in self._early:
                self._arrived += 1
                event, place = self._early.pop(self._arrived)
                place.put(event)
            self._gap_since = time.monotonic() if self._early else 0.0

    def _check_window(self, size: int) -> None:
        """An honest sender waits; both kinds of frames may be one frame beyond their window."""
        most_bytes, most_frames = self._window()
        self._open, self._open_bytes = self._open + 1, self._open_bytes + size
        if self._open > 2 * most_frames or self._open_bytes > 2 * (most_bytes + FRAME_BYTES):
            raise CodecError(
                f"'{self.peer}' sent {self._open} frames, {self._open_bytes} bytes, beyond what "
                f"'{self.me}' has taken in: it ignores its window"
            )

    def deaf(self, seconds: float) -> bool:
        """Whether nothing has come for so many seconds, although the connection seems to be up."""
        return self.up and time.monotonic() - self._heard > seconds

    def gaping(self) -> bool:
        """Whether a frame has been missing for too long, although later ones have come."""
        gap = self._gap_since
        return bool(gap) and time.monotonic() - gap > GAP_SECONDS

    def _drop_until(self, number: int) -> None:
        if number > self._sent:
            raise CodecError(f"'{self.peer}' has taken in frame {number}, which was never sent")
        while self._unacked and self._unacked[0][0] <= number:
            _, data = self._unacked.popleft()
            self._unacked_bytes -= len(data)
            self._full_since = self._full_since and time.monotonic()
        while len(self._behind) > len(self._unacked):  # taken in from an earlier connection
            self._behind_bytes -= len(self._behind.popleft())
        if self._behind:
            self._catch_up()
        if self._full_since and self._unacked_bytes < WINDOW_BYTES // 2:
            self._full_since = 0.0
            self._inbox.put(Room())


def _pair(sender: bytes, receiver: bytes) -> int:
    digest = hashlib.sha256(sender + receiver).digest()
    return int.from_bytes(digest[:8], "little")
