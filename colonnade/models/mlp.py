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

    The default is EASTER's (§4.7), FC 256 ReLU → FC d ReLU. FedEmb's eight layers (§3.2) are
    `mlp((98,), 10, hidden=(128,) * 7, activated=False)`, cut in the middle at "layer4".
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
