"""Fully connected networks of any depth and width."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from colonnade.models.layers import Activation, named, nonlinearity


def mlp(
    shape: tuple[int, ...],
    out: int,
    *,
    hidden: Sequence[int] = (256,),
    activation: Activation = "relu",
    activated: bool = True,
) -> nn.Sequential:
    """`hidden` layers, then `out` features: (batch, *shape) → (batch, out).

    The default is EASTER's MLP of three layers, FC 256 ReLU → FC d ReLU and its head; 256 is ours.
    FedEmb's "8-layer MLP with 128 neurons in each hidden layer" is
    `mlp((98,), 10, hidden=(128,) * 7, activated=False)`; that it is cut in the middle, at "layer4",
    is our default.
    """
    widths = [prod(shape), *hidden, out]
    depth = len(widths) - 1
    layers = {}
    for k in range(1, depth + 1):
        layer: dict[str, nn.Module] = {"flatten": nn.Flatten()} if k == 1 and shape[1:] else {}
        layer["linear"] = nn.Linear(widths[k - 1], widths[k])
        if k < depth or activated:
            layer[activation] = nonlinearity(activation)
        layers[f"layer{k}"] = named(layer)
    return named(layers)
