"""Keeps the modules and optimisers of one party by name: made once, saved, restored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from colonnade.role.recipe import Recipe, compute_in_bfloat16, rate_factor
from colonnade.role.seeds import random_state, set_random_state
from colonnade.wire import codec, store

Thing = TypeVar("Thing")


class Kept:
    """A party's modules and optimisers by name, and saved states that wait to be restored."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._recipe, self._device = recipe, device
        self._things: dict[str, Any] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self._saved: dict[str, Any] = {}
        self._evaluated: list[nn.Module] | None = None  # layers to train again afterwards
        # What is done to each thing when it is there: made or restored
        self.on_thing: Callable[[str, Any], None] | None = None

    def keep(self, name: str, make: Callable[[], Thing]) -> Thing:
        """The thing of this name: made now if it never was, restored if it was saved."""
        if name not in self._things:
            random = random_state(self._device)
            thing = make()
            if isinstance(thing, nn.Module):
                # Convolutions are faster with the channels last; other layers are not affected.
                thing.to(self._device, memory_format=torch.channels_last)  # type: ignore[call-overload]
                if self._recipe.precision == "bfloat16":
                    compute_in_bfloat16(thing, self._device)
            if name in self._saved:
                store.restore(thing, self._saved.pop(name))
                # Its random numbers were drawn when it was first made, and must not be drawn twice.
                set_random_state(random, self._device)
            self._things[name] = thing
            if self._evaluated is not None and isinstance(thing, nn.Module):
                self._evaluated += _in_evaluation_mode(thing)
            if isinstance(thing, torch.optim.Optimizer):
                self._optimizers.append(thing)
            if self.on_thing is not None:
                self.on_thing(name, thing)
        kept: Thing = self._things[name]
        return kept

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """All modules in evaluation mode, also those that are made inside."""
        switched = [x for module in self.modules().values() for x in _in_evaluation_mode(module)]
        outer, self._evaluated = self._evaluated, switched
        try:
            yield
        finally:
            self._evaluated = outer
            if outer is not None:  # the evaluation around this one goes on
                outer += switched
            else:
                for layer in switched:
                    layer.training = True

    def drop(self, name: str) -> None:
        """Remove a module or optimiser that is no longer needed."""
        self._saved.pop(name, None)
        gone = self._things.pop(name, None)
        self._optimizers = [o for o in self._optimizers if o is not gone]

    def holds(self, name: str) -> bool:
        """Whether there is a thing of this name, or a saved state that waits to be restored."""
        return name in self._things or name in self._saved

    def modules(self) -> dict[str, nn.Module]:
        """The modules by name, without the optimisers."""
        return {name: kept for name, kept in self._things.items() if isinstance(kept, nn.Module)}

    def trained(self) -> Iterator[Tensor]:
        """What a step changes: all parameters, and what the optimisers remember of them."""
        for module in self.modules().values():
            yield from module.parameters()
        for optimizer in self._optimizers:
            for remembered in optimizer.state.values():
                yield from (x for x in remembered.values() if isinstance(x, Tensor) and x.dim())

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """The state of every module, by name: parameters and buffers."""
        # Includes saved states of modules that the role has not needed since a resume.
        unused = {name: kept for name, kept in self._saved.items() if "param_groups" not in kept}
        return unused | {name: dict(kept.state_dict()) for name, kept in self.modules().items()}

    def copied(self) -> dict[str, dict[str, Tensor]]:
        """The same in memory of its own, which no step changes."""
        return {
            name: {key: value.detach().clone() for key, value in state.items()}
            for name, state in self.weights().items()
        }

    def go_back_to(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Give every module the state that it had; optimisers stay as they are."""
        for name, state in weights.items():
            if name in self._things:
                store.restore(self._things[name], state)
            else:  # not needed since a resume
                self._saved[name] = state

    def sha256(self) -> str:
        """The digest of all weights: equal digests are equal bits."""
        return hashlib.sha256(codec.encode(self.weights())).hexdigest()

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore these states as `keep` asks for them: trained modules, or a whole checkpoint."""
        self._saved = dict(saved)

    def snapshot(self) -> dict[str, Any]:
        """The state of everything, for `load`."""
        return {name: kept.state_dict() for name, kept in self._things.items()} | self._saved

    def set_rates(self, epochs_done: float, epochs: int) -> None:
        """Set the learning rates by the position alone, so that a resume needs no scheduler."""
        factor = rate_factor(self._recipe, epochs_done, epochs)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if "initial_lr" in group:  # otherwise its rate does not follow the schedule
                    group["lr"] = group["initial_lr"] * factor


def _in_evaluation_mode(module: nn.Module) -> list[nn.Module]:
    """Switch a module; the layers that were in training mode, for some may be frozen."""
    training = [layer for layer in module.modules() if layer.training]
    for layer in training:
        layer.training = False
    return training
