"""Connections that pass through an engine, here one that delivers pieces late and out of order."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply

from colonnade.deploy.nvflare.tunnel import Tunnel

NAMES = ("bank", "shop")  # the shop dials the bank


class Cells:
    """The engine's messaging, in one process."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}
        self.pool = ThreadPoolExecutor(8)
        self.seen = 0

    def cell(self, name: str) -> Any:
        core = SimpleNamespace(my_info=SimpleNamespace(fqcn=f"{name}.job-1"))

        def register_request_cb(channel: str, topic: str, cb: Any) -> None:
            self.callbacks[f"{name}.job-1"] = cb

        def deliver(message: Any, target: str) -> Any:
            message.set_header(MessageHeaderKey.ORIGIN, core.my_info.fqcn)
            call = self.callbacks.get(target)
            return make_reply(ReturnCode.TARGET_UNREACHABLE) if call is None else call(message)

        def send_request(*, target: str, request: Any, **_: Any) -> Any:
            return deliver(request, target)

        def late(message: Any, target: str) -> None:
            time.sleep(random.uniform(0, 0.005))
            deliver(message, target)

        def fire_and_forget(*, targets: str, message: Any, **_: Any) -> None:
            self.seen += len(message.payload)
            self.pool.submit(late, message, targets)

        core.register_request_cb, core.send_request = register_request_cb, send_request
        core.fire_and_forget = fire_and_forget
        return SimpleNamespace(core_cell=core)


def federation() -> Any:
    return SimpleNamespace(
        linked=lambda me: [name for name in NAMES if name != me],
        listens=lambda me: me == "bank",
        dials=lambda a, b: "shop",
    )


@pytest.fixture
def cells() -> Iterator[Cells]:
    made = Cells()
    yield made
    made.pool.shutdown()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    stream = socket.create_connection((host, int(port)), 10)
    stream.settimeout(10)
    return stream


def echo(address: str) -> socket.socket:
    """What the bank's mesh is here: it sends back whatever comes."""
    host, _, port = address.rpartition(":")
    door = socket.create_server((host, int(port)))

    def serve() -> None:
        with suppress(OSError):  # closed
            stream, _ = door.accept()
            with stream:
                while data := stream.recv(1 << 16):
                    stream.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return door


def read(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := stream.recv(1 << 16)):
        found += data
    return found


def test_bytes_come_back_whole_and_in_order(cells: Cells) -> None:
    sent = random.Random(1).randbytes(3_000_000)
    with (
        Tunnel(federation(), "bank", cells.cell("bank")) as bank,
        Tunnel(federation(), "shop", cells.cell("shop")) as shop,
        echo(bank.addresses["bank"]),
        connect(shop.addresses["bank"]) as stream,
    ):
        threading.Thread(target=stream.sendall, args=(sent,), daemon=True).start()
        assert read(stream, len(sent)) == sent
        assert cells.seen >= 2 * len(sent)
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""  # the other end has closed as well


def test_who_is_not_there_yet_is_called_again(cells: Cells) -> None:
    with Tunnel(federation(), "shop", cells.cell("shop")) as shop:
        with connect(shop.addresses["bank"]) as stream:
            assert stream.recv(1) == b""  # at once, so that the mesh may try again
        with (
            Tunnel(federation(), "bank", cells.cell("bank")),  # and its mesh does not listen
            connect(shop.addresses["bank"]) as stream,
        ):
            assert stream.recv(1) == b""


def test_nobody_else_reaches_a_party(cells: Cells) -> None:
    with Tunnel(federation(), "bank", cells.cell("bank")) as bank, echo(bank.addresses["bank"]):
        from nvflare.fuel.f3.message import Message

        message = Message({"connection": "x", "number": -1}, b"")
        message.set_header(MessageHeaderKey.ORIGIN, "stranger.job-1")
        assert cells.callbacks["bank.job-1"](message) is None
