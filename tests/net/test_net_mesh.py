"""Who may connect: real gRPC over loopback, with certificates that are right and wrong."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from colonnade.errors import CertificateError, FederationError
from colonnade.net import certs
from colonnade.net.frame import PROTOCOL, Frame, Hello, pack, parse
from colonnade.net.link import Up
from colonnade.net.mesh import METHOD, OPTIONS, SERVICE, Keys, Lost, Mesh

AGREED = {"epochs": "3"}


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    certs.init(tmp_path / "ours")
    for name in ("bank", "shop", "thief"):
        certs.party(tmp_path / "ours", name)
    return tmp_path / "ours"


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    return number


def mesh(name: str, keys: Path, address: str, log: list[str], **agreed: str) -> Mesh:
    """bank listens for shop; anybody else dials bank."""
    hub = name == "bank"
    return Mesh(
        name,
        Keys.of(keys, name),
        hub="bank",
        listen=address if hub else None,
        dial={} if hub else {"bank": address},
        accept=frozenset({"shop"}) if hub else frozenset(),
        relayed=frozenset(),
        agreed=AGREED | agreed,
        log=log.append,
    )


@contextmanager
def running(*meshes: Mesh) -> Iterator[None]:
    try:
        for one in meshes:
            one.start()
        yield
    finally:
        for one in meshes:
            one.close(0.1)


def until(so: Callable[[], Any], seconds: float = 15.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := so()):
        assert time.monotonic() < end, "it never was so"
        time.sleep(0.02)
    return found


def said(log: list[str], words: str) -> Callable[[], bool]:
    return lambda: any(words in line for line in log)


def test_two_members_connect(authority: Path) -> None:
    address, bank_log, shop_log = f"127.0.0.1:{port()}", list[str](), list[str]()
    bank = mesh("bank", authority / "bank", address, bank_log)
    shop = mesh("shop", authority / "shop", address, shop_log)
    with running(bank, shop):
        assert isinstance(bank.inbox.get(timeout=15), Up)
        assert isinstance(shop.inbox.get(timeout=15), Up)
        assert shop.links["bank"].life_of() == bank.incarnation.hex()


def test_whoever_is_no_member_is_refused(authority: Path) -> None:
    address, log, own = f"127.0.0.1:{port()}", list[str](), list[str]()
    bank = mesh("bank", authority / "bank", address, log)
    thief = mesh("thief", authority / "thief", address, own)
    with running(bank, thief):
        lost = thief.inbox.get(timeout=15)
        assert isinstance(lost, Lost) and "'thief' is not a member" in str(lost.error)
        assert said(log, "refused 'thief': 'thief' is not a member of this federation")()


def test_parties_that_differ_are_told_in_what(authority: Path) -> None:
    address, log, own = f"127.0.0.1:{port()}", list[str](), list[str]()
    bank = mesh("bank", authority / "bank", address, log)
    shop = mesh("shop", authority / "shop", address, own, epochs="5")
    with running(bank, shop):
        lost = shop.inbox.get(timeout=15)
        assert isinstance(lost, Lost)
        assert "epochs is 5 at 'shop', 3 at 'bank'" in str(lost.error)
        assert said(log, "refused 'shop': epochs is 5 at 'shop', 3 at 'bank'")()


def test_a_certificate_of_another_authority(authority: Path, tmp_path: Path) -> None:
    certs.init(tmp_path / "rogue", "Rogue")
    certs.party(tmp_path / "rogue", "shop")
    address, log, own = f"127.0.0.1:{port()}", list[str](), list[str]()
    bank = mesh("bank", authority / "bank", address, log)
    shop = mesh("shop", tmp_path / "rogue" / "shop", address, own)
    with running(bank, shop):
        until(said(own, "its certificate is refused here"))
        assert not bank.links["shop"].up
    with pytest.raises(CertificateError, match="not issued by the authority"):
        certs.check(tmp_path / "rogue" / "shop" / "shop.pem", authority / "ca.pem", "shop")


def test_a_rogue_certificate_that_trusts_the_right_authority(
    authority: Path, tmp_path: Path
) -> None:
    certs.init(tmp_path / "rogue", "Rogue")
    certs.party(tmp_path / "rogue", "shop")
    (tmp_path / "rogue" / "shop" / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    address, log, own = f"127.0.0.1:{port()}", list[str](), list[str]()
    bank = mesh("bank", authority / "bank", address, log)
    shop = mesh("shop", tmp_path / "rogue" / "shop", address, own)
    with running(bank, shop):
        until(said(own, "refuses this party's certificate"))
        assert not bank.links["shop"].up


def test_an_expired_certificate(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = authority / "old"
    with monkeypatch.context() as then:
        then.setattr(certs, "_now", lambda: datetime.now(UTC) - timedelta(days=30))
        request = certs.request(folder, "shop")
        certs.issue(authority, request, "shop", days=2, replace=True)
    (folder / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    with pytest.raises(CertificateError, match="expired on"):
        certs.check(folder / "shop.pem", folder / "ca.pem", "shop")
    address, log, own = f"127.0.0.1:{port()}", list[str](), list[str]()
    bank = mesh("bank", authority / "bank", address, log)
    shop = mesh("shop", folder, address, own)
    with running(bank, shop):
        until(said(own, "refuses this party's certificate"))
        assert not bank.links["shop"].up


def shake_hands(address: str, context: ssl.SSLContext) -> bytes:
    """A TLS handshake, and what comes then; an SSLError where it is refused."""
    host, _, number = address.rpartition(":")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(number)), 5) as raw:
        raw.settimeout(5)
        with context.wrap_socket(raw) as stream:
            return stream.recv(1)


def test_no_certificate_at_all(authority: Path) -> None:
    address = f"127.0.0.1:{port()}"
    bank = mesh("bank", authority / "bank", address, [])
    with running(bank):
        try:
            answer = shake_hands(address, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        except (ssl.SSLError, ConnectionError):
            answer = b""
    assert answer == b""  # the connection is closed before HTTP/2 begins


def call(authority: Path, who: str, address: str, first: bytes) -> list[Any]:
    """A client that says what it likes, with a certificate that is right."""
    keys = Keys.of(authority / who, who)
    credentials = grpc.ssl_channel_credentials(
        keys.authority.read_bytes(), keys.key.read_bytes(), keys.certificate.read_bytes()
    )
    options = [*OPTIONS, ("grpc.ssl_target_name_override", certs.host_of("bank"))]
    with grpc.secure_channel(address, credentials, options) as channel:
        grpc.channel_ready_future(channel).result(15)
        answers = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter([first]), timeout=15)
        return [parse(data)[0] for data in answers]


def test_a_hello_in_the_name_of_another(authority: Path) -> None:
    address, log = f"127.0.0.1:{port()}", list[str]()
    bank = mesh("bank", authority / "bank", address, log)
    hello = Hello(protocol=PROTOCOL, party="telco", incarnation=b"x" * 16, agreed="{}")
    with running(bank):
        (answer,) = call(authority, "shop", address, pack(Frame(body=hello)))
    assert "certificate is that of 'shop', the hello that of 'telco'" in answer.body.reasons[0]
    assert said(log, "the hello that of 'telco'")()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"protocol": 99}, "protocol 99 at 'shop', 2 at 'bank'"),
        ({"incarnation": b""}, "without an incarnation"),
        ({"agreed": "not JSON"}, "not JSON"),
        ({"agreed": "[]"}, "not JSON"),
        ({"agreed": "[" * 100_000}, "not JSON"),
    ],
)
def test_a_malformed_hello(authority: Path, changes: dict[str, Any], why: str) -> None:
    address, log = f"127.0.0.1:{port()}", list[str]()
    bank = mesh("bank", authority / "bank", address, log)
    given = {"protocol": PROTOCOL, "party": "shop", "incarnation": b"x" * 16, "agreed": "{}"}
    with running(bank):
        (answer,) = call(authority, "shop", address, pack(Frame(body=Hello(**given | changes))))
    assert why in answer.body.reasons[0]


def test_tls_1_2_is_refused(authority: Path) -> None:
    """OpenSSL is told to speak no more than 1.2; whatever gRPC does, no link comes of it."""
    address, log = f"127.0.0.1:{port()}", list[str]()
    bank = mesh("bank", authority / "bank", address, log)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    keys = Keys.of(authority / "shop", "shop")
    context.load_cert_chain(keys.certificate, keys.key)

    class Context:
        """What gRPC would show of such a caller."""

        def auth_context(self) -> dict[str, list[bytes]]:
            return {"x509_common_name": [b"shop"], "ssl_tls_version": [b"TLSv1.2"]}

    with running(bank):
        with suppress(ssl.SSLError, OSError):
            shake_hands(address, context)
        assert not bank.links["shop"].up
    who, why = bank._caller(Context())  # type: ignore[arg-type]
    assert (who, why) == ("shop", "'shop' speaks TLSv1.2; TLS 1.3 is required")


def test_a_port_that_is_taken(authority: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        bank = mesh("bank", authority / "bank", address, [])
        with pytest.raises(FederationError, match=r"cannot listen at .*the port is taken"):
            bank.start()
        bank.close(0.1)
