"""What stands in for labels that are protected: one randomised answer for each training row.

A row's answer ỹ is drawn once among its candidate classes Y, of which there are k:

    P(ỹ | y) = a for ỹ = y, b for every other ỹ in Y       a = e^ε / (e^ε + k - 1), b = a / e^ε
    P(ỹ | y) = 1/k for every ỹ in Y, where y is not in Y

The loss is the likelihood of the answer, not that of a label. With p(y) a model's probability of y,

    P(ỹ | x) = p(ỹ) a + (P_Y - p(ỹ)) b + (1 - P_Y) / k     P_Y = Σ_{y in Y} p(y)

(forward correction, Patrini et al., 2017), which is least where p is the distribution of the true
label. Rows without an answer count nothing. `privacy/labels.py` draws the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade.errors import ColonnadeError


class Rows(Protocol):
    """A batch of training rows, by their positions in the split."""

    @property
    def rows(self) -> Tensor | None: ...
    @property
    def weights(self) -> Tensor | None: ...


def chances(epsilon: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of rows with these ε and numbers of candidates, float64 (rows,)."""
    others = torch.exp(-epsilon.double()) * (candidates.double() - 1)
    kept = 1 / (1 + others)
    return kept, kept * torch.exp(-epsilon.double())


@dataclass
class Sightings:
    """What models have said about rows in an epoch: the prior of those that are still to answer."""

    total: Tensor  # (rows, classes): the sum of all probabilities
    times: Tensor  # (rows,): how many there were

    @classmethod
    def none(cls, rows: int, classes: int, device: torch.device) -> Sightings:
        return cls(torch.zeros(rows, classes, device=device), torch.zeros(rows, device=device))

    def add(self, rows: Tensor, probabilities: Tensor) -> None:
        self.total[rows] += probabilities.to(self.total.dtype)
        self.times[rows] += 1

    def prior(self) -> Tensor:
        """Float64 (rows, classes); all classes alike where nothing was said."""
        classes = self.total.shape[1]
        mean = self.total.double() / self.times.double().clamp(min=1)[:, None]
        return torch.where(self.times[:, None] > 0, mean, 1 / classes)


class Responses:
    """The answers of all training rows of one party, as its losses need them."""

    def __init__(
        self, answers: Tensor, epsilon: Tensor, candidates: Tensor | None, classes: int
    ) -> None:
        """
        answers     int64 (rows,); -1: not answered yet
        epsilon     float64 (rows,), at which each was drawn
        candidates  bool (rows, classes): Y; None: all classes in every row
        """
        sizes = torch.full_like(epsilon, classes) if candidates is None else candidates.sum(1)
        kept, other = chances(epsilon, sizes)
        self.classes, self.answers = classes, answers.clamp(min=0)
        self.answered = answers >= 0
        self.whole = bool(self.answered.all())
        self.candidates = candidates
        self._gain, self._other = (kept - other).float(), other.float()
        self._outside = (1 / sizes.double().clamp(min=1)).float()
        self.seen: Sightings | None = None  # where an epoch's predictions are wanted

    def loss(self, outputs: Tensor, batch: Rows) -> Tensor:
        """The mean over the batch's answered rows of -log P(ỹ | x); rows count by their weights."""
        rows = batch.rows
        if rows is None:
            raise ColonnadeError("a loss of protected labels is of training rows: use me.batches()")
        probabilities = outputs.float().softmax(1)
        if self.seen is not None:
            self.seen.add(rows, probabilities.detach())
        chance = self._gain[rows] * probabilities.gather(1, self.answers[rows, None])[:, 0]
        if self.candidates is None:
            chance = chance + self._other[rows]
        else:
            inside = (probabilities * self.candidates[rows]).sum(1)
            chance = chance + inside * self._other[rows] + (1 - inside) * self._outside[rows]
        losses = -chance.clamp(min=torch.finfo(torch.float32).tiny).log()
        if batch.weights is not None:
            losses = batch.weights * losses
        if self.whole:
            return losses.mean()
        answered = self.answered[rows]
        return torch.where(answered, losses, 0.0).sum() / answered.sum().clamp(min=1)

    def shares(self, labels: Tensor) -> Tensor:
        """What answers say of classes, without bias where all classes are
        candidates: the mean of many rows' lines is the share of each class, (rows, classes)."""
        named = F.one_hot(labels, self.classes).float()
        return (named - self._other[:, None]) / self._gain[:, None]
