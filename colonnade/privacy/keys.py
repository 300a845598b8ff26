"""Agrees on a secret key for every pair of parties, over a relay that nobody has to trust.

    every member k                                      the active party (a member too)
    1. draw an ephemeral X25519 key, send its public half   →   2. send all public halves to all
    3. sign the transcript: session, names, public halves   →   4. send all signatures to all
    5. check everybody's signature of the same transcript with the pinned Ed25519 keys
    6. K_kj = HKDF-SHA256(X25519(k, j), salt = session, info = purpose, names, transcript)

Every signature covers every fresh key, so a changed, replayed or swapped message is refused, and
a session that starts again, also after a crash, has new keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from colonnade.errors import Untrusted
from colonnade.role.identity import Identity
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

# Both travel up with one entry, and down with everybody's: {"shop": bytes, …}
PUBLIC_KEYS = Kind(
    "public_keys",
    None,
    reveals="nothing: fresh public keys",
    dtype="any",
    randomised=True,
    about="nothing",
)
SIGNATURES = Kind(
    "signatures",
    None,
    reveals="nothing: signatures of them",
    dtype="any",
    randomised=True,
    about="nothing",
)
KINDS = (PUBLIC_KEYS, SIGNATURES)


async def passive_keys(
    me: Party, active: Peer, passives: Sequence[Peer], purpose: str
) -> dict[str, bytes]:
    """Agree as a passive party: the secret shared with each other member, by name."""
    members = [active.name, me.name, *(peer.name for peer in passives)]
    agreement = Agreement(_identity(me), members, purpose)
    active.send(PUBLIC_KEYS, {me.name: agreement.public})  # 1.
    signature = agreement.sign(await active.recv(PUBLIC_KEYS))
    active.send(SIGNATURES, {me.name: signature})  # 3.
    return agreement.secrets(await active.recv(SIGNATURES))  # 5., 6.


async def active_keys(me: Party, passives: Sequence[Peer], purpose: str) -> dict[str, bytes]:
    """The same for the relay, which is a member and cannot read another pair's secret."""
    agreement = Agreement(_identity(me), [me.name, *(peer.name for peer in passives)], purpose)
    publics = {me.name: agreement.public} | await _gather(me, passives, PUBLIC_KEYS)
    for peer in passives:
        peer.send(PUBLIC_KEYS, publics)  # 2.
    signature = agreement.sign(publics)
    signatures = {me.name: signature} | await _gather(me, passives, SIGNATURES)
    for peer in passives:
        peer.send(SIGNATURES, signatures)  # 4.
    return agreement.secrets(signatures)


async def _gather(me: Party, passives: Sequence[Peer], kind: Kind) -> dict[str, bytes]:
    gathered = {}
    for peer in passives:
        sent = await peer.recv(kind)
        if not isinstance(sent, Mapping) or list(sent) != [peer.name]:
            whose = list(sent) if isinstance(sent, Mapping) else "nobody"
            raise Untrusted(f"'{peer.name}' sent '{me.name}' the {kind.name} of {whose}")
        gathered[peer.name] = sent[peer.name]
    return gathered


def _identity(me: Party) -> Identity:
    if me.identity is None:
        raise Untrusted(
            f"'{me.name}' has no signing key: the method must say so, METHOD = Method(…, "
            "membership=Membership(signs=lambda options: True))"
        )
    return me.identity


def seal(secret: bytes, purpose: str, content: bytes) -> bytes:
    """Encrypt for the other of a pair; only once per secret and purpose, because the nonce is 0."""
    return _cipher(secret, purpose).encrypt(bytes(12), content, None)


def unseal(secret: bytes, purpose: str, text: bytes) -> bytes:
    """Decrypt what `seal` encrypted; anything else is refused."""
    from cryptography.exceptions import InvalidTag

    try:
        return _cipher(secret, purpose).decrypt(bytes(12), text, None)
    except InvalidTag:
        raise Untrusted(
            f"the sealed message ({purpose}) was changed, or belongs to another pair"
        ) from None


def _cipher(secret: bytes, purpose: str) -> ChaCha20Poly1305:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    return ChaCha20Poly1305(
        HKDFExpand(SHA256(), 32, _hashed(b"seal", purpose.encode())).derive(secret)
    )


class Agreement:
    """One member's side of the exchange, without the messages; used once, then dropped."""

    def __init__(self, identity: Identity, members: Sequence[str], purpose: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._identity, self._purpose = identity, purpose
        self._members = sorted(members)
        self._key = X25519PrivateKey.generate()
        self.public = self._key.public_key().public_bytes_raw()  # 32 bytes
        self._publics: dict[str, bytes] = {}
        self._transcript = b""

    def sign(self, publics: Mapping[str, bytes]) -> bytes:
        """Step 3: sign everything that was agreed on, after a check of the relay's list."""
        me = self._identity.name
        self._expect(publics, 32, "public keys")
        if publics[me] != self.public:
            raise Untrusted(f"the relay shows '{me}' another public key than the one it sent")
        if len(set(publics.values())) < len(publics):
            raise Untrusted(f"the relay shows '{me}' one public key for two parties")
        self._publics = dict(publics)
        self._transcript = _hashed(
            b"colonnade key agreement 1",
            self._identity.session.encode(),
            self._purpose.encode(),
            *(part for name in self._members for part in (name.encode(), publics[name])),
        )
        return self._identity.sign(self._signed(me))

    def secrets(self, signatures: Mapping[str, bytes]) -> dict[str, bytes]:
        """Steps 5 and 6: 32 bytes for every other member."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        me = self._identity.name
        self._expect(signatures, 64, "signatures")
        for name in self._members:
            self._identity.verify(name, signatures[name], self._signed(name))
        found = {}
        for other in self._members:
            if other == me:
                continue
            try:
                shared = self._key.exchange(X25519PublicKey.from_public_bytes(self._publics[other]))
            except ValueError:  # a point of small order would make the secret public
                raise Untrusted(f"'{other}' sent '{me}' an invalid public key") from None
            pair = _hashed(*(name.encode() for name in sorted((me, other))), self._transcript)
            derivation = HKDF(SHA256(), 32, salt=self._identity.session.encode(), info=pair)
            found[other] = derivation.derive(shared)
        return found

    def _signed(self, name: str) -> bytes:
        return _hashed(b"signed by", name.encode(), self._transcript)

    def _expect(self, message: object, size: int, what: str) -> None:
        given = message if isinstance(message, Mapping) else {}
        wrong = sorted(given) != self._members or any(
            not isinstance(value, bytes) or len(value) != size for value in given.values()
        )
        if wrong:
            raise Untrusted(
                f"'{self._identity.name}' was shown the {what} of {', '.join(sorted(given))}; it "
                f"expects {size} bytes from each of {', '.join(self._members)}"
            )


def _hashed(*parts: bytes) -> bytes:
    """A digest that differs for all lists of parts: every part is preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
