"""What a role may ask of its party's journal; everything else in it is the runtime's to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from colonnade.journal import Answers, Exchanges, Names, Releases, Spendings
from colonnade.journal.counts import Tally


class OwnJournal(Protocol):
    """What the party does not forget, whatever folder is removed."""

    def secret(self, purpose: str, *, lasting: bool = False) -> bytes:
        """32 bytes for one purpose in this run, which nobody else has; the same after a restart.
        Lasting: the same in all runs."""
        ...

    def tally(self, name: str, records: Names) -> tuple[str, Tally]:
        """The name of the run, and what all runs have counted of these records under one name."""
        ...

    def releases(self, records: Names) -> Releases:
        """What was released of these records within a budget, in all runs."""
        ...

    def spendings(self, records: Names) -> Spendings:
        """What was spent on these records by all that protects them, in all runs."""
        ...

    def answers(self, classes: Sequence[str]) -> Answers:
        """What stands in for labels of these classes, or for numbers, in all runs."""
        ...

    def exchanges(self, records: Names) -> Exchanges:
        """In how many exchanges without noise these records took part, in all runs."""
        ...

    def names(self, numbers: Tensor, rows: Tensor) -> Names:
        """What the rows with these numbers, and these contents, are called in the journal."""
        ...

    def align(self, me: str, others: Mapping[str, int], most: int, times: int) -> None:
        """Book an alignment with others that bring so many ids each, or refuse it: no other party
        may bring more than `most` ids to all alignments, nor align more often than `times`."""
        ...
