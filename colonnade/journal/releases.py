"""What was released of which records within a privacy budget, in all runs of a party.

    releases = Releases(journal, "3f…", names)
    releases.spent()                      # [[ε, how often], …] of the record that has lost most
    releases.book("3 d8…", epsilon)       # on the disk before it leaves
    releases.book_bare()                  # rows that leave one by one and without noise: no ε holds

A key names one release: the same numbers under the same noise, whenever they are computed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from colonnade.journal.journal import Journal
from colonnade.journal.records import Names
from colonnade.journal.spendings import About, Limit, Spending

RELEASED_ABOUT: tuple[About, ...] = ("features", "labels")  # sums over groups tell of both


class Releases:
    """Of the same records, by one run; what other runs have released of them counts as well."""

    def __init__(
        self,
        journal: Journal,
        run: str,
        records: Names,
        named: bool = False,
        limit: Limit | None = None,
    ) -> None:
        """
        named  records have ids: those of equal content need not be the same
        limit  what all runs together may spend on a record; None: there is none
        """
        self.journal, self._run, self._records, self._named = journal, run, records, named
        self._limit = limit

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

    def plan(self, share: Callable[[], float], purpose: str = "") -> float:
        """The ε of one release of this run for a purpose: what was computed at its first one."""
        of = {"of": purpose} if purpose else {}
        with self.journal.turn():
            for entry in self.journal.entries("plan", run=self._run, of=purpose or None):
                return float(entry["epsilon"])
            epsilon = share()
            self.journal.append("plan", run=self._run, epsilon=epsilon, **of)
        return epsilon

    def within_budgets(self) -> int:
        """How many of these records were released within a budget, by any run; without ids, which
        only simulated rows lack, nobody can tell."""
        return self._found("release")

    def bare(self) -> int:
        """How many of these records have left one by one and without noise, as `book_bare` says."""
        return self._found("bare")

    def book_bare(self) -> None:
        """Say, on the disk, that these records leave one by one and without noise."""
        rows = self.journal.lists.keep(self._records)
        with self.journal.turn():
            if self._named and not any(True for _ in self.journal.entries("bare", rows=rows)):
                self.journal.append("bare", run=self._run, rows=rows)

    def _found(self, what: str) -> int:
        if not self._named:
            return 0
        lists = {str(entry["rows"]) for entry in self.journal.entries(what)}
        touched = np.zeros(len(self._records), dtype=bool)
        for rows in sorted(lists):
            touched |= np.isin(self._records, self.journal.lists.read(rows))
        return int(touched.sum())

    def holds(self, key: str) -> bool:
        """Whether this release of this run was booked before."""
        return any(True for _ in self.journal.entries("release", run=self._run, key=key))

    def book(self, key: str, epsilon: float) -> None:
        """Count one release; it is on the disk when this returns."""
        with self.journal.turn():
            if self._limit is not None:
                told = [(Spending("laplace", 1 / epsilon), 1)]
                for what in RELEASED_ABOUT:
                    self._limit.check(self.journal, self._records, what, told)
            rows = self.journal.lists.keep(self._records)
            self.journal.append("release", run=self._run, key=key, rows=rows, epsilon=epsilon)
