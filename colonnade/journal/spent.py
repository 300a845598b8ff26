"""What all runs of a party have spent on records, whichever protection has booked it.

    by_run(journal, names)                     # a line for each run, Kind, purpose and mechanism
    counted(journal, names, "features")        # how often each way of spending met each record

Some have entries of their own: FedEmb's releases within a budget (releases.py), Laplace noise of
b / Δ = 1 / ε on all records at once; and rows that it evaluates, and that VFedTrans exchanges,
without noise, of which no ε holds any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.journal.journal import Journal
from colonnade.journal.records import Names
from colonnade.journal.releases import RELEASED_ABOUT
from colonnade.journal.spendings import NO_NOISE, About, Spending, about

Counts = NDArray[np.int64]  # by record
RELEASED = "sums of groups"  # as which FedEmb's releases leave
BARE = {"bare": "evaluated rows", "exchange": "singular vectors"}  # what leaves without noise


@dataclass(frozen=True)
class Use:
    """One entry of a journal: a way of spending, so often on each record of a list."""

    run: str
    kind: str
    purpose: str
    spending: Spending
    times: int
    rows: str
    about: tuple[About, ...]


def uses(journal: Journal) -> Iterator[Use]:
    """All that was spent on features or labels, oldest first of each sort."""
    for entry in journal.entries("spent"):
        spending = Spending(entry["mechanism"], float(entry["size"]))
        yield Use(
            str(entry["run"]),
            str(entry["kind"]),
            str(entry["purpose"]),
            spending,
            int(entry["times"]),
            str(entry["rows"]),
            about(str(entry["kind"]), str(entry["purpose"])),
        )
    for entry in journal.entries("release"):
        spending = Spending("laplace", 1 / float(entry["epsilon"]))
        named = str(entry["run"]), RELEASED, "training"
        yield Use(*named, spending, 1, str(entry["rows"]), RELEASED_ABOUT)
    for what, kind in BARE.items():
        for entry in journal.entries(what):
            named = str(entry["run"]), kind, "training"
            yield Use(*named, NO_NOISE, 1, str(entry["rows"]), ("features",))


def records_of(journal: Journal) -> Names:
    """All records on which anything was spent, sorted."""
    lists = sorted({use.rows for use in uses(journal)})
    found = [journal.lists.read(one) for one in lists]
    return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)


def by_run(journal: Journal, among: Names | None = None) -> list[dict[str, Any]]:
    """A line for each run, Kind, purpose and mechanism: how often it met the record that it met
    most, and how many records it met.

    among  only these records; None: all
    """
    records = records_of(journal) if among is None else np.unique(among)
    lines: dict[tuple[str, str, str, Spending], list[Use]] = {}
    for use in uses(journal):
        lines.setdefault((use.run, use.kind, use.purpose, use.spending), []).append(use)
    found = []
    for (run, kind, purpose, spending), every in lines.items():
        count = _met(journal, records, every)
        if count.any():
            of = {"run": run, "kind": kind, "purpose": purpose, "mechanism": spending.mechanism}
            times, touched = int(count.max()), int((count > 0).sum())
            found.append({**of, "size": spending.size, "times": times, "records": touched})
    return found


def counted(
    journal: Journal,
    records: Names,
    of: About,
    *,
    without: str = "",
) -> dict[Spending, Counts]:
    """How often each way of spending has met each of these records, in their order.

    without  a run that is not counted
    """
    each: dict[Spending, list[Use]] = {}
    for use in uses(journal):
        if of in use.about and not (without and use.run == without):
            each.setdefault(use.spending, []).append(use)
    return {spending: _met(journal, records, every) for spending, every in each.items()}


def _met(journal: Journal, records: Names, every: list[Use]) -> Counts:
    """How often uses met each record, in all."""
    times = Counter[str]()  # by list: that of a training is the same in every epoch
    for use in every:
        times[use.rows] += use.times
    count = np.zeros(len(records), dtype=np.int64)
    for rows, often in times.items():
        count += np.isin(records, journal.lists.read(rows)).astype(np.int64) * often
    return count
