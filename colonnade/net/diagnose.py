"""Finds out why a peer cannot be reached by a TLS connection of its own, because gRPC reports every
cause as UNAVAILABLE."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colonnade.net.keys import Keys


# OpenSSL's codes for a certificate that no authority here has issued: its signature fails (7), it
# is its own authority (18, 19), its authority is not known (20, 21).
FOREIGN = (7, 18, 19, 20, 21)


UNHEARD = "connections come and end in the TLS handshake"  # of somebody, at who listens
CERTIFICATES = (
    "Both need certificates of one authority that are valid today: put these in place, and start "
    "again with the same commands"
)


class Cause(Enum):
    """A cause, with its text for a person."""

    OWN_CERTIFICATE = "this party's own certificate cannot be used ({})"
    NO_ANSWER = "no answer; is the address right, and does a firewall let it through?"
    NOBODY_LISTENS = "nothing listens there yet"
    UNREACHABLE = "{}"
    REFUSES_US = (
        "it refuses this party's certificate: expired, or of another authority? Compare both: "
        "`colonnade certs show ca.pem`"
    )
    REFUSES_TLS = "it refuses this party's certificate or TLS version ({})"
    REFUSED_HERE = "its certificate is refused here: {}"
    COUNTS_NOT = "{}"  # good for TLS, but revoked, or not of a key that the federation file pins
    CLOSES = "it closes the connection; is the party behind that address running?"
    NO_HANDSHAKE = "no answer to the TLS handshake; does something else listen there?"
    BROKE = "the connection broke during the TLS handshake ({})"


@dataclass(frozen=True)
class Trouble:
    """Why there is no TLS connection with a peer."""

    cause: Cause
    detail: str = ""  # as the operating system or OpenSSL reported it

    @property
    def text(self) -> str:
        return self.cause.value.format(self.detail)

    @property
    def move(self) -> str:
        """What mends it, where waiting does not."""
        refusals = (Cause.OWN_CERTIFICATE, Cause.REFUSES_US, Cause.REFUSED_HERE, Cause.COUNTS_NOT)
        return CERTIFICATES if self.cause in refusals else ""


def diagnose(address: str, peer: str, keys: Keys, seconds: float = 2.0) -> Trouble | None:
    """Why there is no TLS connection to a peer; None if there is one."""
    shown = shown_by(address, peer, keys, seconds, admitted=True)
    return shown if isinstance(shown, Trouble) else None


def shown_by(
    address: str, peer: str, keys: Keys, seconds: float, admitted: bool = False
) -> bytes | Trouble:
    """The certificate (PEM) of a peer, which is good for TLS; or why there is none.

    admitted  wait until the peer has accepted this party's, too
    """
    host, _, port = address.rpartition(":")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["h2"])
        context.load_verify_locations(keys.authority)
        context.load_cert_chain(keys.certificate, keys.key, password="")  # never ask a terminal
    except (OSError, ssl.SSLError) as error:
        return Trouble(Cause.OWN_CERTIFICATE, str(error))
    try:
        raw = socket.create_connection((host.strip("[]"), int(port)), seconds)
    except TimeoutError:
        return Trouble(Cause.NO_ANSWER)
    except ConnectionRefusedError:
        return Trouble(Cause.NOBODY_LISTENS)
    except OSError as error:
        return Trouble(Cause.UNREACHABLE, error.strerror or str(error))
    try:
        with raw, context.wrap_socket(raw, server_hostname=keys.host_of(peer)) as stream:
            stream.settimeout(seconds)
            with suppress(TimeoutError):  # the peer waits for us to speak, so the handshake is done
                if admitted and not stream.recv(1):
                    return Trouble(Cause.REFUSES_US)  # in TLS 1.3 a client learns only now
            return ssl.DER_cert_to_PEM_cert(stream.getpeercert(True) or b"").encode()
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        if error.verify_code in FOREIGN:
            why = (
                f"it is of another authority than the one in {keys.authority}. Compare both: "
                f"`colonnade certs show {keys.authority}`"
            )
        return Trouble(Cause.REFUSED_HERE, why)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # the latter before Python 3.11.4
        return Trouble(Cause.CLOSES)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        return Trouble(Cause.REFUSES_TLS, reason)
    except TimeoutError:
        return Trouble(Cause.NO_HANDSHAKE)
    except OSError as error:
        return Trouble(Cause.BROKE, error.strerror or str(error))
