"""Which rows two parties have in common: the plain intersection by Diffie and Hellman's method.

As published: Meadows, "A More Efficient Cryptographic Matchmaking Protocol", 1986; Huberman,
Franklin and Hogg, "Enhancing Privacy and Trust in Electronic Communities", 1999; shuffled, so that
a party sees how many before anybody sees which, as in the intersection size of Agrawal, Evfimievski
and Srikant, "Information Sharing Across Private Databases", 2003. A has the ids S_A and a fresh key
a, B likewise; H maps an id to a point (ristretto.py).

    1. A → B   H(S_A)·a, shuffled                  B → A   H(S_B)·b, shuffled
    2. A → B   H(S_B)·ab, shuffled again           B → A   H(S_A)·ab, shuffled again
    3. both    count the points that are in both of these sets; fewer than `minimum`: both stop
    4. A → B   where the common points stand in    B → A   where the common points stand in
               what B sent in step 1                       what A sent in step 1

**Who learns what.** Both: how many ids the other holds; how many are common; and, if these are
enough, which of its own. Nobody learns anything about an id that it does not hold itself, if the
decisional Diffie-Hellman problem is hard in ristretto255 and H is a random oracle.

**Against a party that lies.** Each list is announced before the other's is seen (lists.py), so
nobody can copy points into its own answer to make the common ones look like more; and a set with
equal points in it is refused. That is all: nobody proves that a point belongs to an id, or that it
was multiplied by the same key as the others. Who sends points that are multiples of one another can
recognise them in the answer, whatever the minimum, and who breaks off in step 4 may know its rows
while the other does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colonnade.align import ristretto
from colonnade.align.lists import Lists
from colonnade.align.points import (
    POINTS,
    Indices,
    exchange_places,
    places_of,
    shown,
    shuffle,
    too_few,
)
from colonnade.align.ristretto import WIDTH
from colonnade.role.party import Party
from colonnade.wire import Peer


async def rows_of_two(
    me: Party, other: Peer, texts: Sequence[str], count: int, minimum: int
) -> Indices:
    """The common rows, in a random order; the other party brings `count` ids."""
    mine, lists = ristretto.make(2, shown(me, len(texts) + count)), Lists(me)
    order = shuffle(len(texts))
    with me.timing("alignment"):
        hidden = mine.hide([texts[row] for row in order]).numpy()
    theirs = await lists.exchange(POINTS, other, hidden, other, (count, WIDTH), mine.lock)  # 1.
    place_of = places_of(theirs, me.name, other.name)
    answer = theirs[shuffle(count)]
    own = await lists.exchange(POINTS, other, answer, other, (len(texts), WIDTH))  # 2.
    common = places_of(own, me.name, other.name).keys() & place_of.keys()  # 3.
    if len(common) < minimum:
        raise too_few(me.name, sorted([me.name, other.name]), minimum, texts)
    places = np.array([place_of[point] for point in common], np.int64)
    found = await exchange_places(lists, other, places, other, len(common), len(texts))  # 4.
    rows: Indices = order[found]
    return rows
