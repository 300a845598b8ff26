"""Lists of points and places as they travel between two parties: announced, signed, in pieces.

    1. each → the other   the digest of the list that it will send, signed with its pinned key
    2. each → the other   the list, a piece in turn with a piece of the other's

Nobody can make a list depend on the one it receives, because it has announced its own before. A
relay that changes a piece is found out before anything is answered. And since pieces are sent and
received in turn, two parties with long lists never wait for each other to make room.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.align.ristretto import NotAPoint
from colonnade.errors import Untrusted
from colonnade.role.identity import Identity
from colonnade.role.party import Party
from colonnade.wire import DTYPES, Kind, Peer

ANNOUNCEMENT = Kind(
    "psi_announcement",
    None,
    reveals="nothing: a signed digest of the list that follows",
    dtype="any",
    randomised=True,
    about="nothing",
)
CHUNK_BYTES = 1 << 18  # of one message; the library may hold Python's lock while it works on one
Work = Callable[[Tensor], Tensor]


class Lists:
    """What one party sends and receives during one intersection."""

    def __init__(self, me: Party) -> None:
        if me.identity is None:
            raise Untrusted(
                f"'{me.name}' has no signing key, and whoever aligns rows signs what it sends"
            )
        self._me, self._identity = me, me.identity
        self._count: Counter[tuple[str, ...]] = Counter()

    async def exchange(
        self,
        kind: Kind,
        after: Peer,
        array: NDArray[Any],
        before: Peer,
        shape: tuple[int, ...],
        work: Work | None = None,
    ) -> NDArray[Any]:
        """Send a list to one, and receive one of exactly this shape from another, or the same.

        work  is applied to each piece as it comes
        """
        self._announce(after, kind, array)
        coming = _Coming(self, kind, before, shape, await before.recv(ANNOUNCEMENT), work)
        for going, rows in zip_longest(pieces(kind, array.shape), pieces(kind, shape)):
            if going is not None:
                after.send(kind, torch.from_numpy(array[going]))
            if rows is not None:
                coming.take(rows, await before.recv(kind))
        return coming.whole()

    def send(self, kind: Kind, peer: Peer, array: NDArray[Any]) -> None:
        """Send a list, and get none."""
        self._announce(peer, kind, array)
        for rows in pieces(kind, array.shape):
            peer.send(kind, torch.from_numpy(array[rows]))

    async def receive(self, kind: Kind, peer: Peer, shape: tuple[int, ...]) -> NDArray[Any]:
        """Receive a list, and send none."""
        coming = _Coming(self, kind, peer, shape, await peer.recv(ANNOUNCEMENT))
        for rows in pieces(kind, shape):
            coming.take(rows, await peer.recv(kind))
        return coming.whole()

    def heading(self, kind: Kind, sender: str, receiver: str) -> bytes:
        """What tells this list from every other one, of this run or another."""
        lane = (kind.name, sender, receiver)
        self._count[lane] += 1
        return json.dumps([self._identity.session, *lane, self._count[lane]]).encode()

    def _announce(self, peer: Peer, kind: Kind, array: NDArray[Any]) -> None:
        digest = hashlib.sha256(self.heading(kind, self._me.name, peer.name))
        digest.update(np.ascontiguousarray(array).tobytes())
        peer.send(ANNOUNCEMENT, signed(self._identity, digest.digest()))

    def announced(self, peer: str, announcement: object) -> bytes:
        """The digest that a peer has announced, once its signature is checked."""
        return checked(self._identity, peer, announcement)

    @property
    def me(self) -> Party:
        """Whose lists these are."""
        return self._me


class _Coming:
    """A list on its way in."""

    def __init__(
        self,
        lists: Lists,
        kind: Kind,
        peer: Peer,
        shape: tuple[int, ...],
        announcement: object,
        work: Work | None = None,
    ) -> None:
        self._me, self._kind, self._peer, self._work = lists.me, kind, peer.name, work
        self._due = lists.announced(peer.name, announcement)
        self._digest = hashlib.sha256(lists.heading(kind, peer.name, lists.me.name))
        self._array = torch.empty(shape, dtype=DTYPES[kind.dtype])

    def take(self, rows: slice, piece: object) -> None:
        wanted, me = self._array[rows], self._me
        fits = isinstance(piece, Tensor) and piece.shape == wanted.shape
        if not isinstance(piece, Tensor) or not fits or piece.dtype != wanted.dtype:
            found = f"{tuple(piece.shape)}" if isinstance(piece, Tensor) else type(piece).__name__
            raise Untrusted(
                f"'{self._peer}' sent '{me.name}' a piece of '{self._kind.name}' of shape {found}, "
                f"where {tuple(wanted.shape)} was due: {len(self._array)} rows in all"
            )
        self._digest.update(piece.contiguous().numpy().tobytes())
        if self._work is None:
            wanted.copy_(piece)
            return
        try:
            with me.timing("alignment"):
                wanted.copy_(self._work(piece))
        except NotAPoint as error:
            raise Untrusted(
                f"'{self._peer}' sent '{me.name}' invalid points: of those from row "
                f"{rows.start} on, {error}"
            ) from error

    def whole(self) -> NDArray[Any]:
        if self._digest.digest() != self._due:
            raise Untrusted(
                f"'{self._peer}' sent '{self._me.name}' another '{self._kind.name}' than it had "
                f"announced: '{self._peer}', or whoever relays its messages, has changed it"
            )
        return self._array.numpy()


def signed(identity: Identity, digest: bytes) -> dict[str, bytes]:
    """A digest with a signature of it."""
    return {"digest": digest, "signature": identity.sign(b"colonnade psi 2" + digest)}


def checked(identity: Identity, peer: str, announcement: object) -> bytes:
    """The digest in an announcement of this peer's; refused if the peer has not signed it."""
    told = announcement if isinstance(announcement, Mapping) else {}
    digest, signature = told.get("digest"), told.get("signature")
    if not isinstance(digest, bytes) or len(digest) != 32 or not isinstance(signature, bytes):
        raise Untrusted(f"'{peer}' sent '{identity.name}' a malformed announcement")
    identity.verify(peer, signature, b"colonnade psi 2" + digest)
    return digest


def pieces(kind: Kind, shape: tuple[int, ...]) -> list[slice]:
    """The rows of each message; sender and receiver divide them alike."""
    row_bytes = DTYPES[kind.dtype].itemsize * math.prod(shape[1:])
    size = CHUNK_BYTES // row_bytes
    return [slice(at, min(at + size, shape[0])) for at in range(0, shape[0], size)]
