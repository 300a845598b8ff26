"""Changes of an optimiser between two rounds."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Train at `factor` times the full rate; from now on the recipe's schedule no longer acts."""
    for group in optimizer.param_groups:
        group["full_lr"] = group.pop("initial_lr", group.get("full_lr", group["lr"]))
        group["lr"] = group["full_lr"] * factor


def forget_momentum(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Set to zero what the optimiser remembers of these parameters."""
    for parameter in parameters:
        for value in optimizer.state.get(parameter, {}).values():
            if isinstance(value, Tensor):
                value.zero_()  # a fused optimiser needs the state of all parameters or of none
