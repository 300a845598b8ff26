"""Nobody speaks as a party with a certificate that is not, or no longer, that party's."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from colonnade.cli.main import main
from colonnade.errors import CertificateError
from colonnade.net import admission, certs, register
from colonnade.net.admission import Admission
from colonnade.net.mesh import Keys, Lost, Mesh


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


def test_the_shop_asks_for_the_certificate_of_the_bank(
    authority: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shop sends shop.csr, in which it calls itself `bank`; the authority signs what came."""
    certs.request(tmp_path / "evil", "bank").rename(tmp_path / "shop.csr")
    assert main(["certs", "issue", str(authority), str(tmp_path / "shop.csr")]) == 2
    assert "--name" in told(capsys)
    assert not (tmp_path / "bank.pem").exists()


def test_a_request_under_another_name_is_refused(
    authority: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The authority says whose request it believes to have; the request says something else."""
    certs.request(tmp_path / "evil", "bank").rename(tmp_path / "shop.csr")
    words = ["certs", "issue", str(authority), str(tmp_path / "shop.csr"), "--name", "shop"]
    assert main([*words, "--replace"]) == 2
    assert "asks for the certificate of 'bank', not of 'shop'" in told(capsys)
    assert not list(tmp_path.glob("*.pem"))


@pytest.mark.parametrize(
    "host",
    [
        "bank.party.colonnade.internal",
        "BANK.party.colonnade.internal",
        "*.party.colonnade.internal",
    ],
)
def test_a_host_that_is_asked_for_is_not_the_name_of_another_party(
    host: str, authority: Path, address: str, tmp_path: Path
) -> None:
    """The shop's neighbour asks for a certificate in its own name, for a machine that happens to be
    called as TLS calls the bank, and answers in the bank's place."""
    asked = certs.request(tmp_path / "evil", "telco")
    try:
        certs.issue(authority, asked, "telco", [host])
    except CertificateError as refusal:
        assert host in str(refusal)
        return
    for end in ("pem", "key"):
        (tmp_path / "evil" / f"telco.{end}").rename(tmp_path / "evil" / f"bank.{end}")
    (tmp_path / "evil" / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    false, shop = (
        Node("bank", tmp_path / "evil", address),
        Node("shop", authority / "shop", address),
    )
    with running(false, shop):
        assert not shop.says("connected with 'bank'", 3), "it is taken for the bank"


def test_whoever_dials_looks_at_the_name_of_the_party(authority: Path, address: str) -> None:
    """The same with a certificate that another tool has issued under the same authority."""
    stray = signed_by_hand(authority, "telco", "bank.party.colonnade.internal")
    false, shop = Node("bank", stray, address), Node("shop", authority / "shop", address)
    with running(false, shop):
        assert shop.says("is that of 'telco'", 3), "it is taken for the bank"
        assert not shop.mesh.links["bank"].up


def signed_by_hand(authority: Path, name: str, host: str) -> Path:
    """The files with which somebody of this name answers at that host."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    folder = authority / "by-hand"
    asked = x509.load_pem_x509_csr(certs.request(folder, name).read_bytes())
    root = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    key: Any = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(asked.subject)
        .issuer_name(root.subject)
        .public_key(asked.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "bank.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").rename(folder / "bank.key")
    (folder / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    return folder


def test_a_name_has_one_key_unless_the_authority_says_so(
    authority: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody asks for a certificate of the bank, or of the Bank, with a key of their own."""
    for name in ("bank", "Bank"):
        asked = certs.request(tmp_path / name, name)
        words = ["certs", "issue", str(authority), str(asked), "--name", name]
        assert main(words) == 2
        assert "has a certificate for another key" in told(capsys)
        assert not (tmp_path / name / f"{name}.pem").exists()
    certs.issue(authority, authority / "bank" / "bank.csr", "bank")  # the same key, for longer
    assert main([*words, "--replace"]) == 0
    capsys.readouterr()
    assert main(["certs", "issued", str(authority), "--json"]) == 0
    rows = json.loads(told(capsys))
    assert [row["party"] for row in rows] == ["bank", "shop", "bank", "Bank"]
    assert len({row["tls_key"] for row in rows}) == 3 and len({row["serial"] for row in rows}) == 4
    register = authority / "issued.jsonl"
    register.write_text(register.read_text()[:-9])
    assert main(words) == 2 and "damaged" in told(capsys)


# ---- authorities that have nothing to do with each other -----------------------------------------


def strangers(authority: Path, tmp_path: Path, trusting: bool) -> Path:
    """A shop with a certificate of another authority; it trusts the right one, or its own."""
    certs.init(tmp_path / "rogue")
    certs.party(tmp_path / "rogue", "shop")
    folder = tmp_path / "rogue" / "shop"
    if trusting:
        (folder / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    return folder


@pytest.mark.parametrize("trusting", [False, True])
def test_a_foreign_authority_is_one_plain_sentence_at_both_ends(
    trusting: bool,
    authority: Path,
    tmp_path: Path,
    address: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two parties that were not made by one authority: each log says so once, and no more."""
    monkeypatch.setattr(admission, "SILENT_SECONDS", 1.0)
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
    asked = certs.request(authority / name, name)
    certs.issue(authority, asked, name, replace=True)
    (authority / name / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    return old


@pytest.mark.parametrize("who", ["bank", "shop"])
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


# ---- certificates that were taken back -----------------------------------------------------------


def revoked(authority: Path, what: str, *parties: str) -> None:
    """Sign a list, and hand it to these parties; all of them are one user here."""
    certs.revoke(authority, what)
    for name in parties:
        (authority / name / "revoked.pem").write_bytes((authority / "revoked.pem").read_bytes())


def test_a_dialler_with_a_revoked_certificate_is_refused(authority: Path, address: str) -> None:
    """A thief has the shop's key and certificate, and dials the bank, which has the list."""
    revoked(authority, "shop", "bank", "shop")
    bank = Node("bank", authority / "bank", address)
    thief = Node("shop", authority / "shop", address)
    with running(bank, thief):
        why = "the certificate of 'shop' with serial"
        refusal = thief.refusal()
        assert why in refusal and "was revoked on" in refusal
        assert bank.says(f"refused 'shop': {why}")
        assert not bank.mesh.links["shop"].up


def test_a_listener_with_a_revoked_certificate_is_refused(authority: Path, address: str) -> None:
    """A thief has the bank's key and certificate, and answers in its place."""
    revoked(authority, "bank", "bank", "shop")
    thief = Node("bank", authority / "bank", address)
    shop = Node("shop", authority / "shop", address)
    with running(thief, shop):
        why = "the certificate of 'bank' with serial"
        assert shop.says(why) and thief.says(f"'shop' refuses this party: {why}")
        time.sleep(1.5)
        assert len(shop.lines) == 1 and len(thief.lines) == 1, "once is enough"
        assert not shop.mesh.links["bank"].up


def test_a_revoked_party_is_told_at_home(authority: Path) -> None:
    """Whoever has the list finds its own certificate on it before it calls anybody."""
    revoked(authority, "shop", "shop")
    with pytest.raises(CertificateError, match=r"shop\.pem was revoked on .* make a new key"):
        certs.check(authority / "shop" / "shop.pem", authority / "shop" / "ca.pem", "shop")


@pytest.mark.parametrize("replace", [False, True])
def test_a_key_that_was_taken_back_gets_no_new_certificate(authority: Path, replace: bool) -> None:
    """Its thief asks for one, in the party's name, after the list has named the old one."""
    certs.revoke(authority, "shop")
    with pytest.raises(CertificateError, match="the key of this request was taken back"):
        certs.issue(authority, authority / "shop" / "shop.csr", "shop", replace=replace)
    fresh = certs.request(authority / "next", "shop")
    assert certs.issue(authority, fresh, "shop").exists()


def test_a_serial_can_be_revoked_alone(authority: Path, address: str) -> None:
    """After a change of keys the old certificate ends and the new one stays."""
    old = replaced(authority, "shop")
    revoked(authority, certs.facts(old / "shop.pem").serial, "bank", "shop")
    bank = Node("bank", authority / "bank", address)
    thief, shop = Node("shop", old, address), Node("shop", authority / "shop", address)
    with running(bank, thief):
        assert "was revoked" in thief.refusal()
    bank = Node("bank", authority / "bank", address)
    with running(bank, shop):
        assert shop.says("connected with 'bank'")


def test_a_list_that_was_rolled_back_lets_nobody_in(authority: Path, address: str) -> None:
    """Somebody puts an older list in the bank's folder, or takes it away, or brings another's."""
    certs.party(authority, "telco")
    revoked(authority, "telco")  # list 1
    first = (authority / "revoked.pem").read_bytes()
    certs.init(authority / "rogue")
    certs.party(authority / "rogue", "x")
    certs.revoke(authority / "rogue", "x")
    place = authority / "bank" / "revoked.pem"
    place.write_bytes(first)
    revoked(authority, "shop", "bank", "shop")  # list 2
    with pytest.raises(CertificateError, match="was revoked"):
        certs.check(authority / "shop" / "shop.pem", authority / "bank" / "ca.pem", "shop")
    for content, why in (
        (first, "is list 1 of revoked certificates, and list 2 was here before"),
        (None, "is missing, and its list 2 was here before"),
        ((authority / "rogue" / "revoked.pem").read_bytes(), "not a list of revoked certificates"),
        (first.replace(b"A", b"B", 3), "not a list of revoked certificates"),
        (b"", "not a list of revoked certificates"),
    ):
        place.unlink() if content is None else place.write_bytes(content)
        bank = Node("bank", authority / "bank", address)
        thief = Node("shop", authority / "shop", address)
        with running(bank, thief):
            assert "list of revoked certificates at 'bank' cannot be used" in thief.refusal()
            assert bank.says(why)
            assert not bank.mesh.links["shop"].up


def test_a_list_that_should_have_been_replaced_lets_nobody_in(
    authority: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever keeps the newest list away from the bank does not do so for ever."""
    revoked(authority, "shop", "bank")
    later = datetime.now(UTC) + timedelta(days=366)

    class Later(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> datetime:
            return later

    monkeypatch.setattr(register, "datetime", Later)
    with pytest.raises(CertificateError, match="should have been replaced by"):
        certs.revoked_by(authority / "bank" / "ca.pem")


# ---- keys that the federation file pins ----------------------------------------------------------


@pytest.mark.parametrize("who", ["bank", "shop"])
def test_a_stolen_key_is_worth_nothing_once_another_is_pinned(
    who: str, authority: Path, address: str
) -> None:
    """The thief has an old key with a certificate that is still valid, and no list names it."""
    other = "shop" if who == "bank" else "bank"
    old = replaced(authority, who)
    pins = {who: (certs.facts(authority / who / f"{who}.pem").tls_key,)}
    thief = Node(who, old, address)
    honest = Node(other, authority / other, address, pins=pins)
    why = f"the TLS key of '{who}' is {certs.facts(old / f'{who}.pem').tls_key[:16]}…"
    with running(thief, honest):
        assert honest.says(why)
        assert thief.says(why) if who == "bank" else why in thief.refusal()
    honest = Node(other, authority / other, address, pins=pins)
    with running(honest, Node(who, authority / who, address)):
        assert honest.says("connected with")


def test_the_next_key_is_pinned_beside_the_present_one(authority: Path, address: str) -> None:
    """A change of keys within the rules: both count, before and after."""
    old = replaced(authority, "shop")
    keys = [certs.facts(folder / "shop.pem").tls_key for folder in (old, authority / "shop")]
    for folder in (old, authority / "shop"):
        bank = Node("bank", authority / "bank", address, pins={"shop": tuple(keys)})
        shop = Node("shop", folder, address)
        with running(bank, shop):
            assert shop.says("connected with 'bank'")


def test_an_authority_that_issues_a_second_certificate_does_not_get_past_a_pin(
    authority: Path, address: str
) -> None:
    """Whoever has the authority's key makes a certificate of the bank, and stands in between."""
    pins = {"bank": (certs.facts(authority / "bank" / "bank.pem").tls_key,)}
    replaced(authority, "bank")
    false = Node("bank", authority / "bank", address)
    shop = Node("shop", authority / "shop", address, pins=pins)
    with running(false, shop):
        assert shop.says("and the federation file pins")
        assert not shop.mesh.links["bank"].up


def test_a_look_at_the_right_certificate_opens_no_door_for_another(
    authority: Path, address: str
) -> None:
    """Somebody between the two passes the first connection on to the bank, and answers the second
    with an old key: gRPC accepts the certificate that was looked at, and no other."""
    old = replaced(authority, "bank")
    keys = Keys.of(authority / "shop", "shop")
    seen = Admission("shop", keys, print)
    bank = Node("bank", authority / "bank", address)
    with running(bank):
        good = seen.look("bank", address)
        assert isinstance(good, bytes) and seen.refuses("bank", good) == ""
    thief = Node("bank", old, address)
    with (
        running(thief),
        grpc.secure_channel(
            address,
            seen.dialler(good),
            [("grpc.ssl_target_name_override", certs.host_of("bank"))],
        ) as channel,
    ):
        call = channel.stream_stream("/colonnade.Link/Exchange")(iter([b""]), timeout=5)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "handshake failed" in caught.value.details().lower()


# ---- a signing key is no TLS key -----------------------------------------------------------------


def own_certificate(folder: Path, key: Path, issuer: Path | None) -> Path:
    """A certificate of shop that whoever has its signing key makes with it: signed by that key, in
    its own name or in the authority's."""
    signing = certs.signing_key(key)
    name = certs.load(folder / "shop.pem").subject
    by = name if issuer is None else certs.load(issuer).subject
    hosts = x509.SubjectAlternativeName([x509.DNSName(certs.host_of("shop"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(by)
        .public_key(signing.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=9))
        .add_extension(hosts, critical=False)
        .sign(signing, None)
    )
    file = key.with_name(f"{'own' if issuer is None else 'forged'}.pem")
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return file


def shakes_hands(address: str, certificate: Path | None, key: Path) -> bool:
    """Whether a listener goes on after a TLS handshake with this."""
    host, _, number = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        with socket.create_connection((host, int(number)), 5) as raw:
            raw.settimeout(5)
            with context.wrap_socket(raw) as stream:
                return stream.recv(1) != b""
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.mark.parametrize("pinned", [False, True])
def test_whoever_has_stolen_a_signing_key_does_not_connect(
    pinned: bool, authority: Path, address: str, tmp_path: Path
) -> None:
    """The thief has the signing key, and whatever is public: the authority's certificate and that
    of the party. It shows no certificate, one that the signing key has signed for itself, and one
    that it has signed in the authority's name."""
    loot = tmp_path / "loot"
    loot.mkdir()
    stolen, shop = loot / "shop.sign", authority / "shop"
    stolen.write_bytes((shop / "shop.sign").read_bytes())
    own = own_certificate(shop, stolen, None)
    forged = own_certificate(shop, stolen, shop / "ca.pem")
    pins = {"shop": (certs.facts(shop / "shop.pem").tls_key,)} if pinned else {}
    bank = Node("bank", authority / "bank", address, pins=pins)
    with running(bank):
        assert shakes_hands(address, shop / "shop.pem", shop / "shop.key")  # whose key it is
        for certificate in (None, own, forged):
            assert not shakes_hands(address, certificate, stolen)
        assert not bank.mesh.links["shop"].up
