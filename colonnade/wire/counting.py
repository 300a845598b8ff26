"""What a gate counts: of which records a message speaks, how many numbers it has about each of
them, and how much of that has left before.

    batch      it speaks of the rows of the batch at hand; the party knows which these are
    training   it was learnt from, or summed over, training rows: it may tell all its numbers about
               any of them
    nothing    it speaks of no record's features: keys, places, blinded ids

Row numbers come to the gate and no further: neither the message nor the ledger has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.journal import Names
from colonnade.journal.counts import Tally
from colonnade.wire.kind import Kind, Value

TEXT_BYTES = 8  # of text, bytes or a name that count as one number, as those of the largest do
ALL = slice(None)
Rows = slice | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowsAtHand:
    """The rows that a party works on at this moment, by their positions in a split."""

    split: str
    rows: Rows
    count: int


class Tallies(Protocol):
    """What a gate asks of a party's journal."""

    def tally(self, name: str, records: Names) -> tuple[str, Tally]:
        """The name of this run, and what all runs have counted of these records under one name."""
        ...


class Promises(Protocol):
    """What a gate asks of what protects a party."""

    def guaranteed(self, kind: Kind) -> tuple[float, float] | None:
        """(ε, δ) within which all of a run tells of one record as this Kind; None: no promise."""
        ...


class Sender(Protocol):
    """What a gate asks of the party whose message it is."""

    @property
    def at_hand(self) -> RowsAtHand | None:
        """The rows that it works on; None: on no batch."""
        ...

    @property
    def position(self) -> tuple[str, int, int]:
        """(phase, epoch, step), the same when a step is done again after a crash."""
        ...

    @property
    def splits(self) -> Mapping[str, Sized]:
        """Its rows; empty for a server."""
        ...

    @property
    def journal(self) -> Tallies | None:
        """What it does not forget."""
        ...

    @property
    def protection(self) -> Promises | None:
        """What it does to its messages before they leave."""
        ...

    def records(self, split: str = "train") -> Names:
        """What the rows of a split are called in the journal, in their order."""
        ...


def held(sender: Sender, split: str) -> int:
    """How many rows of a split a party holds."""
    return len(sender.splits[split]) if split in sender.splits else 0


def learnt_from(sender: Sender) -> str:
    """The split of which a message that names no batch may tell: where a party predicts, it holds
    no training rows, and may tell of those that it predicts."""
    found = (name for name in ("train", *sender.splits) if held(sender, name))
    return next(found, "train")


class Counted:
    """How much of each record of one split has left, where that is limited.

    Booked ahead: the first message of an epoch books its amount for every record of the split, so
    that an epoch costs one entry of the journal. The same epoch after a crash has the same key, and
    is booked once; but whoever comes back to an earlier key without a crash begins a new one.
    """

    def __init__(self, limit: int, run: str, tally: Tally, records: int) -> None:
        self.limit, self._run, self._tally = limit, run, tally
        self._used = np.zeros(records, dtype=np.int64)  # since the key changed
        self._booked = 0  # of this key, about every record
        self._key = ""
        self._visits: Counter[str] = Counter()  # how often each key was begun

    def books(self, key: str, rows: Rows, amount: int) -> bool:
        """Whether a message of so much is yet to be booked."""
        return key != self._key or self._needed(rows, amount) > self._booked

    def turn(self) -> AbstractContextManager[None]:
        """Inside, no other run of this party books, and all that they have booked is known."""
        return self._tally.turn()

    def beyond(self, key: str, rows: Rows, amount: int) -> int:
        """How many records would pass the limit; 0: `book` may follow."""
        if key != self._key:
            self._key, self._booked = key, 0
            self._used[:] = 0
            self._visits[key] += 1
        needed = self._needed(rows, amount)
        if needed <= self._booked or self._tally.has(self._named(needed)):
            return 0
        return int((self._tally.counts + (needed - self._booked) > self.limit).sum())

    def book(self, rows: Rows, amount: int) -> None:
        """Count what will leave; it is on the disk when this returns."""
        needed = self._needed(rows, amount)
        if needed > self._booked:
            self._tally.book(self._named(needed), times=needed - self._booked)
            self._booked = needed

    def use(self, rows: Rows, amount: int) -> None:
        """It leaves now."""
        self._used[rows] += amount

    def _needed(self, rows: Rows, amount: int) -> int:
        return int(self._used[rows].max(initial=0)) + amount

    def _named(self, amount: int) -> str:
        again = f", visit {self._visits[self._key]}" if self._visits[self._key] > 1 else ""
        return f"{counted_in(self._run)}{self._key}{again}, up to {amount}"


def counted_in(run: str) -> str:
    """How the keys of all that is counted in a run begin."""
    return f"run {run}, "


# ---- numbers -------------------------------------------------------------------------------------


def numbers_in(value: Value) -> int:
    """How many numbers a message has: those of tensors, plain ones, and text and names, lest a
    record leave in words. A tensor without elements still tells its shape."""
    if isinstance(value, Tensor):
        return value.numel() or len(value.shape)
    if isinstance(value, Mapping):
        return sum(_words(name) + numbers_in(child) for name, child in value.items())
    if isinstance(value, str | bytes):
        return _words(value)
    return 1


def measure(kind: Kind, value: Value, at_hand: RowsAtHand | None, training: int) -> tuple[int, int]:
    """Records that a message speaks of, and its numbers about each.

    training  how many training rows its sender holds
    """
    numbers = numbers_in(value)
    if kind.about == "training":
        return training, numbers
    rows = max(_longest(value), default=(0, 0))[1]
    if kind.about == "batch":
        if kind.shape is not None and "batch" in kind.shape and isinstance(value, Tensor):
            rows = value.shape[kind.shape.index("batch")]
        elif at_hand is not None:
            rows = at_hand.count
    return rows, -(-numbers // max(rows, 1))


def _words(text: str | bytes) -> int:
    size = len(text.encode()) if isinstance(text, str) else len(text)
    return -(-size // TEXT_BYTES)


def _longest(value: Value) -> Iterator[tuple[int, int]]:
    """The elements and the first dimension of every tensor."""
    if isinstance(value, Tensor):
        if value.shape:
            yield value.numel(), value.shape[0]
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _longest(child)
