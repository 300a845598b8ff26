"""Cut a network in two."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from colonnade.errors import ConfigError


def cuts(model: nn.Sequential) -> tuple[str, ...]:
    """The places where `model` can be cut: after each of its layers but the last."""
    # Not named_children(): it lists a layer that is used twice only once.
    return tuple(model._modules)[:-1]


def split(model: nn.Sequential, at: str | int) -> tuple[nn.Sequential, nn.Sequential]:
    """`bottom` and `top`, such that `top(bottom(x))` is `model(x)`; both share its parameters.

    `at` is the last layer of the bottom by name ("2C+1M", "stage2", "layer4"), or the number of
    layers in the bottom.
    """
    places = cuts(model)
    count = places.index(at) + 1 if at in places else at
    if isinstance(count, int) and 1 <= count <= len(places):
        layers = list(model._modules.items())
        return _sequence(layers[:count]), _sequence(layers[count:])
    shown = f"'{at}'" if isinstance(at, str) else f"after layer {at}"
    named = ", ".join(places) if isinstance(at, str) else f"1 to {len(places)}"
    valid = named if places else "none: it has one layer"
    raise ConfigError([f"this network has no cut {shown}. The cuts are: {valid}."])


def _sequence(layers: Sequence[tuple[str, nn.Module | None]]) -> nn.Sequential:
    return nn.Sequential(OrderedDict((name, layer) for name, layer in layers if layer is not None))
