"""How a run trains: the schedule of all parties, and the network, optimiser and rates of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from colonnade.toml import Bounds

RATES = {"sgd": 0.05, "adagrad": 0.01, "adam": 0.001, "adamw": 0.001}  # defaults

Batching = Literal["even", "papers"]

STEPS = (0.3, 0.6, 0.8)  # of a phase: 60, 120 and 160 of 200 epochs


@dataclass(frozen=True)
class Schedule:
    """The training settings that all parties of a run agree on."""

    seed: int
    epochs: int
    batch_size: int
    evaluate_every: int = 1  # epochs; 0: never
    checkpoint_epochs: int = 1  # 0: never at an epoch's end
    checkpoint_steps: int = 0  # 0: never inside an epoch
    flip: bool = False  # training images: mirror half of them
    shift: int = 0  # training images: move by up to this many pixels
    upside_down: bool = False  # training images: turn half of them
    all_rows: bool = False  # an alignment only sets Party.common and keeps all rows
    batching: Batching = "even"  # "papers": full batches and a rest, which may be one row
    patience: int = 0  # epochs without a better one that end the training; 0: none do
    min_delta: float = 0.0  # by how much a better one must be better


@dataclass(frozen=True)
class Recipe:
    """How one party trains: its network and its optimiser."""

    model: str = "mlp"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Literal["sgd", "adam", "adamw", "adagrad"] = "sgd"
    # None: 0.05 for sgd, 0.01 for adagrad, 0.001 for adam and adamw.
    lr: Annotated[float, Bounds(above=0)] | None = None
    momentum: Annotated[float, Bounds(least=0, below=1)] = 0.9  # sgd only
    nesterov: bool = False  # sgd only
    weight_decay: Annotated[float, Bounds(least=0)] = 0.0
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    warmup: Annotated[float, Bounds(least=0)] = 0.0  # epochs of linear warm-up
    precision: Literal["float32", "bfloat16"] = "float32"  # of products and convolutions
    # The most that the norm of all gradients of one optimiser may be; 0: no limit.
    clip_norm: Annotated[float, Bounds(least=0)] = 0.0


def make_optimizer(
    recipe: Recipe, parameters: list[nn.Parameter], lr: float | None = None
) -> torch.optim.Optimizer:
    """The recipe's optimiser, with fused kernels, which do the same arithmetic in one pass."""
    rate = lr or recipe.lr or RATES[recipe.optimizer]
    common: dict[str, Any] = {"lr": rate, "weight_decay": recipe.weight_decay, "fused": True}
    made: torch.optim.Optimizer
    if recipe.optimizer == "sgd":
        made = torch.optim.SGD(
            parameters, momentum=recipe.momentum, nesterov=recipe.nesterov, **common
        )
    elif recipe.optimizer == "adagrad":
        common["fused"] = parameters[0].device.type == "cpu"  # no fused kernel elsewhere
        made = torch.optim.Adagrad(parameters, **common)
    else:
        made = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer](
            parameters, **common
        )
    for group in made.param_groups:
        group["initial_lr"] = rate
    if recipe.clip_norm:
        made.register_step_pre_hook(_clipping(recipe.clip_norm))
    return made


def slower(recipe: Recipe) -> list[str]:
    """What helps against a training that diverges."""
    rate = recipe.lr or RATES[recipe.optimizer]
    clipped = 0 < recipe.clip_norm <= 1
    return [f"a smaller lr than {rate:g}", *([] if clipped else ["clip_norm = 1"])]


def _clipping(most: float) -> Callable[[torch.optim.Optimizer, Any, Any], None]:
    """What an optimiser does before a step: scale its gradients down to a global norm."""

    def clip(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(trained, most)

    return clip


def compute_in_bfloat16(module: nn.Module, device: torch.device) -> None:
    """Products and convolutions in half the bits; weights, inputs and outputs stay float32."""
    forward = module.forward

    def in_bfloat16(*inputs: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            output: Tensor = forward(*inputs)
        return output.float()

    module.forward = in_bfloat16


def rate_factor(recipe: Recipe, epochs_done: float, epochs: int) -> float:
    """The factor of the base learning rate at this point of a phase."""
    if recipe.warmup and epochs_done < recipe.warmup:
        return (epochs_done + 1e-3) / recipe.warmup
    if recipe.schedule == "constant":
        return 1.0
    done = (epochs_done - recipe.warmup) / max(epochs - recipe.warmup, 1e-9)
    if recipe.schedule == "steps":
        return float(0.2 ** sum(done >= place for place in STEPS))
    return 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
