"""What is to be learnt: classes or a number, with the loss and the outputs that this needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade.errors import DataError, foreign
from colonnade.task.measures import measure, scored
from colonnade.task.response import Responses

MOST_CLASSES, NAME_LETTERS = 1000, 2000  # of a task that others tell, and of its result
Kind = Literal["binary", "multiclass", "regression"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DEFAULT_METRIC: Mapping[Kind, str] = {
    "binary": "auc",
    "multiclass": "accuracy",
    "regression": "rmse",
}


class Labelled(Protocol):
    """Rows with labels, as a batch has them."""

    @property
    def labels(self) -> Tensor: ...
    @property
    def weights(self) -> Tensor | None: ...
    @property
    def rows(self) -> Tensor | None: ...


@dataclass(frozen=True)
class Task:
    """What the labels are, and how predictions of them are trained and read.

    Labels are int64 numbers of classes, or float64 numbers as the label holder wrote them. Models
    have one output per class, or one for a number in units of its spread around its mean.
    """

    kind: Kind
    classes: tuple[str, ...] = ()  # none in regression
    metric: str = ""  # what decides; empty: the task's usual one
    positive: int = 1  # binary: the number of the class that scores are about
    mean: float = 0.0  # regression: of the training labels
    spread: float = 1.0  # regression: their standard deviation
    # How much classes count in training: all alike, each as much as the others, or these numbers
    class_weight: Literal["none", "balanced"] | tuple[float, ...] = "none"
    # Classes that are protected: what stands in for the labels of training rows; see response.py
    responses: Responses | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(classes: Sequence[str]) -> Task:
        """The task that classes alone say; a party that was told none has no task yet."""
        return Task("binary" if len(classes) == 2 else "multiclass", tuple(classes))

    @property
    def outputs(self) -> int:
        """How many numbers a model says about a row."""
        return 1 if self.kind == "regression" else len(self.classes)

    @property
    def decides_by(self) -> str:
        """The metric that early stopping and comparisons look at."""
        return self.metric or DEFAULT_METRIC[self.kind]

    def fitted(self, labels: Tensor | None) -> Task:
        """The same task with the mean and spread of these training labels."""
        if self.kind != "regression" or labels is None or not len(labels):
            return self
        spread = float(labels.double().std(correction=0))
        return replace(self, mean=float(labels.double().mean()), spread=spread or 1.0)

    # ---- training ----------------------------------------------------------------------------

    def loss(self, outputs: Tensor, batch: Labelled) -> Tensor:
        """The mean over rows of cross-entropy, or of the squared error in units of the spread; rows
        count by their weights, if they have any. Of protected labels, that of their answers."""
        if self.responses is not None:
            return self.responses.loss(outputs, batch)
        return self._loss(outputs, batch.labels, batch.weights)

    def _loss(self, outputs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.kind == "regression":
            truth = self.scaled(labels, outputs)
            if weights is None:
                return F.mse_loss(outputs[:, 0], truth)
            return (weights * (outputs[:, 0] - truth).square()).mean()
        if weights is None:  # one kernel, and its bits
            return F.cross_entropy(outputs, labels)
        return (weights * F.cross_entropy(outputs, labels, reduction="none")).mean()

    def row_weights(self, labels: Tensor, own: Tensor | None) -> Tensor | None:
        """How much each of these training rows counts, with mean 1; None: all alike.

        own  weights that the rows came with
        """
        if self.class_weight == "none":
            weights = None if own is None else own.double()
        else:
            weights = self._of_classes(labels)[labels]
            weights = weights if own is None else weights * own.double()
        return None if weights is None else (weights / weights.mean()).float()

    def _of_classes(self, labels: Tensor) -> Tensor:
        """The weight of every class."""
        if isinstance(self.class_weight, tuple):
            return torch.tensor(self.class_weight, dtype=torch.double, device=labels.device)
        counts = torch.bincount(labels, minlength=len(self.classes))
        return 1 / counts.clamp(min=1).double()

    def scaled(self, labels: Tensor, like: Tensor) -> Tensor:
        """Numbers as a model learns them: around 0, with spread 1."""
        return ((labels.double() - self.mean) / self.spread).to(like)

    # ---- reading predictions -----------------------------------------------------------------

    def scores(self, outputs: Tensor) -> Tensor:
        """Probabilities of classes, (rows, classes), or numbers as labels are, (rows,)."""
        if self.kind == "regression":
            return outputs[:, 0].double() * self.spread + self.mean
        return outputs.float().softmax(1)

    def progress(
        self, outputs: Tensor, labels: Tensor, weights: Tensor | None = None, *, whole: bool
    ) -> dict[str, Tensor | float]:
        """How good these outputs are, while a training goes on.

        weights  of the rows, in every number
        whole    also the loss, and the metric that decides, where these rows define it
        """
        found: dict[str, Tensor | float] = {}
        share = None if weights is None else weights / weights.mean()  # the mean of shares is 1
        if self.kind == "regression":
            squares = (self.scores(outputs) - labels).square()
            found["rmse"] = (squares if share is None else share * squares).mean().sqrt()
        else:
            right = (outputs.argmax(1) == labels).double()
            found["accuracy"] = (right if share is None else share * right).mean()
        if whole:
            found["loss"] = self._loss(outputs, labels, share)
        if whole and self.decides_by not in found:
            scores = self.scores(outputs)
            rows = scored(self.kind, labels, scores, weights=weights, positive=self.positive)
            if (value := measure(self.decides_by, rows)) is not None:
                found[self.decides_by] = value
        return found

    # ---- what travels ------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """What the label holder tells the others: what their models predict."""
        if self.kind == "regression":
            return {"kind": self.kind, "mean": self.mean, "spread": self.spread}
        if not self.classes:
            return {}
        found: dict[str, Any] = {"kind": self.kind, "classes": list(self.classes)}
        return found | ({"positive": self.classes[self.positive]} if len(self.classes) == 2 else {})

    @staticmethod
    def from_told(told: object) -> Task:
        """What `told` says, by whoever says it; a DataError where it is no task."""
        said = dict(told) if isinstance(told, Mapping) else {}
        kind = said.pop("kind", None)
        if kind == "regression":
            mean, spread = said.pop("mean", None), said.pop("spread", None)
            if not (isinstance(mean, float) and isinstance(spread, float)) or said:
                raise DataError("numbers are to be learnt, and their mean and spread are not told")
            if not (isfinite(mean) and isfinite(spread) and spread > 0):
                raise DataError(f"numbers around {mean:g} with the spread {spread:g} are none")
            return Task(kind, mean=mean, spread=spread)
        if kind not in KINDS:
            raise DataError("what is to be learnt is not told, or is a task of another version")
        names, positive = said.pop("classes", None), said.pop("positive", None)
        if said or not isinstance(names, list) or not 2 <= len(names) <= MOST_CLASSES:
            raise DataError(f"classes are to be learnt, and no list of 2 to {MOST_CLASSES} is told")
        for name in names:
            if not (isinstance(name, str) and len(name) <= NAME_LETTERS and _is_text(name)):
                raise DataError(f"a class is no text of at most {NAME_LETTERS} letters")
        if len(set(names)) < len(names):
            raise DataError("two classes have one name")
        if kind == "binary" and len(names) != 2:
            raise DataError(f"two classes are to be learnt, and {len(names)} are told")
        task = Task(kind, tuple(names))
        if positive is None:
            return task
        if positive not in names or len(names) != 2:
            raise DataError(f"the class that scores are about is '{foreign(str(positive), 100)}'")
        return replace(task, positive=names.index(positive))


def _is_text(name: str) -> bool:
    """Whether it can be written to a file: JSON may tell of halves of letters, which cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)
