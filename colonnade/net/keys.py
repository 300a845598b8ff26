"""The files with which a party shows who it is, and how its peers are called in theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from colonnade.net.certs import DOMAIN, host_of


@dataclass(frozen=True)
class Keys:
    """Where a party's own certificate and key lie, and the authority it trusts."""

    authority: Path
    certificate: Path
    key: Path
    domain: str = DOMAIN  # of the names that TLS checks; empty: a party's name alone
    # A party's common name in its certificate, where that is not the party's name
    called: Mapping[str, str] = field(default_factory=dict)
    # The TLS keys that the federation file pins, by party; sha256 of the public key
    pins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, party: str) -> Keys:
        return cls(folder / "ca.pem", folder / f"{party}.pem", folder / f"{party}.key")

    def host_of(self, party: str) -> str:
        """The name that a party's certificate must be valid for."""
        return host_of(self.common_name(party), self.domain)

    def common_name(self, party: str) -> str:
        return self.called.get(party, party)

    def party(self, common_name: str) -> str:
        """The party that a certificate's common name stands for."""
        known = {name: party for party, name in self.called.items()}
        return known.get(common_name, "" if common_name in self.called else common_name)
