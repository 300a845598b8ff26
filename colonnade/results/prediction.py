"""What one party predicts for some rows, and how good it is where their labels are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade import data
from colonnade.data.values import as_number
from colonnade.errors import DataError, listed
from colonnade.results.quality import Ruling
from colonnade.role.party import Party
from colonnade.task import Task
from colonnade.task.decision import Decision
from colonnade.task.measures import BINARY, RATE, REGRESSION, Scored, measures, scored

DIGITS = 12  # of a model's digest: enough to tell two models apart
HALF = 0.5  # of two classes the more probable one is predicted, unless somebody chose otherwise


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What one party predicts: the probability of every class and a decision, or a number."""

    party: str
    task: Task
    ids: Tensor  # int64 (rows,)
    scores: Tensor  # probabilities, (rows, classes), calibrated if the run does that; or numbers
    names: tuple[str, ...] = ()  # of the rows of own files, as that party calls them
    decision: Decision = field(default_factory=Decision)
    rate: float = RATE  # of `recall_at_rate`
    run: str = ""
    model: str = ""  # the first digits of the party's weights_sha256

    def __repr__(self) -> str:
        what = listed(self.classes, 3, quoted=False) or "numbers"
        limit = "" if self.threshold is None else f", threshold {self.threshold:.3g}"
        return f"<Prediction of {self.party}: {len(self):,} rows, {what}{limit}>"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; none of numbers."""
        return self.task.classes

    @property
    def probabilities(self) -> Tensor:
        """(rows, classes)"""
        return self._of_classes("probabilities").scores

    @property
    def values(self) -> Tensor:
        """float64 (rows,): the predicted numbers, as the labels were given."""
        if self.task.kind != REGRESSION:
            raise DataError(
                f"'{self.party}' predicts classes, so there are no values: use probabilities, or "
                "decisions"
            )
        return self.scores

    @property
    def codes(self) -> Tensor:
        """int64 (rows,): the numbers of the decisions among the classes."""
        known = self._of_classes("codes")
        if known.decision.threshold is None:
            return known.scores.argmax(1)
        return torch.from_numpy(known.decision.decide(known.scores))

    @property
    def decisions(self) -> list[str]:
        """The class of every row by name: text, also where numbers were given.

        Of two classes the positive one where its probability reaches the threshold; of many the
        most probable one.
        """
        known = self._of_classes("decisions")
        return [known.classes[code] for code in known.codes.tolist()]

    @property
    def labels(self) -> list[str]:
        """The same as `decisions`."""
        return self.decisions

    @property
    def threshold(self) -> float | None:
        """Of the positive one of two classes: what the run chose, else 0.5; else None."""
        if self.task.kind != BINARY:
            return None
        return HALF if self.decision.threshold is None else self.decision.threshold

    @property
    def positive(self) -> str:
        """The class that the threshold is about; "" unless there are two."""
        return self.classes[self.decision.positive] if self.task.kind == BINARY else ""

    def score(self, y: object, weights: object = None) -> dict[str, float | None]:
        """Every measure of the task by name, see docs/reference/measures.md; None where these rows
        do not define it.

        y        the true labels, as they were given for training
        weights  how much each row counts
        """
        return measures(self.scored(y, weights))

    def scored(self, y: object, weights: object = None) -> Scored:
        """The rows beside their true labels, as the functions of `colonnade.task` take them."""
        return scored(
            self.task.kind,
            self._truth(y),
            self.scores,
            weights=weights,
            positive=self.decision.positive,
            threshold=self.decision.threshold,
            rate=self.rate,
        )

    def accuracy(self, y: object) -> float:
        """The share of rows whose label is right; `y` as it was given for training."""
        known = self._of_classes("accuracy")
        return int((known.codes == known._truth(y)).sum()) / len(self)

    def only(self, rows: Sequence[int]) -> Prediction:
        """The prediction of some of the rows."""
        at = torch.tensor(rows, dtype=torch.int64)
        names = tuple(self.names[row] for row in rows) if self.names else ()
        return replace(self, ids=self.ids[at], scores=self.scores[at], names=names)

    def knows(self, label: str) -> bool:
        """Whether this text is a label that the prediction can be compared with."""
        return is_label(label, self.task)

    def __len__(self) -> int:
        return len(self.ids)

    def _of_classes(self, what: str) -> Prediction:
        if self.task.kind == REGRESSION:
            raise DataError(
                f"'{self.party}' predicts numbers, so there are no classes, and no {what}: use "
                "values, or score(y)"
            )
        return self

    def _truth(self, y: object) -> Tensor:
        truth = data.label_codes(y, self.classes)
        if len(truth) != len(self):
            raise DataError(f"{len(truth)} labels for {len(self)} predicted rows: give one each")
        return truth


@dataclass(frozen=True, eq=False)
class Truth:
    """The labels of predicted rows, as text, and how much the rows count."""

    labels: Sequence[str]  # "" where there is none
    weights: Tensor | None = None


def made(
    party: Party,
    outputs: Tensor,
    ids: Tensor,
    names: Sequence[str],
    run: Path,
    saved: Mapping[str, Any],
    rate: float | None = None,
) -> Prediction:
    """What the outputs of a party's models amount to.

    run    its folder
    saved  what lies beside the weights of the party that decides; by default, and in older runs,
           the most probable class is predicted, and probabilities stay as they are
    rate   of `recall_at_rate`; None: its usual one
    """
    task, told = party.task, saved.get("decision")
    scores, decision = task.scores(outputs.detach()).cpu(), Decision(positive=task.positive)
    if told and task.kind != REGRESSION:
        by = Ruling.from_told(told)
        decision = by.decision
        if by.calibration.way != "none":
            scores = torch.from_numpy(np.ascontiguousarray(by.calibration.apply(scores)))
    return Prediction(
        party.name,
        task,
        ids,
        scores,
        tuple(names),
        decision,
        RATE if rate is None else rate,
        run.resolve().name,
        party.kept.sha256()[:DIGITS],
    )


def is_label(text: str, task: Task) -> bool:
    """Whether a text is a label of this task: one of its classes, or a finite number."""
    if task.kind != REGRESSION:
        return data.class_of(text, task.classes) is not None
    number = as_number(text)
    return number is not None and bool(np.isfinite(number))
