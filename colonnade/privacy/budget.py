"""Releases with a differential privacy guarantee: rows are clipped and noised, and a budget counts.

    1. clip       every sample's vector to ‖·‖₁ ≤ C, in whole steps of about C / 2¹⁶       in_steps
    2. add up     per group: a sample that changes, or moves to another group, moves the
                  sums by 2C in L1 at most                                                 sums
    3. noise      on every sum, in whole steps, P(z) ∝ exp(−|z| ε / 2C)                  noisy_sums
    4. count      all releases of all rounds, against the total ε                          Budget
    5. average    the noisy sums, divided by the known sizes of the groups                 release

**What is protected**: one sample's vector at one client. Whoever sees all that was released, and
knows all other samples' vectors, can tell two vectors of this sample apart only within (ε, δ).

**What is not protected by this alone.** (a) What other samples' vectors say of this one: they come
from a network, and where that was trained on the sample, they depend on it. So this covers a whole
record only where the network was not trained on it, and nothing else was (`private = "random"`).
(b) The weights of a network that are sent. (c) The membership, and `release` takes the sizes of the
groups as known: where labels or k-means decide them, so are labels, or what is alike. (d) A person
at M clients is covered by M budgets, at worst Mε. (e) Anything else that is computed from
unprotected rows and shown, such as PPM.

Sums of whole numbers are exact in any order, and which numbers can be released does not depend on
the rows. A step that is repeated after a crash with the same bits is the same release; with other
bits it is another one, and is counted.

One number suffices for a release of many coordinates, because a change of Δ in one coordinate is
the worst case of a change of Δ in L1. Moving several coordinates is group privacy, step by step,
for which log-concave noise has no slack. With δ = 0 the ε of all releases add up (basic
composition); for δ > 0 the total is less, and dp-accounting computes it from privacy loss
distributions: those of Laplace noise, which is never less than the loss in whole steps (`DECIDED`).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from colonnade.errors import BudgetSpent, Diverged, MethodError
from colonnade.privacy.grouping import Grouping
from colonnade.privacy.noise import secret_steps
from colonnade.version import installing

ROUNDING = 1e-9  # 0.1 + 0.1 + 0.1 is within 0.3
Releases = Sequence[Sequence[float]]  # (ε, how often), …
LARGEST_STEP = 100.0  # of the accountant, which computes exp(step); such an ε bounds nothing anyway
STEPS = 16  # a bound has from 2^16 to 2^17 steps
SLACK = 2.0**-40  # a norm is a sum of floats, and may be too small by less than that
# Noise in whole steps loses a little more than Laplace noise of the same size where a loss is
# between two that are possible. With noise for two more steps of change it never does. (At a loss
# of e = ε − 2(k + 1) decay both have P(loss ≥ e) − exp(e) P'(loss ≥ e) = 1 − exp(−(k + 1) decay).)
DECIDED = 2


def clip_rows(x: Tensor, bound: float) -> Tensor:
    """Rows shortened to ‖row‖₁ ≤ bound, (rows, width); shorter ones stay as they are.

    The bound is public: a number that was chosen, or released itself.
    """
    _check_positive("bound", bound)
    norms = x.detach().abs().sum(1, keepdim=True, dtype=torch.float64)
    if not norms.isfinite().all():
        raise Diverged(
            "a row with NaN or infinite values cannot be clipped, and would leave without noise: "
            "the training has diverged; try a smaller lr"
        )
    # Slightly below: entries are rounded, and the norm must not exceed the bound.
    factors = bound * (1 - torch.finfo(x.dtype).eps) / norms
    return torch.where(norms <= bound, x.detach(), (x.detach() * factors).to(x.dtype))


def step_of(bound: float) -> float:
    """The size of the steps in which rows are released: a power of 2, so that sums are exact."""
    return 2.0 ** (math.floor(math.log2(bound)) - STEPS)


def in_steps(x: Tensor, bound: float) -> Tensor:
    """Clipped rows in whole steps, towards 0: int64 on the CPU, ‖row‖₁ ≤ bound / step."""
    exact = clip_rows(x.detach().cpu().double(), bound * (1 - SLACK))
    return (exact / step_of(bound)).trunc().long()


def sums(x: Tensor, grouping: Grouping, bound: float) -> Tensor:
    """The sum of each group's clipped rows, in whole steps: int64 (groups, width)."""
    steps = in_steps(x, bound)
    total = torch.zeros(grouping.groups, steps.shape[1], dtype=torch.int64)
    return total.index_add_(0, grouping.membership, steps)


class Spender(Protocol):
    """Where releases are counted."""

    def release(self, epsilon: float, values: Tensor, scale: Tensor) -> int:
        """Count the release of these values with ε and noise of this scale, or refuse it; returns
        its number."""
        ...


def noisy_sums(
    x: Tensor, grouping: Grouping, bound: float, epsilon: float, budget: Spender, secret: bytes
) -> Tensor:
    """Steps 1 to 4 for one matrix: (rows, width) → float64 (groups, width), ε-private.

    secret  32 bytes that only this party has, from its journal
    """
    exact = sums(x, grouping, bound)
    decay = epsilon / (2 * math.floor(bound / step_of(bound)) + DECIDED)
    number = budget.release(epsilon, exact, torch.tensor(decay, dtype=torch.float64))
    return secret_steps(exact, decay, secret, number).double() * step_of(bound)


def release(
    x: Tensor, grouping: Grouping, bound: float, epsilon: float, budget: Spender, secret: bytes
) -> Tensor:
    """The same, averaged: (rows, width) → (groups, width), for groups whose sizes are known."""
    told = noisy_sums(x, grouping, bound, epsilon, budget, secret)
    return (told / grouping.sizes[:, None]).to(x)


def require() -> None:
    """Refuse a budget where the package that counts it is not installed."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise MethodError(
            "a privacy budget is counted by dp-accounting, which is not installed",
            installing("dp"),
        )


@dataclass(frozen=True)
class Budget:
    """(ε, δ) for all releases of the same rows together, and how much of it is spent.

    `released` is plain data; that of a run comes from the party's journal (privacy/release.py).
    """

    epsilon: float
    delta: float = 0.0
    released: list[list[float]] = field(default_factory=list)  # [ε, how often], …

    def __post_init__(self) -> None:
        _check_positive("epsilon", self.epsilon)
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta = {self.delta}: from 0 to less than 1")
        require()

    @property
    def spent(self) -> float:
        """ε of all releases so far, at δ."""
        return _composed(self.released, self.delta)

    def spend(self, epsilon: float, count: int = 1) -> int:
        """Count `count` releases of ε each, or refuse them; returns how many came before them."""
        _check_positive("epsilon", epsilon)
        _check_positive("count", count)
        after = _composed([*self.released, [epsilon, count]], self.delta)
        before = int(sum(times for _, times in self.released))
        if after > self.epsilon * (1 + ROUNDING):
            raise BudgetSpent(
                f"the privacy budget is spent: after {before} releases, {count} more with "
                f"ε = {epsilon:g} would bring ε from {self.spent:.6g} to {after:.6g} at "
                f"δ = {self.delta:g}, and {self.epsilon:g} is allowed. Nothing was released. Plan "
                "for fewer rounds, a smaller ε each, or a larger budget"
            )
        for entry in self.released:
            if entry[0] == epsilon:
                entry[1] += count
                return before
        self.released.append([epsilon, count])
        return before

    def release(self, epsilon: float, values: Tensor, scale: Tensor) -> int:
        """Count it here alone."""
        return self.spend(epsilon)

    def share(self, count: int) -> float:
        """The ε that each of `count` further releases can have: the largest that just fits."""
        _check_positive("count", count)
        if self.spent >= self.epsilon:
            return 0.0
        low = max(0.0, self.epsilon - _composed(self.released, 0.0)) / count  # basic composition
        high = self.epsilon - 2 * math.log1p(-self.delta)  # a single release, and nothing before it
        while high - low > 1e-5 * low + 1e-7 * self.epsilon:
            middle = (low + high) / 2
            fits = _composed([*self.released, [middle, count]], self.delta) <= self.epsilon
            low, high = (middle, high) if fits else (low, middle)
        return low


def _composed(releases: Releases, delta: float) -> float:
    """The total ε at δ: by basic composition or by the accountant, whichever is smaller.

    Both are upper bounds. The accountant has none for δ near 0.
    """
    total = math.fsum(epsilon * count for epsilon, count in releases)
    if not total or not delta:
        return total
    from dp_accounting import LaplaceDpEvent
    from dp_accounting.pld import PLDAccountant

    # Coarser steps make the bound larger, never wrong. This many keep it small and the accountant
    # quick.
    step = max(min(epsilon for epsilon, _ in releases) / 100, total / 2e4)
    if step > LARGEST_STEP:
        return total
    # The factor 2 of Δ already covers that a sample is replaced, not added or removed.
    accountant = PLDAccountant(value_discretization_interval=step)
    for epsilon, count in releases:
        accountant.compose(LaplaceDpEvent(1 / epsilon), int(count))  # b / Δ
    return min(total, float(accountant.get_epsilon(delta)))


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} = {value}: a finite number above 0")
