"""A table that answers every question, and only who knows the right keys learns anything.

    T[a] ^ T[b] ^ T[c] = value      where a, b, c are three slots that the key's hash names

The table of a set gives each of its keys the value it was made with. For any other key the answer
is three random slots: it looks like a value, so nobody can tell which keys are in it, provided that
the values themselves look random. (An "oblivious key-value store"; solved by peeling, as in
Graf and Lemire, "Xor Filters", 2020, and used as in Kolesnikov et al., "Practical Multi-party
Private Set Intersection from Symmetric-Key Techniques", 2017.)
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
SEED = 16
ROOM, SPARE = 0.45, 16  # slots per key in each of three parts; peeling needs 0.41
ATTEMPTS = 100


def rows_of(keys: int) -> int:
    """How many rows the table of so many keys has; the first is the seed of its hash."""
    return 1 + 3 * _part(keys)


def encode(keys: Bytes, values: Bytes) -> Bytes:
    """keys (n, width), all different; values (n, 16). The table: (rows, 16)."""
    for _ in range(ATTEMPTS):
        seed = secrets.token_bytes(SEED)
        slots = _slots(keys, seed, _part(len(keys)))
        order = _peel(slots, 3 * _part(len(keys)))
        if order is not None:
            break
    else:
        raise ColonnadeError(f"no table holds these {len(keys)} keys: are two of them equal?")
    rows = rows_of(len(keys))
    table = np.frombuffer(bytearray(secrets.token_bytes(rows * VALUE)), np.uint8)
    table = table.reshape(rows, VALUE)
    table[0] = np.frombuffer(seed, np.uint8)
    cells = table[1:]
    for peeled, own in reversed(order):  # the last to be peeled depend on nobody else
        cells[own] = 0
        cells[own] = values[peeled] ^ np.bitwise_xor.reduce(cells[slots[peeled]], axis=1)
    return table


def decode(table: Bytes, keys: Bytes) -> Bytes:
    """What the table says to each key: (n, 16)."""
    slots = _slots(keys, table[0].tobytes(), (len(table) - 1) // 3)
    answers: Bytes = np.bitwise_xor.reduce(table[1:][slots], axis=1)
    return answers


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


def _slots(keys: Bytes, seed: bytes, part: int) -> NDArray[np.int64]:
    """Three slots of each key, one in each part of the table: (n, 3)."""
    numbers = digests(keys, 24, seed).view(np.uint64)
    return (numbers % np.uint64(part)).astype(np.int64) + part * np.arange(3)


def _peel(
    slots: NDArray[np.int64], total: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]] | None:
    """Rounds of keys that have a slot of their own once the rounds before are gone: (keys, slots).

    None where some keys never do: then another seed is tried.
    """
    rounds: list[tuple[Any, Any]] = []
    count = np.bincount(slots.reshape(-1), minlength=total)
    owner = np.zeros(total, np.int64)  # of a slot that one key uses, that key's number: a sum
    np.add.at(owner, slots, np.arange(len(slots))[:, None])
    left = len(slots)
    while left:
        single = np.flatnonzero(count == 1)
        if not len(single):
            return None
        peeled, first = np.unique(owner[single], return_index=True)  # a key may have two such
        rounds.append((peeled, single[first]))
        gone = slots[peeled]
        np.subtract.at(count, gone, 1)
        np.subtract.at(owner, gone, peeled[:, None])
        left -= len(peeled)
    return rounds
