"""How an intersection begins: who brings how many ids, under which settings, and how often before.

Every opening is signed with its sender's pinned key: a hub that carries it can change nothing in
it, and above all not the fresh public key. How many ids others have brought is counted in the
party's journal, over all runs: whoever asks about other people in run after run meets an end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from colonnade.align.lists import checked, signed
from colonnade.errors import DataError, Untrusted, foreign
from colonnade.role.identity import Identity
from colonnade.role.party import Party
from colonnade.toml import Bounds, check_bounds
from colonnade.wire import Kind, Peer, Value

OPENING = Kind(
    "psi_opening",
    None,
    reveals="how many ids the sender holds, and its settings",
    dtype="any",
    randomised=True,
    about="nothing",
)


@dataclass(frozen=True)
class Alignment:
    """Options of the intersection. They must be equal at all parties."""

    # With fewer common rows than this, nobody learns which they are.
    minimum: Annotated[int, Bounds(least=0)] = 10
    most: Annotated[int, Bounds(least=1, most=2**31 - 1)] = 1_000_000  # ids that a party may bring
    # Over all alignments that a journal has counted, with each other party:
    most_in_all: Annotated[int, Bounds(least=1, most=2**62)] = 10_000_000  # ids that it brought
    times: Annotated[int, Bounds(least=1, most=2**31 - 1)] = 1000  # how often
    casefold: bool = False  # "Ann" and "ANN" are one id

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class Opened:
    """What the openings of all parties say."""

    sizes: dict[str, int]  # ids that each party brings
    shared: dict[str, bytes]  # with three parties or more: a secret with each other one


async def open_with(me: Party, peers: Sequence[Peer], count: int, options: Alignment) -> Opened:
    """Tell the others how many ids this party brings, and hear it of them."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    identity = _identity(me)
    key = X25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw() if len(peers) > 1 else b""
    for peer in peers:
        said: dict[str, Value] = {"ids": count, "public": public, "settings": asdict(options)}
        digest = _digest(identity, me.name, peer.name, said)
        peer.send(OPENING, {**said, **signed(identity, digest)})
    sizes, shared = {me.name: count}, {}
    for peer in peers:
        theirs: Any = await peer.recv(OPENING)
        _check(identity, peer.name, theirs, options)
        sizes[peer.name] = theirs["ids"]
        if not public:
            continue
        try:
            secret = key.exchange(X25519PublicKey.from_public_bytes(theirs["public"]))
        except ValueError:
            raise Untrusted(f"'{peer.name}' sent '{me.name}' an invalid public key") from None
        halves = sorted([public, theirs["public"]])
        whole = b"colonnade psi 1 shares" + secret + b"".join(halves)
        shared[peer.name] = hashlib.sha256(whole).digest()
    if me.journal is not None:
        others = {name: size for name, size in sizes.items() if name != me.name}
        me.journal.align(me.name, others, options.most_in_all, options.times)
    return Opened(sizes, shared)


def _check(identity: Identity, peer: str, theirs: Any, options: Alignment) -> None:
    me = identity.name
    if (
        not isinstance(theirs, Mapping)
        or type(theirs.get("ids")) is not int
        or not isinstance(theirs.get("public"), bytes)
        or not isinstance(theirs.get("settings"), Mapping)
    ):
        raise Untrusted(f"'{peer}' sent '{me}' a malformed opening")
    for setting in fields(options):
        ours, other = getattr(options, setting.name), theirs["settings"].get(setting.name)
        if type(ours) is not type(other) or ours != other:
            raise DataError(
                f"'{me}' aligns with {setting.name} = {ours!r}, '{peer}' with "
                f"{foreign(repr(other), 100)}: agree on one"
            )
    said = {"ids": theirs["ids"], "public": theirs["public"], "settings": asdict(options)}
    if checked(identity, peer, theirs) != _digest(identity, peer, me, said):
        raise Untrusted(
            f"'{peer}' sent '{me}' an opening that does not fit its signature: '{peer}', or "
            "whoever relays its messages, has changed it"
        )
    if not 0 <= theirs["ids"] <= options.most:
        raise DataError(
            f"'{peer}' brings {theirs['ids']} ids, and '{me}' allows {options.most}: see 'most'"
        )


def _digest(identity: Identity, sender: str, receiver: str, said: Mapping[str, Any]) -> bytes:
    """Of an opening in this session, from one party to another."""
    parts = [OPENING.name, identity.session, sender, receiver, said["ids"], said["public"].hex()]
    return hashlib.sha256(json.dumps([*parts, said["settings"]]).encode()).digest()


def _identity(me: Party) -> Identity:
    if me.identity is None:
        raise Untrusted(
            f"'{me.name}' has no signing key, and whoever aligns rows signs what it sends"
        )
    return me.identity
