"""The layers from which all networks are built."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from math import gcd
from typing import Literal

from torch import nn

from colonnade.errors import ConfigError

Activation = Literal["relu", "sigmoid", "tanh", "leaky_relu"]
Padding = Literal["zeros", "replicate"]
Norm = Literal["batch", "group"]
GROUPS = 8  # of channels at most, each of which a group norm normalises by itself


def named(layers: Mapping[str, nn.Module]) -> nn.Sequential:
    """The layers in order; a name is also the place right after that layer, see `split`."""
    return nn.Sequential(OrderedDict(layers))


def normed(norm: Norm, channels: int) -> nn.Module:
    """A normalisation by all rows of a batch, or of each row by itself."""
    if norm == "group":
        return nn.GroupNorm(gcd(channels, GROUPS), channels)
    return nn.BatchNorm2d(channels)


def nonlinearity(name: Activation) -> nn.Module:
    kinds: dict[str, type[nn.Module]] = {
        "relu": nn.ReLU,
        "sigmoid": nn.Sigmoid,
        "tanh": nn.Tanh,
        "leaky_relu": nn.LeakyReLU,
    }
    return kinds[name]()


def embedding(features: int, out: int, activated: bool, **before: nn.Module) -> nn.Sequential:
    """The last layer of a network: FC `out` and, if `activated`, ReLU."""
    layers = before | {"flatten": nn.Flatten(), "linear": nn.Linear(features, out)}
    return named(layers | {"relu": nn.ReLU()} if activated else layers)


def scaled(channels: int, width: float) -> int:
    return max(1, round(channels * width))


def image(network: str, shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """(channels, height, width); an error says why if this network cannot take the shape."""
    if len(shape) != 3:
        raise ConfigError(
            [
                f"model '{network}' works on images (channels, height, width), and these features "
                f"have the shape {shape}. Use 'mlp' for tables."
            ]
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ConfigError(
            [
                f"model '{network}' needs images of at least {smallest}×{smallest} pixels, "
                f"and these are {height}×{width}. Give the party a larger part of the image, "
                "or use 'mlp' or a resnet, which take any size."
            ]
        )
    return channels, height, width
