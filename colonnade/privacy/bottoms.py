"""What protecting its vectors means for the network that makes them.

clip      its output is shortened to ‖·‖₂ ≤ C inside the network, so that it learns through that:
          gradients that pass by the clip, as if there were none, train it worse
frozen    it stays as it was drawn: statistics of batches too, and no optimiser changes it
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.privacy.settings import Protect
from colonnade.role.party import Party

NETWORKS = ("bottom", "embedding", "extractor", "model")  # what methods call it


def shape(me: Party, how: Protect) -> None:
    """Do that to the network of a party without labels, before its role begins."""
    if not me.labelled:
        me.kept.on_thing = partial(_shape, how)


def _shape(how: Protect, name: str, thing: Any) -> None:
    frozen = how.bottom == "frozen"
    if isinstance(thing, nn.Module) and name in NETWORKS:
        thing.register_forward_hook(partial(_clip, how.embedding_clip))
    if frozen and isinstance(thing, nn.Module):
        for layer in thing.modules():
            layer.training = False
    if frozen and isinstance(thing, torch.optim.Optimizer):
        thing.register_step_pre_hook(_without_gradients)


def _clip(most: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    norms = output.flatten(1).norm(dim=1).view(-1, *[1] * (output.dim() - 1))
    clipped: Tensor = output * (most / norms.clamp(min=most))
    return clipped


def _without_gradients(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
    """Before a step: there is nothing to step along."""
    optimizer.zero_grad(set_to_none=True)
