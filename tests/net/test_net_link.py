"""A link over a network that loses, repeats, reorders and breaks: every frame once, in order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from colonnade.errors import CodecError
from colonnade.net import link as links
from colonnade.net.frame import Control, Frame, Hello, Part, pack, parse
from colonnade.net.link import Arrived, Connection, Link, Up

ENDS = ("bank", "shop")


class Full(Exception):
    """The window has no room."""


def no_room() -> None:
    raise Full


def part(sender: str, receiver: str) -> Part:
    return Part(7, 1, sender, receiver, "embedding", 0, "train", 0, 0, 1, 3, bytes(32))


class End:
    """One process: its link, and what has come out of it."""

    def __init__(self, me: str, peer: str) -> None:
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.link = Link(me, peer, os.urandom(16), self.inbox)
        self.sent: list[str] = []
        self.got: list[str] = []
        self.number = 0

    def send(self, size: int) -> None:
        text = f"{self.number}:{'x' * size}"
        self.link.send(no_room, Control("w", text))
        self.number += 1
        self.sent.append(text)

    def events(self) -> Iterator[Any]:
        while True:
            try:
                yield self.inbox.get_nowait()
            except Empty:
                return

    def take_in(self) -> None:
        """As the runtime does: one event after the other."""
        for event in self.events():
            if isinstance(event, Up) and event.restarted:
                self.got.clear()
                self.sent.clear()  # what the peer's memory held is gone
            if isinstance(event, Arrived) and event.life == self.link.life:
                self.link.took(event)
                self.got.append(event.content.content)


def join(a: End, b: End) -> tuple[Connection, Connection]:
    """Both say hello, and hear each other."""
    ours, theirs = Connection(lambda: None), Connection(lambda: None)
    hello = parse(a.link.hello("{}"))[0].body
    b.link.attach(theirs, hello)
    a.link.attach(ours, parse(b.link.hello("{}"))[0].body)
    return ours, theirs


class Network(RuleBasedStateMachine):
    """Two ends and all that can happen between them; `teardown` makes peace and counts."""

    @initialize()
    def begin(self) -> None:
        self.ends = {"bank": End("bank", "shop"), "shop": End("shop", "bank")}
        self.wires: dict[str, Connection] = {}
        self.old: list[bytes] = []
        self._connect()

    def _connect(self) -> None:
        ours, theirs = join(self.ends["bank"], self.ends["shop"])
        self.wires = {"bank": ours, "shop": theirs}
        self._settle()

    def _cut(self) -> None:
        for name, wire in self.wires.items():
            self.ends[name].link.detach(wire, "cut")
        self.wires = {}

    def _settle(self) -> None:
        """Notice new incarnations at once, as a runtime does before it sends again."""
        for end in self.ends.values():
            end.take_in()

    def _other(self, name: str) -> str:
        return "shop" if name == "bank" else "bank"

    def _put(self, sender: str, data: bytes) -> None:
        receiver = self._other(sender)
        try:
            self.ends[receiver].link.incoming(self.wires[receiver], data)
        except CodecError as error:
            assert "far too early" in str(error)
            self._cut()

    @rule(name=st.sampled_from(ENDS), size=st.integers(0, 700))
    def send(self, name: str, size: int) -> None:
        try:
            self.ends[name].send(size)
        except Full:
            assert not self.ends[name].link.flushed()

    @precondition(lambda self: self.wires)
    @rule(
        name=st.sampled_from(ENDS),
        fates=st.lists(st.sampled_from(["pass"] * 6 + ["twice", "lose", "swap", "again"])),
    )
    def carry(self, name: str, fates: list[str]) -> None:
        """Some frames of one direction, each with its fate."""
        queue = self.wires[name].queue
        for fate in fates:
            if not self.wires or queue.empty():
                return
            data = queue.get()
            assert data is not None
            self.old = [*self.old[-20:], data]
            if fate == "lose":
                continue
            if fate == "swap" and not queue.empty():
                later = queue.get()
                assert later is not None
                self._put(name, later)
            if self.wires:
                self._put(name, data)
            if self.wires and fate == "twice":
                self._put(name, data)
            if self.wires and fate == "again":
                self._put(name, self.old[0])

    @rule(name=st.sampled_from(ENDS))
    def take_in(self, name: str) -> None:
        self.ends[name].take_in()

    @precondition(lambda self: self.wires)
    @rule()
    def cut(self) -> None:
        self._cut()

    @precondition(lambda self: self.wires)
    @rule(name=st.sampled_from(ENDS))
    def half_cut(self, name: str) -> None:
        """Only one end has noticed; the other one finds out when the peer dials again."""
        self.ends[name].link.detach(self.wires[name], "cut")
        self.wires = {}

    @precondition(lambda self: not self.wires)
    @rule()
    def connect(self) -> None:
        self._connect()

    @precondition(lambda self: not self.wires)
    @rule()
    def hello_is_lost(self) -> None:
        """The one who listens has taken a connection of which the other never hears again."""
        wire = Connection(lambda: None)
        bank, shop = self.ends["bank"], self.ends["shop"]
        shop.link.attach(wire, parse(bank.link.hello("{}"))[0].body)
        shop.take_in()
        shop.link.detach(wire, "cut")

    @rule(name=st.sampled_from(ENDS))
    def start_anew(self, name: str) -> None:
        """The process at one end dies, and another one takes its place."""
        self._settle()
        self._cut()
        number = self.ends[name].number
        self.ends[name] = End(name, self._other(name))
        self.ends[name].number = number + 1000
        self._connect()
        assert not self.ends[self._other(name)].got and not self.ends[name].got

    @invariant()
    def in_order_and_once(self) -> None:
        if not hasattr(self, "ends"):
            return
        for name, end in self.ends.items():
            sent = self.ends[self._other(name)].sent
            assert end.got == sent[: len(end.got)]

    @invariant()
    def bounded(self) -> None:
        for end in getattr(self, "ends", {}).values():
            link = end.link
            assert len(link._unacked) <= 2 * links.WINDOW_FRAMES  # of control frames
            largest = max((len(data) for _, data in link._unacked), default=0)
            assert link._unacked_bytes <= 2 * links.WINDOW_BYTES + largest
            assert link._unacked_bytes == sum(len(data) for _, data in link._unacked)
            assert len(link._early) <= links.EARLY_FRAMES

    def teardown(self) -> None:
        if not hasattr(self, "ends"):
            return
        self._settle()
        for _ in range(3):  # acks of what was taken in may themselves wait for a frame
            self._cut()
            self._connect()
            for _ in range(2):
                for name in ENDS:
                    queue = self.wires[name].queue
                    while not queue.empty():
                        data = queue.get()
                        assert data is not None
                        self._put(name, data)
                self._settle()
        for name, end in self.ends.items():
            assert end.got == self.ends[self._other(name)].sent
        self._cut()
        self._connect()  # the hellos say what has arrived
        assert all(end.link.flushed() for end in self.ends.values())


@pytest.fixture(autouse=True, scope="module")
def small_windows() -> Iterator[None]:
    """So that they fill up within a test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "WINDOW_BYTES": 2000,
            "WINDOW_FRAMES": 8,
            "ACK_BYTES": 500,
            "ACK_FRAMES": 3,
            "EARLY_FRAMES": 3,
        }.items():
            patch.setattr(links, name, value)
        yield


class TestNetwork(Network.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_nothing_overtakes_when_a_connection_is_replaced() -> None:
    """A reader of the old connection, stopped at the worst moment, must not come out of turn."""
    bank, shop = End("bank", "shop"), End("shop", "bank")
    plain, stopped, go_on = shop.inbox.put, threading.Event(), threading.Event()

    class Slow(SimpleQueue):  # type: ignore[type-arg]
        def put(self, event: Any, *_: Any) -> None:
            if isinstance(event, Arrived) and event.number == 1 and not stopped.is_set():
                stopped.set()
                go_on.wait(1)
            plain(event)

    shop.link = Link("shop", "bank", os.urandom(16), Slow())
    ours, theirs = join(bank, shop)
    shop.take_in()
    for _ in range(3):
        bank.send(1)
    frames = waiting(ours)
    reader = threading.Thread(target=shop.link.incoming, args=(theirs, frames[0]))
    reader.start()
    assert stopped.wait(5)

    def again() -> None:
        _, new = join(bank, shop)
        shop.link.incoming(new, frames[1])

    other = threading.Thread(target=again)
    other.start()
    other.join(0.3)
    go_on.set()
    reader.join(5)
    other.join(5)
    shop.take_in()
    assert [text.partition(":")[0] for text in shop.got] == ["0", "1"]


def waiting(wire: Connection) -> list[bytes]:
    """The frames that are to leave over a connection."""
    frames = []
    while not wire.queue.empty():
        frames.append(wire.queue.get() or b"")
    return frames


def refused(end: End, wire: Connection, data: bytes, match: str) -> None:
    """With nothing changed but when something last came."""

    def state() -> dict[str, str]:
        aside = ("refused", "_lock", "_heard")
        return {key: str(value) for key, value in vars(end.link).items() if key not in aside}

    before = state()
    with pytest.raises(CodecError, match=match):
        end.link.incoming(wire, data)
    assert state() == before and end.inbox.empty()


def test_what_is_refused_changes_nothing() -> None:
    bank, shop = End("bank", "shop"), End("shop", "bank")
    ours, wire = join(bank, shop)
    shop.take_in()
    shop.send(3)
    bank.send(1)
    pair = parse(waiting(ours)[0])[0].pair
    refused(shop, wire, b"", "'bank' sent 0 bytes that are not a frame")
    unsent = pack(Frame(number=1, ack=2, pair=pair, body=Control("w")))
    refused(shop, wire, unsent, "frame 2, which was never sent")
    refused(shop, wire, pack(Frame(0, 1, pair, Hello(incarnation=bytes(16)))), "in the middle")
    refused(shop, wire, pack(Frame(number=1, ack=1, pair=pair)), "as a numbered frame")
    early = [pack(Frame(number=n, pair=pair, body=Control("w"))) for n in (3, 4, 5, 6)]
    for data in early[:3]:
        shop.link.incoming(wire, data)
    refused(shop, wire, pack(parse(early[3])[0]), "far too early")
    for data in early:
        shop.link.refused.clear()
        other = parse(data)[0]
        shop.link.incoming(wire, pack(other._replace(pair=pair + 1)))
        assert shop.link.refused == {"another run or process": 1}
    assert shop.inbox.empty()


def test_a_hello_that_has_heard_too_much_changes_nothing() -> None:
    bank, shop = End("bank", "shop"), End("shop", "bank")
    ours, theirs = join(bank, shop)
    bank.take_in()
    bank.send(1)
    hello = parse(shop.link.hello("{}"))[0].body
    hello = hello._replace(received=7)
    with pytest.raises(CodecError, match="frame 7, which was never sent"):
        bank.link.attach(Connection(lambda: None), hello)
    assert bank.link.up and not bank.link.flushed()
    bank.send(2)
    assert [parse(data)[0].number for data in waiting(ours)] == [1, 2]  # the old one still stands
    shop.send(1)
    assert len(waiting(theirs)) == 1


def test_a_gap_that_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, shop = End("bank", "shop"), End("shop", "bank")
    ours, wire = join(bank, shop)
    for _ in range(3):
        bank.send(1)
    frames = waiting(ours)
    shop.link.incoming(wire, frames[2])
    assert not shop.link.gaping()
    now = time.monotonic()
    monkeypatch.setattr(links.time, "monotonic", lambda: now + 3)
    assert shop.link.gaping()
    shop.link.incoming(wire, frames[0])  # some progress: it may still be on its way
    assert not shop.link.gaping()
    shop.link.incoming(wire, frames[1])
    monkeypatch.setattr(links.time, "monotonic", lambda: now + 99)
    assert not shop.link.gaping()


def test_a_silent_peer_is_noticed_and_a_living_one_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, shop = End("bank", "shop"), End("shop", "bank")
    ours, theirs = join(bank, shop)
    now = time.monotonic()
    monkeypatch.setattr(links.time, "monotonic", lambda: now + 4)
    assert shop.link.deaf(3) and not shop.link.deaf(30)
    bank.link.beat(5)
    assert ours.queue.empty()  # it has spoken lately
    bank.link.beat(3)
    shop.link.incoming(theirs, ours.queue.get() or b"")
    assert not shop.link.deaf(3)
    shop.take_in()
    assert not shop.got  # a beat is no word
    shop.link.close()
    assert not shop.link.deaf(0)  # that is known already


def test_a_window_that_stays_full_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, shop = End("bank", "shop"), End("shop", "bank")
    ours, theirs = join(bank, shop)
    shop.send(1)
    with pytest.raises(Full):
        for _ in range(20):
            bank.send(10)
    now = time.monotonic()
    assert 0 < bank.link.stuck(now) < 60 and bank.link.stuck(now + 100) > 99
    monkeypatch.setattr(links.time, "monotonic", lambda: now + 90)
    pair = parse(waiting(theirs)[0])[0].pair
    bank.link.incoming(ours, pack(Frame(0, 1, pair)))
    assert bank.link.stuck(now + 100) < 11  # it took something in


def test_a_full_window_opens_when_the_peer_takes_in() -> None:
    bank, shop = End("bank", "shop"), End("shop", "bank")
    ours, theirs = join(bank, shop)
    bank.take_in()
    shop.take_in()
    with pytest.raises(Full):
        for _ in range(20):
            bank.send(10)
    assert len(bank.sent) == 2 * links.WINDOW_FRAMES
    while not ours.queue.empty():
        shop.link.incoming(theirs, ours.queue.get() or b"")
    assert theirs.queue.empty()  # arrived is not taken in
    shop.take_in()
    while not theirs.queue.empty():
        bank.link.incoming(ours, theirs.queue.get() or b"")
    bank.send(10)
    assert len(bank.sent) == 2 * links.WINDOW_FRAMES + 1


def test_an_elastic_link_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a peer that is busy, up to a limit, nor for one that has gone in the middle."""
    monkeypatch.setattr(links, "ELASTIC_BYTES", 20_000)
    bank, shop = End("bank", "shop"), End("shop", "bank")
    bank.link.elastic = shop.link.elastic = True
    ours, theirs = join(bank, shop)
    bank.take_in()
    shop.take_in()
    with pytest.raises(Full):
        for _ in range(100):
            bank.send(1000)
    assert len(bank.sent) > links.WINDOW_FRAMES
    bank.link.detach(ours, "cut")
    for _ in range(100):
        bank.send(1000)
    ours, theirs = join(bank, shop)  # the same two: all of it comes
    for _ in range(9):  # a window at a time
        while not ours.queue.empty():
            shop.link.incoming(theirs, ours.queue.get() or b"")
        shop.take_in()
        while not theirs.queue.empty():
            bank.link.incoming(ours, theirs.queue.get() or b"")
    assert shop.got == bank.sent and len(bank.sent) > 100


def test_what_is_passed_on_late_is_acknowledged_late() -> None:
    """Else a party could fill the memory of a hub that waits for the receiver."""
    hub, shop, passed = End("hub", "shop"), End("shop", "hub"), SimpleQueue[Any]()

    def route(part: Part) -> SimpleQueue[Any]:
        if part.sender != "shop":
            raise CodecError("in the name of another")
        return passed

    hub.link = Link("hub", "shop", os.urandom(16), hub.inbox, route)
    ours, theirs = join(hub, shop)
    hub.take_in()

    def acknowledged() -> int:
        hub.send(1)
        return max(parse(data)[0].ack for data in waiting(ours))

    shop.link.send(no_room, part("shop", "bank"), [b"abc"])
    shop.send(1)
    for _ in range(2):
        hub.link.incoming(ours, theirs.queue.get() or b"")
    hub.take_in()
    assert hub.got == ["0:x"] and acknowledged() == 0
    event = passed.get()
    assert bytes(event.tail) == b"abc"
    hub.link.took(event)
    assert acknowledged() == 2
    shop.link.send(no_room, part("bank", "hub"))
    refused(hub, ours, theirs.queue.get() or b"", "in the name of another")
