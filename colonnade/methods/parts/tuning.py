"""Tune a server's network on rows that lie in memory, with Adam; undone where it diverges."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

import torch
from torch import Tensor, nn

from colonnade.role.party import Party
from colonnade.role.seeds import derive

TUNING_NUMBERS = {  # what reports say of what is logged
    "tuning_loss_before": "of the joined networks before tuning, on the tuning rows",
    "tuning_loss": "the same after tuning",
}


def tuned(
    me: Party,
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor],
    *,
    epochs: int,
    lr: float,
    batch: int,
    cosine: bool = False,
) -> Tensor:
    """The loss afterwards. Where that is not finite, the weights are as they were before.

    A new optimiser in every call, and a new order of the rows in every epoch.

    cosine  the rate falls to 0; else it stays as it is
    """
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    optimizer = torch.optim.Adam(module.parameters(), lr=lr, fused=True)
    seed = derive(me.schedule.seed, "tuning", me.position[1])
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * -(-len(inputs) // batch)
    done = 0
    for _ in range(epochs):
        order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
        for rows in order.split(batch):
            if cosine:
                optimizer.param_groups[0]["lr"] = lr * (1 + cos(pi * done / steps)) / 2
            done += 1
            loss = loss_of(module, inputs[rows], targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        after = loss_of(module, inputs, targets)
    if not after.isfinite():
        module.load_state_dict(before)
        me.remark(
            "the server's tuning has diverged, and its result was thrown away: "
            "try a smaller server_lr, or less noise"
        )
    return after
