"""Listeners that are not who they should be, TLS 1.2, and members that say what they like."""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from colonnade.errors import Refused
from colonnade.net import certs, mesh
from colonnade.net.frame import Control, Frame, Hello, Part, pack, parse
from colonnade.net.link import Arrived
from colonnade.net.mesh import Keys, Lost, Mesh


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with three members."""
    folder = tmp_path_factory.mktemp("authority")
    certs.init(folder)
    for name in ("bank", "shop", "telco"):
        certs.party(folder, name)
    return folder


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


class Node:
    """One party's mesh, and what it has logged."""

    def __init__(self, me: str, keys: Keys, **more: Any) -> None:
        self.lines: list[str] = []
        rest: dict[str, Any] = {"listen": None, "dial": {}, "accept": frozenset()} | more
        self.mesh = Mesh(
            me, keys, hub="bank", relayed=frozenset(), agreed={}, log=self.lines.append, **rest
        )

    def says(self, text: str) -> bool:
        """Sooner or later."""
        return wait_for(lambda: any(text in line for line in list(self.lines)))

    def lost(self) -> Refused:
        """The refusal that ends this party's process."""
        while True:
            event = self.mesh.inbox.get(timeout=20)
            if isinstance(event, Lost):
                return event.error


def wait_for(what: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def running(*nodes: Node) -> Iterator[None]:
    try:
        for node in nodes:
            node.mesh.start()
        yield
    finally:
        for node in nodes:
            node.mesh.close(0.2)


@pytest.fixture
def bank(folder: Path, address: str) -> Iterator[Node]:
    """The listening party; at the end of every test it must still let the right one in."""
    members = frozenset({"shop", "telco"})
    node = Node("bank", Keys.of(folder / "bank", "bank"), listen=address, accept=members)
    with running(node):
        yield node
        right = dialler(folder, address, "telco")
        with running(right):
            assert right.says("connected with 'bank'")


def dialler(folder: Path, address: str, name: str = "shop", me: str = "") -> Node:
    return Node(me or name, Keys.of(folder / name, name), dial={"bank": address})


# ---- listeners -----------------------------------------------------------------------------------


def rogue(folder: Path, tmp_path: Path) -> Keys:
    certs.init(tmp_path / "rogue")
    certs.party(tmp_path / "rogue", "bank")
    return Keys.of(tmp_path / "rogue" / "bank", "bank")


def expired(folder: Path, tmp_path: Path) -> Keys:
    shutil.copytree(folder, tmp_path / "then")
    shutil.rmtree(tmp_path / "then" / "bank")
    (tmp_path / "then" / "issued.jsonl").unlink()
    now = certs._now()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certs, "_now", lambda: now - timedelta(days=400))
        certs.party(tmp_path / "then", "bank")
    return Keys.of(tmp_path / "then" / "bank", "bank")


def of_another(folder: Path, tmp_path: Path) -> Keys:
    return Keys.of(folder / "telco", "telco")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (rogue, "it is of another authority than the one in"),
        (expired, "certificate has expired"),
        (of_another, "Hostname mismatch"),
    ],
)
def test_a_listener_with_a_certificate_that_is_not_its_own(
    keys: Callable[[Path, Path], Keys], why: str, folder: Path, address: str, tmp_path: Path
) -> None:
    other = Node("bank", keys(folder, tmp_path), listen=address, accept=frozenset({"shop"}))
    shop = dialler(folder, address)
    with running(other, shop):
        assert shop.says(f"'bank' at {address}: its certificate is refused here: ")
        assert any(reason in line for line in shop.lines for reason in why.split("|"))
        assert not shop.mesh.links["bank"].up


def test_something_that_hangs_up_is_not_taken_for_a_refusal(folder: Path, address: str) -> None:
    """A proxy, say, in front of a party that is not running."""
    host, _, port = address.rpartition(":")
    shop = dialler(folder, address)
    with socket.create_server((host, int(port))) as door, running(shop):
        door.settimeout(0.1)
        until = time.monotonic() + 10
        while time.monotonic() < until and not any("running?" in line for line in shop.lines):
            try:
                door.accept()[0].close()
            except TimeoutError:
                continue
    assert any("is the party behind that address running?" in line for line in shop.lines)
    assert not any("certificate" in line for line in shop.lines)


def test_one_that_was_to_be_dialled(folder: Path, address: str) -> None:
    keys = Keys.of(folder / "bank", "bank")
    bank = Node("bank", keys, listen=address, dial={"shop": "127.0.0.1:1"})
    shop = dialler(folder, address)
    with running(bank, shop):
        assert "'shop' is to be dialled" in str(shop.lost())
        assert bank.says("refused 'shop': 'shop' is to be dialled")


def test_one_that_was_left_behind(bank: Node, folder: Path, address: str) -> None:
    bank.mesh.barred["shop"] = "the federation has gone on without it"
    shop = dialler(folder, address)
    with running(shop):
        assert "gone on without it" in str(shop.lost())


# ---- members that say what they like -------------------------------------------------------------


@contextmanager
def stream(folder: Path, address: str, *frames: bytes) -> Iterator[Any]:
    """A gRPC client with the certificate of 'shop'."""
    files = [folder / "ca.pem", *(folder / "shop" / f"shop.{end}" for end in ("key", "pem"))]
    credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
    options = [("grpc.ssl_target_name_override", certs.host_of("bank"))]
    outbox: SimpleQueue[bytes | None] = SimpleQueue()
    for frame in frames:
        outbox.put(frame)
    with grpc.secure_channel(address, credentials, options) as channel:
        yield channel.stream_stream(f"/{mesh.SERVICE}/{mesh.METHOD}")(iter(outbox.get, None))
        outbox.put(None)


def hello(**changes: Any) -> bytes:
    given = {"party": "shop", "incarnation": bytes(16), "agreed": "{}"}
    return pack(Frame(body=Hello(**(given | {"clock": time.time()} | changes))))


@pytest.mark.parametrize("first", [b"\xff" * 9, b"", b"\xff" * 99])
def test_bytes_that_are_no_hello(first: bytes, bank: Node, folder: Path, address: str) -> None:
    with stream(folder, address, first) as answers:
        (reason,) = parse(next(answers))[0].body.reasons
    assert reason.startswith("'shop' sent ") and "does it run another version" in reason
    assert bank.says(f"refused 'shop': {reason}")


def test_a_hello_of_protocol_1(bank: Node, folder: Path, address: str) -> None:
    """It was another encoding altogether: these are the bytes that such a version sends."""
    fields = b"\x08\x01\x12\x04shop\x1a\x10" + b"s" * 16 + b"2\x02{}9" + bytes(8)
    frame = b"\x22" + bytes([len(fields)]) + fields
    with stream(folder, address, len(frame).to_bytes(4, "little") + frame) as answers:
        (reason,) = parse(next(answers))[0].body.reasons
    assert "which does not begin protocol 2: does it run another version" in reason
    assert bank.says(f"refused 'shop': {reason}")


def test_a_frame_that_is_no_hello(bank: Node, folder: Path, address: str) -> None:
    with stream(folder, address, pack(Frame(body=Control("stop")))) as answers:
        (reason,) = parse(next(answers))[0].body.reasons
        assert reason == "'shop' did not begin with a hello"


def test_nothing_is_said(
    bank: Node, folder: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "HELLO_SECONDS", 0.2)
    with stream(folder, address) as answers:
        assert next(answers, None) is None
    assert bank.says("refused 'shop': no hello came")


def test_a_clock_that_is_wrong_is_remarked(bank: Node, folder: Path, address: str) -> None:
    with stream(folder, address, hello(clock=time.time() + 3600)) as answers:
        assert parse(next(answers))[0].body.party == "bank"
    assert bank.says("the clock of 'shop' is +3600 s off this one")


def test_one_that_has_heard_what_nobody_said(bank: Node, folder: Path, address: str) -> None:
    """It is refused, and the connection that stands is not given up for it."""
    same = {"incarnation": b"s" * 16, "expects": bank.mesh.incarnation}
    with stream(folder, address, hello(**same)) as first:
        assert parse(next(first))[0].body.party == "bank"
        with stream(folder, address, hello(**same, received=9)) as second:
            reasons = parse(next(second))[0].body.reasons
            assert reasons == ("'shop' has taken in frame 9, which was never sent",)
        assert bank.mesh.links["shop"].up


def test_a_malformed_frame_ends_the_connection_and_nothing_else(
    bank: Node, folder: Path, address: str
) -> None:
    with stream(folder, address, hello(), b"\x00\x01") as answers, pytest.raises(grpc.RpcError):
        while True:
            next(answers)  # its hello, if that was quicker
    assert bank.says("closing the connection with 'shop': 'shop' sent 2 bytes that are not")
    assert bank.mesh.refused() == {"malformed": 1}


def test_a_message_in_the_name_of_another(bank: Node, folder: Path, address: str) -> None:
    shop = dialler(folder, address)
    with running(shop):
        assert shop.says("connected with 'bank'")
        forged = Part(7, 1, "telco", "bank", "embedding", 0, "train", 0, 0, 1, 0, bytes(32))
        shop.mesh.send_part("bank", forged, [b""])
        assert bank.says("'shop' sent a message in the name of 'telco'")
    while not bank.mesh.inbox.empty():
        assert not isinstance(bank.mesh.inbox.get(), Arrived)


# ---- TLS 1.2 -------------------------------------------------------------------------------------


def test_tls_1_2_is_refused_by_us(bank: Node, folder: Path, address: str) -> None:
    """gRPC itself would take it: an HTTP/2 client made by hand gets through, and is told."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(folder / "shop" / "shop.pem", folder / "shop" / "shop.key")
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as raw,
        context.wrap_socket(raw, server_hostname=certs.host_of("bank")) as speaker,
    ):
        assert speaker.version() == "TLSv1.2"
        speaker.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2(4, 0, 0, b""))
        speaker.sendall(http2(1, 4, 1, b"".join(header(*pair) for pair in CALL)))
        heard = b""
        while b"TLS 1.3 is required" not in heard:
            got = speaker.recv(65536)
            assert got, heard
            heard += got
    assert bank.says("refused 'shop': 'shop' speaks TLSv1.2; TLS 1.3 is required")


CALL = (
    (":method", "POST"),
    (":scheme", "https"),
    (":path", f"/{mesh.SERVICE}/{mesh.METHOD}"),
    (":authority", certs.host_of("bank")),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


def http2(kind: int, flags: int, number: int, content: bytes) -> bytes:
    """One frame of a stream."""
    size = len(content).to_bytes(3, "big")
    return size + bytes([kind, flags]) + number.to_bytes(4, "big") + content


def header(name: str, value: str) -> bytes:
    """Literal and never indexed, as HPACK writes it."""
    return b"\x10" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
