"""Networks that are random and stay so: whoever knows the seed has the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from colonnade.models.joined import part_of, take_back, widths_of


def drawn_part(widths: Sequence[int], seed: int) -> dict[str, Tensor]:
    """The weights of linear layers of these widths, as `Joined.load` takes them."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    for number, (into, out) in enumerate(pairwise(widths)):
        found[f"{number}.weight"] = _drawn(torch.Size((out, into)), generator)
        found[f"{number}.bias"] = torch.zeros(out)
    return found


def draw_public(public: nn.Module, seed: int) -> None:
    """Give a part that can be joined these weights, for good."""
    take_back(public, drawn_part(widths_of(part_of(public)), seed))
    public.requires_grad_(False)


def draw_private(private: nn.Module, seed: int) -> None:
    """Random weights for every linear or convolution layer of a part, for good."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in private.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.weight.copy_(_drawn(layer.weight.shape, generator))
                if layer.bias is not None:
                    layer.bias.zero_()
    private.requires_grad_(False)


def _drawn(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """What keeps the size of what goes through layers with ReLUs (He et al. 2015)."""
    bound = (6 / shape[1:].numel()) ** 0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
