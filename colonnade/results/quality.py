"""How good the last predictions of a run are, and how its label holder decides.

Everything here is of the party that has the labels, and of the last evaluation before it ended,
which is that of the weights that it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from colonnade.config import Deciding
from colonnade.errors import InputError
from colonnade.role.party import Party
from colonnade.task import Task, calibration, decision
from colonnade.task.calibration import Calibration
from colonnade.task.curves import LARGEST, curves
from colonnade.task.decision import Decision
from colonnade.task.intervals import Interval, intervals
from colonnade.task.measures import Floats, Scored, measures, names_for, scored

Outputs = Mapping[str, Tensor]  # by party, (rows, outputs)

# Rows × classes up to which intervals take no longer than a second: beyond it only the measures
# that are means over rows have one, and beyond it all parties together only those of one party.
CELLS = 200_000
QUICK = ("accuracy", "log_loss", "brier")


@dataclass(frozen=True)
class Ruling:
    """How a party comes from its probabilities to decisions."""

    decision: Decision
    calibration: Calibration

    def told(self) -> dict[str, Any]:
        return {**self.decision.told(), "calibration": self.calibration.told()}

    @classmethod
    def from_told(cls, told: Mapping[str, Any]) -> Ruling:
        """What `told` wrote, of a result or beside saved weights."""
        plain = {name: told[name] for name in ("threshold", "chosen_by", "positive")}
        return cls(Decision.from_told(plain), Calibration.from_told(told["calibration"]))


def judged(outputs: Outputs, me: str, holder: str) -> str:
    """Whose predictions count most for a party with labels: the label holder's, its own, or the
    first ones; "" if it has none."""
    return next((name for name in (holder, me) if name in outputs), next(iter(outputs), ""))


def ruling(party: Party, holder: str, wish: Deciding) -> Ruling | None:
    """What validation rows say about the wished decisions; None if nothing is wished."""
    if not wish.asked or party.task.kind == "regression" or not party.predictions:
        return None
    plain = Calibration(positive=party.task.positive)
    known = _held_out(party, holder)
    try:
        if wish.chosen and known is None:
            raise InputError(
                f"{' and '.join(wish.chosen)} needs validation rows, and this method has not "
                "predicted any: set a fixed threshold instead"
            )
        made = plain if known is None else calibration.fit(wish.calibrate, known)
        if made.note:
            party.remark(f"the probabilities of '{party.name}' are {made.note}")
        return Ruling(_decision(wish, party.task, known, made), made)
    except InputError as error:
        party.remark(f"'{party.name}' has chosen no threshold: {error}")
        return Ruling(Decision(positive=party.task.positive), plain)


def _held_out(party: Party, holder: str) -> Scored | None:
    """The validation rows and what was predicted for them."""
    outputs = party.predictions.get("validation", {}).get("per_party", {})
    whose = judged(outputs, party.name, holder)
    return known(party, "validation", outputs[whose]) if whose else None


def _decision(wish: Deciding, task: Task, rows: Scored | None, made: Calibration) -> Decision:
    if wish.threshold is not None:
        return decision.fixed(wish.threshold, task.positive)
    if rows is None or not (wish.rate or wish.cost):
        return Decision(positive=task.positive)
    scores, weights = made.apply(rows.scores), rows.weights
    if wish.rate is not None:
        return decision.by_rate(scores, wish.rate, task.positive, weights)
    assert wish.cost is not None
    return decision.by_cost(
        rows.truth, scores, **wish.cost, positive=task.positive, weights=weights
    )


def known(
    party: Party, split: str, outputs: Tensor, by: Ruling | None = None, rate: float | None = None
) -> Scored:
    """The rows of a split, whose labels the party has, beside what was predicted for them.

    by    how these predictions are calibrated and decided; None: as they are
    rate  of `recall_at_rate`; None: its usual one
    """
    rows, task = party.splits[split], party.task
    labels, scores = rows.y, task.scores(outputs)
    assert labels is not None
    return scored(
        task.kind,
        labels,
        scores if by is None else by.calibration.apply(scores),
        weights=rows.weights,
        positive=task.positive,
        threshold=None if by is None else by.decision.threshold,
        **({} if rate is None else {"rate": rate}),
    )


def decided(party: Party, outputs: Tensor, by: Ruling | None = None) -> Tensor:
    """(rows,): the class of each row."""
    if by is None or (by.decision.threshold is None and by.calibration.way == "none"):
        return outputs.argmax(1)
    scores: Floats = by.calibration.apply(party.task.scores(outputs))
    return torch.from_numpy(by.decision.decide(scores)).to(outputs.device)


def measured(
    party: Party, split: str, outputs: Outputs, whose: str, by: Ruling | None, rate: float | None
) -> dict[str, Any]:
    """All measures of a split by party, and the curves of the one that counts most."""
    cells = outputs[whose].numel()
    found: dict[str, dict[str, Any]] = {}
    drawn: dict[str, Any] = {}
    for name, each in outputs.items():
        rows = known(party, split, each, by if name == whose else None, rate)
        if name == whose:
            drawn = {key: curve for key, curve in curves(rows).items() if _drawable(curve)}
        sure = name == whose or cells * len(outputs) <= CELLS
        found[name] = {key: one.told() for key, one in _with_intervals(rows, sure, cells).items()}
    return {"measures": found, "curves": {whose: drawn} if drawn else {}}


def _with_intervals(rows: Scored, sure: bool, cells: int) -> dict[str, Interval]:
    if sure and cells <= CELLS:
        return intervals(rows)
    names = names_for(rows.kind)
    quick = [name for name in QUICK if name in names] if sure else []
    plain = measures(rows, [name for name in names if name not in quick])
    found = {name: Interval(value) for name, value in plain.items()} | intervals(rows, quick)
    return {name: found[name] for name in names}


def _drawable(curve: Mapping[str, list[float]]) -> bool:
    return all(abs(number) <= LARGEST for numbers in curve.values() for number in numbers)
