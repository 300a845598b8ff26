"""Networks by name, for configurations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any, get_args

import torch
from torch import nn

from colonnade.errors import ConfigError, unknown
from colonnade.models.cnn import cnn, lenet
from colonnade.models.layers import Activation, Padding
from colonnade.models.mlp import mlp
from colonnade.models.own import check_own, is_own, own_network
from colonnade.models.resnet import PLANS, resnet
from colonnade.models.vgg import vgg16

WHY_LETTERS = 200  # of an error of PyTorch
Build = Callable[..., nn.Sequential]

RESNETS: dict[str, Build] = {f"resnet{depth}": partial(resnet, depth) for depth in PLANS}
BUILDERS: MappingProxyType[str, Build] = MappingProxyType(
    {"mlp": mlp, "cnn": cnn, "lenet": lenet, "vgg16": vgg16, **RESNETS}
)


def names() -> tuple[str, ...]:
    """The networks that `network` and `head` know."""
    return tuple(BUILDERS)


def options(name: str) -> tuple[str, ...]:
    """The options of a network, all with defaults."""
    parameters = inspect.signature(_builder(name)).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def network(name: str, shape: tuple[int, ...], out: int, **options: Any) -> nn.Module:
    """An embedding network h: (batch, *shape) → (batch, out), ending in a ReLU.

    `shape` is (channels, height, width) or (features,). The option `activated=False` leaves the
    ReLU out, for networks that end in class scores. `name` may be "file.py:build", see own.py.
    """
    if is_own(name):
        return own_network(name, shape, out, **options)
    build = _builder(name)
    problems = _shape_problems(name, shape, out) + _option_problems(name, options)
    if problems:
        raise ConfigError(problems)
    return build(shape, out, **options)


def check(name: str, shape: tuple[int, ...], **options: Any) -> None:
    """Refuse a network that cannot take rows of this shape, without allocating weights."""
    if is_own(name):
        check_own(name, shape, 8, **options)
        return
    try:
        with torch.device("meta"):
            network(name, shape, 8, **options)
    except (RuntimeError, TypeError, OverflowError) as error:  # of PyTorch: beyond 64 bits
        why = str(error).partition("\n")[0][:WHY_LETTERS]
        raise ConfigError([f"model '{name}': no network has this size: {why}"]) from None


def head(name: str, dim: int, classes: int) -> nn.Module:
    """The decision layers p that belong to a network: (batch, dim) → (batch, classes) scores."""
    if not is_own(name):
        _builder(name)
    if name == "lenet":
        return mlp((dim,), classes, hidden=(84,), activated=False)
    if name == "vgg16":
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(dim, classes))
    return nn.Linear(dim, classes)


def _builder(name: str) -> Build:
    if name not in BUILDERS:
        raise ConfigError([unknown(name, BUILDERS, what="model")])
    return BUILDERS[name]


def _shape_problems(name: str, shape: tuple[int, ...], out: int) -> list[str]:
    problems = []
    if len(shape) not in (1, 3) or min(shape, default=0) < 1:
        problems.append(
            f"model '{name}': features of shape {tuple(shape)} are neither (channels, height, "
            "width) nor (features,)."
        )
    if out < 1:
        problems.append(f"model '{name}': a network has at least one output, not {out}.")
    return problems


def _option_problems(name: str, given: dict[str, Any]) -> list[str]:
    valid = options(name)
    problems = []
    for option, value in given.items():
        if option not in valid:
            problems.append(unknown(option, valid, f"of model '{name}'", "option"))
        elif (wanted := _wanted(option, value)) is not None:
            problems.append(f"model '{name}': {option} must be {wanted}, not {value!r}.")
    return problems


def _wanted(option: str, value: Any) -> str | None:
    """The values that an option allows, or None if this value is one of them."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match option:
        case "width":
            return None if number and 0 < value < float("inf") else "a number above 0"
        case "dropout":
            return None if number and 0 <= value < 1 else "a number from 0 up to, not including, 1"
        case "activated":
            return None if isinstance(value, bool) else "true or false"
        case "hidden" | "fc":
            listed = isinstance(value, list | tuple)
            return None if listed and all(_positive(n) for n in value) else "a list of widths"
        case "activation":
            return _one_of(value, get_args(Activation))
        case "padding":
            return _one_of(value, get_args(Padding))
        case _:
            return None


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _one_of(value: Any, valid: tuple[str, ...]) -> str | None:
    return None if value in valid else "one of " + ", ".join(f"'{v}'" for v in valid)
