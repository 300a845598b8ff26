"""Rates that a method sets, and momentum that is forgotten for some parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from colonnade.methods.parts.optimizers import forget_momentum, set_rate


def trained(net: nn.Module) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return optimizer


def test_a_rate_is_a_share_of_the_full_one() -> None:
    optimizer = trained(nn.Linear(3, 2))
    optimizer.param_groups[0]["initial_lr"] = 0.4  # the recipe's schedule is at one half
    for factor in (0.5, 0.1, 1.0):
        set_rate(optimizer, factor)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4 * factor)
    assert "initial_lr" not in optimizer.param_groups[0]  # by which the schedule finds its groups


def test_only_the_named_parameters_forget() -> None:
    net = nn.Linear(3, 2)
    optimizer = trained(net)
    forget_momentum(optimizer, [net.weight])
    assert not optimizer.state[net.weight]["momentum_buffer"].any()
    assert optimizer.state[net.bias]["momentum_buffer"].any()
    forget_momentum(torch.optim.SGD(net.parameters(), lr=0.1), net.parameters())  # nothing yet
