"""The plateau rule for all clients together, and for one network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from colonnade.methods.parts.plateau import Plateau
from colonnade.methods.parts.rates import Rates, Signal, has_stopped


def came(*values: float) -> dict[str, Any]:
    """Messages with an accuracy, and a loss that is higher by one."""
    return {f"c{n}": {"accuracy": value, "loss": value + 1} for n, value in enumerate(values)}


@pytest.mark.parametrize(
    ("signal", "wanted"),
    [("accuracy", (0.2, 0.3)), ("loss", (1.2, 1.3)), ("mean_loss", (1.5, 1.5))],
)
def test_the_rule_sees_the_lowest_signal_or_the_mean(
    signal: Signal, wanted: tuple[float, float]
) -> None:
    rates, state = Rates(0.5, 1, 3, signal), dict[str, Any]()
    rule, seen = Plateau(0.0, 0.5, 1, 3, signal == "accuracy"), dict[str, Any]()
    for values, signal_of_all in zip(((0.2, 0.8), (0.7, 0.3)), wanted, strict=True):
        found = rates.of_all(state, came(*values), 2, 1.0)
        assert found == rule.step(seen, pytest.approx(signal_of_all).expected)
    assert state["plateau"] == pytest.approx(seen)


def test_one_message_of_three_is_a_third_of_a_round() -> None:
    rates, state = Rates(warmup=2.0), dict[str, Any]()
    found = [rates.of_all(state, {"c0": {}}, 3, 1.0) for _ in range(6)]
    assert found == pytest.approx([n / 6 for n in range(1, 7)])


def test_one_network_keeps_its_own_rate_until_it_is_over() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.4)
    rates, state, used = Rates(factor=0.5, patience=1, reductions=2), dict[str, Any](), []
    for signal in (None, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5):
        rates.keep_own(state, "alone", signal, optimizer)
        used.append(optimizer.param_groups[0]["lr"])
    assert used == pytest.approx([0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.2])
    assert has_stopped(state, "alone") and not has_stopped(state, "shared")


@pytest.mark.parametrize("bad", [{"factor": 1.0}, {"patience": 0}, {"reductions": 0}], ids=str)
def test_out_of_bounds(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Rates(**bad)
