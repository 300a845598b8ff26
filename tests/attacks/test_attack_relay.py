"""What is sent in another's name, or around a link, reaches nobody, and breaks no other link."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from colonnade.net import certs
from colonnade.net.frame import Part
from colonnade.net.keys import Keys
from colonnade.net.link import Arrived, Foul
from colonnade.net.mesh import Mesh

DIRECT = {"bank": {"shop": "bank", "telco": "bank"}, "telco": {"shop": "telco"}}


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
def meshes(folder: Path) -> Iterator[dict[str, tuple[Mesh, list[str]]]]:
    """bank is the hub; shop and telco have a link of their own."""
    bank, telco = free(), free()
    listens: dict[str, Any] = {"bank": bank, "telco": telco, "shop": None}
    dials = {"bank": {}, "telco": {"bank": bank}, "shop": {"bank": bank, "telco": telco}}
    accepts = {"bank": {"shop", "telco"}, "telco": {"shop"}, "shop": set()}
    made: dict[str, tuple[Mesh, list[str]]] = {}
    for name in listens:
        lines: list[str] = []
        mesh = Mesh(
            name,
            Keys.of(folder / name, name),
            hub="bank",
            listen=listens[name],
            dial=dials[name],
            accept=frozenset(accepts[name]),
            relayed=frozenset(),
            agreed={},
            log=lines.append,
        )
        made[name] = mesh, lines
    try:
        for mesh, _ in made.values():
            mesh.start()
        all_up = time.monotonic() + 20
        while not all(link.up for mesh, _ in made.values() for link in mesh.links.values()):
            assert time.monotonic() < all_up
            time.sleep(0.02)
        yield made
    finally:
        for mesh, _ in made.values():
            mesh.close(0.1)


def forged(sender: str, receiver: str) -> Part:
    return Part(7, 1, sender, receiver, "embedding", 0, "train", 0, 0, 1, 0, bytes(32))


def came(mesh: Mesh) -> tuple[list[Part], list[tuple[str, str]]]:
    """What a runtime would see: parts of messages, and who is to blame for what."""
    parts, fouls = [], []
    while not mesh.inbox.empty():
        event = mesh.inbox.get()
        if isinstance(event, Arrived) and isinstance(event.content, Part):
            parts.append(event.content)
        if isinstance(event, Foul):
            fouls.append((event.link.peer, event.why))
    return parts, fouls


def connections(lines: list[str]) -> int:
    return sum("connected with" in line for line in lines)


@pytest.mark.parametrize(
    ("liar", "through", "sender", "receiver"),
    [
        ("shop", "bank", "shop", "telco"),  # though it has a link of its own
        ("shop", "bank", "telco", "bank"),  # in the name of another
        ("shop", "telco", "bank", "telco"),
        ("bank", "telco", "shop", "telco"),  # the hub lies
    ],
)
def test_a_part_that_may_not_come_this_way_is_dropped_and_its_sender_blamed(
    liar: str, through: str, sender: str, receiver: str, folder: Path
) -> None:
    """The part must reach nobody's runtime, all links must stay up, and only the party that the
    liar's link leads to has somebody to blame: the liar."""
    with meshes(folder) as made:
        before = {name: connections(lines) for name, (_, lines) in made.items()}
        for _ in range(3):
            made[liar][0].links[through].send(lambda: None, forged(sender, receiver))
        time.sleep(1.5)  # for a link that breaks to be repaired
        assert {name: connections(lines) for name, (_, lines) in made.items()} == before
        assert all(link.up for mesh, _ in made.values() for link in mesh.links.values())
        for name, (mesh, _) in made.items():
            parts, fouls = came(mesh)
            assert parts == []
            assert {who for who, _ in fouls} == ({liar} if name == through else set())
            assert all(f"'{liar}' sent" in why for _, why in fouls)
        assert made[through][0].refused() == {"message that may not come this way": 3}
        made[through][0].links[liar].beat(0.0)
        time.sleep(0.5)
        assert made[liar][0].links[through].flushed()
