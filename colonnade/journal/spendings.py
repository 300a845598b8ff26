"""What protections have spent on which records, in all runs of a party: noise that was drawn,
labels that were answered.

    spendings = Spendings(journal, "3f…", names)
    spendings.book("train epoch 4", Spending("gaussian", 2.4), "embedding", "training")
    spendings.spent()            # [(Spending("gaussian", 2.4), 5), …] of the record that lost most

A key names what is spent together, whenever it is done: what a crash makes it do again is booked
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.journal.journal import Entry, Journal
from colonnade.journal.records import Names

Mechanism = Literal["gaussian", "discrete", "laplace", "response"]


@dataclass(frozen=True, order=True)
class Spending:
    """One use of a mechanism on a record.

    size  gaussian, discrete: σ / Δ of the noise, in L2; laplace: b / Δ, in L1; response: the ε of
          one label
    """

    mechanism: Mechanism
    size: float


class Spendings:
    """Of some records, in one run; what other runs have spent on them counts as well."""

    def __init__(self, journal: Journal, run: str, records: Names) -> None:
        self.journal, self._run, self._records = journal, run, records

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

    def entries(self) -> Iterator[Entry]:
        """What this run has booked, oldest first."""
        return self.journal.entries("spent", run=self._run)

    def spent(
        self, *, kind: str = "", by_others: bool = False, keys: str = ""
    ) -> list[tuple[Spending, int]]:
        """Each way of spending, with how often it met the record that it met most: so the sum is
        never too little.

        kind       only what left as this Kind, or as this purpose
        by_others  without this run
        keys       only what this run has booked under keys that begin so
        """
        counts: dict[Spending, NDArray[np.int64]] = {}
        for entry in self.journal.entries("spent"):
            if by_others and entry["run"] == self._run:
                continue
            if keys and not (entry["run"] == self._run and str(entry["key"]).startswith(keys)):
                continue
            if kind and kind not in (entry["kind"], entry["purpose"]):
                continue
            touched = np.isin(self._records, self.journal.lists.read(str(entry["rows"])))
            found = Spending(entry["mechanism"], float(entry["size"]))
            counts[found] = counts.get(found, 0) + touched.astype(np.int64) * int(entry["times"])
        most = {found: int(count.max(initial=0)) for found, count in counts.items()}
        return [(found, most[found]) for found in sorted(most) if most[found]]


def by_run(journal: Journal) -> list[dict[str, Any]]:
    """All that was spent, one line for each run, Kind, purpose and mechanism: how often, on how
    many records."""
    times: Counter[tuple[Any, ...]] = Counter()
    lists: dict[tuple[Any, ...], set[str]] = {}
    for entry in journal.entries("spent"):
        line = tuple(entry[key] for key in ("run", "kind", "purpose", "mechanism", "size"))
        times[line] += int(entry["times"])
        lists.setdefault(line, set()).add(str(entry["rows"]))
    found = []
    for line, count in times.items():
        records = np.unique(np.concatenate([journal.lists.read(one) for one in lists[line]]))
        named = dict(zip(("run", "kind", "purpose", "mechanism", "size"), line, strict=True))
        found.append({**named, "times": count, "records": len(records)})
    return found
