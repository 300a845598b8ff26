"""Which certificates count, at both ends of every handshake.

TLS itself checks the authority, the party's name and the dates. This adds the authority's list of
revoked certificates and the keys that the federation file pins. All files are read again for each
connection, so a party can replace its certificate, its key and the list while a run goes on.

gRPC tells a dialler nothing about the certificate that it is shown. So the dialler first looks at
it in a handshake of its own, and then lets gRPC accept that one certificate, and no other.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from cryptography import x509

from colonnade.errors import CertificateError, FederationError, foreign
from colonnade.net import certs, register
from colonnade.net.diagnose import Cause, Trouble, shown_by

if TYPE_CHECKING:
    from colonnade.net.keys import Keys

FAILED, SILENT_SECONDS = 3, 5.0  # connections without a word in that time are worth a sentence
NAME = 100  # letters of a name that others made up
LOOK_SECONDS = 10.0  # for the handshake in which a dialler looks at a certificate


class Admission:
    def __init__(self, me: str, keys: Keys, log: Callable[[str], None]) -> None:
        self._me, self._keys, self._log = me, keys, log
        self._used: tuple[bytes, ...] = ()  # own certificate, key and authority, as last read
        self._complained = ""
        self._mutex = threading.Lock()
        self._silent, self._since = 0, 0.0  # connections without a word, and since when

    def refuses(self, peer: str, shown: bytes) -> str:
        """Why a peer's certificate (PEM) does not count, though the authority has issued it."""
        try:
            revoked = certs.revoked_by(self._keys.authority)
        except CertificateError as error:  # with a path, which is no matter of the peer's
            self._complain(str(error))
            return f"the list of revoked certificates at '{self._me}' cannot be used: see its log"
        try:
            certificate = x509.load_pem_x509_certificate(shown)
        except ValueError:
            return f"'{peer}' shows no certificate that can be read"
        try:
            called = certs.name_of(certificate.subject)
        except CertificateError as error:
            return f"'{peer}': {error}"
        if called != self._keys.common_name(peer):  # TLS looks at the machine's names alone
            return f"the certificate that '{peer}' shows is that of '{foreign(called, NAME)}'"
        serial = certificate.serial_number
        if revoked is not None and (why := revoked.why(serial)):
            return f"the certificate of '{peer}' with serial {serial:x} {why}"
        pins, key = self._keys.pins.get(peer, ()), register.tls_key_of(certificate)
        if pins and key not in pins:
            return (
                f"the TLS key of '{peer}' is {key[:16]}…, and the federation file pins "
                f"{', '.join(pin[:16] + '…' for pin in pins)}"
            )
        return ""

    # ---- dialling ------------------------------------------------------------------------------

    def look(self, peer: str, address: str) -> bytes | Trouble:
        """The certificate (PEM) of a peer, issued by the authority for that peer's name."""
        return shown_by(address, peer, self._keys, LOOK_SECONDS)

    def trouble(self, peer: str, address: str, seconds: float) -> Trouble | None:
        """Why there would be no connection with a peer; None: nothing is in the way."""
        shown = shown_by(address, peer, self._keys, seconds, admitted=True)
        if isinstance(shown, Trouble):
            return shown
        why = self.refuses(peer, shown)
        return Trouble(Cause.COUNTS_NOT, why) if why else None

    def dialler(self, shown: bytes) -> grpc.ChannelCredentials:
        """Own credentials, for a peer that has the key of this certificate (PEM)."""
        own, key, _ = self._read()
        return grpc.ssl_channel_credentials(shown, key, own)

    # ---- listening -----------------------------------------------------------------------------

    def listener(self) -> grpc.ServerCredentials:
        """Own credentials as they are when somebody connects."""
        return grpc.dynamic_ssl_server_credentials(
            self._configured(self._read()), self._replaced, require_client_authentication=True
        )

    def heard(self) -> None:
        """A connection has got through the handshake."""
        with self._mutex:
            self._silent = 0

    def unheard(self) -> bool:
        """Whether connections come and end in the handshake, one after the other."""
        with self._mutex:
            return self._silent >= FAILED and time.monotonic() - self._since > SILENT_SECONDS

    def _replaced(self) -> Any:
        """Own credentials for a connection that comes now; None: as for the one before."""
        with self._mutex:
            self._since = self._since if self._silent else time.monotonic()
            self._silent += 1
        try:
            now = self._read()
            if now == self._used:
                return None
            self._check()
        except (CertificateError, FederationError) as error:
            # Two files are replaced one after the other, and meanwhile they do not fit.
            self._complain(f"the certificate before is still used: {error}")
            return None
        self._log("this party's certificate was replaced, and is used from now on")
        return self._configured(now)

    def _complain(self, text: str) -> None:
        if text != self._complained:  # once, not at every connection
            self._complained = text
            self._log(text)

    def _configured(self, files: tuple[bytes, bytes, bytes]) -> Any:
        own, key, authority = self._used = files
        return grpc.ssl_server_certificate_configuration([(key, own)], root_certificates=authority)

    def _check(self) -> None:
        """A pair that does not fit, or somebody else's, must not replace one that works."""
        keys = self._keys
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(keys.certificate, keys.key, password="")
        except OSError as error:  # also ssl.SSLError
            raise CertificateError(f"{keys.key} is not its key ({error})") from None
        certs.check(keys.certificate, keys.authority, keys.common_name(self._me))

    def _read(self) -> tuple[bytes, bytes, bytes]:
        files = (self._keys.certificate, self._keys.key, self._keys.authority)
        try:
            own, key, authority = (path.read_bytes() for path in files)
        except OSError as error:
            raise FederationError([f"{error.filename}: {error.strerror}"]) from None
        return own, key, authority
