"""One pixel around a map, for 3×3 convolutions over tiles of an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Sides = tuple[bool, bool, bool, bool]  # left, right, top, bottom
EVERYWHERE: Sides = (True, True, True, True)


class Border(nn.Module):
    """Repeats the outermost pixels on some sides; the others get zeros.

    `flips` says which images of the next batch are mirrored: their left is the others' right.
    """

    flips: Tensor | None = None  # bool (batch,)

    def __init__(self, repeated: Sides = EVERYWHERE) -> None:
        super().__init__()
        self.repeated = repeated

    def forward(self, x: Tensor) -> Tensor:
        left, right, top, bottom = (float(side) for side in self.repeated)
        swap: float | Tensor = 0.0
        if self.flips is not None and left != right:
            swap = self.flips.to(x.dtype)[:, None, None, None] * (right - left)
        padded: Tensor = _Repeated.apply(x, left + swap, right - swap, top, bottom)  # type: ignore[no-untyped-call]
        return padded

    def extra_repr(self) -> str:
        return f"repeated={self.repeated}"


def tell_flips(network: nn.Module, flips: Tensor | None) -> None:
    """Pass every border of a network the images of the next batch that are mirrored."""
    for layer in network.modules():
        if isinstance(layer, Border):
            layer.flips = flips


class _Repeated(torch.autograd.Function):
    """`pad(mode="replicate")`, with a factor for each side.

    PyTorch's own backward pass adds in any order on a GPU. This one gives equal bits in every run,
    keeps the channels last, and copies the gradient only once.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *sides: float | Tensor) -> Tensor:
        ctx.sides = left, right, top, bottom = sides
        rows, channels, height, width = x.shape
        out = torch.empty(
            (rows, channels, height + 2, width + 2),
            dtype=x.dtype,
            device=x.device,
            memory_format=torch.channels_last,
        )
        out[:, :, 1:-1, 1:-1] = x
        out[:, :, 0, 1:-1] = x[:, :, 0] * top
        out[:, :, -1, 1:-1] = x[:, :, -1] * bottom
        out[..., :1] = out[..., 1:2] * left
        out[..., -1:] = out[..., -2:-1] * right
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        left, right, top, bottom = ctx.sides
        inner = gradient[..., 1:-1].clone(memory_format=torch.channels_last)
        inner[..., :1] += gradient[..., :1] * left
        inner[..., -1:] += gradient[..., -1:] * right
        result = inner[:, :, 1:-1]
        result[:, :, 0] += inner[:, :, 0] * top
        result[:, :, -1] += inner[:, :, -1] * bottom
        return result, None, None, None, None
