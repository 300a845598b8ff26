"""What stands in for labels that are protected: one randomised answer for each training row.

A row's answer is one of m groups of classes, drawn once; mostly each class is a group of its own.

    P(answer = G | y) = a if y is in G, else b        a = e^ε / (e^ε + m - 1), b = a / e^ε

The loss is the likelihood of the answer, not that of a label. With p(y) a model's probability of y,

    P(answer = G | x) = a P_G + b (1 - P_G)           P_G = Σ_{y in G} p(y)

(forward correction, Patrini et al., 2017), which is best where p is the distribution of the true
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


def chances(epsilon: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of rows with these ε and numbers of groups, float64 (rows,)."""
    less = torch.exp(-epsilon.double())
    kept = 1 / (1 + less * (groups.double() - 1))
    return kept, kept * less


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
        self,
        answers: Tensor,
        epsilon: Tensor,
        groups: Tensor,
        classes: int,
        members: Tensor | None = None,
    ) -> None:
        """
        answers  int64 (rows,): a class of the answered group; -1: not answered yet
        epsilon  float64 (rows,), at which each was drawn
        groups   int64 (rows,): m
        members  bool (rows, classes): all classes of the answered group; None: that one alone
        """
        kept, other = chances(epsilon, groups)
        self.classes, self.answers = classes, answers.clamp(min=0)
        self.answered = answers >= 0
        self.whole = bool(self.answered.all())
        self.members = members
        self._gain, self._other = (kept - other).float(), other.float()
        self.seen: Sightings | None = None  # where an epoch's predictions are wanted

    def loss(self, outputs: Tensor, batch: Rows) -> Tensor:
        """The mean over the batch's answered rows of -log P(answer | x); rows count by their
        weights."""
        rows = batch.rows
        if rows is None:
            raise ColonnadeError("a loss of protected labels is of training rows: use me.batches()")
        probabilities = outputs.float().softmax(1)
        if self.seen is not None:
            self.seen.add(rows, probabilities.detach())
        if self.members is None:
            inside = probabilities.gather(1, self.answers[rows, None])[:, 0]
        else:
            inside = (probabilities * self.members[rows]).sum(1)
        chance = self._other[rows] + self._gain[rows] * inside
        losses = -chance.clamp(min=torch.finfo(torch.float32).tiny).log()
        if batch.weights is not None:
            losses = batch.weights * losses
        if self.whole:
            return losses.mean()
        answered = self.answered[rows]
        return torch.where(answered, losses, 0.0).sum() / answered.sum().clamp(min=1)

    def shares(self, labels: Tensor) -> Tensor:
        """What answers say of classes, without bias where each class is a group of its own: the
        mean of many rows' lines is the share of each class, (rows, classes)."""
        named = F.one_hot(labels, self.classes).float()
        return (named - self._other[:, None]) / self._gain[:, None]
