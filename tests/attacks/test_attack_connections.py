"""Whoever has no certificate cannot keep members out: they join within 30 seconds, and the log says
what is going on."""

from __future__ import annotations

import random
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from colonnade.net import certs
from colonnade.net.keys import Keys
from colonnade.net.mesh import METHOD, SERVICE, Mesh

SIEGE, DESCRIPTORS = 1100, 1024
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    certs.init(folder)
    for name in ("bank", "shop", "telco"):
        certs.party(folder, name)
    return folder


def free() -> str:
    """An address below those that a system gives to whoever dials."""
    while True:
        address = "127.0.0.1", random.randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(address):
            return f"{address[0]}:{address[1]}"


@contextmanager
def besieged(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a party with 1,024 descriptors, and what it logs."""
    address = free()
    command = [sys.executable, str(HERE / "besieged.py"), str(folder), address, str(DESCRIPTORS)]
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stderr is not None
        for stream in (process.stdout, process.stderr):
            threading.Thread(target=lambda s=stream: lines.extend(s), daemon=True).start()
        until(lambda: "ready\n" in lines, 30)
        try:
            yield address, lines
        finally:
            process.kill()


@contextmanager
def siege(address: str) -> Iterator[None]:
    """So many idle connections; whatever is closed is opened again a second later."""
    host, _, port = address.rpartition(":")
    over = threading.Event()
    gone: list[float] = []  # when each was closed

    def hold() -> None:
        idle = selectors.DefaultSelector()
        while not over.is_set():
            late = [when for when in gone if time.monotonic() - when > 1.0]
            del gone[: len(late)]
            for _ in range(SIEGE - len(idle.get_map()) - len(gone)):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex((host, int(port)))
                idle.register(one, selectors.EVENT_READ)
            for key, _ in idle.select(0.05):
                one = key.fileobj  # type: ignore[assignment]
                try:
                    if one.recv(1000):
                        continue
                except OSError:
                    pass
                idle.unregister(one)
                one.close()
                gone.append(time.monotonic())
        for key in list(idle.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        idle.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        time.sleep(2.0)
        yield
    finally:
        over.set()
        thread.join()


def until(so: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.05)


@contextmanager
def member(folder: Path, name: str, address: str) -> Iterator[Mesh]:
    keys, lines = Keys.of(folder / name, name), list[str]()
    mesh = Mesh(
        name,
        keys,
        hub="bank",
        listen=None,
        dial={"bank": address},
        accept=frozenset(),
        relayed=frozenset(),
        agreed={},
        log=lines.append,
    )
    mesh.start()
    try:
        yield mesh
    finally:
        mesh.close(0.1)


@contextmanager
def silent_calls(folder: Path, name: str, address: str, count: int) -> Iterator[None]:
    """Streams of a certified member that never says hello."""
    keys = Keys.of(folder / name, name)
    read = [path.read_bytes() for path in (keys.authority, keys.key, keys.certificate)]
    credentials = grpc.ssl_channel_credentials(read[0], read[1], read[2])
    options = [("grpc.ssl_target_name_override", keys.host_of("bank"))]
    with grpc.secure_channel(address, credentials, options) as channel:
        never: SimpleQueue[bytes | None] = SimpleQueue()
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        calls = [call(iter(never.get, None)) for _ in range(count)]
        time.sleep(1.0)
        yield
        for one in calls:
            one.cancel()
        for _ in calls:
            never.put(None)


@pytest.mark.slow
def test_a_member_that_calls_too_often_keeps_nobody_else_out(folder: Path) -> None:
    """60 streams without a hello would take all threads that answer, for ten seconds each time."""
    with besieged(folder) as (address, lines), silent_calls(folder, "shop", address, 60):
        with member(folder, "telco", address) as telco:
            until(lambda: telco.links["bank"].up, 5)
        assert any("refused 'shop': 'shop' has too many connections" in line for line in lines)


@pytest.mark.slow
def test_idle_connections_neither_stop_a_run_nor_keep_a_member_out(folder: Path) -> None:
    """1,100 connections without a certificate at a party that may open 1,024 files. A member that
    was there before stays; one that comes meanwhile is let in; the log names the cause."""
    with besieged(folder) as (address, lines), member(folder, "shop", address) as shop:
        until(lambda: shop.links["bank"].up, 15)
        life = shop.links["bank"].life
        with siege(address):
            with member(folder, "telco", address) as telco:
                until(lambda: telco.links["bank"].up, 30)
            assert shop.links["bank"].up and shop.links["bank"].life == life
        assert any("connections without a certificate" in line for line in lines), lines
