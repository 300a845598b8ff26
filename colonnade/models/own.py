"""A network of the user's own: model = "net.py:build" names a function or class in a file.

It is called as build(shape, out, **model_options), like the networks that come with Colonnade, and
returns a module (batch, *shape) → (batch, out).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from colonnade.errors import ConfigError
from colonnade.plugin import Rule, Source, admit, admitted, approved, load_module


def is_own(name: str) -> bool:
    return ".py:" in name


def path_of(name: str) -> Path:
    return Path(name.rpartition(":")[0])


def source_of(name: str) -> Source:
    """The file's bytes, as they were admitted."""
    return admitted(path_of(name)) or admit_network(name)


def admit_network(name: str, rule: Rule = approved) -> Source:
    """Read the network's file and ask whether it may be executed, before anything builds it."""
    return admit(path_of(name), "model", _ModelError, rule)


def is_admitted(name: str) -> bool:
    return admitted(path_of(name)) is not None


def own_network(name: str, shape: tuple[int, ...], out: int, **options: Any) -> nn.Module:
    """Build the network; whatever its code raises becomes a ConfigError."""
    builder = find_builder(name)
    try:
        network = builder(shape, out, **options)
    except Exception as error:
        raise ConfigError(
            [f"model '{name}' for rows of shape {shape}: {type(error).__name__}: {error}"]
        ) from error
    if not isinstance(network, nn.Module):
        raise ConfigError([f"model '{name}' returned a {type(network).__name__}, not an nn.Module"])
    if any(isinstance(weight, UninitializedParameter) for weight in network.parameters()):
        raise ConfigError([f"model '{name}' has lazy layers: give them their sizes, from {shape}"])
    return network


def check_own(name: str, shape: tuple[int, ...], out: int, **options: Any) -> None:
    """Build it once and check that two rows become (2, out); no generator's state changes."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = own_network(name, shape, out, **options).eval()
        try:
            given = tuple(network(torch.zeros(2, *shape)).shape)
        except Exception as error:
            raise ConfigError(
                [f"model '{name}' on rows of shape {shape}: {type(error).__name__}: {error}"]
            ) from error
    if given != (2, out):
        raise ConfigError(
            [f"model '{name}' turns two rows into {given}; asked for {out} outputs: (2, {out})"]
        )


def find_builder(name: str) -> Any:
    file, _, attribute = name.rpartition(":")
    module = load_module(Path(file), "model", _ModelError)
    builder = getattr(module, attribute, None)
    if not callable(builder):
        raise ConfigError([f"model '{name}': {Path(file).name} has nothing callable '{attribute}'"])
    return builder


class _ModelError(ConfigError):
    def __init__(self, problem: str) -> None:
        super().__init__([problem])
