"""The plateau rule against torch's own scheduler, after its warm-up."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from colonnade.methods.parts.plateau import Plateau

ENDLESS = 10**9  # reductions

# Few different numbers, some nearer than the threshold of 1e-4: there are plateaus.
signals = st.lists(
    st.sampled_from([0.2, 0.5, 0.50002, 0.5001, 0.7, 0.70005, 0.9, 0.90018]),
    min_size=1,
    max_size=60,
)


class Torch:
    """What ReduceLROnPlateau makes of the same signals; the full rate is 1."""

    def __init__(self, rising: bool, factor: float, patience: int) -> None:
        self.patience = patience
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer,
            mode="max" if rising else "min",
            factor=factor,
            patience=patience,
            threshold=1e-4,
            threshold_mode="rel",
            eps=0.0,
        )

    def step(self, signal: float, warm: bool) -> float:
        self.scheduler.patience = self.patience if warm else ENDLESS
        self.scheduler.step(signal)
        if not warm:  # it only watches what is best
            self.scheduler.num_bad_epochs = 0
        return float(self.optimizer.param_groups[0]["lr"])


@settings(deadline=None)  # torch's first optimiser takes its time
@given(signals, st.booleans(), st.integers(0, 5), st.integers(0, 4), st.sampled_from([0.2, 0.5]))
def test_is_torchs_scheduler_after_a_warm_up(
    values: list[float], rising: bool, patience: int, warmup: int, factor: float
) -> None:
    rule = Plateau(warmup, factor, patience, ENDLESS, rising)
    theirs, seen = Torch(rising, factor, patience), dict[str, Any]()
    found = [rule.step(seen, None)]  # before the first epoch there is nothing to judge
    wanted = [1 / warmup if warmup else 1.0]
    for done, signal in enumerate(values, start=1):  # epochs that lie behind
        found.append(rule.step(seen, signal))
        rate = theirs.step(signal, warm=done >= warmup)
        wanted.append((done + 1) / warmup if done < warmup else rate)
    assert found == pytest.approx(wanted, rel=1e-9)


def test_the_warm_up_of_the_paper() -> None:
    """η·e/15 in epoch e = 1 … 15, then η; however bad the signals are meanwhile."""
    rule, seen = Plateau(15, 0.2, 3, 4, rising=True), dict[str, Any]()
    rates = [rule.step(seen, None)] + [rule.step(seen, 0.9 - 0.01 * e) for e in range(17)]
    assert rates == pytest.approx([e / 15 for e in range(1, 16)] + [1.0] * 3)
    assert seen["best"] == 0.9
    # Behind epochs 15, 16 and 17 the signal was no better; so it is behind 18, one too many.
    assert rule.step(seen, 0.1) == pytest.approx(0.2)


def test_a_signal_of_the_warm_up_can_be_the_best() -> None:
    rule, seen = Plateau(2, 0.5, 0, 9, rising=True), dict[str, Any]()
    assert [rule.step(seen, s) for s in (None, 0.8, 0.7)] == [0.5, 1.0, 0.5]


@pytest.mark.parametrize("rising", [True, False])
def test_it_ends_at_the_last_reduction(rising: bool) -> None:
    """η, 0.2 η, 0.04 η, 0.008 η, and at the fourth reduction it is over for good."""
    rule, seen = Plateau(0, 0.2, 2, 4, rising), dict[str, Any]()
    rates: list[float | None] = [rule.step(seen, None)]
    while rates[-1] is not None:
        rates.append(rule.step(seen, 0.5))
    # The first signal is the best one; every third after it is one too many.
    assert rates[:-1] == pytest.approx([1.0] * 4 + [0.2] * 3 + [0.04] * 3 + [0.008] * 3)
    better = 0.9 if rising else 0.1
    assert [rule.step(seen, signal) for signal in (0.5, better, None)] == [None] * 3


@pytest.mark.parametrize(
    ("rising", "signal", "better"),
    [
        (True, 0.50004, False),
        (True, 0.50006, True),
        (False, 0.49996, False),
        (False, 0.49994, True),
    ],
)
def test_what_counts_as_better_is_relative(rising: bool, signal: float, better: bool) -> None:
    rule, seen = Plateau(0, 0.5, 0, 9, rising), dict[str, Any]()
    rule.step(seen, 0.5)
    assert rule.step(seen, signal) == (1.0 if better else 0.5)
    assert seen["best"] == (signal if better else 0.5)


@pytest.mark.parametrize("every", [2, 3])
def test_patience_and_warm_up_are_counted_in_epochs_however_many_a_step_is(every: int) -> None:
    """Two rules, one asked every epoch, one every q epochs, on a signal that never gets better."""
    patience, warmup = 6 * every - 1, 4 * every
    fine, coarse = dict[str, Any](), dict[str, Any]()
    one, many = (Plateau(warmup, 0.5, patience, 3, rising=True) for _ in range(2))
    slow: list[float | None] = []
    quick: list[float | None] = []
    for epoch in range(40 * every):
        slow.append(one.step(fine, 0.5 if epoch else None))
        if epoch % every == 0:
            quick.append(many.step(coarse, 0.5 if epoch else None, every))
    assert quick[:4] == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1.0])
    assert None in quick
    reduced = [rate for rate in quick if rate is not None and rate < 1.0][3:]
    assert reduced == [0.5] * 6 + [0.25] * 6
    # What lies behind is booked at the round's end: q epochs at once, or each by itself.
    assert slow.index(None) == every * quick.index(None) + every - 1


def test_parts_of_a_round_add_up() -> None:
    """Heads that come one by one, of four clients: a quarter of an epoch each."""
    rule, seen = Plateau(2, 0.5, 1, 9, rising=True), dict[str, Any]()
    warm = [rule.step(seen, None, 0.25) for _ in range(8)]
    assert warm == pytest.approx([e / 8 for e in range(1, 9)])
    rates = [rule.step(seen, 0.5, 0.25) for _ in range(7)]
    assert rates == [1.0] * 5 + [0.5] * 2  # the first is the best, five quarters are too many


def test_what_it_has_seen_fits_a_checkpoint() -> None:
    rule, seen, copy = Plateau(3, 0.5, 1, 3, rising=True), dict[str, Any](), dict[str, Any]()
    for signal in (None, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, 0.4, 0.4, 0.4):
        assert rule.step(seen, signal) == rule.step(copy, signal)
        copy = json.loads(json.dumps(copy))
    assert copy == seen
