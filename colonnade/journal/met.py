"""Which rows have met which members under the same weights.

    meetings = Meetings(journal)
    meetings.meet(names, weights_sha256, ("bank", "post", "shop"))

Where a receiver learns a sum over all who take part, the same rows under the same weights with two
sets of members give it the difference: what a single party has sent. Rows are kept by their keyed
names, and weights by their digest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colonnade.errors import Untrusted
from colonnade.journal.journal import Journal
from colonnade.journal.records import Names


class Meetings:
    """All evaluations and predictions of one party, in all its runs, and where each training began
    and ended."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def meet(self, rows: Names, weights: str, members: Sequence[str], run: str = "") -> None:
        """Let these rows meet these members; it is on the disk when this returns. Refused if one of
        them has met others.

        run  whose steps they meet in: within that run, `Steps` sees to it
        """
        journal, members = self._journal, list(members)
        step = {"run": run} if run else {}
        with journal.turn():
            known = False
            called = journal.lists.keep(rows)
            for entry in journal.entries("met", weights=weights):
                if run and entry.get("run") == run and entry["members"] != members:
                    continue
                if entry["members"] == members:
                    known = known or entry["rows"] == called
                    continue
                both = np.intersect1d(rows, journal.lists.read(str(entry["rows"])))
                if len(both):
                    raise _refusal(len(both), entry["members"], members)
            if not known:
                journal.append("met", weights=weights, members=members, rows=called, **step)


def _refusal(count: int, before: Sequence[str], now: Sequence[str]) -> Untrusted:
    gone, come = sorted({*before} - {*now}), sorted({*now} - {*before})
    changed = [f"'{name}' was there" for name in gone] + [f"'{name}' was not" for name in come]
    return Untrusted(
        f"{count} of these rows have met others before under the same weights: then "
        f"{' and '.join(changed)}: the difference of the two sums would show what a single party "
        "has sent, whatever masks it. Nothing was sent. Take the answer that was given then, "
        "predict other rows, or predict these with the same parties. A training needs another seed"
    )
