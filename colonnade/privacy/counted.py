"""Releases of training rows within a budget, which the party's journal counts over all its runs.

    counted = Counted(me, Allowance(epsilon=4.0, delta=1e-6, planned=2))
    told = counted.means(values, groups, bound)        # or .sums(…); BudgetSpent: nothing was told
    bound = counted.bound(values)                      # half of the rows are shorter: costs ε, too

The ε of one release is fixed at the first one of a run, from what other runs have left over. What
is done again after a crash has the same noise and is counted once.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from colonnade.errors import BudgetSpent, ColonnadeError, Diverged
from colonnade.journal import Releases
from colonnade.privacy.budget import Budget, noisy_sums
from colonnade.privacy.grouping import Grouping
from colonnade.privacy.noise import secret_of
from colonnade.role.party import Party

EDGES = 2.0 ** (torch.arange(-40, 81, dtype=torch.float64) / 4)  # 0.001 … 10⁶, public
QUANTILE = 0.5  # as in adaptive clipping (Andrew et al. 2021)


@dataclass(frozen=True)
class Allowance:
    """What all releases of the same rows may cost together, and how it is divided."""

    epsilon: float
    delta: float
    planned: int  # releases of a run
    bounds: int = 0  # that are to be found from the rows, before these releases
    share: float = 0.0  # of what is left, for all these bounds together


@dataclass(frozen=True)
class Counted:
    """Releases of a party's training rows."""

    me: Party
    allowed: Allowance

    def means(self, x: Tensor, grouping: Grouping, bound: float) -> Tensor:
        """Of each group, whose sizes are known: (rows, width) → (groups, width)."""
        return (self.sums(x, grouping, bound) / grouping.sizes[:, None]).to(x)

    def sums(self, x: Tensor, grouping: Grouping, bound: float) -> Tensor:
        """Of each group: (rows, width) → float64 (groups, width)."""
        return self._told(x, grouping, bound, self.epsilon)

    def bound(self, x: Tensor) -> float:
        """About the median of the rows' L1 norms: the lowest edge that, by noisy counts, half of
        them do not exceed."""
        norms = x.detach().cpu().abs().sum(1, dtype=torch.float64)
        if not norms.isfinite().all():
            raise Diverged(
                "rows with NaN or infinite values have no length to clip them at: the training has "
                "diverged; try a smaller lr"
            )
        bins = Grouping(torch.bucketize(norms, EDGES), len(EDGES) + 1)
        # A row that changes leaves one bin for another: it moves two counts by 1.
        counts = self._told(torch.ones(len(x), 1), bins, 1.0, self._plan("bound"))
        below = counts[:-1, 0].cumsum(0) >= QUANTILE * len(x)
        return float(EDGES[int(below.int().argmax())] if below.any() else EDGES[-1])

    @property
    def epsilon(self) -> float:
        """Of one release."""
        return self._plan("")

    @cached_property
    def _releases(self) -> Releases:
        if self.me.journal is None:
            raise ColonnadeError(f"'{self.me.name}' has no journal to count releases in")
        return self.me.journal.releases(self.me.records("train"))

    def _plan(self, purpose: str) -> float:
        releases, allowed = self._releases, self.allowed
        earlier = releases.spent(by_others=True)
        if purpose:
            left = allowed.epsilon - Budget(allowed.epsilon, allowed.delta, earlier).spent
            epsilon = releases.plan(
                lambda: max(0.0, left * allowed.share / allowed.bounds), purpose
            )
        else:
            bounds = [[self._plan("bound"), allowed.bounds]] if allowed.bounds else []
            budget = Budget(allowed.epsilon, allowed.delta, [*earlier, *bounds])
            epsilon = releases.plan(lambda: budget.share(allowed.planned))
        if not epsilon:
            spent = Budget(allowed.epsilon, allowed.delta, releases.spent()).spent
            raise BudgetSpent(
                f"the privacy budget is spent: earlier runs have released these rows with ε = "
                f"{spent:.6g} at δ = {allowed.delta:g}, and {allowed.epsilon:g} is allowed for all "
                "runs together. Nothing was released. Train on other rows, or with a larger epsilon"
            )
        return epsilon

    def _told(self, x: Tensor, grouping: Grouping, bound: float, epsilon: float) -> Tensor:
        releases, secret = self._releases, secret_of(self.me)
        book = _Book(self.allowed, releases, secret, _number(self.me))
        told = noisy_sums(x, grouping, bound, epsilon, book, secret)
        spent = Budget(self.allowed.epsilon, self.allowed.delta, releases.spent()).spent
        self.me.figure(epsilon=spent)
        return told


def _number(me: Party) -> int:
    """How many matrices this party has released before, in this run; the same after a crash."""
    number: int = me.state.get("releases", 0)
    me.state["releases"] = number + 1
    return number


@dataclass(frozen=True)
class _Book:
    """Counts one release in the journal: once, however often it is done again with the same
    numbers."""

    allowed: Allowance
    releases: Releases
    secret: bytes
    number: int

    def release(self, epsilon: float, values: Tensor, scale: Tensor) -> int:
        content = b"".join(part.contiguous().numpy().tobytes() for part in (values, scale))
        key = f"{self.number} {hmac.digest(self.secret, content, 'sha256').hex()[:32]}"
        with self.releases.journal.turn():
            if bare := self.releases.bare():
                raise BudgetSpent(
                    f"no ε can be claimed for {bare} of these rows: earlier runs or predictions "
                    "have told their embeddings one by one and without noise, to evaluate them. "
                    "Nothing was released. Train on other rows"
                )
            if not self.releases.holds(key):
                allowed, spent = self.allowed, self.releases.spent()
                Budget(allowed.epsilon, allowed.delta, spent).spend(epsilon)
                self.releases.book(key, epsilon)
        return self.number
