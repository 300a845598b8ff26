"""All that protects one party in one run, by [protect]: made for the run, begun with its rows.

labels      privacy/labels.py: drawn once for all runs, before a role sees them
rows        privacy/rows.py: every Kind that carries vectors of rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from colonnade.privacy.rows import Plan, RowNoise
from colonnade.privacy.settings import Protect, of_rows
from colonnade.role.party import Party
from colonnade.wire import Kind, Value


@dataclass(frozen=True)
class Protections:
    """See role/protection.py."""

    rows: RowNoise | None = None

    def begin(self, me: Party) -> None:
        if self.rows is not None:
            self.rows.begin(me)

    def applied(self, me: Party, kind: Kind, value: Value) -> Value:
        return value if self.rows is None else self.rows.applied(me, kind, value)

    def named(self, kind: Kind) -> str:
        if self.rows is None or not of_rows(kind):
            return ""
        return f"clipped to {self.rows.clip:g}, Gaussian noise of {self.rows.sigma:.6g}"

    def told(self) -> Mapping[str, Any]:
        sent = self.rows is not None and self.rows.kinds
        return {"embeddings": self.rows.told()} if self.rows is not None and sent else {}


def protect(me: Party, how: Protect) -> None:
    """Give a party what protects it, before its role begins."""
    if not how.protects:
        return
    rows = None
    if how.embedding_epsilon:
        plan, every = me.schedule, me.schedule.evaluate_every
        evaluations = -(-plan.epochs // every) if every else 0
        rows = RowNoise(how, Plan.of(how, plan.epochs, evaluations))
    me.protection = Protections(rows)
