"""What protections have spent on which records, in all runs of a party: noise that was drawn,
labels that were answered.

    spendings = Spendings(journal, "3f…", names)
    spendings.book("train epoch 4", Spending("gaussian", 2.4), "embedding", "training")
    spendings.spent()            # [(Spending("gaussian", 2.4), 5), …] of the record that lost most

A key names what is spent together, whenever it is done: what a crash makes it do again is booked
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from colonnade.journal.journal import Entry, Journal
from colonnade.journal.records import Names

LABELS = "labels"  # the Kind, or the purpose, under which answers of labels are booked
MODELS = "models"  # the Kind under which the training of what leaves is booked
About = Literal["labels", "features"]
Mechanism = Literal["gaussian", "discrete", "laplace", "response", "none"]


@dataclass(frozen=True, order=True)
class Spending:
    """One use of a mechanism on a record.

    size  gaussian, discrete: σ / Δ of the noise, in L2; laplace: b / Δ, in L1; response: the ε of
          one label; none: 0, it left as it was
    """

    mechanism: Mechanism
    size: float


NO_NOISE = Spending("none", 0.0)


class Limit(Protocol):
    """What all runs of a party together may spend on one record; see privacy/limit.py."""

    def check(
        self,
        journal: Journal,
        records: Names,
        about: About,
        more: Sequence[tuple[Spending, int]],
        without: str = "",
    ) -> None:
        """Refuse to spend more on these records, if one of them would lose too much with it.

        without  a run that is not counted, since `more` is all of it
        """
        ...


class Spendings:
    """Of some records, in one run; what other runs have spent on them counts as well."""

    def __init__(
        self,
        journal: Journal,
        run: str,
        records: Names,
        limit: Limit | None = None,
        named: bool = False,
    ) -> None:
        """
        named  records have ids: those of equal content need not be the same
        """
        self.journal, self.named, self._limit = journal, named, limit
        self._run, self._records = run, records
        self._touched: dict[str, NDArray[np.bool_]] = {}  # which of them a list holds

    def book(
        self,
        key: str,
        spending: Spending,
        kind: str,
        purpose: str,
        times: int = 1,
        positions: NDArray[np.integer] | None = None,
    ) -> bool:
        """Count it for all records, or those at some positions; it is on the disk when this
        returns. False: this key of this run was booked before."""
        with self.journal.turn():
            if any(True for _ in self.journal.entries("spent", run=self._run, key=key)):
                return False
            records = self._records if positions is None else self._records[positions]
            if self._limit is not None:
                for what in about(kind, purpose):
                    self._limit.check(self.journal, records, what, [(spending, times)])
            self.journal.append(
                "spent",
                run=self._run,
                key=key,
                kind=kind,
                purpose=purpose,
                mechanism=spending.mechanism,
                size=spending.size,
                times=times,
                rows=self.journal.lists.keep(records),
            )
        return True

    def foresee(
        self,
        planned: Sequence[tuple[Spending, int]],
        about: About = "features",
        *,
        fresh: str = "",
    ) -> None:
        """Refuse a run that will spend so much on each of these records, if that is more than all
        runs together may.

        fresh  a purpose: only of records that were never met for it, by any run
        """
        if self._limit is None or not planned:
            return
        records = self._records
        if fresh:
            for entry in self.journal.entries("spent", purpose=fresh):
                records = np.setdiff1d(records, self.journal.lists.read(str(entry["rows"])))
        self._limit.check(self.journal, records, about, planned, without=self._run)

    def entries(self) -> Iterator[Entry]:
        """What this run has booked, oldest first."""
        return self.journal.entries("spent", run=self._run)

    def spent(
        self,
        *,
        kind: str = "",
        by_others: bool = False,
        keys: str = "",
        positions: NDArray[np.integer] | None = None,
        without: str = "",
    ) -> list[tuple[Spending, int]]:
        """Each way of spending, with how often it met the record that it met most: so the sum is
        never too little.

        kind       only what left as this Kind, or as this purpose
        by_others  without this run
        keys       only what this run has booked under keys that begin so
        positions  only of the records there
        without    not for this purpose
        """
        counts: dict[Spending, NDArray[np.int64]] = {}
        for entry in self.journal.entries("spent"):
            if by_others and entry["run"] == self._run:
                continue
            if keys and not (entry["run"] == self._run and str(entry["key"]).startswith(keys)):
                continue
            if kind and kind not in (entry["kind"], entry["purpose"]):
                continue
            if without and without == entry["purpose"]:
                continue
            touched = self._in(str(entry["rows"]))
            touched = touched if positions is None else touched[positions]
            found = Spending(entry["mechanism"], float(entry["size"]))
            counts[found] = counts.get(found, 0) + touched.astype(np.int64) * int(entry["times"])
        most = {found: int(count.max(initial=0)) for found, count in counts.items()}
        return [(found, most[found]) for found in sorted(most) if most[found]]

    def _in(self, called: str) -> NDArray[np.bool_]:
        """Which of these records a list holds."""
        if called not in self._touched:
            self._touched[called] = np.isin(self._records, self.journal.lists.read(called))
        return self._touched[called]


def about(kind: str, purpose: str) -> tuple[About, ...]:
    """What of a record was told of: its label alone where that was answered, both by models that
    were trained on it; else its features."""
    if LABELS in (kind, purpose):
        return ("labels",)
    return ("features", "labels") if kind == MODELS else ("features",)
