"""Combines the networks that clients send to a server: one function for every strategy.

A network is two trees of tensors by name, its parameters and its buffers (BatchNorm's statistics).
Buffers are always averaged. A strategy takes the parameters θ with which the clients began, and the
parameters after their training; it may keep a memory from round to round:

    fedavg     Σ p_i θ_i                                             McMahan et al. 2017
    fedavgm    v ← β v + Δ;  θ + η v,  where Δ = Σ p_i θ_i - θ       Hsu et al. 2019
    fednova    θ + τ Σ p_i (θ_i - θ) / τ_i,  τ = Σ p_i τ_i           Wang et al. 2020
    fedadagrad, fedadam, fedyogi
               m ← β m + (1 - β) Δ;  θ + η m / (√v + ε)              Reddi et al. 2021
               v ← v + Δ²;  β₂ v + (1 - β₂) Δ²;  v - (1 - β₂) Δ² sign(v - Δ²)

FedProx (Li et al. 2020) changes what clients do, not the server: see `pull_back`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Tree = Mapping[str, Tensor]
Memory = dict[str, Any]  # of a strategy; kept in checkpoints
Name = Literal["fedavg", "fedavgm", "fednova", "fedadagrad", "fedadam", "fedyogi"]


@dataclass(frozen=True)
class Server:
    """How the server steps; fedavg and fednova need none of it."""

    lr: float = 1.0  # η
    momentum: float = 0.9  # β
    beta2: float = 0.99
    epsilon: float = 1e-3


@dataclass(frozen=True)
class Update:
    """What one client sends, and what it counts."""

    parameters: Tree
    share: float  # p_i, before it is divided by the sum of all
    work: float = 1.0  # τ_i, see `work_of`


def aggregate(
    name: Name, old: Tree, updates: Sequence[Update], server: Server, memory: Memory
) -> dict[str, Tensor]:
    """The parameters of the next round; `memory` is changed."""
    if name == "fedavg":
        return mean([u.parameters for u in updates], [u.share for u in updates])
    if name == "fednova":
        return _fednova(old, updates)
    return _with_memory(name, old, updates, server, memory)


def mean(trees: Sequence[Tree], shares: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean; of one tree, that tree bit for bit."""
    total = sum(shares)
    return {
        name: _weighted([tree[name] for tree in trees], [share / total for share in shares])
        for name in trees[0]
    }


def blended(old: Tree, new: Tree, part: float) -> dict[str, Tensor]:
    """The share `part` of `new` in `old`."""
    return mean([old, new], [1.0 - part, part])


def staleness_weight(rounds: int, exponent: float) -> float:
    """What a head counts that was begun so many rounds ago (Xie et al. 2019): (1 + s)^-a."""
    return float((1 + max(rounds, 0)) ** -exponent)


def work_of(steps: int, momentum: float) -> float:
    """FedNova's ‖a_i‖₁: how often a gradient counts, over so many steps of SGD with momentum."""
    if not momentum or not steps:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def pull_back(module: nn.Module, anchor: Tree, strength: float) -> None:
    """FedProx: the gradient of strength/2 · ‖θ - anchor‖², added to what `backward` left."""
    named = [(name, p) for name, p in module.named_parameters() if p.grad is not None]
    gradients = [p.grad for _, p in named]
    distance = torch._foreach_sub([p.detach() for _, p in named], [anchor[n] for n, _ in named])
    torch._foreach_add_(gradients, distance, alpha=strength)  # type: ignore[arg-type]


def _weighted(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    if not tensors[0].is_floating_point():  # a counter
        exact = sum(t.double() * share for t, share in zip(tensors, shares, strict=True))
        return torch.as_tensor(exact).round().to(tensors[0].dtype)
    total = tensors[0] * shares[0]
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        total = total.add(tensor, alpha=share)
    return total


def _fednova(old: Tree, updates: Sequence[Update]) -> dict[str, Tensor]:
    total = sum(u.share for u in updates)
    tau = sum(u.share / total * u.work for u in updates)
    steps = [u.share / total * tau / u.work for u in updates]
    return {
        name: before + _weighted([u.parameters[name] - before for u in updates], steps)
        for name, before in old.items()
    }


def _with_memory(
    name: Name, old: Tree, updates: Sequence[Update], server: Server, memory: Memory
) -> dict[str, Tensor]:
    average = mean([u.parameters for u in updates], [u.share for u in updates])
    velocity = _zeros_once(memory, "velocity", old)
    new: dict[str, Tensor] = {}
    for key, before in old.items():
        delta = average[key] - before
        if name == "fedavgm":
            velocity[key] = server.momentum * velocity[key] + delta
            new[key] = before + server.lr * velocity[key]
            continue
        velocity[key] = server.momentum * velocity[key] + (1 - server.momentum) * delta
        squares = _zeros_once(memory, "squares", old)
        squares[key] = _SQUARES[name](squares[key], delta**2, server.beta2)
        new[key] = before + server.lr * velocity[key] / (squares[key].sqrt() + server.epsilon)
    return new


_SQUARES: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "fedadagrad": lambda v, square, beta2: v + square,
    "fedadam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
    "fedyogi": lambda v, square, beta2: v - (1 - beta2) * square * (v - square).sign(),
}


def _zeros_once(memory: Memory, name: str, like: Tree) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = memory.setdefault(name, {})
    for key, tensor in like.items():
        kept[key] = kept[key].to(tensor.device) if key in kept else torch.zeros_like(tensor)
    return kept


def trees_of(
    module: nn.Module, buffers: bool = True
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Copies of the module's parameters and of its buffers; buffers=False: of no buffer."""
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    named = module.named_buffers() if buffers else ()
    return parameters, {name: b.detach().clone() for name, b in named}


def put_into(module: nn.Module, parameters: Tree, buffers: Tree) -> None:
    """Overwrite all parameters of the module, and those of its buffers that are given."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(parameters[name])
        for name, buffer in module.named_buffers():
            if name in buffers:
                buffer.copy_(buffers[name])


def on_device(tree: Tree, device: torch.device) -> dict[str, Tensor]:
    """The same tree where the models are; what comes from a checkpoint lies on the CPU."""
    return {name: tensor.to(device) for name, tensor in tree.items()}


def same_names(trees: Iterable[Tree]) -> bool:
    """Whether all have the same tensors: their names, shapes and dtypes."""
    found = [{name: (t.shape, t.dtype) for name, t in tree.items()} for tree in trees]
    return all(one == found[0] for one in found)
