"""Fuzz what comes in over a link with coverage guidance: frame, link, post office, codec.

    pip install atheris          # not a dependency; needs a Python that it has a wheel for
    python benchmarks/chaos/fuzz_frames.py -max_total_time=600 corpus/

Only typed errors may come out. tests/runtime/test_runtime_post.py does the same without guidance.
"""

from __future__ import annotations

import sys
from queue import SimpleQueue
from typing import Any

from colonnade.errors import ColonnadeError
from colonnade.net.frame import Hello, parse
from colonnade.net.link import Connection, Link
from colonnade.runtime.post import Post
from colonnade.wire import Kind, Ledger
from colonnade.wire.policy import Gate, Policy

KINDS = {
    kind.name: kind
    for kind in (
        Kind("embedding", ("batch", "dim"), reveals="noise"),
        Kind("weights", None, reveals="noise", dtype="any"),
    )
}


def one(data: bytes) -> None:
    """One message of the stream, to a party that has just begun."""
    inbox: SimpleQueue[Any] = SimpleQueue()
    link, wire = Link("bank", "shop", b"b" * 16, inbox), Connection(lambda: None)
    link.attach(wire, Hello(incarnation=b"s" * 16))
    gate = Gate("bank", Policy.allowing(KINDS.values()), 1, 1, 2)
    post = Post("bank", frozenset({"bank", "shop"}), KINDS, Ledger(None), gate, _unsent, 1 << 20)
    post.begin(1, 1)
    try:
        frame, tail = parse(data)
        link.incoming(wire, data)
        if frame.WhichOneof("body") == "part":
            frame.part.run, frame.part.attempt = 1, 1  # else nearly all end here
            post.accept(frame.part, tail)
    except ColonnadeError:
        pass


def _unsent(*_: Any) -> None:
    raise AssertionError("nothing is sent here")


def main() -> None:
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris (see the top of this file)")
    atheris.instrument_all()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
