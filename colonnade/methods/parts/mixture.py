"""One prediction from two networks: a mixture of what they say, which held-out rows choose."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.task import Task

PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the first network that are tried


class Mixture(nn.Module):
    """The share `part` of the first network's probabilities, the rest from the second one's; of
    numbers likewise."""

    part: Tensor

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.register_buffer("part", torch.tensor(0.5))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """The logarithms of the mixed probabilities, or the mixed numbers."""
        if not self.task.classes:
            return self.part * first + (1 - self.part) * second
        ours = first.log_softmax(1) + self.part.log()
        return torch.logaddexp(ours, second.log_softmax(1) + (1 - self.part).log())

    def choose(self, first: Tensor, second: Tensor, labels: Tensor) -> None:
        """Take the part with the lowest loss on rows that trained neither network.

        Of equally good parts the one nearest to one half.
        """
        found = []
        for part in PARTS:
            self.part.fill_(part)
            loss = float(self._loss(self(first, second), labels))
            found.append((round(loss, 6), abs(part - 0.5), part))
        self.part.fill_(min(found)[2])

    def _loss(self, mixed: Tensor, labels: Tensor) -> Tensor:
        if not self.task.classes:
            return F.mse_loss(mixed[:, 0], self.task.scaled(labels, mixed))
        return F.nll_loss(mixed, labels)
