"""A party's journal as one run sees it: what its role, its gate and its session may use of it.

A run of strangers has the party's own journal. A simulation has one inside its run folder, which
counts for nobody and is made only when something is written, or a secret is asked for. There, too,
secrets are drawn by the operating system, unless the settings give a seed for them: then a run
repeats itself, and nothing that they make protects anybody.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from colonnade.errors import BudgetSpent, JournalError
from colonnade.journal.answers import Answers
from colonnade.journal.counts import Tally
from colonnade.journal.exchanges import Exchanges
from colonnade.journal.journal import Journal
from colonnade.journal.records import Names, named_by_content
from colonnade.journal.releases import Releases
from colonnade.journal.spendings import Limit, Spendings

if TYPE_CHECKING:  # reading a journal needs no PyTorch
    from torch import Tensor

SIMULATED = "journal"  # the folder in a simulation's run folder


class RunJournal:
    """The journal of one party, during one run."""

    def __init__(
        self,
        opened: Callable[[], Journal],
        run: str,
        ids: Sequence[str] = (),
        root: bytes = b"",
        limit: Limit | None = None,
    ) -> None:
        """
        opened  gives the journal; called when it is first needed
        run     its name: secrets of one run say nothing about those of another
        ids     of the party's own rows, one way of writing each; empty: rows have none
        root    of a simulation's secrets
        limit   what all runs together may spend on a record; None: there is none
        """
        self._opened, self.run, self._ids, self._root = opened, run, ids, root
        self._limit = limit

    @classmethod
    def simulated(
        cls, opened: Callable[[], Journal], party: str, noise_seed: int | None = None
    ) -> RunJournal:
        """Of a party of a simulation, whose journal lies in a run folder.

        noise_seed  from which its secrets follow; None: they are drawn
        """
        root = "" if noise_seed is None else f"colonnade simulation {noise_seed} {party}"
        return cls(opened, "", (), root.encode())

    @classmethod
    def in_folder(cls, run: Path, party: str, noise_seed: int | None = None) -> RunJournal:
        """Of one of the parties that live in this process."""
        place = run / SIMULATED / party
        return cls.simulated(lambda: Journal(place, simulated=True), party, noise_seed)

    @cached_property
    def journal(self) -> Journal:
        """The journal itself."""
        return self._opened()

    def secret(self, purpose: str, *, lasting: bool = False) -> bytes:
        """32 bytes for one purpose in this run, which nobody else has; the same after a restart.
        Lasting: the same in all runs."""
        root = self._root or self.journal.secret("runs")
        whose = "all runs" if lasting else f"run {self.run}"
        return hmac.digest(root, f"{purpose} of {whose}".encode(), "sha256")

    def tally(self, name: str, records: Names) -> tuple[str, Tally]:
        """What this run does with these records is called, and what all runs have counted of them.
        The hub names runs, and may give a name to two; so other records have another one."""
        digest = hashlib.sha256(np.unique(records).tobytes()).hexdigest()
        return f"{self.run} on {digest[:32]}", Tally(self.journal, name, records)

    def releases(self, records: Names) -> Releases:
        """What was released of these records within a budget, in all runs."""
        return Releases(self.journal, self.run, records, bool(self._ids), self._limit)

    def spendings(self, records: Names) -> Spendings:
        """What was spent on these records by all that protects them, in all runs."""
        return Spendings(self.journal, self.run, records, self._limit, bool(self._ids))

    def answers(self, classes: Sequence[str]) -> Answers:
        """What stands in for labels of these classes, or for numbers, in all runs."""
        return Answers(self.journal, self.run, classes)

    def exchanges(self, records: Names) -> Exchanges:
        """In how many exchanges without noise these records took part, in all runs."""
        return Exchanges(self.journal, self.run, records)

    def check_start(self, label: str | None) -> None:
        """Refuse to begin from nothing (no label) what has released something: it would learn
        again, and release again."""
        count = sum(1 for _ in self.journal.entries("release", run=self.run))
        if count and label is None:
            raise JournalError(
                f"run {self.run} is to begin from nothing, and this party has released {count} "
                "matrices in it, as its journal says: it would release others of the same rows. "
                "Is a party's checkpoints folder lost? Bring its checkpoints back from a backup, "
                "or begin a new run, with another --out: it goes on with the budget that is left"
            )

    def names(self, numbers: Tensor, rows: Tensor) -> Names:
        """What these records of the party are called in its journal.

        numbers  of the rows among all that the party brings, (records,)
        rows     what is in them, (records, …)
        """
        if not self._ids:
            content = rows.detach().cpu().numpy()
            if self._root:  # a run that repeats itself knows its rows again
                return named_by_content(self.secret("rows", lasting=True), content)
            return self.journal.names_of_rows(content)
        found: Names = self._named[numbers.cpu().numpy()]
        return found

    def align(self, me: str, others: Mapping[str, int], most: int, times: int) -> None:
        """Book an alignment with others that bring so many ids each, or refuse it: no other party
        may bring more than `most` ids to all alignments, nor align more often than `times`.

        Ids come under fresh secrets, so nobody can see whether they are those of another time.
        """
        with self.journal.turn():
            often, brought = Counter(list(others)), Counter(others)
            for entry in self.journal.entries("alignment"):
                often.update(list(entry["ids"]))
                brought.update({str(name): int(count) for name, count in entry["ids"].items()})
            for name in others:
                if often[name] > times or brought[name] > most:
                    raise BudgetSpent(
                        f"'{me}' does not align with '{name}' again: with this time it would be "
                        f"{often[name]} times and {brought[name]} ids, and {times} times and "
                        f"{most} ids are allowed, by what its journal has counted over all runs. "
                        "If it is right to ask so often, raise 'times' or 'most_in_all', at all "
                        "parties"
                    )
            self.journal.append("alignment", run=self.run, ids=dict(others))

    @cached_property
    def _named(self) -> Names:
        return self.journal.names(self._ids)
