"""What was released of which records within a privacy budget, in all runs of a party.

    releases = Releases(journal, "3f…", names)
    releases.spent()                      # [[ε, how often], …] of the record that has lost most
    releases.book("3 d8…", epsilon)       # on the disk before it leaves; False: it was before

A key names one release: the same numbers under the same noise, whenever they are computed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from colonnade.journal.journal import Journal
from colonnade.journal.records import Names


class Releases:
    """Of the same records, by one run; what other runs have released of them counts as well."""

    def __init__(self, journal: Journal, run: str, records: Names) -> None:
        self.journal, self._run, self._records = journal, run, records

    def spent(self, *, by_others: bool = False) -> list[list[float]]:
        """[[ε, how often], …]: for each ε, of the record that was released most often with it. So
        this is never too little; by_others: without this run."""
        counts: dict[float, np.ndarray] = {}
        for entry in self.journal.entries("release"):
            if by_others and entry["run"] == self._run:
                continue
            touched = np.isin(self._records, self.journal.lists.read(str(entry["rows"])))
            epsilon = float(entry["epsilon"])
            counts[epsilon] = counts.get(epsilon, 0) + touched.astype(np.int64)
        most = {epsilon: int(count.max(initial=0)) for epsilon, count in counts.items()}
        return [[epsilon, count] for epsilon, count in most.items() if count]

    def plan(self, share: Callable[[], float]) -> float:
        """The ε of one release of this run: what was computed at its first one."""
        with self.journal.turn():
            for entry in self.journal.entries("plan", run=self._run):
                return float(entry["epsilon"])
            epsilon = share()
            self.journal.append("plan", run=self._run, epsilon=epsilon)
        return epsilon

    def holds(self, key: str) -> bool:
        """Whether this release of this run was booked before."""
        return any(True for _ in self.journal.entries("release", run=self._run, key=key))

    def book(self, key: str, epsilon: float) -> None:
        """Count one release; it is on the disk when this returns."""
        rows = self.journal.lists.keep(self._records)
        self.journal.append("release", run=self._run, key=key, rows=rows, epsilon=epsilon)
