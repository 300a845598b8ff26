"""Counts per record that cost one synchronised entry for many events.

    tally = Tally(journal, "embedding", names)        # names of the party's records, in its order
    tally.book("run 3f, train, epoch 4")              # every record once more, if not yet for this
    tally.counts                                      # by record, over all runs

What was booked and not used counts as used. What is done again after a crash has the same key as
before, and is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from colonnade.journal.journal import Journal
from colonnade.journal.records import Names


class Tally:
    """How often each record was counted under one name, in all runs of this journal."""

    def __init__(self, journal: Journal, name: str, records: Names) -> None:
        self._journal, self.name, self._records = journal, name, records
        self._counts = np.zeros(len(records), dtype=np.int64)
        self._keys: set[str] = set()
        self._seen = 0  # entries of the journal
        self._all = ""  # what entries call all of these records, once one is written
        self._among: dict[str, NDArray[np.bool_]] = {}  # which of these a list has, by its name
        self._take_in()

    @property
    def counts(self) -> NDArray[np.int64]:
        """By record, in the order in which they were given, as far as the journal was read."""
        self._take_in()
        return self._counts.copy()

    @property
    def distinct(self) -> int:
        """How many different records were ever counted under this name, these ones or others."""
        lists = {str(e["rows"]) for e in self._journal.entries("count", name=self.name)}
        found = [self._journal.lists.read(one) for one in sorted(lists)]
        return len(np.unique(np.concatenate(found))) if found else 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside, nobody else writes to the journal, and all that others wrote is known."""
        with self._journal.turn():
            yield

    def has(self, key: str) -> bool:
        """Whether this key was counted, as far as the journal was read."""
        self._take_in()
        return key in self._keys

    def book(self, key: str, positions: NDArray[np.integer] | None = None, times: int = 1) -> bool:
        """Count these records, or all, so often; False if this key was counted before."""
        if key in self._keys:
            return False
        with self._journal.turn():
            self._take_in()
            if key in self._keys:
                return False
            if positions is not None:
                rows = self._journal.lists.keep(self._records[positions])
            else:
                rows = self._all = self._all or self._journal.lists.keep(self._records)
            self._journal.append("count", name=self.name, key=key, rows=rows, times=times)
        self._take_in()
        return True

    def _take_in(self) -> None:
        since, self._seen = self._seen, self._journal.anchor.entries
        if since == self._seen:
            return
        for entry in self._journal.entries("count", since, name=self.name):
            self._keys.add(str(entry["key"]))
            called = str(entry["rows"])
            if called not in self._among:
                listed = self._journal.lists.read(called)
                self._among[called] = np.isin(self._records, listed)
            self._counts += self._among[called] * int(entry["times"])
