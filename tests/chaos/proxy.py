"""A bad network in front of one port: slow, narrow, cut, half dead, or with flipped bytes.

    with Proxy(7443) as proxy:       # proxy.port leads to 7443
        proxy.latency = 0.1
        proxy.cut(2.0)

Runs an event loop in a thread of its own; everything may be called from any other.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

CHUNK, BUFFER = 16384, 65536  # bytes


class Proxy:
    """Forwards TCP connections to a port of this machine, and spoils them on request."""

    def __init__(self, target: int = 0, seed: int = 0) -> None:
        self.target = target
        self.latency = self.jitter = 0.0  # seconds, each way
        self.rate = 0.0  # bytes per second and direction; 0: as fast as it goes
        self.port = 0
        self.carried = 0  # bytes
        self.connections = 0  # so far
        self._draw = random.Random(seed)
        self._flips = 0
        self._refuse_until = 0.0
        self._pairs: set[_Pair] = set()

    def __enter__(self) -> Proxy:
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()

        async def serve() -> None:
            door = socket.socket()
            door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)  # no more than a router's
            door.bind(("127.0.0.1", 0))
            self._server = await asyncio.start_server(self._accept, sock=door, limit=CHUNK)
            self.port = door.getsockname()[1]
            ready.set()

        def run() -> None:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(serve())
            self._loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        async def end() -> None:
            self._server.close()
            for pair in list(self._pairs):
                pair.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def in_front_of(self, port: int) -> int:
        """Lead to this port; returns the proxy's own."""
        self.target = port
        return self.port

    # ---- what can go wrong ---------------------------------------------------------------------

    def cut(self, seconds: float) -> None:
        """All connections end, and for a while none can be made."""
        self._refuse_until = time.monotonic() + seconds
        self._each(_Pair.close)

    def reset(self) -> None:
        """All connections are torn down as by a router that has forgotten them."""
        self._each(_Pair.reset)

    def half_open(self) -> None:
        """Nothing more is carried over the connections there are, and nobody is told."""
        self._each(_Pair.freeze)

    def flip(self, count: int = 1) -> None:
        """One bit in each of the next pieces that are carried."""
        self._flips += count

    def _each(self, what: Callable[[_Pair], None]) -> None:
        done = threading.Event()

        def act() -> None:
            for pair in list(self._pairs):
                what(pair)
            done.set()

        self._loop.call_soon_threadsafe(act)
        done.wait(10)

    # ---- carrying ------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() < self._refuse_until:
            writer.close()
            return
        try:
            far = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self.connections += 1
        pair = _Pair((reader, writer), far)
        self._pairs.add(pair)
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(self._carry(pair, reader, far[1])),
                    asyncio.ensure_future(self._carry(pair, far[0], writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._pairs.discard(pair)
            pair.close()

    async def _carry(
        self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        sender = asyncio.ensure_future(self._send(pair, due, writer))
        try:
            while data := await reader.read(CHUNK):
                if self._flips:
                    self._flips -= 1
                    data = self._flipped(data)
                delay = self.latency + self._draw.uniform(0, self.jitter)
                await due.put((time.monotonic() + delay, data))
                if self.rate:
                    await asyncio.sleep(len(data) / self.rate)
        except OSError:
            pass
        finally:
            await due.put((0.0, b""))
            await sender

    async def _send(
        self, pair: _Pair, due: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            at, data = await due.get()
            if not data:
                return
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            if pair.frozen:
                continue
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                pair.close()
                return
            self.carried += len(data)

    def _flipped(self, data: bytes) -> bytes:
        at = self._draw.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._draw.randrange(8)]) + data[at + 1 :]


class _Pair:
    """Both halves of one connection."""

    def __init__(self, *ends: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._writers = [writer for _, writer in ends]
        self.frozen = False

    def freeze(self) -> None:
        self.frozen = True

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def reset(self) -> None:
        for writer in self._writers:
            raw: Any = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
