"""The mean of what one party sent during training: it stands in for that party in its absence."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Mean(nn.Module):
    """The mean of all rows so far; zero before the first.

    It is a module, so it is kept with the weights, but it has nothing that an optimiser would see.
    The sum has more digits than its rows: a long training adds up millions of them.
    """

    total: Tensor  # float64, of the shape of one row
    rows: Tensor  # int64 ()

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    def add(self, values: Tensor) -> None:
        """Count these rows too, (rows, *shape)."""
        self.total.add_(values.sum(0))
        self.rows.add_(len(values))

    def value(self) -> Tensor:
        return (self.total / self.rows.clamp(min=1)).float()

    def replace(self, mean: Tensor) -> None:
        """Take a mean that another party reports."""
        self.total.copy_(mean)
        self.rows.fill_(1)
