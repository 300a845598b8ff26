"""A client's report where no weights leave: sums of embeddings over rows of one class each.

Both ends draw the public part from the run's seed, so its widths are all that is told of it. Which
group is of which class all know beforehand, and how many rows it has is one more sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import Untrusted
from colonnade.methods.parts.client_report import MOST_EVALUATIONS, WITHIN, Told, report_kinds
from colonnade.models.drawn import drawn_part
from colonnade.models.joined import part_of, widths_of
from colonnade.privacy.release import ClassSums
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.wire import Kind, Peer

SUMS = Kind(
    "class_sums",
    ("groups", "width"),
    reveals="l_m by class, and the labels' counts",
    carries="features",
)
NOISY_SUMS = replace(
    SUMS,
    name="noisy_class_sums",
    reveals=f"l_m by class, and the labels' counts, {WITHIN}",
    randomised=True,
)
SCALE = Kind(
    "noise_scale",
    (2,),  # what a row adds to its group's count, and b of the noise
    reveals="where rows are clipped, and how large the noise is",
    dtype="float64",
    carries="features",
    randomised=True,  # a clip that is "private" depends on noise itself
)
SHAPE = Kind(
    "public_shape",
    None,  # {"widths": int64 (layers + 1,), "rows": a number, "evaluations": a number}
    reveals="the widths of the public part, and the number of rows",
    dtype="any",
    carries="features",
)
KINDS = (SUMS, NOISY_SUMS, SCALE, SHAPE)
MOST_WIDTH = 1 << 16  # of a layer: what is drawn for it takes memory


def told_kinds(*, noisy: bool, labelled: bool, weights: bool) -> list[Kind]:
    """What a client reports, in the order in which it is sent; weights: this and its weights."""
    if weights:
        return report_kinds(noisy=noisy, labelled=labelled)
    return [NOISY_SUMS, SCALE, SHAPE] if noisy else [SUMS, SHAPE]


async def received(me: Party, client: Peer, *, noisy: bool, labelled: bool, weights: bool) -> Told:
    """A client's report."""
    if weights:
        return await Told.receive(client, noisy=noisy, labelled=labelled)
    return await _received_sums(me, client, noisy=noisy)


def public_seed(me: Party, client: str) -> int:
    """Of the public part of a client: the same at both ends."""
    return derive(me.schedule.seed, "public", client)


def send_sums(me: Party, server: Peer, told: ClassSums, public: nn.Module, *, noisy: bool) -> None:
    """The client's side."""
    shape = {
        "widths": torch.tensor(widths_of(part_of(public))),
        "rows": len(me.splits["train"]),
        "evaluations": len(me.evaluations),
    }
    scale = [torch.tensor([told.one, told.spread], dtype=torch.float64)] * noisy
    values: list[Any] = [told.sums, *scale, shape]
    for kind, value in zip(
        told_kinds(noisy=noisy, labelled=False, weights=False), values, strict=True
    ):
        server.send(kind, value)


async def _received_sums(me: Party, client: Peer, *, noisy: bool) -> Told:
    """The server's side: the means, what the public part makes of them, and their classes."""
    sums, *scale, shape = [
        await client.recv(kind) for kind in told_kinds(noisy=noisy, labelled=False, weights=False)
    ]
    one, spread = scale[0].tolist() if scale else (1.0, 0.0)
    widths = _checked(client.name, sums, shape, one, spread)
    groups = len(sums) // widths[-1]  # of each class
    classes = torch.arange(len(sums), device=sums.device) // groups
    means = sums[:, :-1] / _counts(sums[:, -1], groups, one, spread)[:, None]
    part = drawn_part(widths, public_seed(me, client.name))
    each = shape["rows"] / len(sums)
    return Told(
        means,
        _outputs(part, means),
        F.one_hot(classes, widths[-1]).float(),
        part,
        shape["evaluations"],
        shape["rows"],
        client.name,
        each * _signal(means, classes, spread / each) ** 2,
    )


def _counts(told: Tensor, groups: int, one: float, spread: float) -> Tensor:
    """About how many rows each group has: what it says itself, as far as noise allows, and the
    mean over the groups of its class, which is nearly the same for all of them."""
    own = told.double() / one
    mean = own.view(-1, groups).mean(1).clamp(min=1).repeat_interleave(groups)
    trust = mean / (mean + 2 * (spread / one) ** 2)  # the groups of a class differ by about √mean
    return (mean + trust * (own - mean)).clamp(min=1).to(told.dtype)


def _signal(means: Tensor, classes: Tensor, spread: float) -> float:
    """The share of how means of a class differ that is not noise, from 0 to 1."""
    of_class = F.one_hot(classes).to(means.dtype)
    middles = of_class.T @ means / of_class.sum(0)[:, None]
    seen = float((means - middles[classes]).square().mean())
    return max(0.0, 1 - 2 * spread**2 / seen) if seen else 0.0


def _outputs(part: Mapping[str, Tensor], x: Tensor) -> Tensor:
    for layer in range(len(part) // 2):
        x = torch.relu(x) if layer else x
        weight, bias = (part[f"{layer}.{name}"].to(x.device) for name in ("weight", "bias"))
        x = F.linear(x, weight, bias)
    return x


def _checked(client: str, sums: Any, shape: Any, one: float, spread: float) -> list[int]:
    """The widths of the public part; refused where they and the sums do not fit each other."""
    said: Mapping[str, Any] = shape if isinstance(shape, Mapping) else {}
    told, counts = said.get("widths"), (said.get("rows"), said.get("evaluations"))
    wide = isinstance(told, Tensor) and told.dtype == torch.int64 and told.dim() == 1
    widths = told.tolist() if wide and isinstance(told, Tensor) and 1 < len(told) < 99 else []
    if (
        not widths
        or not all(0 < width <= MOST_WIDTH for width in widths)
        or not all(type(count) is int and count >= 0 for count in counts)
        or not said["rows"]
        or said["evaluations"] > MOST_EVALUATIONS
        or one <= 0
        or spread < 0
    ):
        raise Untrusted(f"'{client}' sent '{SHAPE.name}' with absurd widths, counts or clips")
    if not len(sums) or len(sums) % widths[-1] or sums.shape[1] != widths[0] + 1:
        raise Untrusted(
            f"'{client}' sent sums of shape {tuple(sums.shape)} with a public part of {widths[0]} "
            f"inputs and {widths[-1]} classes"
        )
    return widths
