"""Split learning and EASTER by hand: what Colonnade's one-process runtime is measured against.

`plain` is what one writes without thinking about speed. `equal` uses the optimiser, the gather and
the memory format of Colonnade, and draws the same random numbers, so that its losses must be the
same to the last bit: the difference in time is what roles, wire and ledger cost.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.models import head, network
from colonnade.role.batches import CHUNK_BYTES
from colonnade.role.seeds import derive

DIM, HIDDEN, LR, MOMENTUM = 128, 128, 0.05, 0.9


@dataclass
class Work:
    """The parts of all parties, and what every loop must do with them."""

    names: list[str]
    parts: list[Tensor]  # uint8 images (n, 1, h, w) or float tables (n, d), one per party
    scales: list[tuple[Tensor, Tensor] | None]  # of images: x.float() * scale + shift
    labels: Tensor
    classes: int
    model: str
    batch: int
    epochs: int
    seed: int
    device: torch.device


@dataclass
class Timed:
    seconds: list[float]  # per epoch
    loss: float  # mean over the last epoch
    masking: float = 0.0  # seconds


def build(work: Work, memory_format: torch.memory_format) -> tuple[list[nn.Module], nn.Module]:
    """The same initial weights as Colonnade's parties draw."""
    bottoms: list[nn.Module] = []
    top: nn.Module | None = None
    for number, (name, part) in enumerate(zip(work.names, work.parts, strict=True)):
        torch.manual_seed(derive(work.seed, "party", name))
        bottoms.append(network(work.model, tuple(part.shape[1:]), DIM))
        if number == 0:
            top = nn.Sequential(
                nn.Linear(DIM * len(work.names), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, work.classes)
            )
    assert top is not None
    for module in (*bottoms, top):
        module.to(work.device, memory_format=memory_format)
    return bottoms, top


def order_of(work: Work, epoch: int) -> Tensor:
    seed = derive(work.seed, "order", "train", epoch)
    order = torch.randperm(len(work.labels), generator=torch.Generator().manual_seed(seed))
    return order.to(work.device)


def prepared(x: Tensor, scale: tuple[Tensor, Tensor] | None) -> Tensor:
    return x if scale is None else x.float().mul_(scale[0]).add_(scale[1])


def rate(work: Work, step: int, total: int) -> float:
    return LR * 0.5 * (1.0 + math.cos(math.pi * min(step / total, 1.0)))


def plain(work: Work) -> Timed:
    """One graph, one optimiser per party as torch makes it, every batch indexed on its own."""
    bottoms, top = build(work, torch.contiguous_format)
    parts = [prepared(x, s) for x, s in zip(work.parts, work.scales, strict=True)]
    optimizers = [
        torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM) for module in (*bottoms, top)
    ]
    rows, steps = len(work.labels), -(-len(work.labels) // work.batch)
    timed = Timed([], 0.0)
    for epoch in range(work.epochs):
        _synchronise(work.device)
        began = time.perf_counter()
        order = order_of(work, epoch)
        losses = []
        for step in range(steps):
            index = order[step * work.batch : min((step + 1) * work.batch, rows)]
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = rate(
                    work, epoch * steps + step, work.epochs * steps
                )
            embeddings = [bottom(x[index]) for bottom, x in zip(bottoms, parts, strict=True)]
            loss = F.cross_entropy(top(torch.cat(embeddings, dim=1)), work.labels[index])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.detach())
        timed.loss = float(torch.stack(losses).double().mean())
        timed.seconds.append(time.perf_counter() - began)
    return timed


def equal(work: Work) -> Timed:
    """The same, with fused optimisers, one gather for many batches, channels last."""
    bottoms, top = build(work, torch.channels_last)
    groups = [[bottoms[0], top], *([bottom] for bottom in bottoms[1:])]
    optimizers = [
        torch.optim.SGD(
            [p for module in group for p in module.parameters()],
            lr=LR,
            momentum=MOMENTUM,
            fused=True,
        )
        for group in groups
    ]
    rows, steps = len(work.labels), -(-len(work.labels) // work.batch)
    timed = Timed([], 0.0)
    for epoch in range(work.epochs):
        _synchronise(work.device)
        began = time.perf_counter()
        order = order_of(work, epoch)
        losses = []
        streams = [
            _batches(x, scale, order, work.batch)
            for x, scale in zip(work.parts, work.scales, strict=True)
        ]
        targets = work.labels[order].split(work.batch)
        for step, y in enumerate(targets):
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = rate(
                    work, epoch * steps + step, work.epochs * steps
                )
            embeddings = [
                bottom(next(stream)) for bottom, stream in zip(bottoms, streams, strict=True)
            ]
            loss = F.cross_entropy(top(torch.cat(embeddings, dim=1)), y)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.detach())
        assert rows == sum(len(y) for y in targets)
        timed.loss = float(torch.stack(losses).double().mean())
        timed.seconds.append(time.perf_counter() - began)
    return timed


def easter(work: Work, *, quick: bool) -> Timed:
    """EASTER with own-share gradients and no masks; `quick` as in `equal`, else as in `plain`."""
    format_ = torch.channels_last if quick else torch.contiguous_format
    embeds, heads, optimizers = [], [], []
    for name, part in zip(work.names, work.parts, strict=True):
        torch.manual_seed(derive(work.seed, "party", name))
        embed = network(work.model, tuple(part.shape[1:]), DIM).to(
            work.device, memory_format=format_
        )
        decide = head(work.model, DIM, work.classes).to(work.device)
        parameters = [*embed.parameters(), *decide.parameters()]
        optimizers.append(torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, fused=quick))
        embeds.append(embed)
        heads.append(decide)
    count, rows = len(work.names), len(work.labels)
    steps = -(-rows // work.batch)
    whole = [] if quick else [prepared(x, s) for x, s in zip(work.parts, work.scales, strict=True)]
    timed = Timed([], 0.0)
    for epoch in range(work.epochs):
        _synchronise(work.device)
        began = time.perf_counter()
        order = order_of(work, epoch)
        losses = []
        streams = [
            _batches(x, scale, order, work.batch)
            for x, scale in zip(work.parts, work.scales, strict=True)
        ]
        targets = work.labels[order].split(work.batch) if quick else None
        for step in range(steps):
            index = order[step * work.batch : (step + 1) * work.batch]
            y = targets[step] if targets else work.labels[index]
            xs = [next(stream) for stream in streams] if quick else [x[index] for x in whole]
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = rate(
                    work, epoch * steps + step, work.epochs * steps
                )
            embeddings = [embed(x) for embed, x in zip(embeds, xs, strict=True)]
            mean = torch.stack([embedding.detach() for embedding in embeddings]).sum(0) / count
            own = []
            for embedding, decide in zip(embeddings, heads, strict=True):
                used = mean + (embedding - embedding.detach()) / count  # E, with E_k's gradient
                own.append(F.cross_entropy(decide(used), y))
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.stack(own).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(own[0].detach())
        timed.loss = float(torch.stack(losses).double().mean())
        timed.seconds.append(time.perf_counter() - began)
    return timed


def _batches(x: Tensor, scale: tuple[Tensor, Tensor] | None, order: Tensor, size: int):  # type: ignore[no-untyped-def]
    chunk = size * max(1, CHUNK_BYTES // (4 * x[:1].numel() * size))
    for low in range(0, len(x), chunk):
        some = prepared(x[order[low : low + chunk]], scale)
        if some.dim() == 4:
            some = some.contiguous(memory_format=torch.channels_last)
        yield from some.split(size)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
