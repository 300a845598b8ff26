"""One prediction from two networks: a mixture of their probabilities that held-out rows choose."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the first network that are tried


class Mixture(nn.Module):
    """The share `part` of the first network's probabilities, the rest from the second one's."""

    part: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("part", torch.tensor(0.5))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """The logarithms of the mixed probabilities."""
        ours = first.log_softmax(1) + self.part.log()
        return torch.logaddexp(ours, second.log_softmax(1) + (1 - self.part).log())

    def choose(self, first: Tensor, second: Tensor, labels: Tensor) -> None:
        """Take the part with the lowest loss on rows that trained neither network.

        Of equally good parts the one nearest to one half.
        """
        found = []
        for part in PARTS:
            self.part.fill_(part)
            loss = float(F.nll_loss(self(first, second), labels))
            found.append((round(loss, 6), abs(part - 0.5), part))
        self.part.fill_(min(found)[2])
