"""Which rows three parties or more have in common: experimental.

The parts are known: sets that go round a ring, locked with every party's key and shuffled at each
hop (Vaidya and Clifton, "Secure Set Intersection Cardinality with Application to Association Rule
Mining", 2005), and a table of shares of zero at every party (Kolesnikov, Matania, Pinkas, Rosulek
and Trieu, "Practical Multi-party Private Set Intersection from Symmetric-Key Techniques", 2017).
**How they are put together is ours**: there is no proof of it, and nobody has reviewed it.

n parties stand in a ring, in the order of their names; party i has the ids S_i, a key k_i and a
second secret r_i, all fresh (ristretto.py). K is the product of all keys.

    1. i → i+1                 H(S_i)·r_i, shuffled
       j → j+1                 the set received, locked with k_j, shuffled: n-1 times per party
    2. i                       receives its own set back: F(S_i) = H(S_i)·K, after replacing r_i by
                               k_i. No other party sees it, and i does not know which point is
                               which id
    3. i → the first party     a table (table.py) with a share s_i(y) for each y in F(S_i); the
                               shares of one y are pseudo-random, and the n of them sum to 0
    4. the first → everybody   how many of its own y have shares that sum to 0: these are
                               common. Or: fewer than `minimum`. Then everybody stops here
    5. the first → everybody   the common y
    6. i → i-1                 the places of the common y in F(S_i), as i received it
       j → j-1                 the places received, with j's shuffle undone: n-1 times per party
    7. i                       the places are its rows

**Who learns what**, of parties that keep to the protocol. Everybody: how many ids each party holds;
how many are common and, if they are enough, which of its own. The first party: also how many are
common when they are too few. Nobody: an id that it does not hold itself; whether some but not all
hold an id, nor how many such ids there are.

Parties that share everything count as one that holds all their ids. The shares hide an id that some
but not all hold: a party that lacks a y answers at random from its table, and nobody can tell which
party it was as long as two parties keep their shares to themselves.

**Against a party that lies** there is less than with two. Sets with equal points in them are
refused at every hop. But the first party alone counts, and is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from colonnade.align import ristretto, table
from colonnade.align.lists import Lists
from colonnade.align.points import (
    POINTS,
    Bytes,
    Indices,
    exchange_places,
    places_of,
    shown,
    shuffle,
    too_few,
)
from colonnade.align.ristretto import WIDTH
from colonnade.errors import Untrusted
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

TABLE = Kind(
    "psi_table",
    ("slots", table.VALUE),
    reveals="with all other tables: how many ids are common to all",
    dtype="uint8",
    randomised=True,
    host=True,
    about="nothing",
    varies=True,  # lists.py knows how long each is
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
    varies=True,  # lists.py knows how long each is
)
TOO_FEW = -1


async def rows_of_many(
    me: Party,
    peers: Sequence[Peer],
    texts: Sequence[str],
    sizes: Mapping[str, int],
    shared: Mapping[str, bytes],
    minimum: int,
) -> Indices:
    """The common rows, in a random order.

    sizes   how many ids each party brings
    shared  a secret with each other party
    """
    total = sum(sizes.values()) + len(texts)  # each set once, and the own one at the end
    mine, lists = ristretto.make(len(sizes), shown(me, total)), Lists(me)
    ring = sorted(sizes)
    at = ring.index(me.name)
    by_name = {peer.name: peer for peer in peers}
    after, before = by_name[ring[(at + 1) % len(ring)]], by_name[ring[at - 1]]

    orders = {me.name: shuffle(len(texts))}
    with me.timing("alignment"):
        going = mine.hide([texts[row] for row in orders[me.name]]).numpy()
    for distance in range(1, len(ring)):  # 1.
        owner = ring[at - distance]
        shape = (sizes[owner], WIDTH)
        points = await lists.exchange(POINTS, after, going, before, shape, mine.lock)
        places_of(points, me.name, before.name)
        orders[owner] = shuffle(len(points))
        going = points[orders[owner]]
    own = (len(texts), WIDTH)
    finished = await lists.exchange(POINTS, after, going, before, own, mine.finish)  # 2.
    place_of = places_of(finished, me.name, before.name)

    shares = share(finished, shared)
    if at > 0:
        first = by_name[ring[0]]
        with me.timing("alignment"):
            slots = table.encode(finished, shares)
        lists.send(TABLE, first, slots)  # 3.
        common = await _common(lists, first, sizes, minimum, texts)
    else:
        common = await _count(lists, peers, sizes, finished, shares, minimum, texts)
    if not all(row.tobytes() in place_of for row in common):
        raise Untrusted(f"'{ring[0]}' reported a point as common that '{me.name}' does not have")
    places = np.array([place_of[row.tobytes()] for row in common], np.int64)
    for distance in range(1, len(ring) + 1):  # 6.
        owner = ring[(at + distance) % len(ring)]
        size = len(common), sizes[owner]
        places = orders[owner][await exchange_places(lists, before, places, after, *size)]
    return places  # 7.


def share(points: Bytes, shared: Mapping[str, bytes]) -> Bytes:
    """s_i(y): each pair's secret enters both parties' shares, so that all shares sum to 0."""
    total = np.zeros((len(points), table.VALUE), np.uint8)
    for secret in shared.values():
        total ^= table.digests(points, table.VALUE, secret)
    return total


async def _count(
    lists: Lists,
    peers: Sequence[Peer],
    sizes: Mapping[str, int],
    finished: Bytes,
    shares: Bytes,
    minimum: int,
    texts: Sequence[str],
) -> Bytes:
    """Steps 3 to 5, at the first party: the common points."""
    me = lists.me
    for peer in peers:
        rows = table.rows_of(sizes[peer.name])
        slots = await lists.receive(TABLE, peer, (rows, table.VALUE))
        with me.timing("alignment"):
            shares = shares ^ table.decode(slots, finished)
    common = finished[~shares.any(axis=1)]
    enough = len(common) >= minimum
    for peer in peers:
        peer.send(COUNT, torch.tensor(len(common) if enough else TOO_FEW))
    if not enough:
        raise too_few(me.name, sorted(sizes), minimum, texts)
    for peer in peers:
        lists.send(COMMON, peer, common[shuffle(len(common))])
    return common


async def _common(
    lists: Lists, first: Peer, sizes: Mapping[str, int], minimum: int, texts: Sequence[str]
) -> Bytes:
    """Steps 4 and 5, at the others."""
    me, count = lists.me.name, int(await first.recv(COUNT))
    if count == TOO_FEW:
        raise too_few(me, sorted(sizes), minimum, texts)
    if not minimum <= count <= min(sizes.values()):
        raise Untrusted(
            f"'{first.name}' reported {count} common rows to '{me}'; possible are at least "
            f"{minimum}, the minimum, and at most {min(sizes.values())}, the smallest set"
        )
    common = await lists.receive(COMMON, first, (count, WIDTH))
    if len({row.tobytes() for row in common}) < count:
        raise Untrusted(f"'{first.name}' sent '{me}' a common point twice")
    return common
