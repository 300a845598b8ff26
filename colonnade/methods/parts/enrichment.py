"""The auto-encoder of VFedTrans' second step: it learns to guess, from a party's own columns, what
all parties' columns together say about a row. Nothing is sent here; no other party is needed.

    x ∈ all own rows, of which some, I_s, are shared and have a row of U, the target x^fed
    1. L_i = ‖Dec(Enc(x_i)) − x_i‖² + θ · ‖Enc(x_i) − √|I_s| · u_i‖²    if i ∈ I_s     (Eq. 4, 5)
           = ‖Dec(Enc(x_i)) − x_i‖²                                      otherwise
    2. x* = ⟨x, Enc(x)⟩ for any row, also one that nobody else has ever seen             (Eq. 6)

The norms are means over entries. The defaults are those that helped on HAPT (docs/papers.md);
`PAPER` and `PUBLISHED` are the paper's settings and those of its public code.

The controls say where a gain comes from: `Enricher(theta=0)` sees no other party; `permuted` and
`noise_like` are targets of the right shape that belong to no row; `pca` and `random_projection`
are as many further columns, made of x alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import DataError
from colonnade.models.autoencoder import mlp_autoencoder
from colonnade.models.layers import Activation, named
from colonnade.models.mlp import mlp
from colonnade.toml import Bounds, check_bounds

ROWS = 8192  # rows that are encoded at once
PATIENCE = 20  # epochs without a better code of the rows that are held out
SEEDS = 1000  # from one member's seed to the next one's


@dataclass(frozen=True)
class Enricher:
    """How to train. Symbols are those of the paper."""

    q: Annotated[int, Bounds(least=1)] = 32  # leading columns of U, and width of the code
    layers: Annotated[int, Bounds(least=1)] = 2  # of the encoder; the decoder mirrors it
    # Width of inner layers; 0: linearly from the input's to the code's.
    hidden: Annotated[int, Bounds(least=0)] = 256
    activation: Activation = "relu"
    code: Literal["linear", "activated"] = "linear"  # activated: code and output end in it, too
    distil: Literal["l2", "l1"] = "l2"  # the paper prints |·|, its code has L1
    reduction: Literal["mean", "sum"] = "mean"  # over the entries of a row's code; sum: the code's
    theta: Annotated[float, Bounds(least=0)] = 10.0  # θ in Eq. 5
    # The factor of L_recons; 0: regression to the target only.
    reconstruction: Annotated[float, Bounds(least=0)] = 1.0
    target: Literal["unit", "raw"] = "unit"  # √|I_s| · U, or U itself
    scaling: Literal["standard", "minmax", "none"] = "standard"  # of the own columns
    output: Literal["code", "decoder", "both"] = "code"  # decoder: the public code's
    optimizer: Literal["adamw", "adam"] = "adamw"
    lr: Annotated[float, Bounds(least=0)] = 2e-3
    weight_decay: Annotated[float, Bounds(least=0)] = 1e-3
    epochs: Annotated[int, Bounds(least=0)] = 40
    batch_size: Annotated[int, Bounds(least=1)] = 200
    dropout: Annotated[float, Bounds(least=0, below=1)] = 0.0  # behind the encoder's inner layers
    # Of the shared rows: training ends when their codes get no better.
    held_out: Annotated[float, Bounds(least=0, below=1)] = 0.0
    # Encoders that are trained alike from other seeds; the code is their mean.
    members: Annotated[int, Bounds(least=1)] = 1
    # The code is multiplied by it, for classifiers that measure distances.
    stretch: Annotated[float, Bounds(above=0)] = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            choices = get_args(kind)
            if choices and getattr(self, name) not in choices:
                raise ValueError(f"{name} = {getattr(self, name)!r}: one of {', '.join(choices)}")
        check_bounds(self)
        if self.members > 1 and self.output != "code":
            raise ValueError("members share no decoder: set output = 'code', or members = 1")
        if self.optimizer == "adam" and self.weight_decay:
            raise ValueError("weight_decay is for adamw; adam has none: set weight_decay = 0")


# "Adam, lr 0.001 … batch 100 / 20 epochs … 3 layers, sigmoid". θ, norm, scale and q are not
# printed; a linear code, since a sigmoid cannot reach U's negative entries.
PAPER: dict[str, Any] = {
    "layers": 3,
    "hidden": 0,
    "activation": "sigmoid",
    "distil": "l1",
    "theta": 1.0,
    "optimizer": "adam",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "epochs": 20,
    "batch_size": 100,
}
# The public code: configs/ae.yaml, and models/lrd/ae.py, which divides the mean square error by the
# batch size once more.
PUBLISHED: dict[str, Any] = {
    **PAPER,
    "code": "activated",
    "reduction": "sum",
    "theta": 1e-3,
    "reconstruction": 0.01,
    "target": "raw",
    "scaling": "minmax",
    "output": "decoder",
    "lr": 1e-2,
    "epochs": 200,
}


# Ours, chosen on HAPT, random columns, seeds 100 to 109 (docs/papers.md): regression to U alone.
STRONGER: dict[str, Any] = {
    "theta": 1.0,
    "reconstruction": 0.0,
    "epochs": 150,
    "dropout": 0.2,
    "held_out": 0.1,
    "members": 5,
    "stretch": 1.5,
}


@dataclass(frozen=True, eq=False)
class Encoder:
    """What `train` learns: a network and the scale of its input."""

    network: nn.Sequential  # encoder, decoder
    shift: Tensor  # float64 (features,)
    scale: Tensor  # float64 (features,)
    options: Enricher  # q is the code's true width, which U's rank may have made smaller

    def scaled(self, x: Tensor) -> Tensor:
        return (x.double() - self.shift) / self.scale

    @property
    def width(self) -> int:
        """How many columns `encode` makes."""
        widths = {"code": self.options.q, "decoder": len(self.shift)}
        return widths.get(self.options.output, sum(widths.values()))

    def tensors(self) -> dict[str, Tensor]:
        """All it has learnt; with its options, `restored` makes the same encoder of them."""
        return {"shift": self.shift, "scale": self.scale, **self.network.state_dict()}


def train(x: Tensor, shared: Tensor, target: Tensor, options: Enricher | None = None) -> Encoder:
    """Step 1.

    x        all own rows, (rows, features)
    shared   int64 (s,): which of them are shared, in the order of `target`
    target   U, (s, q or more); as FedSVD gives it, with columns of norm 1
    """
    options = options or Enricher()
    wanted = _target(x, shared, target, options)
    q = wanted.shape[1] if len(shared) else options.q
    if not x.isfinite().all():
        raise DataError("rows with NaN or infinite values: fill or drop them before enriching")
    shift, scale = _scale(x.double(), options)
    inputs = ((x.double() - shift) / scale).float()
    targets = torch.zeros(len(x), q)
    targets[shared] = wanted.float()
    known = torch.zeros(len(x))
    known[shared] = 1.0

    # Neither the initial weights nor the order of the rows depend on what was drawn before.
    with torch.random.fork_rng(devices=[]):
        members = [
            _member(inputs, targets, known, replace(options, q=q, members=1, seed=seed))
            for seed in range(options.seed, options.seed + options.members * SEEDS, SEEDS)
        ]
    learnt = _together(members).double().eval().requires_grad_(False)
    return Encoder(learnt, shift, scale, replace(options, q=q))


def _member(inputs: Tensor, targets: Tensor, known: Tensor, options: Enricher) -> nn.Sequential:
    """One auto-encoder, from its seed to its last epoch, or to its best."""
    torch.manual_seed(options.seed)
    network = _network(inputs.shape[1], options.q, options)
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    optimizer = kind(network.parameters(), options.lr, weight_decay=options.weight_decay)
    rows, held = torch.arange(len(inputs)), torch.arange(0)
    if options.held_out:
        shared = known.nonzero().flatten()
        held = shared[torch.randperm(len(shared))[: round(options.held_out * len(shared))]]
        known = known.index_fill(0, held, 0.0)
    if not options.reconstruction and known.any():
        rows = known.nonzero().flatten()  # there is nothing to learn from the others
    best, since, kept = math.inf, 0, network.state_dict()
    for _ in range(options.epochs):
        network.train()
        for order in torch.randperm(len(rows)).split(options.batch_size):
            batch = rows[order]
            optimizer.zero_grad()
            code = network[0](inputs[batch])
            loss = options.theta * (_distance(code, targets[batch], options) * known[batch]).mean()
            if options.reconstruction:
                gap = F.mse_loss(network[1](code), inputs[batch])
                loss = options.reconstruction * gap + loss
            loss.backward()
            optimizer.step()
        if not len(held):
            continue
        with torch.no_grad():
            code = network.eval()[0](inputs[held])
            left = float(_distance(code, targets[held], options).mean())
        since += 1
        if left < best:
            best, since, kept = left, 0, copy.deepcopy(network.state_dict())
        if since >= PATIENCE:
            break
    if len(held):
        network.load_state_dict(kept)
    return network


def restored(options: Enricher, tensors: Mapping[str, Tensor]) -> Encoder:
    """The encoder that has these `tensors`; a KeyError or RuntimeError where they do not fit."""
    own = dict(tensors)
    shift, scale = own.pop("shift"), own.pop("scale")
    with torch.random.fork_rng(devices=[]):
        blank = [_network(len(shift), options.q, options) for _ in range(options.members)]
        network = _together(blank).double().eval().requires_grad_(False)
    network.load_state_dict(own)
    return Encoder(network, shift, scale, options)


@torch.no_grad()
def encode(encoder: Encoder, x: Tensor) -> Tensor:
    """Step 2: Enc(x), float64 (rows, q); the decoder's output, or both, where the options say so.

    In float64, so that a row's code does not depend on the rows beside it.
    """
    parts = []
    for some in x.split(ROWS):
        code, output = _both(encoder.network, encoder.scaled(some))
        code = code * encoder.options.stretch
        if encoder.options.output == "both":
            code = torch.cat([code, output], 1)
        parts.append(output if encoder.options.output == "decoder" else code)
    return torch.cat(parts)


@torch.no_grad()
def stretched(encoder: Encoder, x: Tensor) -> Encoder:
    """The same encoder, with a code of variance 1 over these rows.

    Of a noisy target only a part can be guessed, and a guess is the smaller for it: its size says
    how much noise there was, and would make a classifier ignore it.
    """
    if (encoder.options.code, encoder.options.output) != ("linear", "code"):
        return encoder
    spread = encode(encoder, x).std(0, correction=0).clamp_min(torch.finfo(torch.float32).eps)
    network = copy.deepcopy(encoder.network)
    parts = network[0].parts if isinstance(network[0], _Ensemble) else [network[0]]
    for part in parts:
        last = [layer for layer in part.modules() if isinstance(layer, nn.Linear)][-1]
        last.weight.div_(spread[:, None])
        last.bias.div_(spread)
    return replace(encoder, network=network)


class _Ensemble(nn.Module):
    """Several networks that answer with the mean of their answers."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part(x) for part in self.parts]).mean(0)


def _together(members: Sequence[nn.Sequential]) -> nn.Sequential:
    """One network whose code is the mean of all codes; the first one's decoder is kept."""
    if len(members) == 1:
        return members[0]
    return named({"encoder": _Ensemble([one[0] for one in members]), "decoder": members[0][1]})


def _both(network: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    code = network[0](x)
    return code, network[1](code)


def _network(features: int, q: int, options: Enricher) -> nn.Sequential:
    activated = options.code == "activated"
    if not options.hidden:
        network = mlp_autoencoder(
            features,
            q,
            layers=options.layers,
            activation=options.activation,
            code_activated=activated,
            output_activated=activated,
        )
    else:
        inner = (options.hidden,) * (options.layers - 1)
        network = named(
            {
                "encoder": mlp(
                    (features,), q, hidden=inner, activation=options.activation, activated=activated
                ),
                "decoder": mlp(
                    (q,), features, hidden=inner, activation=options.activation, activated=activated
                ),
            }
        )
    if options.dropout:
        for layer in list(network[0].children())[:-1]:
            layer.add_module("dropout", nn.Dropout(options.dropout))
    return network


def _distance(code: Tensor, target: Tensor, options: Enricher) -> Tensor:
    """Of each row, (batch,)."""
    gap = code - target
    entries = gap.abs() if options.distil == "l1" else gap.square()
    return entries.sum(1) if options.reduction == "sum" else entries.mean(1)


def _target(x: Tensor, shared: Tensor, target: Tensor, options: Enricher) -> Tensor:
    """The leading q columns of U to the wanted scale."""
    if x.dim() != 2 or not len(x):
        raise DataError(f"rows of a table are needed, not an array of shape {tuple(x.shape)}")
    if len(shared) != len(target) or (len(shared) and not target.shape[1]):
        raise DataError(
            f"{len(shared)} shared rows and a target of shape {tuple(target.shape)}: every shared "
            "row needs one row of it"
        )
    if len(shared.unique()) < len(shared):
        raise DataError("a row is named twice among the shared ones")
    factor = math.sqrt(len(shared)) if options.target == "unit" else 1.0
    return target[:, : options.q] * factor


def _scale(x: Tensor, options: Enricher) -> tuple[Tensor, Tensor]:
    """Per column; a constant one stays as it is."""
    if options.scaling == "none":
        return torch.zeros(x.shape[1]).double(), torch.ones(x.shape[1]).double()
    if options.scaling == "minmax":
        shift, scale = x.amin(0), x.amax(0) - x.amin(0)
    else:
        shift, scale = x.mean(0), x.std(0, correction=0)
    flat = scale <= 1e-12 * x.abs().amax(0)
    return shift, torch.where(flat, 1.0, scale)


# ---- controls ------------------------------------------------------------------------------------


def permuted(target: Tensor, seed: int) -> Tensor:
    """The rows of U in another order: all its numbers, and no row's own."""
    return target[torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))]


def noise_like(target: Tensor, seed: int) -> Tensor:
    """Gaussian columns of norm about 1."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(target.shape, generator=generator, dtype=torch.float64)
    return drawn / math.sqrt(max(1, len(target)))


def pca(x: Tensor, q: int) -> Tensor:
    """An orthonormal basis of the leading q principal components of standardised rows."""
    _, _, v = torch.linalg.svd(x.double() - x.double().mean(0), full_matrices=False)
    basis: Tensor = v[:q].mT
    return basis.contiguous()  # (features, q)


def random_projection(features: int, q: int, seed: int) -> Tensor:
    """A Gaussian matrix (features, q) that keeps lengths on average."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(features, q, generator=generator, dtype=torch.float64) / math.sqrt(q)
