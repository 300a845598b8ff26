"""Releases with a differential privacy guarantee: rows are clipped and noised, and a budget counts.

    1. clip       every sample's vector to ‖·‖₁ ≤ C                              clip_rows
    2. average    a sample that changes moves the mean of its group, of s members,
                  by Δ = 2C / s in L1 at most, and no other mean                 sensitivities
    3. noise      Laplace(0, b = Δ / ε) on every entry                           release
    4. count      all releases of l and of θ, of all rounds, against the total ε    Budget

**What is protected**: one sample's vector at one client. Whoever sees all that was released, and
knows all other samples, can tell two vectors of this sample apart only within (ε, δ), as long as
everything else is the same.

**What is not protected.** (a) The networks: they were trained on the sample, and the weights of the
public part are sent without noise, so this is not differentially private training. (b) The
membership: that the sample is in this group and, with k-means or class groups, why. (c) Its label,
through (a) and (b). (d) A person at M clients is covered by M budgets, at worst Mε. (e) Anything
else that is computed from unprotected rows and shown, such as C and PPM. (f) Rounding: the proof is
about real numbers.

A step that is repeated after a crash with the same bits is the same release; with other bits it is
another one, and is counted.

One number suffices for a release of many coordinates, because a change of Δ in one coordinate is
the worst case of a change of Δ in L1. Moving several coordinates is group privacy, step by step,
for which log-concave noise has no slack. With δ = 0 the ε of all releases add up (basic
composition); for δ > 0 the total is less, and dp-accounting computes it from privacy loss
distributions.
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
from colonnade.privacy.noise import secret_laplace
from colonnade.version import installing

ROUNDING = 1e-9  # 0.1 + 0.1 + 0.1 is within 0.3
Releases = Sequence[Sequence[float]]  # (ε, how often), …


def clip_rows(x: Tensor, bound: float) -> Tensor:
    """Rows shortened to ‖row‖₁ ≤ bound, (rows, width); shorter ones stay as they are.

    The bound is public: a number that was chosen, not computed from these rows.
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


def sensitivities(grouping: Grouping, bound: float) -> Tensor:
    """Δ of each group, float64 (groups,): 2C / s; the worst is that of the smallest group.

    One sample belongs to one group, so each group may have noise of its own scale.
    """
    return 2 * bound / grouping.sizes.double()


class Spender(Protocol):
    """Where releases are counted."""

    def release(self, epsilon: float, means: Tensor, scale: Tensor) -> int:
        """Count the release of these means with ε and noise of these scales, (groups,), or refuse
        it; returns its number."""
        ...


def release(
    x: Tensor, grouping: Grouping, bound: float, epsilon: float, budget: Spender, secret: bytes
) -> Tensor:
    """Steps 1 to 4 for one matrix, l or θ: (rows, width) → (groups, width), ε-private.

    secret  32 bytes that only this party has, from its journal
    """
    means = grouping.means(clip_rows(x, bound))
    scale = sensitivities(grouping, bound) / epsilon  # b of each group
    number = budget.release(epsilon, means, scale)
    return secret_laplace(means, scale[:, None], secret, number)


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

    def release(self, epsilon: float, means: Tensor, scale: Tensor) -> int:
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
    # The factor 2 of Δ already covers that a sample is replaced, not added or removed.
    accountant = PLDAccountant(value_discretization_interval=step)
    for epsilon, count in releases:
        accountant.compose(LaplaceDpEvent(1 / epsilon), int(count))  # b / Δ
    return min(total, float(accountant.get_epsilon(delta)))


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} = {value}: a finite number above 0")
