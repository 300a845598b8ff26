"""A small private certificate authority: it certifies who may speak as which party, and until when.

    ca.pem, ca.key         the authority; ca.key never leaves whoever runs it
    bank.key, bank.sign    a party's TLS key (ECDSA P-256) and signing key (Ed25519)
    bank.csr               its request, which goes to the authority in place of the keys
    bank.pem               the certificate that the authority returns
    issued.jsonl           what the authority has issued; revoked.pem what it has taken back:
                           see register.py

`request` is run by the party, `issue` by the authority; on one machine `party` does both. Keys are
readable by their owner alone. TLS uses P-256 only: gRPC 1.85 ends a handshake with an Ed25519
certificate at either end (NO_COMMON_SIGNATURE_ALGORITHMS).
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.errors import CertificateError
from colonnade.net import register
from colonnade.net.register import CLOCKS, LIST_DAYS, REVOKED, Entry, Revoked

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

AUTHORITY_DAYS, PARTY_DAYS = 3650, 365
DOMAIN = "party.colonnade.internal"  # TLS checks a server by a name; this one needs no DNS
PARTY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # valid in a file's name and in a host name
HOST = re.compile(r"[A-Za-z0-9*][A-Za-z0-9_.-]{0,252}")
MOST_DAYS = 36500


def host_of(party: str, domain: str = DOMAIN) -> str:
    """The name under which TLS knows a party, regardless of its address."""
    return f"{party}.{domain}" if domain else party


def init(folder: Path, name: str = "Colonnade authority", days: int = AUTHORITY_DAYS) -> Path:
    """A new authority; returns its certificate, which every party must hold."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    _refuse_to_replace(folder / "ca.key", folder / "ca.pem")
    key = ec.generate_private_key(ec.SECP256R1())
    itself = _subject(name)
    certificate = (
        _builder(itself, itself, key.public_key(), _until(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_key(folder / "ca.key", key)
    _write(folder / "ca.pem", _pem(certificate))
    return folder / "ca.pem"


def request(folder: Path, party: str) -> Path:
    """Make a party's keys in the folder where they stay; returns the request for the authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    _check_party(party, "a party")
    tls, signing, asked = (folder / f"{party}.{end}" for end in ("key", "sign", "csr"))
    _refuse_to_replace(tls, signing)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(party))
    _write_key(tls, key)
    _write_key(signing, ed25519.Ed25519PrivateKey.generate())
    _write(asked, _pem(builder.sign(key, hashes.SHA256())))
    return asked


def issue(
    authority: Path,
    asked: Path,
    name: str,
    hosts: Sequence[str] = (),
    days: int = PARTY_DAYS,
    *,
    replace: bool = False,
) -> Path:
    """Answer a request as the authority: the certificate, as a file beside the request.

    name   whose request it should be, as somebody has found out who knows that party
    hosts  names or addresses of the machine, for tools that check them; Colonnade itself checks
           the party's name
    replace  although the party has a certificate for another key
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    root, key = load(authority / "ca.pem"), _read_key(authority / "ca.key")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{authority / 'ca.key'} is not the key of an authority")
    wanted = _request(asked)
    party = name_of(wanted.subject)
    _check_party(party, f"{asked}: the party")  # untrusted, and it becomes a file's name
    if party != name:
        raise CertificateError(
            f"{asked} asks for the certificate of '{party}', not of '{name}': whoever sent it "
            f"would speak as '{party}'. Ask '{party}' by telephone whether it is theirs"
        )
    until = min(_until(days), root.not_valid_after_utc)  # no longer than the authority itself
    names = [_general_name(host_of(party)), *map(_general_name, _of_machines(hosts, party))]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(wanted.subject, root.subject, wanted.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    register.enter(authority, certificate, party, replace)
    target = asked.with_name(f"{party}.pem")
    _write(target, _pem(certificate))
    return target


def asked_for(path: Path) -> tuple[str, str]:
    """Whose certificate a request asks for, and the sha256 of the key that it would name."""
    wanted = _request(path)
    return name_of(wanted.subject), register.tls_key_of(wanted)


def party(authority: Path, name: str, hosts: Sequence[str] = (), days: int = PARTY_DAYS) -> Path:
    """Make everything one party needs, in a folder of its name: for federations on one machine."""
    folder = authority / name
    certificate = issue(authority, request(folder, name), name, hosts, days)
    shutil.copyfile(authority / "ca.pem", folder / "ca.pem")
    return certificate


@dataclass(frozen=True)
class Facts:
    """The facts in a certificate."""

    party: str
    since: datetime
    until: datetime
    hosts: tuple[str, ...]
    fingerprint: str  # SHA-256 in hex: two people can compare it by telephone
    serial: str  # hex; its authority's register and list of revoked certificates go by it
    tls_key: str  # sha256 of the public key, as a federation file may pin it


def facts(path: Path) -> Facts:
    """The facts in a certificate, whether or not it is trusted."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    certificate = load(path)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(str(entry.value) for entry in names)
    except (x509.ExtensionNotFound, ValueError):
        hosts = ()  # an authority's
    return Facts(
        name_of(certificate.subject),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        hosts,
        certificate.fingerprint(hashes.SHA256()).hex(),
        f"{certificate.serial_number:x}",
        register.tls_key_of(certificate),
    )


def check(path: Path, authority: Path, party: str) -> Facts:
    """Refuse a certificate of another party or another authority, or one that is out of date."""
    from cryptography.exceptions import InvalidSignature

    found = facts(path)
    if found.party != party:
        raise CertificateError(f"{path} is the certificate of '{found.party}', not of '{party}'")
    try:
        load(path).verify_directly_issued_by(load(authority))
    except (InvalidSignature, ValueError, TypeError):
        raise CertificateError(
            f"{path} was not issued by the authority in {authority}: are they of one federation?"
        ) from None
    now, first, last = _now(), found.since, found.until
    if now < first:
        raise CertificateError(
            f"{path} is valid from {first:%Y-%m-%d %H:%M} UTC on, and here it is "
            f"{now:%Y-%m-%d %H:%M}: is the clock right?"
        )
    if now > last:
        raise CertificateError(f"{path} expired on {last:%Y-%m-%d}: ask the authority for another")
    revoked = revoked_by(authority)
    if revoked is not None and (why := revoked.why(int(found.serial, 16))):
        raise CertificateError(f"{path} {why}: make a new key, and ask the authority for another")
    return found


def revoke(authority: Path, what: str | None, days: int = LIST_DAYS) -> tuple[Path, list[Entry]]:
    """As the authority: the next list of certificates that count no more, and those it adds."""
    if not 1 <= days <= MOST_DAYS:
        raise CertificateError(f"a list is valid for 1 to {MOST_DAYS} days, not {days}")
    root, key = load(authority / "ca.pem"), _read_key(authority / "ca.key")
    return register.revoke(authority, root, key, what, days)


def revoked_by(authority: Path) -> Revoked | None:
    """The newest list that lies beside a copy of the authority's certificate; None: no list yet."""
    return register.current(authority.with_name(REVOKED), load(authority))


def load(path: Path) -> x509.Certificate:
    """A certificate from its PEM file."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise CertificateError(f"{path} is not a certificate (a .pem file)") from None


def signing_key(path: Path) -> Ed25519PrivateKey:
    """A party's signing key from its .sign file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = _read_key(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise CertificateError(f"{path} is not a signing key (a .sign file)")
    return key


def public_text(path: Path) -> str:
    """The public half of a signing key, as a federation file pins it."""
    return signing_key(path).public_key().public_bytes_raw().hex()


def name_of(subject: x509.Name) -> str:
    """The party that a certificate or a request is about."""
    from cryptography.x509.oid import NameOID

    found = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(found) != 1:
        raise CertificateError("a certificate must have exactly one common name, its party's")
    return str(found[0].value)


# ---- inner workings ------------------------------------------------------------------------------


def _request(path: Path) -> x509.CertificateSigningRequest:
    """A certificate request that the key in it has signed."""
    from cryptography import x509

    try:
        wanted = x509.load_pem_x509_csr(path.read_bytes())
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise CertificateError(f"{path} is not a certificate request (a .csr file)") from None
    if not wanted.is_signature_valid:
        raise CertificateError(f"{path} is not signed by the key it names: make a new request")
    return wanted


def _now() -> datetime:
    return datetime.now(UTC)


def _until(days: int) -> datetime:
    if days < 1:
        raise CertificateError(f"a certificate is valid for at least one day, not {days}")
    if days > MOST_DAYS:
        raise CertificateError(f"a certificate is valid for at most {MOST_DAYS} days, not {days}")
    return _now() + timedelta(days=days)


def _check_party(name: str, what: str) -> None:
    """A party's name becomes files beside `ca.pem`, and the name that TLS checks."""
    if not PARTY.fullmatch(name) or name.lower() == "ca":
        raise CertificateError(
            f"{what} {name!r}: use letters, digits, '-' and '_', at most 63, beginning with a "
            "letter or digit; 'ca' is the authority"
        )


def _subject(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError:
        raise CertificateError(f"the name {name!r}: give 1 to 64 characters") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: Any, until: datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - CLOCKS)
        .not_valid_after(until)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _of_machines(hosts: Sequence[str], party: str) -> list[str]:
    """Names that a certificate may have beside its party's own, each once."""
    found = [host for host in dict.fromkeys(hosts) if host.lower() != host_of(party).lower()]
    for host in found:
        if f".{host.lower().rstrip('.')}".endswith(f".{DOMAIN}"):
            raise CertificateError(
                f"the host {host!r}: TLS knows parties by names in {DOMAIN}, so whoever has that "
                "certificate could answer as another party. Give the name of a machine"
            )
    return found


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST.fullmatch(host):
        raise CertificateError(
            f"the host {host!r}: give a name such as bank.example.org or an IP address, no port"
        )
    return x509.DNSName(host)


def _pem(thing: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    encoded: bytes = thing.public_bytes(Encoding.PEM)
    return encoded


def _read_key(path: Path) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise CertificateError(f"{path} is not a private key in PEM form") from None


def _write_key(path: Path, key: Any) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The mode is set before the file has any content.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:
        raise CertificateError(f"{path} cannot be written: {error.strerror}") from None


def _refuse_to_replace(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise CertificateError(
                f"{path} exists: a new key would lock its owner out; remove it by hand, or choose "
                "another folder"
            )
