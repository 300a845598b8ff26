"""Why a peer cannot be reached: gRPC calls everything UNAVAILABLE, so TLS is asked directly."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colonnade.net.mesh import Keys


def diagnose(address: str, peer: str, keys: Keys, seconds: float = 2.0) -> str:
    """One line about what is wrong, or nothing when a TLS connection stands."""
    host, _, port = address.rpartition(":")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["h2"])
        context.load_verify_locations(keys.authority)
        context.load_cert_chain(keys.certificate, keys.key, password="")  # never ask a terminal
    except (OSError, ssl.SSLError) as error:
        return f"this party's own certificate cannot be used ({error})"
    try:
        raw = socket.create_connection((host.strip("[]"), int(port)), seconds)
    except TimeoutError:
        return "no answer; is the address right, and does a firewall let it through?"
    except ConnectionRefusedError:
        return "nothing listens there yet"
    except OSError as error:
        return f"{error.strerror or error}"
    try:
        with raw, context.wrap_socket(raw, server_hostname=keys.host_of(peer)) as stream:
            stream.settimeout(seconds)
            with suppress(TimeoutError):  # it waits for us to speak: all is well
                if not stream.recv(1):  # TLS 1.3 tells a client only now that it is refused
                    return "it refuses this party's certificate: expired, or of another authority?"
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is refused here: {error.verify_message}"
    except ssl.SSLEOFError:
        return "it closes the connection; is the party behind that address running?"
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        return f"it refuses this party's certificate or TLS version ({reason})"
    except TimeoutError:
        return "no answer to the TLS handshake; does something else listen there?"
    except OSError as error:
        return f"the connection broke during the TLS handshake ({error.strerror or error})"
    return ""
