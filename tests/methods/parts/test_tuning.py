"""Tuning as a plain loop of Adam, and what is left of one that diverges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.methods.parts.tuning import tuned


def loss_of(module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(module(inputs), targets)


def party() -> Any:
    remarks: list[str] = []
    schedule = SimpleNamespace(seed=1)
    return SimpleNamespace(
        schedule=schedule, position=("train", 0, 0), remarks=remarks, remark=remarks.append
    )


def test_a_whole_batch_is_tuned_as_a_plain_loop() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())
    me = party()
    after = tuned(me, one, x, y, loss_of, epochs=3, lr=0.1, batch=6)
    adam = torch.optim.Adam(other.parameters(), lr=0.1)
    for _ in range(3):
        adam.zero_grad()
        loss_of(other, x, y).backward()
        adam.step()
    torch.testing.assert_close(one.weight, other.weight)
    torch.testing.assert_close(after, loss_of(other, x, y).detach())
    assert not me.remarks


def test_a_tuning_that_diverges_leaves_the_weights_as_they_were() -> None:
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    module, me = nn.Linear(3, 2), party()
    before = module.weight.detach().clone()
    after = tuned(me, module, 1e30 * x, y, loss_of, epochs=1, lr=1e12, batch=2)
    assert not after.isfinite()
    assert torch.equal(module.weight, before)
    assert "diverged" in me.remarks[0]
