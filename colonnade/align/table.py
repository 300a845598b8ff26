"""A table that gives its keys' values to those who know the keys, and random answers to all others.

    T[a] ^ T[b] ^ T[c] ^ (rows of D) = value      the key's hash names a, b, c and the rows of D

The table of a set gives each of its keys the value it was made with. For any other key the answer
looks like a value, so nobody can tell which keys are in it, provided that the values themselves
look random. (An "oblivious key-value store".) It is solved by peeling, as in Graf and Lemire, "Xor
Filters", 2020, and used as in Kolesnikov et al., "Practical Multi-party Private Set Intersection
from Symmetric-Key Techniques", 2017.

Without D, two keys may share all three slots, in at worst one set of fifty. Another seed would have
to be drawn for such a set, and a first seed would then reveal that the set is not one of them. With
D
(Garimella et al., "Oblivious Key-Value Stores and Amplification for Private Set Intersection",
2021) the first seed works for all but one set in 2^60.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import ColonnadeError

Bytes = NDArray[np.uint8]

VALUE = 16  # bytes: no false answer in 2^128
ROOM, SPARE = 0.45, 16  # slots per key in each of three parts; peeling needs 0.41
DENSE = 64  # rows of D


def rows_of(keys: int) -> int:
    """How many rows the table of so many keys has; the first is the seed of its hash."""
    return 1 + 3 * _part(keys) + DENSE


def encode(keys: Bytes, values: Bytes) -> Bytes:
    """keys (n, width), all different; values (n, 16). The table: (rows, 16)."""
    rows = rows_of(len(keys))
    table = np.frombuffer(bytearray(secrets.token_bytes(rows * VALUE)), np.uint8)
    table = table.reshape(rows, VALUE)
    cells = table[1:]
    slots, masks = _hashed(keys, table)
    rounds, stuck = _peel(slots, rows - 1 - DENSE)
    if len(stuck):
        wrong = values[stuck] ^ decode(table, keys[stuck])
        changed, by = _solve(_system(slots[stuck], masks[stuck], rows - 1), wrong)
        cells[changed] ^= by
    values = values ^ _dense(masks, cells[-DENSE:])
    for peeled, own in reversed(rounds):  # the keys peeled last depend on no other key
        cells[own] = 0
        cells[own] = values[peeled] ^ np.bitwise_xor.reduce(cells[slots[peeled]], axis=1)
    return table


def decode(table: Bytes, keys: Bytes) -> Bytes:
    """The table's answer to each key: (n, 16)."""
    slots, masks = _hashed(keys, table)
    answers: Bytes = np.bitwise_xor.reduce(table[1:][slots], axis=1)
    return answers ^ _dense(masks, table[-DENSE:])


def digests(rows: Bytes, size: int, key: bytes = b"") -> Bytes:
    """A keyed hash of every row: (n, size)."""
    blake, width, raw = hashlib.blake2b, rows.shape[1], rows.tobytes()
    each = (
        blake(raw[at : at + width], digest_size=size, key=key).digest()
        for at in range(0, len(raw), width)
    )
    return np.frombuffer(b"".join(each), np.uint8).reshape(len(rows), size)


def _part(keys: int) -> int:
    return int(ROOM * keys) + SPARE


def _hashed(keys: Bytes, table: Bytes) -> tuple[NDArray[np.int64], Bytes]:
    """For each key: three slots, one in each part of the table, (n, 3), and its rows of D as bits.

    The first row of the table is the seed.
    """
    part = (len(table) - 1 - DENSE) // 3
    hashes = digests(keys, 24 + DENSE // 8, table[0].tobytes())
    numbers = np.ascontiguousarray(hashes[:, :24]).view(np.uint64)
    return (numbers % np.uint64(part)).astype(np.int64) + part * np.arange(3), hashes[:, 24:]


def _dense(masks: Bytes, rows: Bytes) -> Bytes:
    """The sum of the rows that each mask names: (n, 16). All sums of eight rows are tabulated."""
    total = np.zeros((len(masks), VALUE), np.uint8)
    for byte, eight in zip(masks.T, rows.reshape(-1, 8, VALUE), strict=True):
        sums = np.zeros((1, VALUE), np.uint8)
        for row in eight:
            sums = np.concatenate([sums, sums ^ row])
        total ^= sums[byte]
    return total


def _peel(
    slots: NDArray[np.int64], total: int
) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.int64]]], NDArray[np.int64]]:
    """Rounds of keys that have a slot to themselves once earlier rounds are removed: (keys, slots).

    The second result holds the keys that never have one.
    """
    rounds: list[tuple[Any, Any]] = []
    count = np.bincount(slots.reshape(-1), minlength=total)
    owner = np.zeros(total, np.int64)  # sum of the numbers of the keys that use a slot
    np.add.at(owner, slots, np.arange(len(slots))[:, None])
    left = np.ones(len(slots), bool)
    while len(single := np.flatnonzero(count == 1)):
        peeled, first = np.unique(owner[single], return_index=True)  # a key may have two such
        rounds.append((peeled, single[first]))
        gone = slots[peeled]
        np.subtract.at(count, gone, 1)
        np.subtract.at(owner, gone, peeled[:, None])
        left[peeled] = False
    return rounds, np.flatnonzero(left)


def _system(slots: NDArray[np.int64], masks: Bytes, cells: int) -> NDArray[np.bool_]:
    """Which cells each key sums, the seed's row excluded: (keys, cells)."""
    system = np.zeros((len(slots), cells), bool)
    np.put_along_axis(system, slots, True, axis=1)
    system[:, -DENSE:] = np.unpackbits(masks, axis=1, bitorder="little")
    return system


def _solve(system: NDArray[np.bool_], wanted: Bytes) -> tuple[list[int], Bytes]:
    """One cell for each key, and the cells' values so that the keys' sums are as wanted.

    Gauss-Jordan elimination: in the end no other key sums a key's cell.
    """
    system, wanted, chosen = system.copy(), wanted.copy(), []
    for key, sums in enumerate(system):
        cell = int(sums.argmax())
        if not sums[cell]:
            raise ColonnadeError(
                f"no table can hold these {len(system)} keys: are two of them equal?"
            )
        others = system[:, cell].copy()
        others[key] = False
        system[others] ^= sums
        wanted[others] ^= wanted[key]
        chosen.append(cell)
    return chosen, wanted
