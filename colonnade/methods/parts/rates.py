"""The plateau rule at work: one learning rate for all clients, or each client's own.

What the rule has seen, what each client said last and who has stopped is kept in a dict of the
party's, so that checkpoints hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import torch

from colonnade.errors import Untrusted
from colonnade.methods.parts.optimizers import set_rate
from colonnade.methods.parts.options import bounded
from colonnade.methods.parts.plateau import Plateau

Signal = Literal["accuracy", "loss", "mean_loss"]


@dataclass(frozen=True)
class Rates:
    """The rule, and the signal that it follows: of all clients the lowest, or the mean."""

    factor: float = 0.2
    patience: int = 15  # epochs
    reductions: int = 4
    signal: Signal = "accuracy"
    warmup: float = 0.0  # epochs

    def __post_init__(self) -> None:
        bounded(self, "factor", above=0, below=1)
        bounded(self, "patience", "reductions", least=1)

    @property
    def measure(self) -> str:
        """What each client tells."""
        return "accuracy" if self.signal == "accuracy" else "loss"

    def of_all(
        self, state: dict[str, Any], came: Mapping[str, Any], clients: int, epochs: float
    ) -> float | None:
        """What every client's rate is multiplied by; None: the training is over.

        came     the messages of this round, by client
        clients  those that still take part: one message of m is the m-th part of `epochs`
        """
        known: dict[str, float] = state.setdefault("signals", {})
        known |= {
            name: _signal(name, self.measure, told[self.measure])
            for name, told in came.items()
            if self.measure in told
        }
        signal = None
        if known:
            values = list(known.values())
            signal = sum(values) / len(values) if self.signal == "mean_loss" else min(values)
        part = len(came) / max(len(came), clients)
        return self._rule.step(state.setdefault("plateau", {}), signal, epochs * part)

    def keep_own(
        self,
        state: dict[str, Any],
        name: str,
        signal: float | None,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """The same rule for one network, on its own signal; it is noted as stopped at the end."""
        if has_stopped(state, name):
            return
        factor = self._rule.step(state.setdefault(f"plateau {name}", {}), signal)
        if factor is None:
            stop(state, name)
        else:
            set_rate(optimizer, factor)

    @property
    def _rule(self) -> Plateau:
        rising = self.signal == "accuracy"
        return Plateau(self.warmup, self.factor, self.patience, self.reductions, rising)


def _signal(client: str, measure: str, said: object) -> float:
    """What a client says of itself, if that can be so."""
    most = 1.0 if measure == "accuracy" else inf
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= most:
        raise Untrusted(f"'{client}' sent something that is no {measure} beside its head")
    return said


def stop(state: dict[str, Any], name: str) -> None:
    """Note that this network is trained no further."""
    state["stopped"] = [*state.get("stopped", []), name]


def has_stopped(state: Mapping[str, Any], name: str) -> bool:
    return name in state.get("stopped", [])
