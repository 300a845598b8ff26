"""For sites that open no port: connections between them as messages of the engine.

    bank's mesh  ──  127.0.0.1  ──  engine's connection  ──  server  ──  …  ──  shop's mesh

Every site has one connection, out to the engine's server, which is there anyway. What is carried
are the bytes of TLS between two parties: the server passes them on and cannot read them, and a
party still knows its peer by its certificate. Nothing is lost silently either: a hole stalls the
connection, the link finds that out and connects again.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from colonnade.config.federation import Federation
from colonnade.deploy.nvflare import job

CHANNEL, TOPIC = "colonnade", "tunnel"
CHUNK_BYTES = 1 << 18
CONNECTION, NUMBER = "connection", "number"  # headers: which connection, and the piece's place
OPEN = -1  # the place of a question: is the peer's end there?
OPEN_SECONDS = 5.0


class Tunnel:
    """This site's end of all connections that pass through the engine."""

    def __init__(self, federation: Federation, me: str, cell: Any) -> None:
        """cell: the engine's messaging, as a running job has it"""
        self._me, self._cell = me, cell.core_cell
        self._pipes: dict[tuple[str, str], _Pipe] = {}
        self._lock = threading.Lock()
        self._doors: list[socket.socket] = []
        self._cells = {peer: _cell_of(peer, me, self._cell) for peer in federation.linked(me)}
        self.addresses: dict[str, str] = {}  # where this party binds, and dials each peer
        if federation.listens(me):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.addresses[me] = _address(free)
        for peer in self._cells:
            if federation.dials(me, peer) == me:
                door = socket.create_server(("127.0.0.1", 0))
                self.addresses[peer] = _address(door)
                self._doors.append(door)
                _thread(self._accept, door, peer)

    def __enter__(self) -> Tunnel:
        self._cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        for door in self._doors:
            door.close()
        with self._lock:
            pipes = list(self._pipes.values())
        for pipe in pipes:
            pipe.close()

    def _accept(self, door: socket.socket, peer: str) -> None:
        """This party dials a peer: every connection becomes one at the peer's end."""
        while True:
            try:
                stream, _ = door.accept()
            except OSError:
                return  # closed
            _thread(self._open, stream, (peer, secrets.token_hex(8)))

    def _open(self, stream: socket.socket, key: tuple[str, str]) -> None:
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
        from nvflare.fuel.f3.message import Message

        pipe = _Pipe(stream)
        with self._lock:
            self._pipes[key] = pipe
        reply = self._cell.send_request(
            channel=CHANNEL,
            topic=TOPIC,
            target=self._cells[key[0]],
            request=Message({CONNECTION: key[1], NUMBER: OPEN}, b""),
            timeout=OPEN_SECONDS,
            optional=True,  # the peer may not have begun
        )
        if reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK:
            self._begin(key, pipe)
        else:
            self._forget(key, pipe)  # the mesh will try again

    def _begin(self, key: tuple[str, str], pipe: _Pipe) -> None:
        _thread(pipe.write)
        _thread(self._read, key, pipe)

    def _forget(self, key: tuple[str, str], pipe: _Pipe) -> None:
        pipe.close()
        with self._lock:
            self._pipes.pop(key, None)

    def _read(self, key: tuple[str, str], pipe: _Pipe) -> None:
        """Send on what this party's mesh writes, until either end closes."""
        number = 0
        gone = suppress(OSError, RuntimeError)  # the stream was closed; the engine's threads ended
        with gone:
            while data := pipe.stream.recv(CHUNK_BYTES):
                self._send(key, number, data)
                number += 1
        with gone:
            self._send(key, number, b"")  # the end
        self._forget(key, pipe)

    def _send(self, key: tuple[str, str], number: int, data: bytes) -> None:
        from nvflare.fuel.f3.message import Message

        peer, connection = key
        self._cell.fire_and_forget(
            channel=CHANNEL,
            topic=TOPIC,
            targets=self._cells[peer],
            message=Message({CONNECTION: connection, NUMBER: number}, data),
            optional=True,  # the peer's process may be gone
        )

    def _arrived(self, message: Any) -> Any:
        """A piece from a peer; called by any of the engine's threads, in any order."""
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
        from nvflare.fuel.f3.cellnet.utils import make_reply

        origin = message.get_header(MessageHeaderKey.ORIGIN)
        peer = next((name for name, cell in self._cells.items() if cell == origin), "")
        connection, number = message.get_header(CONNECTION), message.get_header(NUMBER)
        if not peer or not isinstance(connection, str) or not isinstance(number, int):
            return None
        key = (peer, connection)
        if number == OPEN:
            stream = _connected(self.addresses.get(self._me, ""))
            if stream is None:
                return make_reply(ReturnCode.TARGET_UNREACHABLE)
            with self._lock:
                self._pipes[key] = pipe = _Pipe(stream)
            self._begin(key, pipe)
            return make_reply(ReturnCode.OK)
        with self._lock:
            found = self._pipes.get(key)
        if found is not None:
            found.take(number, bytes(message.payload))
        return None


@dataclass
class _Pipe:
    """One connection with this party's own mesh, and what came for it, put in order."""

    stream: socket.socket
    _queue: SimpleQueue[bytes] = field(default_factory=SimpleQueue)
    _early: dict[int, bytes] = field(default_factory=dict)
    _next: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, number: int, data: bytes) -> None:
        with self._lock:
            if number >= self._next:
                self._early[number] = data
            while self._next in self._early:
                self._queue.put(self._early.pop(self._next))
                self._next += 1

    def write(self) -> None:
        with suppress(OSError):
            while data := self._queue.get():
                self.stream.sendall(data)
        self.close()

    def close(self) -> None:
        self._queue.put(b"")
        with suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()


def _cell_of(peer: str, me: str, cell: Any) -> str:
    """The engine's name for the process of a peer in this job: like this one's, at another site."""
    here, there = job.site_of(me), job.site_of(peer)
    return ".".join(there if part == here else part for part in cell.my_info.fqcn.split("."))


def _connected(address: str) -> socket.socket | None:
    """A stream to this party's mesh; None, if it does not listen, or not yet."""
    host, _, port = address.rpartition(":")
    if not host:
        return None
    try:
        stream = socket.create_connection((host, int(port)), timeout=1.0)
    except OSError:
        return None
    stream.settimeout(None)
    return stream


def _address(door: socket.socket) -> str:
    host, port = door.getsockname()
    return f"{host}:{port}"


def _thread(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()
