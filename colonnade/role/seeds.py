"""Random numbers of a run: a seed for each purpose, and the states of a party's generators."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def derive(seed: int, *names: object) -> int:
    """An independent seed for every purpose: data split, initialisation, batch order, …"""
    text = "/".join(str(name) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of the generators that initialisation and dropout draw from."""
    states = {"cpu": torch.default_generator.get_state()}
    if device.type == "cuda":
        states["cuda"] = _cuda_generator(device).get_state()
    return states


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put the generators back to where `random_state` found them."""
    torch.default_generator.set_state(states["cpu"])
    if device.type == "cuda":
        _cuda_generator(device).set_state(states["cuda"])


def _cuda_generator(device: torch.device) -> torch.Generator:
    # torch.cuda.get_rng_state returns the same at ten times the cost.
    torch.cuda.init()
    number = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[number]
    return generator
