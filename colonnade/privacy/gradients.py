"""The gradient of each record by itself, of layers that an ordinary backward pass goes through.

Every layer with parameters keeps its input; when the gradient of its output comes, `torch.func`
makes of both the gradient of its parameters for each row. So it works for every layer that treats
rows one by one, also for those of others' networks, and a role's lines stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from colonnade.errors import ColonnadeError, ConfigError

BATCHED = (nn.modules.batchnorm._BatchNorm,)  # one row's output depends on the others
SAME, TINY = 1e-3, 1e-6  # relative to the largest number: what rounding may change
ADVICE = (
    'In a resnet or a vgg16 set the option norm = "group", such as model_options = '
    '{ norm = "group" }; in a network of your own take nn.GroupNorm'
)


@dataclass(frozen=True)
class Single:
    """What each row adds to one gradient: (rows, …)."""

    each: Tensor

    def __len__(self) -> int:
        return len(self.each)

    def squares(self) -> Tensor:
        """The squared L2 norm of each row's, float64."""
        return self.each.flatten(1).square().sum(1, dtype=torch.float64)

    def total(self, factors: Tensor) -> Tensor:
        """Their sum with a factor for each row, float64."""
        counted = self.each.flatten(1) * factors.to(self.each.dtype).unsqueeze(1)
        return counted.sum(0, dtype=torch.float64).view(self.each.shape[1:])

    def dense(self) -> Tensor:
        return self.each


@dataclass(frozen=True)
class Outer:
    """The same of a linear layer's weights: products of two vectors for each row, which need never
    be written out."""

    left: Tensor  # (rows, out)
    right: Tensor  # (rows, in)

    def __len__(self) -> int:
        return len(self.left)

    def squares(self) -> Tensor:
        left, right = (x.square().sum(1, dtype=torch.float64) for x in (self.left, self.right))
        return left * right

    def total(self, factors: Tensor) -> Tensor:
        return (self.left.double() * factors.unsqueeze(1)).T @ self.right.double()

    def dense(self) -> Tensor:
        return self.left.unsqueeze(2) * self.right.unsqueeze(1)


Each = Single | Outer


class RecordGradients:
    """Of the parameters of one optimiser."""

    def __init__(
        self,
        owner: str,
        parameters: Sequence[nn.Parameter],
        at_hand: Callable[[], object | None],
    ) -> None:
        """
        at_hand  the rows that are worked on; None: no gradients of theirs are wanted
        """
        self._owner, self._at_hand = owner, at_hand
        self._moment: object | None = None  # the rows whose gradients were found
        self._due = {id(p): p for p in parameters if p.requires_grad}
        self._found: dict[int, Each] = {}  # by parameter
        self._compared: set[int] = set()  # parameters whose sum over rows was compared
        self._inside = False  # a layer is called from here

    def watch(self, name: str, module: nn.Module) -> None:
        """See what passes through those of its layers whose parameters these are."""
        concerned = False
        for layer in module.modules():
            own = {key: p for key, p in layer.named_parameters(recurse=False) if id(p) in self._due}
            if own:
                concerned = True
                layer.register_forward_hook(partial(self._forward, name, own))
        if concerned:
            for layer in module.modules():  # also those without weights
                self._refuse_batched(name, layer)
            module.register_forward_hook(_Apart(self._owner, name))

    def take(self, rows: int) -> list[tuple[nn.Parameter, Each]]:
        """Each parameter with a gradient, and what each row has added to it."""
        taken = []
        for known, parameter in self._due.items():
            if parameter.grad is None:
                continue
            each = self._found.get(known)
            if each is None or len(each) != rows:
                raise ColonnadeError(
                    f"'{self._owner}' cannot say what each of {rows} rows adds to a gradient of "
                    f"shape {tuple(parameter.shape)}: the network uses these weights outside the "
                    "layer that owns them, or turns rows into others. Put them into a layer of "
                    "their own that keeps the rows in its first dimension, or omit model_epsilon"
                )
            if known not in self._compared:
                self._compare(each, parameter)
                self._compared.add(known)
            taken.append((parameter, each))
        self._found.clear()
        return taken

    def _forward(
        self, name: str, own: Mapping[str, nn.Parameter], layer: nn.Module, inputs: Any, output: Any
    ) -> None:
        if self._inside or not torch.is_grad_enabled() or self._at_hand() is None:
            return
        if not isinstance(output, Tensor) or not all(isinstance(x, Tensor) for x in inputs):
            raise ColonnadeError(
                f"'{self._owner}' cannot say what each row adds to the gradients of '{name}': its "
                f"layer {type(layer).__name__} takes or gives something else than tensors"
            )
        if output.requires_grad:
            seen = tuple(x.detach() for x in inputs)
            output.register_hook(partial(self._backward, own, layer, seen))

    def _backward(
        self,
        own: Mapping[str, nn.Parameter],
        layer: nn.Module,
        inputs: tuple[Tensor, ...],
        gradient: Tensor,
    ) -> None:
        if self._moment is not (now := self._at_hand()):
            self._found.clear()  # what no step has asked for
            self._moment = now
        self._inside = True
        try:
            for key, each in of_rows(layer, own, inputs, gradient.detach()).items():
                known = id(own[key])
                before = self._found.get(known)
                both = each if before is None else Single(before.dense() + each.dense())
                self._found[known] = both
        finally:
            self._inside = False

    def _refuse_batched(self, name: str, layer: nn.Module) -> None:
        if isinstance(layer, BATCHED) or getattr(layer, "track_running_stats", False):
            raise ConfigError(
                [
                    f"protect.model_epsilon: the network '{name}' of '{self._owner}' has a layer "
                    f"{type(layer).__name__}, in which each row changes what all others get, and "
                    f"statistics of all rows would leave. {ADVICE}"
                ]
            )

    def _compare(self, each: Each, parameter: nn.Parameter) -> None:
        """Refuse weights that act in another way than through their layer."""
        assert parameter.grad is not None
        ones = torch.ones(len(each), dtype=torch.float64, device=parameter.device)
        summed = each.total(ones)
        most = float((summed - parameter.grad).abs().max())
        if most > SAME * float(parameter.grad.abs().max()) + TINY:
            raise ColonnadeError(
                f"'{self._owner}' finds that what single rows add to a gradient of shape "
                f"{tuple(parameter.shape)} is not the whole of it, so noise fitted to the rows "
                "would protect too little. Does the network use these weights in two ways, or "
                "something random? Write such a layer in another way, or omit model_epsilon"
            )


class _Apart:
    """A forward hook that refuses, once, a network in which rows change what others get."""

    def __init__(self, owner: str, name: str) -> None:
        self._owner, self._name, self._done = owner, name, False

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._done or not torch.is_grad_enabled() or len(inputs) != 1 or len(inputs[0]) < 2:
            return
        self._done = True
        (x,) = inputs
        training = [layer for layer in module.modules() if layer.training]
        for layer in training:
            layer.training = False
        try:
            with torch.no_grad():
                among, beside = module(x), module(torch.cat([x[:1], torch.zeros_like(x[1:])]))
        finally:
            for layer in training:
                layer.training = True
        if not torch.allclose(among[0], beside[0], rtol=SAME, atol=1e-4):
            raise ConfigError(
                [
                    f"protect.model_epsilon: in the network '{self._name}' of '{self._owner}' a "
                    f"row changes what other rows get, which no noise on gradients covers. {ADVICE}"
                ]
            )


def of_rows(
    layer: nn.Module,
    own: Mapping[str, nn.Parameter],
    inputs: tuple[Tensor, ...],
    gradient: Tensor,
) -> dict[str, Each]:
    """What each row adds to the gradients of a layer's parameters, by name."""
    if type(layer) is nn.Linear and gradient.dim() == 2:
        found: dict[str, Each] = {"bias": Single(gradient), "weight": Outer(gradient, inputs[0])}
        return {key: found[key] for key in own}

    def pulled(weights: Mapping[str, Tensor], gradient: Tensor, *row: Tensor) -> Tensor:
        output = functional_call(layer, dict(weights), tuple(x.unsqueeze(0) for x in row))
        pull: Tensor = (output[0] * gradient).sum()
        return pull

    weights = {key: p.detach() for key, p in own.items()}
    ways = (None, 0, *[0] * len(inputs))
    each: dict[str, Tensor] = vmap(grad(pulled), in_dims=ways)(weights, gradient, *inputs)
    return {key: Single(one) for key, one in each.items()}
