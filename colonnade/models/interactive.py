"""Hetero-NN's interactive layer z = b + W_0 α_0 + Σ_m W_m α_m, in the parts that parties hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class OwnLayer(nn.Module):
    """The active party's own part of the interactive layer: b + W_0 α_0."""

    def __init__(self, dim: int, width: int, own: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.own = nn.Linear(dim, width, bias=False) if own else None

    def forward(self, embeddings: Sequence[Tensor]) -> Tensor:
        return self.bias if self.own is None else self.own(embeddings[0]) + self.bias


class MaskedWeight(nn.Module):
    """The active party's share of one W_m: the true weights minus ε_acc.

    The active party draws the first weights, as in FATE, so it knows them; after the first step it
    does not know them any longer.
    """

    weight: Tensor  # float64 (dim, width)

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        drawn = nn.Linear(dim, width, bias=False).weight.detach().T
        self.register_buffer("weight", drawn.double().contiguous())


class AccumulatedMask(nn.Module):
    """ε_acc: the sum of all ε_m so far, known to party m alone."""

    total: Tensor  # float64 (dim, width)

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(dim, width, dtype=torch.float64))
