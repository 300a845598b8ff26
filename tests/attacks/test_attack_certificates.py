"""Nobody speaks as a party with a certificate that is not, or no longer, that party's."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colonnade.cli.main import main
from colonnade.net import certs
from colonnade.net.mesh import Keys, Lost, Mesh

red = pytest.mark.xfail(strict=True, raises=AssertionError)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    certs.init(tmp_path / "authority")
    for name in ("bank", "shop"):
        certs.party(tmp_path / "authority", name)
    return tmp_path / "authority"


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


class Node:
    """One party's mesh, and what it has logged; bank listens, shop dials."""

    def __init__(self, me: str, folder: Path, address: str, **more: Any) -> None:
        self.lines: list[str] = []
        hub = me == "bank"
        self.mesh = Mesh(
            me,
            Keys(folder / "ca.pem", folder / f"{me}.pem", folder / f"{me}.key", **more),
            hub="bank",
            listen=address if hub else None,
            dial={} if hub else {"bank": address},
            accept=frozenset({"shop"}) if hub else frozenset(),
            relayed=frozenset(),
            agreed={},
            log=self.lines.append,
        )

    def says(self, text: str, seconds: float = 15.0) -> bool:
        return soon(lambda: any(text in line for line in list(self.lines)), seconds)

    def refusal(self) -> str:
        """Why this party was sent away for good."""
        event = self.mesh.inbox.get(timeout=15)
        assert isinstance(event, Lost), f"it was let in: {event}"
        return str(event.error)


def soon(what: Callable[[], bool], seconds: float = 15.0) -> bool:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def running(*nodes: Node) -> Iterator[None]:
    try:
        for node in nodes:
            node.mesh.start()
        yield
    finally:
        for node in nodes:
            node.mesh.close(0.1)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


# ---- who gets one --------------------------------------------------------------------------------


@red
def test_the_shop_asks_for_the_certificate_of_the_bank(
    authority: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shop sends shop.csr, in which it calls itself `bank`; the authority signs what came."""
    certs.request(tmp_path / "evil", "bank").rename(tmp_path / "shop.csr")
    assert main(["certs", "issue", str(authority), str(tmp_path / "shop.csr")]) == 2
    assert "--name" in told(capsys)
    assert not (tmp_path / "bank.pem").exists()


# ---- authorities that have nothing to do with each other -----------------------------------------


def strangers(authority: Path, tmp_path: Path, trusting: bool) -> Path:
    """A shop with a certificate of another authority; it trusts the right one, or its own."""
    certs.init(tmp_path / "rogue")
    certs.party(tmp_path / "rogue", "shop")
    folder = tmp_path / "rogue" / "shop"
    if trusting:
        (folder / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    return folder


@red
@pytest.mark.parametrize("trusting", [False, True])
def test_a_foreign_authority_is_one_plain_sentence_at_both_ends(
    trusting: bool,
    authority: Path,
    tmp_path: Path,
    address: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Two parties that were not made by one authority: each log says so once, and no more."""
    bank = Node("bank", authority / "bank", address)
    shop = Node("shop", strangers(authority, tmp_path, trusting), address)
    with running(bank, shop):
        assert shop.says("another authority")
        assert bank.says("is the certificate there of another authority", 12)
        assert "'shop' did not connect" in bank.lines[-1]
        time.sleep(2)
        assert len(shop.lines) == 1 and len(bank.lines) == 1
    assert capfd.readouterr().err == "", "raw lines of gRPC"


# ---- certificates that are replaced while a run goes on ------------------------------------------


def replaced(authority: Path, name: str) -> Path:
    """A party's folder with a new key and certificate, beside the old one."""
    old = authority / "old"
    (authority / name).rename(old)
    register = authority / "issued.jsonl"
    text = register.read_text() if register.exists() else ""
    register.unlink(missing_ok=True)
    certs.party(authority, name)
    register.write_text(text + register.read_text() if register.exists() else text)
    return old


@pytest.mark.parametrize("who", [pytest.param("bank", marks=red), "shop"])
def test_a_party_changes_its_certificate_while_it_runs(
    who: str, authority: Path, address: str
) -> None:
    """From the next connection on the new one is used, at the end that listens and at the other."""
    live = authority.parent / "live"
    (authority / who).rename(live)
    (authority / who).mkdir()
    for path in live.iterdir():
        (authority / who / path.name).write_bytes(path.read_bytes())
    nodes = {
        name: Node(name, live if name == who else authority / name, address)
        for name in ("bank", "shop")
    }
    with running(*nodes.values()):
        assert nodes["shop"].says("connected with 'bank'")
        replaced(authority, who)
        before = certs.facts(live / f"{who}.pem").fingerprint
        for end in ("key", "pem"):  # one after the other, as a person does it
            (live / f"{who}.{end}").write_bytes((authority / who / f"{who}.{end}").read_bytes())
            time.sleep(0.2)
        assert certs.facts(live / f"{who}.pem").fingerprint != before
        for node in nodes.values():
            node.mesh.links["bank" if node.mesh.me == "shop" else "shop"].break_off()
        assert soon(lambda: sum("connected" in line for line in nodes["shop"].lines) == 2)
        (live / f"{who}.key").unlink()  # the old ones are nowhere, and the new one is at work
        assert all("refuse" not in line for node in nodes.values() for line in node.lines)
        shown = _shown(address, authority / "shop") if who == "bank" else None
        assert shown in (None, certs.facts(live / f"{who}.pem").fingerprint)


def _shown(address: str, keys: Path) -> str:
    import hashlib
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(keys / "ca.pem")
    context.load_cert_chain(keys / "shop.pem", keys / "shop.key")
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 5) as raw,
        context.wrap_socket(raw, server_hostname=certs.host_of("bank")) as stream,
    ):
        return hashlib.sha256(stream.getpeercert(True) or b"").hexdigest()
