"""What a party does to its messages and labels before anybody sees them; see privacy/protection.py.

A role knows nothing of it. The party's post asks it for every message, and `bind` begins it, once
the party's rows are those of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from colonnade.wire import Kind, Value

if TYPE_CHECKING:
    from colonnade.role.party import Party


class Protection(Protocol):
    """All that protects one party in one run."""

    @property
    def hides_labels(self) -> bool:
        """Whether nothing that others see may follow from a label itself."""
        ...

    def begin(self, me: Party) -> None:
        """A role of this party begins, with the rows that it has now."""
        ...

    def epoch(self, me: Party) -> None:
        """An epoch of its training begins, or goes on; no row of it is at hand yet."""
        ...

    def applied(self, me: Party, kind: Kind, value: Value) -> Value:
        """What leaves in place of a value; an error if it may not leave."""
        ...

    def term(self, me: Party, kind: Kind, values: Tensor, senders: int) -> Tensor:
        """What this party adds to a sum of so many senders' terms, before it is masked."""
        ...

    def own_term(self, me: Party, kind: Kind, values: Tensor, senders: int) -> Tensor:
        """What the receiver of such a sum adds of its own, before it tells the sum."""
        ...

    def named(self, kind: Kind) -> str:
        """What protects this Kind, in a few words for the ledger; empty: nothing."""
        ...

    def guaranteed(self, kind: Kind) -> tuple[float, float] | None:
        """(ε, δ) within which all of a run tells of one record as this Kind; None: no promise."""
        ...

    def told(self) -> Mapping[str, Any]:
        """What the result says about it, by what is protected."""
        ...
