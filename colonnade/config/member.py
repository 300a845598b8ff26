"""One party as all others know it: its name, its address, and its signing key."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

ADDRESS = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([0-9]{1,5})")
LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
SIGNING_KEY = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class Entry:
    """[parties.bank] as written in the file."""

    address: str = ""
    listen: str = ""
    signing_key: str = ""
    tls_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Member:
    """One party, as all others know it."""

    name: str
    address: str  # host:port; empty: it dials out
    listen: str  # host:port that it binds; empty: its address
    signing_key: str  # 64 hex digits, Ed25519
    # sha256 of the public keys that its certificate may have, this one's and the next one's; empty:
    # any that the authority has certified
    tls_keys: tuple[str, ...] = ()

    @property
    def binds(self) -> str:
        """Where it listens on its own machine; empty: nowhere."""
        return self.listen or self.address

    @property
    def public_key(self) -> bytes:
        """The raw key with which its signatures are checked."""
        return bytes.fromhex(self.signing_key)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "bank.example.org:7443" or "[::1]:7443"; a ValueError states a mistake."""
    found = ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError("write host:port, such as bank.example.org:7443 or [::1]:7443")
    six, host, port = found[1], found[2], int(found[3])
    if not 1 <= port <= 65535:
        raise ValueError(f"the port is {port}; 1 to 65535 exist")
    if six is not None:
        ipaddress.IPv6Address(six)
    elif host.rpartition(".")[2].isdecimal():  # no host name ends in a number
        ipaddress.IPv4Address(host)
    elif len(host) > 253 or not all(LABEL.fullmatch(label) for label in host.split(".")):
        raise ValueError(f"'{host}' is not the name of a machine")
    return six or host, port
