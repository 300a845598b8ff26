"""All that protects one party in one run, by [protect]: made for the run, begun with its rows.

labels      privacy/labels.py: drawn once for all runs, before a role sees them
rows        privacy/rows.py: every Kind that carries vectors of rows
sums        privacy/sums.py: vectors of rows that others see only added up
models      privacy/training.py: optimisers that train what leaves
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from colonnade.journal import Spending
from colonnade.privacy import bottoms
from colonnade.privacy.labels import LabelAnswers
from colonnade.privacy.rows import Plan, RowNoise
from colonnade.privacy.settings import Protect, of_rows
from colonnade.privacy.sums import SumNoise
from colonnade.privacy.training import ModelNoise, Training
from colonnade.role.party import Party
from colonnade.role.recipe import Schedule
from colonnade.wire import Kind, Value

Use = tuple[Spending, int]


@dataclass(frozen=True)
class Planned:
    """What a run spends on each record of a party: how, and how often."""

    vectors: tuple[Use, ...] = ()  # of its features, in training or in evaluation
    models: tuple[Use, ...] = ()  # of a training record, features and label

    @classmethod
    def of(
        cls, how: Protect, schedule: Schedule, sent: Collection[Kind], trained: Mapping[str, int]
    ) -> Planned:
        """Of a party that sends such Kinds; `trained` as in `protect`."""
        vectors, models = list[Use](), list[Use]()
        if how.embedding_epsilon and any(of_rows(kind) for kind in sent):
            plan = Plan.of(how, schedule)
            vectors.append((Spending("gaussian", plan.size), plan.releases))
        if how.embedding_epsilon and any(kind.carries == "sums" for kind in sent):
            plan = Plan.of(how, schedule, discrete=True)
            vectors.append((Spending("discrete", plan.size), plan.releases))
        if how.model_epsilon and trained:
            training = Training.of(how, trained)
            models.append((Spending("gaussian", training.size), training.releases))
        return cls(tuple(vectors), tuple(models))


NOTHING = Planned()


@dataclass(frozen=True)
class Protections:
    """See role/protection.py."""

    how: Protect | None = None
    rows: RowNoise | None = None
    labels: LabelAnswers | None = None
    sums: SumNoise | None = None
    models: ModelNoise | None = None
    planned: Planned = NOTHING  # what an organisation's limit is held against beforehand

    @property
    def hides_labels(self) -> bool:
        return self.labels is not None

    def begin(self, me: Party) -> None:
        self._foresee(me)
        if self.labels is not None:
            self.labels.begin(me)
        if self.rows is not None:
            self.rows.begin(me)
        if self.sums is not None:
            self.sums.begin(me)
        if self.models is not None:
            self.models.begin(me)

    def epoch(self, me: Party) -> None:
        if self.labels is not None:
            self.labels.epoch(me)

    def applied(self, me: Party, kind: Kind, value: Value) -> Value:
        for part in (self.sums, self.rows):
            if part is not None:
                value = part.applied(me, kind, value)
        return value

    def term(self, me: Party, kind: Kind, values: Tensor, senders: int) -> Tensor:
        return values if self.sums is None else self.sums.term(me, kind, values, senders)

    def own_term(self, me: Party, kind: Kind, values: Tensor, senders: int) -> Tensor:
        if self.rows is None or self.sums is None:
            return values
        self.sums.note(me)
        by = self.rows if of_rows(kind) else self.sums  # as the others protect theirs
        return by.own_term(me, kind, values, senders)

    def named(self, kind: Kind) -> str:
        if self.sums is not None and kind.carries == "sums":
            return self.sums.named()
        if self.models is not None and kind.carries == "models":
            clip, sigma = self.models.clip, self.models.sigma
            return f"gradients clipped to {clip:g}, Gaussian noise of {sigma:.6g} in every step"
        if self.labels is not None and kind.carries == "labels":
            return self.labels.named()
        if self.rows is None or not of_rows(kind):
            return ""
        return self.rows.named()

    def guaranteed(self, kind: Kind) -> tuple[float, float] | None:
        return None if self.how is None else self.how.guaranteed(kind)

    def _foresee(self, me: Party) -> None:
        """Refuse, before the first message, what would pass the organisation's limit. The journal
        asks again whenever it counts."""
        if me.journal is None or not (self.planned.vectors or self.planned.models):
            return
        vectors, training = self.planned.vectors, "train" in me.splits
        for split in me.splits:
            spendings = me.journal.spendings(me.records(split))
            if not training:
                spendings.foresee([(use, 1) for use, _ in vectors], fresh="prediction")
            elif split == "train":
                spendings.foresee([*vectors, *self.planned.models])
                spendings.foresee(self.planned.models, "labels")
            else:
                spendings.foresee(vectors)

    def told(self) -> Mapping[str, Any]:
        parts = {
            "labels": self.labels,
            "embeddings": self.rows,
            "sums": self.sums,
            "models": self.models,
        }
        found = {name: part.told() for name, part in parts.items() if part is not None}
        return {name: told for name, told in found.items() if told}


def protect(
    me: Party,
    how: Protect,
    trained: Mapping[str, int] | None = None,
    *,
    booked: bool = True,
    sent: Collection[Kind] | None = None,
) -> None:
    """Give a party what protects it, before its role begins.

    trained  the optimisers that train what leaves, by name, and for how many epochs; none where it
             does not train
    booked   whether what leaves is counted; if not, labels stay as they are
    sent     what it may send: so it stops before it begins to pass its organisation's limit
    """
    if not how.protects:
        return
    rows = sums = None
    if how.embedding_epsilon:
        rows = RowNoise(how, Plan.of(how, me.schedule), booked=booked)
        sums = SumNoise(how, Plan.of(how, me.schedule, discrete=True), booked=booked)
        bottoms.shape(me, how)
    labels = models = None
    if how.label_epsilon and me.labelled and booked:
        labels = LabelAnswers(how, me.schedule.epochs)
    if how.model_epsilon and trained:
        models = ModelNoise(how, Training.of(how, trained))
        _also_on_things(me, partial(models.on_thing, me))
    planned = Planned() if sent is None else Planned.of(how, me.schedule, sent, trained or {})
    me.protection = Protections(how, rows, labels, sums, models, planned)


def _also_on_things(me: Party, do: Callable[[str, Any], None]) -> None:
    before = me.kept.on_thing

    def both(name: str, thing: Any) -> None:
        if before is not None:
            before(name, thing)
        do(name, thing)

    me.kept.on_thing = both
