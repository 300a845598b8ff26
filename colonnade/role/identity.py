"""A party's identity: its own signing key, and the public keys that it trusts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from colonnade.errors import Untrusted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True)
class Identity:
    """One party's long-term Ed25519 key and everybody's public one, agreed on beforehand."""

    name: str
    session: str  # the run and the attempt: a signature of another session is refused
    trusted: Mapping[str, bytes]  # party: raw public key
    key: Ed25519PrivateKey = field(repr=False)

    def sign(self, content: bytes) -> bytes:
        return self.key.sign(content)

    def verify(self, name: str, signature: bytes, content: bytes) -> None:
        """Refuse a signature that is not this party's, over exactly this content."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        if name not in self.trusted:
            raise Untrusted(f"'{self.name}' received a signature of '{name}', whose key it lacks")
        try:
            Ed25519PublicKey.from_public_bytes(self.trusted[name]).verify(signature, content)
        except InvalidSignature:
            raise Untrusted(
                f"'{self.name}' refuses the signature of '{name}': the relay or '{name}' changed "
                "what was signed, it belongs to another session, or the pinned key is not theirs"
            ) from None


def simulated(names: Sequence[str], session: str) -> dict[str, Identity]:
    """Identities made for one run in one process, where there is nobody to certify them."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    keys = {name: Ed25519PrivateKey.generate() for name in names}
    public = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    return {name: Identity(name, session, dict(public), key) for name, key in keys.items()}
