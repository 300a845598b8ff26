"""Coverage-guided fuzzing of everything that looks at bytes from the network, before a digest does.

    pip install atheris            # Linux, Clang; no part of Colonnade's requirements
    python benchmarks/chaos/fuzz_frames.py benchmarks/chaos/corpus -max_total_time=600

The bytes go the way of a frame that a member sends: frame.parse, Link.incoming, Post.accept, and
those of a message also straight into the codec. Every error must be one of ours: another one ends
the fuzzing and leaves the input in crash-*. Without a corpus the first inputs are a few real
frames, which --seed-corpus DIR writes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import torch

from colonnade.errors import ColonnadeError
from colonnade.net.frame import Control, Frame, Hello, Part, pack, parse
from colonnade.net.link import Connection, Link
from colonnade.role.checks import Checks
from colonnade.runtime.network import Network
from colonnade.runtime.post import Post
from colonnade.wire import Kind, Ledger, codec
from colonnade.wire.gate import Gate
from colonnade.wire.policy import Policy

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="noise")
TREE = Kind("tree", None, reveals="noise", dtype="any")
KINDS = {kind.name: kind for kind in (EMBEDDING, TREE)}
RUN, ATTEMPT = 7, 1


class Me:
    """What a post office looks at of a party."""

    name, position = "shop", ("train", 0, 0)
    progress: Any = SimpleNamespace(phase="train", hop=0, clock=0.0, position=position, steps=0)
    checks = Checks("shop", None, progress)
    at_hand, splits = None, ()


def post(me: str, mesh: Any = None) -> Post:
    gate = Gate(me, Policy.allowing(KINDS.values()), 10, 2)
    members = frozenset({"bank", "shop"})
    made = Post(me, members, KINDS, Ledger(None), gate, Network(mesh, 500))
    made.begin(RUN, ATTEMPT)
    made.checks = Checks(me, None, Me.progress)
    return made


def linked() -> tuple[Link, Connection, SimpleQueue[Any]]:
    """A link that stands, as its listening end sees it."""
    inbox: SimpleQueue[Any] = SimpleQueue()
    link, wire = Link("bank", "shop", b"b" * 16, inbox), Connection(lambda: None)
    link.attach(wire, Hello(incarnation=b"s" * 16))
    inbox.get()
    return link, wire, inbox


class Frames:
    """A mesh that keeps what it is to carry, as frames of a link."""

    def __init__(self, pair: int) -> None:
        self.pair, self.packed = pair, list[bytes]()

    def add(self, body: Part | Control, tail: Any = ()) -> None:
        self.packed.append(pack(Frame(len(self.packed) + 1, 0, self.pair, body), *tail))

    def send_part(self, peer: str, part: Part, tail: Any) -> None:
        self.add(part, tail)


def real_frames() -> list[bytes]:
    """What would come: whole messages, a message in parts, words, acks."""
    link, _, _ = linked()
    mesh = Frames(link._pair)
    office: Any = post("shop", mesh)
    office.put(Me, "bank", EMBEDDING, torch.ones(2, 8))
    office.put(Me, "bank", EMBEDDING, torch.ones(30, 8))
    office.put(Me, "bank", TREE, {"values": torch.arange(4), "tag": b"0123456789abcdef", "x": 1.5})
    mesh.add(Control("saved", '{"label": "train-00000-0000003"}'))
    return [*mesh.packed, pack(Frame(0, 0, link._pair))]


def one_input(data: bytes) -> None:
    """The target: raises what should never be raised."""
    link, wire, inbox = linked()
    bank = post("bank")
    with suppress(ColonnadeError):
        frame, tail = parse(data)
        number = min(frame.number, 1)  # need not be guessed
        link.incoming(wire, pack(Frame(number, frame.ack, link._pair, frame.body), tail))
        while not inbox.empty():
            event = inbox.get()
            if isinstance(event.content, Part):
                bank.accept(event.content, event.tail)
                for kind in KINDS.values():
                    bank.take("shop", kind)  # trees are made when they are taken
    with suppress(ColonnadeError):
        codec.decode(data)


def main() -> int:
    if "--seed-corpus" in sys.argv:
        folder = Path(sys.argv[sys.argv.index("--seed-corpus") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        for number, frame in enumerate(real_frames()):
            (folder / f"frame-{number:02d}").write_bytes(frame)
        return 0
    for frame in real_frames():
        one_input(frame)  # the target itself works
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris (Linux; see the top of this file)")
        return 2
    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
