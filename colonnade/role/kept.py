"""The modules and optimisers of one party, by name: made once, saved, restored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from colonnade import store
from colonnade.role.recipe import Recipe, compute_in_bfloat16, rate_factor
from colonnade.role.seeds import random_state, set_random_state
from colonnade.wire import codec

Thing = TypeVar("Thing")


class Kept:
    """What a party keeps under a name, and what waits in a checkpoint to be kept again."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._recipe, self._device = recipe, device
        self._things: dict[str, Any] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self._saved: dict[str, Any] = {}

    def keep(self, name: str, make: Callable[[], Thing]) -> Thing:
        """What is kept under this name; made now if it never was, restored if it was saved."""
        if name not in self._things:
            random = random_state(self._device)
            thing = make()
            if isinstance(thing, nn.Module):
                # Convolutions are quicker with the channels last; other layers do not mind.
                thing.to(self._device, memory_format=torch.channels_last)  # type: ignore[call-overload]
                if self._recipe.precision == "bfloat16":
                    compute_in_bfloat16(thing, self._device)
            if name in self._saved:
                store.restore(thing, self._saved.pop(name))
                # Drawn when it was made for the first time; that must not happen twice.
                set_random_state(random, self._device)
            self._things[name] = thing
            if isinstance(thing, torch.optim.Optimizer):
                self._optimizers.append(thing)
        kept: Thing = self._things[name]
        return kept

    def drop(self, name: str) -> None:
        """Let go of a module or optimiser that has done its work."""
        self._saved.pop(name, None)
        gone = self._things.pop(name, None)
        self._optimizers = [o for o in self._optimizers if o is not gone]

    def holds(self, name: str) -> bool:
        """Whether something is kept under this name, or waits in a checkpoint to be."""
        return name in self._things or name in self._saved

    def modules(self) -> dict[str, nn.Module]:
        """The modules by name, without the optimisers."""
        return {name: kept for name, kept in self._things.items() if isinstance(kept, nn.Module)}

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """The state of every module, by name: parameters and buffers."""
        # After a resume also of modules that the role did not need again, without optimisers.
        unused = {name: kept for name, kept in self._saved.items() if "param_groups" not in kept}
        return unused | {name: dict(kept.state_dict()) for name, kept in self.modules().items()}

    def sha256(self) -> str:
        """The digest of all weights: equal digests are equal bits."""
        return hashlib.sha256(codec.encode(self.weights())).hexdigest()

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore these when `keep` is asked for them: trained modules, or a checkpoint's all."""
        self._saved = dict(saved)

    def snapshot(self) -> dict[str, Any]:
        """The state of everything, for `load`."""
        return {name: kept.state_dict() for name, kept in self._things.items()} | self._saved

    def set_rates(self, epochs_done: float, epochs: int) -> None:
        """The learning rate is a function of the position alone, so a resume needs no scheduler."""
        factor = rate_factor(self._recipe, epochs_done, epochs)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if "initial_lr" in group:  # else its rate stays as it is
                    group["lr"] = group["initial_lr"] * factor
