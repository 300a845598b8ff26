"""Certificates that real TLS accepts from the right party, and from nobody else."""

from __future__ import annotations

import hashlib
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import CertificateError
from colonnade.net import certs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with three parties."""
    folder = tmp_path_factory.mktemp("authority")
    certs.init(folder)
    for name in ("bank", "shop", "Post_office-2"):
        certs.party(folder, name, hosts=["localhost", "127.0.0.1"])
    return folder


def context(folder: Path, authority: Path, name: str, server: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(authority)
    made.load_cert_chain(folder / name / f"{name}.pem", folder / name / f"{name}.key")
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, expected: str) -> dict[str, str]:
    """A TLS handshake without a network; the names that each side has proven."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = {
        "server": server.wrap_bio(to_server, to_client, server_side=True),
        "client": client.wrap_bio(to_client, to_server, server_hostname=certs.host_of(expected)),
    }
    done: set[str] = set()
    for _ in range(10):
        for name, end in ends.items():
            try:
                end.do_handshake()
                done.add(name)
            except ssl.SSLWantReadError:
                continue
        if len(done) == 2:
            break
    try:  # with TLS 1.3 a client learns only now that its own certificate was refused
        ends["client"].write(b"x")
        ends["server"].read(1)
    except ssl.SSLWantReadError:
        pass
    return {name: common_name(end) for name, end in ends.items()}


def common_name(end: ssl.SSLObject) -> str:
    """Of the certificate that the other side showed."""
    shown = end.getpeercert()
    assert shown is not None
    subject = dict(pair[0] for pair in shown["subject"])
    return str(subject["commonName"])


@pytest.mark.parametrize("name", ["bank", "Post_office-2"])
def test_two_parties_prove_their_names_to_each_other(folder: Path, name: str) -> None:
    root = folder / "ca.pem"
    server, client = context(folder, root, name, True), context(folder, root, "shop", False)
    assert handshake(server, client, name) == {"server": "shop", "client": name}


def test_a_server_is_not_taken_for_another_party(folder: Path) -> None:
    root = folder / "ca.pem"
    server, client = context(folder, root, "shop", True), context(folder, root, "shop", False)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"bank\.party\.colonnade\.internal"):
        handshake(server, client, "bank")


@pytest.mark.parametrize("server_is_rogue", [True, False])
def test_the_same_name_from_another_authority_is_refused(
    folder: Path, tmp_path: Path, server_is_rogue: bool
) -> None:
    certs.init(tmp_path)
    certs.party(tmp_path, "bank")
    root = folder / "ca.pem"
    rogue = context(tmp_path, root, "bank", server_is_rogue)
    honest = context(folder, root, "shop", not server_is_rogue)
    server, client = (rogue, honest) if server_is_rogue else (honest, rogue)
    with pytest.raises(ssl.SSLError, match=r"verify failed|alert"):
        handshake(server, client, "bank" if server_is_rogue else "shop")
    with pytest.raises(CertificateError, match="are they of one federation"):
        certs.check(tmp_path / "bank" / "bank.pem", root, "bank")


def test_a_party_is_no_authority(folder: Path, tmp_path: Path) -> None:
    """A certificate that a party signs with its own is worth nothing."""
    false = tmp_path / "false"
    false.mkdir()
    (false / "ca.pem").write_bytes((folder / "bank" / "bank.pem").read_bytes())
    (false / "ca.key").write_bytes((folder / "bank" / "bank.key").read_bytes())
    certs.party(false, "shop")
    root = folder / "ca.pem"
    server, client = context(false, root, "shop", True), context(folder, root, "bank", False)
    with pytest.raises(ssl.SSLError):
        handshake(server, client, "shop")


def test_what_a_good_certificate_says(folder: Path) -> None:
    facts = certs.check(folder / "bank" / "bank.pem", folder / "ca.pem", "bank")
    assert facts.party == "bank"
    assert facts.hosts == ("bank.party.colonnade.internal", "localhost", "127.0.0.1")
    assert timedelta(days=364) < facts.until - certs._now() <= timedelta(days=365)


@pytest.mark.parametrize(("days", "why"), [(400, "expired on"), (-1, "is the clock right?")])
def test_the_clock_counts(
    folder: Path, days: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = certs._now()
    monkeypatch.setattr(certs, "_now", lambda: now + timedelta(days=days))
    with pytest.raises(CertificateError, match=why):
        certs.check(folder / "bank" / "bank.pem", folder / "ca.pem", "bank")


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    certs.init(tmp_path, days=10)
    certs.party(tmp_path, "bank", days=365)
    facts = certs.check(tmp_path / "bank" / "bank.pem", tmp_path / "ca.pem", "bank")
    assert facts.until == certs.load(tmp_path / "ca.pem").not_valid_after_utc


def test_a_party_may_make_its_keys_at_home(folder: Path, tmp_path: Path) -> None:
    """Only the request travels to the authority, and only the certificate comes back."""
    asked = certs.request(tmp_path / "home", "clinic")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    copied = Path(inbox / asked.name)
    copied.write_bytes(asked.read_bytes())
    answer = certs.issue(folder, copied, "clinic")
    assert {path.name for path in inbox.iterdir()} == {"clinic.csr", "clinic.pem"}
    assert certs.check(answer, folder / "ca.pem", "clinic").party == "clinic"


def test_keys_are_their_owners_alone(folder: Path) -> None:
    for path in (folder / "ca.key", folder / "bank" / "bank.key", folder / "bank" / "bank.sign"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"PRIVATE" not in (folder / "bank" / "bank.pem").read_bytes()


def test_signing_keys_are_pinned_by_their_public_half(folder: Path) -> None:
    pinned = {certs.public_text(folder / name / f"{name}.sign") for name in ("bank", "shop")}
    assert len(pinned) == 2 and all(len(bytes.fromhex(text)) == 32 for text in pinned)
    with pytest.raises(CertificateError, match=r"is not a signing key"):
        certs.signing_key(folder / "bank" / "bank.key")


def test_keys_are_never_replaced(folder: Path) -> None:
    before = (folder / "bank" / "bank.key").read_bytes()
    with pytest.raises(CertificateError, match=r"bank\.key exists: a new key would lock"):
        certs.party(folder, "bank")
    with pytest.raises(CertificateError, match=r"ca\.key exists"):
        certs.init(folder)
    assert (folder / "bank" / "bank.key").read_bytes() == before


def test_what_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    noise = tmp_path / "noise.pem"
    noise.write_bytes(b"-----BEGIN NOTHING-----")
    root = folder / "ca.pem"
    with pytest.raises(CertificateError, match=r"noise\.pem is not a certificate"):
        certs.check(noise, root, "bank")
    with pytest.raises(CertificateError, match=r"none\.pem: No such file"):
        certs.check(tmp_path / "none.pem", root, "bank")
    with pytest.raises(CertificateError, match=r"of 'shop', not of 'bank'"):
        certs.check(folder / "shop" / "shop.pem", root, "bank")
    with pytest.raises(CertificateError, match=r"not a certificate request"):
        certs.issue(folder, noise, "noise")
    with pytest.raises(CertificateError, match=r"not a private key"):
        certs.signing_key(noise)
    with pytest.raises(CertificateError, match=r"at least one day, not 0"):
        certs.init(tmp_path / "new", days=0)


def test_a_request_that_was_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    """A name put in afterwards is not what the key signed."""
    asked = certs.request(tmp_path, "rogue")
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    encoded = x509.load_pem_x509_csr(asked.read_bytes()).public_bytes(Encoding.DER)
    forged = x509.load_der_x509_csr(encoded.replace(b"rogue", b"clerk"))
    asked.write_bytes(forged.public_bytes(Encoding.PEM))
    with pytest.raises(CertificateError, match="is not signed by the key it names"):
        certs.issue(folder, asked, "rogue")


@pytest.mark.parametrize("name", ["../bank", "", "a b", "-bank", "bank.shop", "x" * 64, "ca", "CA"])
def test_a_name_that_is_no_file_of_a_party_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateError, match="'ca' is the authority"):
        certs.request(tmp_path / "home", name)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["ca", "../../bank"])
def test_a_request_cannot_choose_where_its_certificate_goes(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name in a request was written by somebody else."""
    asked = tmp_path / "sent.csr"
    with monkeypatch.context() as careless:
        careless.setattr(certs, "_check_party", lambda name, what: None)
        (tmp_path / "a" / "b").mkdir(parents=True)
        certs.request(tmp_path / "a" / "b", name).rename(asked)
    with pytest.raises(CertificateError, match=r"sent\.csr: the party"):
        certs.issue(folder, asked, "rogue")


@pytest.mark.parametrize("host", ["bank:7443", "https://bank", "bank example", "bänk.example"])
def test_a_host_is_a_name_or_an_address(folder: Path, tmp_path: Path, host: str) -> None:
    with pytest.raises(CertificateError, match="no port"):
        certs.issue(folder, certs.request(tmp_path, "clinic"), "clinic", [host])


def test_an_authority_has_a_name_and_an_end(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="1 to 64 characters"):
        certs.init(tmp_path, name="x" * 65)
    with pytest.raises(CertificateError, match="at most 36500 days"):
        certs.init(tmp_path, days=10**12)


def test_a_certificate_has_a_fingerprint(folder: Path) -> None:
    facts = [certs.facts(folder / name) for name in ("ca.pem", "bank/bank.pem", "shop/shop.pem")]
    assert len({one.fingerprint for one in facts}) == 3
    assert facts[0].hosts == () and facts[1].since < certs._now() < facts[1].until
    encoded = ssl.PEM_cert_to_DER_cert((folder / "ca.pem").read_text())
    assert facts[0].fingerprint == hashlib.sha256(encoded).hexdigest()


def test_grpc_knows_both_ends_by_their_certificates(folder: Path) -> None:
    grpc = pytest.importorskip("grpc")

    def credentials(name: str) -> list[bytes]:
        paths = [folder / "ca.pem", *(folder / name / f"{name}.{end}" for end in ("key", "pem"))]
        return [path.read_bytes() for path in paths]

    def who(request: bytes, context: Any) -> bytes:
        caller: bytes = context.auth_context()["x509_common_name"][0]
        return caller

    root, key, certificate = credentials("bank")
    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)], root, True)
    )
    server.start()
    try:
        secured = grpc.ssl_channel_credentials(*credentials("shop"))
        override = [("grpc.ssl_target_name_override", certs.host_of("bank"))]
        with grpc.secure_channel(f"127.0.0.1:{port}", secured, override) as channel:
            assert channel.unary_unary("/test/who")(b"", timeout=10) == b"shop"
    finally:
        server.stop(None).wait()
