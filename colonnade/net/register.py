"""What an authority has issued, and what it has taken back.

    issued.jsonl    in the authority's folder: a line per certificate, written before it is given
    revoked.pem     its list of certificates that count no more (an X.509 CRL), also beside every
                    party's copy of ca.pem; signed, numbered, and to be replaced by a certain day

A party remembers the highest number that it has seen, so an older list, or none, is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.errors import CertificateError
from colonnade.owner import data_folder, private

if TYPE_CHECKING:
    from cryptography import x509

ISSUED, REVOKED = "issued.jsonl", "revoked.pem"
LIST_DAYS = 365
CLOCKS = timedelta(minutes=5)  # how far the clocks of two machines may differ
TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Entry:
    """One certificate, as its authority has noted it."""

    serial: str  # hex
    party: str
    tls_key: str  # sha256 of its public key
    since: str
    until: str

    @property
    def number(self) -> int:
        return int(self.serial, 16)

    @property
    def outlived(self) -> bool:
        return self.until < datetime.now(UTC).strftime(TIME)


@dataclass(frozen=True)
class Revoked:
    """The certificates that count no more."""

    number: int  # of the list; a later one has a higher one
    until: datetime  # when it must have been replaced
    serials: Mapping[int, datetime]  # since when

    def why(self, serial: int) -> str:
        """Why a certificate counts no more; empty: it does."""
        if serial not in self.serials:
            return ""
        since = self.serials[serial]
        return f"was revoked on {since:%Y-%m-%d}, by list {self.number} of the authority"


# ---- the authority -------------------------------------------------------------------------------


def enter(folder: Path, certificate: x509.Certificate, party: str, replace: bool) -> None:
    """Note a certificate before it is handed out; a second key for one name only to replace it."""
    entry = Entry(
        f"{certificate.serial_number:x}",
        party,
        tls_key_of(certificate),
        certificate.not_valid_before_utc.strftime(TIME),
        certificate.not_valid_after_utc.strftime(TIME),
    )
    with _locked(folder) as file:
        revoked = _list_of(folder)
        taken_back = revoked.serials if revoked else {}
        for other in _entries(file.read(), folder):
            if other.tls_key == entry.tls_key and other.number in taken_back:
                raise CertificateError(
                    f"the key of this request was taken back: its certificate {other.serial} of "
                    f"'{other.party}' is revoked. Whoever has stolen it could ask like this. "
                    f"'{party}' must make a new one: colonnade certs request next --party {party}"
                )
            same = other.party.lower() == party.lower()
            counts = not other.outlived and other.number not in taken_back
            if same and counts and other.tls_key != entry.tls_key and not replace:
                raise CertificateError(
                    f"'{other.party}' has a certificate for another key, serial {other.serial}, "
                    f"valid until {other.until[:10]}. Is this request really of '{party}'? Ask by "
                    "telephone. To let its new key count as well: --replace; to end the old one: "
                    f"colonnade certs revoke {folder} {other.serial}"
                )
        file.write(json.dumps(asdict(entry)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def revoke(
    folder: Path, root: x509.Certificate, key: Any, what: str | None, days: int
) -> tuple[Path, list[Entry]]:
    """Sign the next list: what the last one holds, and every certificate of a party or serial.

    what  a party's name or a serial; None: nothing more, only a new date
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    now = datetime.now(UTC)
    with _locked(folder) as file:
        entries = _entries(file.read(), folder)
        found = [
            e for e in entries if what is not None and what.lower() in (e.party.lower(), e.serial)
        ]
        if what is not None and not found:
            raise CertificateError(
                f"{folder / ISSUED} knows no certificate of '{what}', and none with that serial"
            )
        last = _list_of(folder)
        serials = dict(last.serials) if last else {}
        for entry in found:
            serials.setdefault(entry.number, now)
        number = last.number + 1 if last else 1
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(root.subject)
            .last_update(now - CLOCKS)
            .next_update(min(now + timedelta(days=days), root.not_valid_after_utc))
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        for serial, since in serials.items():
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since)
            builder = builder.add_revoked_certificate(revoked.build())
        signed = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
        _put(folder / REVOKED, signed)
    return folder / REVOKED, found


def entries(folder: Path) -> list[Entry]:
    """What an authority has issued, oldest first."""
    with _locked(folder) as file:
        return _entries(file.read(), folder)


# ---- whoever checks certificates -----------------------------------------------------------------


def tls_key_of(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The sha256 of a certificate's or a request's public key, as a federation file pins it."""
    import hashlib

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = certificate.public_key()
    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


def current(path: Path, root: x509.Certificate) -> Revoked | None:
    """The authority's list at this party; None if there has never been one. Refuses one that is
    forged, outlived, or older than one that this user has seen."""
    seen = _seen(root)
    if not path.exists():
        if seen:
            raise CertificateError(
                f"{path} is missing, and its list {seen} was here before: get the newest one from "
                "the authority"
            )
        return None
    found = read(path, root)
    if found.number < seen:
        raise CertificateError(
            f"{path} is list {found.number} of revoked certificates, and list {seen} was here "
            "before: get the newest one from the authority"
        )
    if found.until < datetime.now(UTC):
        raise CertificateError(
            f"{path} should have been replaced by {found.until:%Y-%m-%d}: get the newest list from "
            "the authority, which makes one by `colonnade certs revoke AUTHORITY`"
        )
    if found.number > seen:
        _remember(root, found.number)
    return found


def read(path: Path, root: x509.Certificate) -> Revoked:
    """A list, signed by the authority, whether or not it is the newest."""
    found, signed = _parsed(path)
    key: Any = root.public_key()
    if found is None or signed.issuer != root.subject or not signed.is_signature_valid(key):
        raise CertificateError(f"{path} is not a list of revoked certificates by this authority")
    return found


def shown(path: Path) -> Revoked:
    """What a list says, whoever has signed it."""
    found, _ = _parsed(path)
    if found is None:
        raise CertificateError(f"{path} is not a list of revoked certificates (revoked.pem)")
    return found


def certificates_of(folder: Path, party: str, tls_key: str) -> list[Entry]:
    """The certificates of a party for this key that count by the authority's register, oldest
    first."""
    with _locked(folder) as file:
        revoked = _list_of(folder)
        return [
            one
            for one in _entries(file.read(), folder)
            if (one.party, one.tls_key) == (party, tls_key)
            and not one.outlived
            and (revoked is None or one.number not in revoked.serials)
        ]


# ---- inner workings ------------------------------------------------------------------------------


@contextmanager
def _locked(folder: Path) -> Iterator[Any]:
    """The register, open to read and append; nobody else issues or revokes meanwhile."""
    try:
        with private(), (folder / ISSUED).open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            yield file
    except OSError as error:
        raise CertificateError(f"{folder / ISSUED}: {error.strerror}") from None


def _parsed(path: Path) -> tuple[Revoked | None, Any]:
    """What a list says, or None if it is none; and the list, to look at its signature."""
    from cryptography import x509

    try:
        signed = x509.load_pem_x509_crl(path.read_bytes())
        number = signed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        until = signed.next_update_utc
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from None
    except (ValueError, x509.ExtensionNotFound):
        return None, None
    if until is None:
        return None, None
    serials = {one.serial_number: one.revocation_date_utc for one in signed}
    return Revoked(number, until, serials), signed


def _entries(text: str, folder: Path) -> list[Entry]:
    try:
        return [Entry(**json.loads(line)) for line in text.splitlines()]
    except (ValueError, TypeError):
        raise CertificateError(
            f"{folder / ISSUED} is damaged: nobody knows what was issued. Put back a copy of it"
        ) from None


def _list_of(folder: Path) -> Revoked | None:
    from cryptography import x509

    if not (folder / REVOKED).exists():
        return None
    root = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    return read(folder / REVOKED, root)


def _store(root: x509.Certificate) -> Path:
    from cryptography.hazmat.primitives import hashes

    return data_folder() / "authorities" / root.fingerprint(hashes.SHA256()).hex()


def _seen(root: x509.Certificate) -> int:
    try:
        return int(_store(root).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise CertificateError(f"{_store(root)} cannot be read: {error}") from None


def _put(path: Path, content: bytes) -> None:
    """Replace a file whole or not at all, also if the power fails."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _remember(root: x509.Certificate, number: int) -> None:
    try:
        with private():
            _store(root).parent.mkdir(parents=True, exist_ok=True)
            _put(_store(root), str(number).encode())
    except OSError as error:
        raise CertificateError(f"{_store(root)} cannot be written: {error.strerror}") from None
