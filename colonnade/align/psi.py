"""Private set intersection: every party learns which of its rows all parties have, and no other id.

n parties stand in a ring, in the order of their names; party i has the ids S_i, a key k_i and a
second secret r_i, all fresh (ristretto.py). K is the product of all keys.

    1. everybody → everybody   how many ids, the settings, a public key; settings must be equal
    2. i → i+1                 H(S_i)·r_i, shuffled
       j → j+1                 the set received, locked with k_j, shuffled: n-1 times per party
    3. i                       receives its own set back: F(S_i) = H(S_i)·K, after replacing r_i by
                               k_i. No other party sees it (with two parties r_i = k_i, and the
                               other does), and i does not know which point is which id
    4. i → the first party     a table (table.py) with a share s_i(y) for each y in F(S_i); the
                               shares of one y are pseudo-random, and the n of them sum to 0
    5. the first → everybody   how many of its own y have shares that sum to 0: these are
                               common. Or: fewer than `minimum`. Then everybody stops here
    6. the first → everybody   the common y
    7. i → i-1                 the places of the common y in F(S_i), as i received it
       j → j-1                 the places received, with j's shuffle undone: n-1 times per party
    8. i                       the places are its rows. All sort them by the hash of the id

**The minimum holds against a curious party.** Until step 7 no party can tell which of
its rows a y is: all others have shuffled its set. In step 7 each of them undoes its shuffle only
for as many rows as were announced, and not for fewer than `minimum`.

**What is learnt** by parties that keep to the protocol:

    everybody    how many ids each party holds; how many are common and, if they are enough, which
                 of its own. Whoever has a common row knows that all others have it too
    the first    also how many are common when they are too few (with two parties, the other too)
    nobody       an id that it does not hold itself; whether some but not all hold an id, nor how
                 many such ids there are; anything about the order of another's rows

Parties that share everything count as one that holds all their ids. The shares hide an id that some
but not all hold: a party that lacks a y answers at random from its table, and nobody can tell which
party it was as long as two parties keep their shares to themselves. A hub that carries messages
between two others learns nothing from reading them.

**What is not claimed.** A party that lies is not detected. It may bring ids it does not have, for
example all telephone numbers, and learns which of them all others hold: `most` bounds how many; the
ledger and a contract must deter the rest. It may pad its set with ids that it knows to be common,
and so reach the minimum. Sizes are not hidden.

Nothing is stored. A second intersection, also after a crash, draws new secrets and gives the same
rows in the same order.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.align import ristretto, table
from colonnade.align.ids import normalise
from colonnade.align.ristretto import WIDTH, NotAPoint
from colonnade.errors import DataError, Untrusted
from colonnade.role.party import Party
from colonnade.toml import Bounds, check_bounds
from colonnade.wire import DTYPES, Kind, Peer

Indices = NDArray[np.int64]
Bytes = NDArray[np.uint8]

OPENING = Kind(
    "psi_opening",
    None,
    reveals="how many ids the sender holds, and its settings",
    dtype="any",
    randomised=True,
    about="nothing",
)
POINTS = Kind(
    "psi_points",
    ("points", "bytes"),
    reveals="how many there are: somebody's ids under a secret, shuffled",
    dtype="uint8",
    randomised=True,
    host=True,
    about="nothing",
)
TABLE = Kind(
    "psi_table",
    ("slots", table.VALUE),
    reveals="with all other tables: how many ids are common to all",
    dtype="uint8",
    randomised=True,
    host=True,
    about="nothing",
)
COUNT = Kind(
    "psi_count",
    (),
    reveals="how many ids are common to all, or that they are too few",
    dtype="int64",
    host=True,
    about="nothing",
)
COMMON = Kind(
    "psi_common",
    ("points", "bytes"),
    reveals="which points are common, under everybody's secret",
    dtype="uint8",
    randomised=True,
    host=True,
    about="nothing",
)
PLACES = Kind(
    "psi_places",
    ("rows",),
    reveals="which points of a shuffled set are common",
    dtype="int32",
    randomised=True,
    host=True,
    about="nothing",
)
KINDS = (OPENING, POINTS, TABLE, COUNT, COMMON, PLACES)

CHUNK_BYTES = 1 << 18  # of one message; the library may hold Python's lock while it works on one
TOO_FEW = -1


@dataclass(frozen=True)
class Alignment:
    """Options of the intersection. They must be equal at all parties."""

    # With fewer common rows than this, nobody learns which they are.
    minimum: Annotated[int, Bounds(least=0)] = 10
    most: Annotated[int, Bounds(least=1, most=2**31 - 1)] = 1_000_000  # ids that a party may bring
    casefold: bool = False  # "Ann" and "ANN" are one id

    def __post_init__(self) -> None:
        check_bounds(self)


async def common_rows(
    me: Party, peers: Sequence[Peer], ids: Iterable[object], options: Alignment
) -> Tensor:
    """The positions of this party's rows that all parties have, int64 (common,).

    peers  all others that bring rows. Row i of the answer is the same id at every party.
    """
    texts = normalise(ids, me.name, casefold=options.casefold, most=options.most)
    mine = ristretto.make(len(peers) + 1)
    ring = sorted([*(peer.name for peer in peers), me.name])
    at = ring.index(me.name)
    by_name = {peer.name: peer for peer in peers}
    after, before = by_name[ring[(at + 1) % len(ring)]], by_name[ring[at - 1]]

    sizes, shared = await _open(me, peers, len(texts), options)  # 1.
    if min(sizes.values()) < options.minimum:
        raise too_few(me.name, ring, options.minimum)

    orders = {me.name: _shuffle(len(texts))}
    with me.timing("alignment"):
        hidden = mine.hide([texts[row] for row in orders[me.name]]).numpy()
    _send(after, POINTS, hidden)  # 2.
    for distance in range(1, len(ring)):
        owner = ring[at - distance]
        points = await _receive(me, before, POINTS, (sizes[owner], WIDTH), mine.lock)
        orders[owner] = _shuffle(len(points))
        _send(after, POINTS, points[orders[owner]])
    finished = await _receive(me, before, POINTS, (len(texts), WIDTH), mine.finish)  # 3.
    place_of = _rows_of(finished)
    if len(place_of) < len(finished):
        raise Untrusted(f"'{before.name}' sent '{me.name}' a set with equal points in it")

    shares = _shares(finished, shared)
    if at > 0:
        _send(by_name[ring[0]], TABLE, _tabled(me, finished, shares))  # 4.
        common = await _common(me, by_name[ring[0]], ring, sizes, options)
    else:
        tables = {}
        for peer in peers:
            rows = table.rows_of(sizes[peer.name])
            tables[peer.name] = await _receive(me, peer, TABLE, (rows, table.VALUE))
        with me.timing("alignment"):
            for slots in tables.values():
                shares = shares ^ table.decode(slots, finished)
        common = finished[~shares.any(axis=1)]
        _tell(me, peers, ring, common, options)  # 5., 6.

    try:
        places = np.array([place_of[row.tobytes()] for row in common], np.int64)
    except KeyError:
        raise Untrusted(
            f"'{ring[0]}' reported a point as common that '{me.name}' does not have"
        ) from None
    _send(before, PLACES, np.sort(places).astype(np.int32))  # 7.
    for distance in range(1, len(ring)):
        owner = ring[(at + distance) % len(ring)]
        places = await _places(me, after, len(common), sizes[owner])
        _send(before, PLACES, np.sort(orders[owner][places]).astype(np.int32))
    own = orders[me.name][await _places(me, after, len(common), len(texts))]
    return by_rank(own.tolist(), texts)  # 8.


def by_rank(rows: Iterable[int], texts: Sequence[str]) -> Tensor:
    """Rows by the hash of their normalised ids: the same order at all parties, in every run."""
    return torch.tensor(sorted(rows, key=lambda row: _rank(texts[row])), dtype=torch.int64)


# ---- the steps ---------------------------------------------------------------------------------


async def _open(
    me: Party, peers: Sequence[Peer], count: int, options: Alignment
) -> tuple[dict[str, int], dict[str, bytes]]:
    """How many ids each party holds, and the secret that this one shares with each other."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    key = X25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    for peer in peers:
        peer.send(OPENING, {"ids": count, "public": public, "settings": asdict(options)})
    sizes, shared = {me.name: count}, {}
    for peer in peers:
        theirs: Any = await peer.recv(OPENING)
        _check_opening(me.name, peer.name, theirs, options)
        sizes[peer.name] = theirs["ids"]
        try:
            secret = key.exchange(X25519PublicKey.from_public_bytes(theirs["public"]))
        except ValueError:
            raise Untrusted(f"'{peer.name}' sent '{me.name}' an invalid public key") from None
        halves = sorted([public, theirs["public"]])
        shared[peer.name] = hashlib.sha256(b"colonnade psi 1 shares" + secret + b"".join(halves))
    return sizes, {name: digest.digest() for name, digest in shared.items()}


def _check_opening(me: str, peer: str, theirs: Any, options: Alignment) -> None:
    if (
        not isinstance(theirs, Mapping)
        or not isinstance(theirs.get("ids"), int)
        or not isinstance(theirs.get("public"), bytes)
        or not isinstance(theirs.get("settings"), Mapping)
    ):
        raise Untrusted(f"'{peer}' sent '{me}' a malformed opening")
    for setting in fields(options):
        ours, other = getattr(options, setting.name), theirs["settings"].get(setting.name)
        if ours != other:
            raise DataError(
                f"'{me}' aligns with {setting.name} = {ours!r}, '{peer}' with {other!r}: agree on "
                "one"
            )
    if not 0 <= theirs["ids"] <= options.most:
        raise DataError(
            f"'{peer}' brings {theirs['ids']} ids, and '{me}' allows {options.most}: see 'most'"
        )


def _shuffle(count: int) -> Indices:
    """A secret order: new[i] = old[order[i]]."""
    drawn = np.frombuffer(bytearray(secrets.token_bytes(8 * count)), np.uint64)
    return np.argsort(drawn, kind="stable").astype(np.int64)


def _shares(points: Bytes, shared: Mapping[str, bytes]) -> Bytes:
    """s_i(y): each pair's secret enters both parties' shares, so that all shares sum to 0."""
    total = np.zeros((len(points), table.VALUE), np.uint8)
    for secret in shared.values():
        total ^= table.digests(points, table.VALUE, secret)
    return total


def _tabled(me: Party, points: Bytes, shares: Bytes) -> Bytes:
    with me.timing("alignment"):
        return table.encode(points, shares)


def _tell(
    me: Party, peers: Sequence[Peer], ring: Sequence[str], common: Bytes, options: Alignment
) -> None:
    """Steps 5 and 6, at the first party."""
    enough = len(common) >= options.minimum
    for peer in peers:
        peer.send(COUNT, torch.tensor(len(common) if enough else TOO_FEW))
    if not enough:
        raise too_few(me.name, ring, options.minimum)
    for peer in peers:
        _send(peer, COMMON, common[_shuffle(len(common))])


async def _common(
    me: Party,
    first: Peer,
    ring: Sequence[str],
    sizes: Mapping[str, int],
    options: Alignment,
) -> Bytes:
    """Steps 5 and 6, at the others."""
    count = int(await first.recv(COUNT))
    if count == TOO_FEW:
        raise too_few(me.name, ring, options.minimum)
    if not options.minimum <= count <= min(sizes.values()):
        raise Untrusted(
            f"'{first.name}' reported {count} common rows to '{me.name}'; possible are at least "
            f"{options.minimum}, the minimum, and at most {min(sizes.values())}, the smallest set"
        )
    common = await _receive(me, first, COMMON, (count, WIDTH))
    if len(_rows_of(common)) < count:
        raise Untrusted(f"'{first.name}' sent '{me.name}' a common point twice")
    return common


async def _places(me: Party, after: Peer, count: int, size: int) -> Indices:
    """The places of the common points in a set of this size: as many as were announced."""
    places = (await _receive(me, after, PLACES, (count,))).astype(np.int64)
    if count and (places.min() < 0 or places.max() >= size or len(np.unique(places)) < count):
        raise Untrusted(
            f"'{after.name}' sent '{me.name}' places that are not {count} different ones of {size}"
        )
    return places


def too_few(me: str, ring: Sequence[str], minimum: int) -> DataError:
    return DataError(
        f"'{me}': fewer than {minimum} rows are common to {', '.join(ring)}, so nobody learns "
        "which. Do all use the same ids, written alike? If so, lower 'minimum' at all parties"
    )


def _rank(text: str) -> bytes:
    """The hash by which rows are sorted; the order reveals nothing about the ids' meaning."""
    return hashlib.sha256(b"colonnade psi 1 order" + text.encode()).digest()


def _rows_of(points: Bytes) -> dict[bytes, int]:
    return {row.tobytes(): number for number, row in enumerate(points)}


# ---- messages in pieces ------------------------------------------------------------------------


def _send(peer: Peer, kind: Kind, array: NDArray[Any]) -> None:
    for rows in _pieces(kind, array.shape):
        peer.send(kind, torch.from_numpy(array[rows]))


async def _receive(
    me: Party,
    peer: Peer,
    kind: Kind,
    shape: tuple[int, ...],
    work: Callable[[Tensor], Tensor] | None = None,
) -> NDArray[Any]:
    """Receive an array of exactly this shape, piece by piece; `work` is applied to each piece."""
    dtype = DTYPES[kind.dtype]
    array = torch.empty(shape, dtype=dtype)
    for rows in _pieces(kind, shape):
        piece = await peer.recv(kind)
        wanted = array[rows]
        if not isinstance(piece, Tensor) or piece.shape != wanted.shape or piece.dtype != dtype:
            found = f"{tuple(piece.shape)}" if isinstance(piece, Tensor) else type(piece).__name__
            raise Untrusted(
                f"'{peer.name}' sent '{me.name}' a piece of '{kind.name}' of shape {found}, where "
                f"{tuple(wanted.shape)} was due: {shape[0]} rows in all"
            )
        if work is None:
            wanted.copy_(piece)
            continue
        try:
            with me.timing("alignment"):
                wanted.copy_(work(piece))
        except NotAPoint as error:
            raise Untrusted(
                f"'{peer.name}' sent '{me.name}' invalid points: of those from row "
                f"{rows.start} on, {error}"
            ) from error
    return array.numpy()


def _pieces(kind: Kind, shape: tuple[int, ...]) -> list[slice]:
    """The rows of each message; sender and receiver divide them alike."""
    row_bytes = DTYPES[kind.dtype].itemsize * math.prod(shape[1:])
    size = CHUNK_BYTES // row_bytes
    return [slice(at, min(at + size, shape[0])) for at in range(0, shape[0], size)]
