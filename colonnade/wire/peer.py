"""How a role speaks to another party: `send` waits for no answer, `recv` waits for one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from colonnade.errors import WireError
from colonnade.wire.kind import Kind, Value


class Wire(Protocol):
    """Carries messages of declared Kinds from one party to the others."""

    def put(self, receiver: str, kind: Kind, value: Value) -> None: ...

    def reaches(self, receiver: str) -> bool:
        """Whether a message put now would leave at once."""
        ...


@dataclass(slots=True, eq=False)
class Recv:
    """A request to the runtime; awaiting it hands it over and returns the answer."""

    peers: tuple[Peer, ...]
    kind: Kind
    any: bool = False  # the first of several, answered with (peer, value)
    within: float | None = None  # seconds; then the answer of `recv_any` is None

    def __await__(self) -> Generator[Recv, Any, Any]:
        return (yield self)


class Peer:
    """Another party, as seen from one role: its name, and how to send to it and receive from it.

    A peer that is not `present` keeps its place among the others but takes no part.
    """

    __slots__ = ("_wire", "name", "present")

    def __init__(self, name: str, wire: Wire, present: bool = True) -> None:
        self.name, self.present = name, present
        self._wire = wire

    @property
    def reachable(self) -> bool:
        """Whether there is a connection with it right now; in one process there always is."""
        return self.present and self._wire.reaches(self.name)

    def send(self, kind: Kind, value: Value) -> None:
        """Send a value that fits the Kind's declaration, and go on. Over a network this waits while
        the peer has no room for more."""
        if not self.present:
            raise WireError(_absent(f"sent to '{self.name}'", kind))
        self._wire.put(self.name, kind, value)

    def recv(self, kind: Kind) -> Recv:
        """Wait for the next message of this Kind from this peer: `await peer.recv(KIND)`."""
        if not self.present:
            raise WireError(_absent(f"received from '{self.name}'", kind))
        return Recv((self,), kind)

    def __repr__(self) -> str:
        return f"Peer({self.name!r})"


def recv_any(peers: Sequence[Peer], kind: Kind, within: float | None = None) -> Recv:
    """Wait for whoever comes first: `answer = await recv_any(clients, HEAD, within=30)`.

    The answer is `(peer, value)`, or None when `within` seconds passed. In one process a virtual
    clock decides who comes first, so the result does not depend on the machine.
    """
    for peer in peers:
        if not peer.present:
            raise WireError(_absent(f"received from '{peer.name}'", kind))
    return Recv(tuple(peers), kind, any=True, within=within)


def _absent(what: str, kind: Kind) -> str:
    return f"'{kind.name}' cannot be {what}, which is absent: ask `peer.present` first"
