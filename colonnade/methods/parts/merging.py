"""Merges the networks of a round into a server's common network.

A network that began s rounds ago has the weight p_i = (1 + s)^-stale, times its rows if `weighted`.
A strategy of aggregation.py makes the next common network of them. With mode = "async" a single
network is mixed into the present one: θ ← (1 − α) θ + α θ_i, α = mixing · (1 + s)^-stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from colonnade.errors import MethodError, Untrusted
from colonnade.methods.parts import aggregation
from colonnade.methods.parts.aggregation import Tree, on_device
from colonnade.methods.parts.options import bounded
from colonnade.methods.parts.participation import NO_ROUNDS
from colonnade.role.party import Party


@dataclass(frozen=True)
class Merging:
    """How the networks of one round become the next common one."""

    strategy: aggregation.Name = "fedavg"
    weighted: bool = False  # networks count by their rows
    server_lr: float = 1.0
    server_momentum: float = 0.9
    server_beta2: float = 0.99
    server_epsilon: float = 1e-3
    mode: Literal["sync", "async"] = "sync"
    mixing: float = 0.6
    stale: float = 0.5

    def __post_init__(self) -> None:
        bounded(self, "server_lr", "server_epsilon", above=0)
        bounded(self, "server_momentum", "server_beta2", least=0, below=1)
        bounded(self, "mixing", above=0, most=1)
        bounded(self, "stale", least=0)
        if self.mode == "async" and self.strategy != "fedavg":
            raise ValueError(f"strategy = '{self.strategy}' {NO_ROUNDS}")
        if self.mode == "async" and self.weighted:
            raise ValueError(f"weighted = {self.weighted} {NO_ROUNDS}")

    def merge(
        self,
        here: dict[str, Any],
        came: Mapping[str, Tree],
        told: Mapping[str, Any],
        device: torch.device,
    ) -> None:
        """Let here["head"] be the next common network, after here["round"] rounds.

        came  parameters by client; told: the messages that brought them, with "buffers", "base"
              (the round whose common network they began from), "rows" and "work"
        """
        if not came:
            return
        late = [here.get("round", 0) - told[name]["base"] for name in came]
        fresh = [aggregation.staleness_weight(rounds, self.stale) for rounds in late]
        rows = [told[name]["rows"] if self.weighted else 1.0 for name in came]
        shares = [part * count for part, count in zip(fresh, rows, strict=True)]
        buffers = aggregation.mean([told[name]["buffers"] for name in came], shares)
        if "head" not in here:  # nothing was trained yet, or the server has lost its memory
            parameters = aggregation.mean(list(came.values()), shares)
        elif self.mode == "async":
            (part,), (new,) = [self.mixing * each for each in fresh], came.values()
            old = {key: on_device(tree, device) for key, tree in here["head"].items()}
            parameters = aggregation.blended(old["parameters"], new, part)
            buffers = aggregation.blended(old["buffers"], buffers, part)
        else:
            parameters = self._by_strategy(here, came, told, shares, device)
        here["head"] = {"parameters": parameters, "buffers": buffers}

    def _by_strategy(
        self,
        here: dict[str, Any],
        came: Mapping[str, Tree],
        told: Mapping[str, Any],
        shares: list[float],
        device: torch.device,
    ) -> dict[str, Tensor]:
        updates = [
            aggregation.Update(tree, share, told[name]["work"])
            for (name, tree), share in zip(came.items(), shares, strict=True)
        ]
        step = aggregation.Server(
            self.server_lr, self.server_momentum, self.server_beta2, self.server_epsilon
        )
        old, memory = on_device(here["head"]["parameters"], device), here.setdefault("memory", {})
        return aggregation.aggregate(self.strategy, old, updates, step, memory)


def weight_of(me: Party, every: int) -> dict[str, Any]:
    """What a client tells so that its network can be weighed: its rows, and FedNova's ‖a_i‖₁.

    every  epochs of training between two rounds
    """
    rows = len(me.splits["train"])
    steps = -(-rows // me.schedule.batch_size) * every
    momentum = me.recipe.momentum if me.recipe.optimizer == "sgd" else 0.0
    return {"rows": rows, "work": aggregation.work_of(steps, momentum)}


def check_alike(
    came: Mapping[str, Tree],
    told: Mapping[str, Any],
    hint: str,
    known: Mapping[str, Tree] | None = None,
) -> None:
    """Refuse networks of which there is no mean, and name two clients that have such, or the one
    whose network cannot be weighed, or does not fit the common one.

    known  the common network, {"parameters", "buffers"}, once there is one
    """
    for name in came:
        rows, work, buffers = (told[name].get(key) for key in ("rows", "work", "buffers"))
        weighs = type(rows) is int and rows > 0 and type(work) in (int, float) and work > 0
        whole = isinstance(buffers, Mapping)
        if not weighs or not whole or not all(isinstance(x, Tensor) for x in buffers.values()):
            raise Untrusted(
                f"'{name}' sent a network without buffers, or not of any rows, or without any work"
            )
    trees = {name: {**tree, **told[name]["buffers"]} for name, tree in came.items()}
    for name, tree in trees.items() if known else ():
        assert known is not None
        if not aggregation.same_names([{**known["parameters"], **known["buffers"]}, tree]):
            raise Untrusted(f"'{name}' sent a head of other layers than the common one has. {hint}")
    first = next(iter(trees), "")
    for name, tree in trees.items():
        if not aggregation.same_names([trees[first], tree]):
            raise MethodError(
                f"the heads of '{first}' and '{name}' have different layers, so there is no mean. "
                + hint
            )
