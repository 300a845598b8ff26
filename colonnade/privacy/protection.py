"""All that protects one party in one run, by [protect]: made for the run, begun with its rows.

labels      privacy/labels.py: drawn once for all runs, before a role sees them
rows        privacy/rows.py: every Kind that carries vectors of rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from colonnade.privacy import bottoms
from colonnade.privacy.labels import LabelAnswers
from colonnade.privacy.rows import Plan, RowNoise
from colonnade.privacy.settings import Protect, of_rows
from colonnade.role.party import Party
from colonnade.wire import Kind, Value


@dataclass(frozen=True)
class Protections:
    """See role/protection.py."""

    how: Protect | None = None
    rows: RowNoise | None = None
    labels: LabelAnswers | None = None

    def begin(self, me: Party) -> None:
        if self.labels is not None:
            self.labels.begin(me)
        if self.rows is not None:
            self.rows.begin(me)

    def epoch(self, me: Party) -> None:
        if self.labels is not None:
            self.labels.epoch(me)

    def applied(self, me: Party, kind: Kind, value: Value) -> Value:
        return value if self.rows is None else self.rows.applied(me, kind, value)

    def named(self, kind: Kind) -> str:
        if self.rows is None or not of_rows(kind):
            return ""
        return f"clipped to {self.rows.clip:g}, Gaussian noise of {self.rows.sigma:.6g}"

    def guaranteed(self, kind: Kind) -> tuple[float, float] | None:
        return None if self.how is None else self.how.guaranteed(kind)

    def told(self) -> Mapping[str, Any]:
        told = {
            "embeddings": {} if self.rows is None else self.rows.told(),
            "labels": {} if self.labels is None else self.labels.told(),
        }
        return {what: said for what, said in told.items() if said}


def protect(me: Party, how: Protect, *, booked: bool = True) -> None:
    """Give a party what protects it, before its role begins.

    booked  whether what leaves is counted
    """
    if not how.protects:
        return
    rows = None
    if how.embedding_epsilon:
        rows = RowNoise(how, Plan.of(how, me.schedule), booked=booked)
        bottoms.shape(me, how)
    labels = LabelAnswers(how, me.schedule.epochs) if how.label_epsilon and me.labelled else None
    me.protection = Protections(how, rows, labels)
