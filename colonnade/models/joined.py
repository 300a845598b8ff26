"""Several networks side by side as one, with weights that connect them: FedEmb's server network.

    layer ℓ     y_m = W_m h_m + b_m + Σ_{m' ≠ m} α_{m,m'} h_{m'}        of every network m
    last layer  Σ_m (W_m h_m + b_m): one output for all

With α = 0 it is the sum of the networks. The size of α grows with the square of their number unless
α is "low-rank" (U V with `rank` columns) or "sparse" (every neuron receives `fan_in` neurons of
others).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import ConfigError, MethodError
from colonnade.models.cuts import cuts, split

Connect = Literal["dense", "low-rank", "sparse", "none"]


class Joined(nn.Module):
    """The upper parts of `count` networks: (batch, count, width) → (batch, classes)."""

    def __init__(
        self,
        count: int,
        widths: Sequence[int],
        connect: Connect = "dense",
        *,
        rank: int = 16,
        fan_in: int = 16,
        start: float = 0.0,
    ) -> None:
        """
        widths  of one network: its input, its hidden layers, its classes
        start   standard deviation of α before it is trained
        """
        super().__init__()
        self.count, self.widths = count, tuple(widths)
        pairs = list(pairwise(widths))
        self.weights = nn.ParameterList(torch.zeros(count, out, into) for into, out in pairs)
        self.biases = nn.ParameterList(torch.zeros(count, out) for _, out in pairs)
        self.links = nn.ModuleList(
            _link(connect, count, into, out, rank, fan_in, start) for into, out in pairs[:-1]
        )

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for link, (weight, bias) in zip(self.links, hidden, strict=True):
            assert isinstance(link, Link)
            x = torch.relu(link.layer(x, weight, bias))
        weight, bias = last
        total: Tensor = torch.einsum("bmi,moi->bo", x, weight) + bias.sum(0)
        return total

    def load(self, number: int, part: Mapping[str, Tensor]) -> None:
        """Let block `number` be this network: {"0.weight": …, "0.bias": …, "1.weight": …}."""
        with torch.no_grad():
            for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                weight[number].copy_(part[f"{layer}.weight"])
                bias[number].copy_(part[f"{layer}.bias"])

    def load_all(self, parts: Sequence[Mapping[str, Tensor]]) -> Joined:
        """Let every block be one of these networks, in their order."""
        for number, part in enumerate(parts):
            self.load(number, part)
        return self

    def block(self, number: int) -> dict[str, Tensor]:
        """Block `number` as it is now: the inverse of `load`."""
        found: dict[str, Tensor] = {}
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            found[f"{layer}.weight"] = weight[number].detach().clone()
            found[f"{layer}.bias"] = bias[number].detach().clone()
        return found

    def draw(self, generator: torch.Generator) -> None:
        """New random weights in every block, as nn.Linear draws them."""
        with torch.no_grad():
            for weight, bias in zip(self.weights, self.biases, strict=True):
                bound = weight.shape[-1] ** -0.5
                for tensor in (weight, bias):
                    drawn = torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator)
                    tensor.copy_(drawn)


def widths_of(part: Mapping[str, Tensor]) -> list[int]:
    """The input, the hidden layers and the classes of one network, as `Joined` takes them."""
    layers = [part[f"{number}.weight"] for number in range(len(part) // 2)]
    return [layers[0].shape[1], *(layer.shape[0] for layer in layers)]


def saved_widths(weights: Mapping[str, Tensor]) -> list[int]:
    """The same from the saved weights of a whole `Joined`."""
    count = sum(name.startswith("weights.") for name in weights)
    layers = [weights[f"weights.{number}"] for number in range(count)]
    return [layers[0].shape[2], *(layer.shape[1] for layer in layers)]


def check_alike(parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Refuse parts, given by their owners' names, that cannot be joined."""
    shapes = {
        name: {key: tuple(tensor.shape) for key, tensor in part.items()}
        for name, part in parts.items()
    }
    first = next(iter(shapes))
    for name, found in shapes.items():
        if found != shapes[first]:
            raise MethodError(
                f"the public parts of '{first}' and '{name}' have different layers: "
                "behind the cut all clients need the same widths"
            )


def private_and_public(
    whole: nn.Module, cut: str, name: str
) -> tuple[nn.Sequential, nn.Sequential]:
    """A network cut in two, with a second part that can be joined with others.

    cut   the last layer of the first part; empty: in the middle. Pooling and flattening after
          it still belong to the first part
    name  of the network, for error messages
    """
    if not isinstance(whole, nn.Sequential) or not cuts(whole):
        raise ConfigError([f"{name} cannot be cut in two"])
    places = cuts(whole)
    bottom, top = split(whole, cut or places[(len(places) - 1) // 2])
    before, public = from_first_linear(top)
    dense_layers(public)
    return nn.Sequential(*bottom, *before), public


def from_first_linear(module: nn.Module) -> tuple[nn.Sequential, nn.Sequential]:
    """Divide a network's upper part before its first linear layer: pooling and flattening, and the
    part that can be joined."""
    steps = list(_steps(module))
    first = next((i for i, x in enumerate(steps) if isinstance(x, nn.Linear)), len(steps))
    return nn.Sequential(*steps[:first]), nn.Sequential(*steps[first:])


def _steps(module: nn.Module) -> Iterator[nn.Module]:
    """The layers one after another; a module that is no sequence, like a residual block, is one."""
    if not isinstance(module, nn.Sequential):
        yield module
        return
    for child in module:
        yield from _steps(child)


def dense_layers(module: nn.Module) -> list[nn.Linear]:
    """The linear layers of a part that can be joined: it has only these and ReLUs between them."""
    leaves = [layer for layer in module.modules() if not list(layer.children())]
    linear = [layer for layer in leaves if isinstance(layer, nn.Linear)]
    plain = [type(layer) for layer in leaves]
    wanted = [nn.Linear, nn.ReLU] * len(linear)
    if not linear or plain != wanted[:-1]:
        shown = ", ".join(kind.__name__ for kind in plain)
        raise ConfigError(
            [
                f"{shown} follow the cut: networks can be joined only if nothing but linear layers "
                "with ReLUs between them follows it. Cut later"
            ]
        )
    return linear


def part_of(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a part, as `Joined.load` takes them."""
    found: dict[str, Tensor] = {}
    for number, layer in enumerate(dense_layers(module)):
        found[f"{number}.weight"] = layer.weight.detach().clone()
        found[f"{number}.bias"] = layer.bias.detach().clone()
    return found


def is_part(part: object) -> bool:
    """Whether these are the weights of linear layers that follow each other: what another party
    sends may be anything."""
    if not isinstance(part, Mapping) or not part or len(part) % 2:
        return False
    into: int | None = None
    for number in range(len(part) // 2):
        weight, bias = (part.get(f"{number}.{name}") for name in ("weight", "bias"))
        if not isinstance(weight, Tensor) or not isinstance(bias, Tensor):
            return False
        right = weight.dim() == 2 and weight.numel() > 0 and bias.shape == weight.shape[:1]
        floats = weight.dtype == bias.dtype == torch.float32
        if not right or not floats or weight.shape[1] != (into or weight.shape[1]):
            return False
        into = len(weight)
    return True


def take_back(module: nn.Module, part: Mapping[str, Tensor]) -> None:
    """Give a part these weights: the inverse of `part_of`."""
    with torch.no_grad():
        for number, layer in enumerate(dense_layers(module)):
            layer.weight.copy_(part[f"{number}.weight"])
            layer.bias.copy_(part[f"{number}.bias"])


def _link(
    connect: Connect, count: int, into: int, out: int, rank: int, fan_in: int, start: float
) -> Link:
    if connect == "dense":
        return Dense(count, into, out, start)
    if connect == "low-rank":
        return LowRank(count, into, out, rank, start)
    return Sparse(count, into, out, fan_in, start) if connect == "sparse" else Nothing()


class Link(nn.Module):
    """The networks' input from each other in one layer: (batch, count, into) → (…, count, out)."""

    def layer(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The whole layer: each network's own product, plus its input from the others."""
        own: Tensor = torch.einsum("bmi,moi->bmo", x, weight) + bias
        heard: Tensor | float = self(x)
        return own + heard


class Nothing(Link):
    """α = 0, always."""

    def forward(self, x: Tensor) -> float:
        return 0.0


class Dense(Link):
    """Every neuron receives all neurons of the others: (count·out) × (count·into) weights."""

    def __init__(self, count: int, into: int, out: int, start: float) -> None:
        super().__init__()
        self.shape = (count, out, count, into)
        # The diagonal belongs to the networks themselves: it is overwritten and never learnt.
        self.alpha = nn.Parameter(start * torch.randn(count * out, count * into))

    def layer(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """One product: α, with the networks' own weights on its diagonal."""
        whole = self.alpha.clone()
        whole.view(self.shape).diagonal(dim1=0, dim2=2).copy_(weight.permute(1, 2, 0))
        return F.linear(x.flatten(1), whole, bias.flatten()).view(len(x), *self.shape[:2])

    def forward(self, x: Tensor) -> Tensor:
        count, out, _, into = self.shape
        return self.layer(x, x.new_zeros(count, out, into), x.new_zeros(count, out))


class LowRank(Link):
    """α = U V, without its diagonal blocks: (count·out + count·into) × rank weights."""

    def __init__(self, count: int, into: int, out: int, rank: int, start: float) -> None:
        super().__init__()
        # One of the two must not be 0, or neither would get a gradient.
        self.up = nn.Parameter(start * torch.randn(count, out, rank))
        self.down = nn.Parameter(torch.randn(count, rank, into) * (count * into) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        heard = torch.einsum("bmi,mri->bmr", x, self.down)  # each network's message
        others = heard.sum(1, keepdim=True) - heard
        return torch.einsum("bmr,mor->bmo", others, self.up)


class Sparse(Link):
    """Every neuron receives `fan_in` neurons of others, chosen once at random."""

    heard: Tensor  # int64 (count·out·fan_in,): which inputs, all blocks in one row

    def __init__(self, count: int, into: int, out: int, fan_in: int, start: float) -> None:
        super().__init__()
        self.alpha = nn.Parameter(start * torch.randn(count, out, fan_in))
        other = torch.randint(into * max(count - 1, 1), (count, out, fan_in))
        block = other // into
        block = block + (block >= torch.arange(count)[:, None, None]) if count > 1 else block
        self.register_buffer("heard", (block * into + other % into).flatten())

    def forward(self, x: Tensor) -> Tensor:
        count, out, fan_in = self.alpha.shape
        if count == 1:
            return x.new_zeros(len(x), 1, out)
        picked = x.flatten(1)[:, self.heard].reshape(len(x), count, out, fan_in)
        return (picked * self.alpha).sum(-1)
