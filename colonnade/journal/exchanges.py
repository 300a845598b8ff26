"""In how many exchanges without noise records took part, in all runs of a party.

exchanges = Exchanges(journal, "3f…", names)
exchanges.most()       # of the record that took part in most
exchanges.book()       # on the disk before anything leaves
"""

from __future__ import annotations

import numpy as np

from colonnade.journal.journal import Journal
from colonnade.journal.records import Names


class Exchanges:
    """Of the same records, by one run; those of other runs count as well."""

    def __init__(self, journal: Journal, run: str, records: Names) -> None:
        self.journal, self._run, self._records = journal, run, records

    def most(self) -> int:
        """By other runs, or by earlier attempts of this one. In a simulation nobody comes back to
        ask again, so what is done again is not counted."""
        counts = np.zeros(len(self._records), dtype=np.int64)
        for entry in self.journal.entries("exchange"):
            if not (self.journal.simulated and entry["run"] == self._run):
                counts += np.isin(self._records, self.journal.lists.read(str(entry["rows"])))
        return int(counts.max(initial=0))

    def book(self) -> None:
        """Count one exchange; it is on the disk when this returns."""
        rows = self.journal.lists.keep(self._records)
        self.journal.append("exchange", run=self._run, rows=rows)
