"""What a record has lost in all runs of a party, as one ε, and how much its organisation lets it.

    lost(journal, names, "features", 1e-5).epsilon       # of the record that has lost most
    Organisation(Limits(features=20), "shop", "policy.toml").check(…)     # or BudgetSpent

Labels and features are counted apart: an answer in the place of a label tells of nothing else, and
a noisy vector of nothing but features. Models that were trained on a record, and sums over groups,
tell of both. What a record has lost is composed from its own uses, not from the most of each sort:
the record that was predicted most may be another one than the one that was trained on most.

Reading needs neither PyTorch nor SciPy, unless noise is to be composed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BudgetSpent
from colonnade.journal import Journal, Names, Spending
from colonnade.journal.spendings import MODELS, NO_NOISE
from colonnade.journal.spent import counted, uses
from colonnade.privacy import accountant
from colonnade.wire.limits import About, Limits

MOST_SORTS = 32  # of records that differ in what was spent on them; of more, a bound is computed
ROUNDING = 1e-6  # relative: noise that was planned for the limit is within it
Uses = list[tuple[Spending, int]]


@dataclass(frozen=True)
class Lost:
    """What the record that has lost most has lost."""

    epsilon: float
    spent: Uses  # each way of spending, with how often
    records: int  # on how many anything was spent

    @classmethod
    def nothing(cls) -> Lost:
        return cls(0.0, [], 0)


def lost(
    journal: Journal,
    records: Names,
    about: About,
    delta: float,
    more: Sequence[tuple[Spending, int]] = (),
    without: str = "",
) -> Lost:
    """Of these records, by all runs.

    more     what every one of them is to lose as well
    without  a run that is not counted
    """
    counts = counted(journal, records, about, without=without) if len(records) else {}
    for spending, times in more:
        counts[spending] = counts.get(spending, np.zeros(len(records), dtype=np.int64)) + times
    spendings = sorted(counts)
    if not spendings or not len(records):
        return Lost.nothing()
    table = np.stack([counts[one] for one in spendings], axis=1)
    touched = int(table.any(axis=1).sum())
    trained = any(use.kind == MODELS for use in uses(journal))
    tails = accountant.MODEL_TAILS if trained else accountant.TAILS
    found: list[tuple[float, Uses]] = []
    for line in _most(np.unique(table, axis=0)):
        spent = [(one, int(n)) for one, n in zip(spendings, line, strict=True) if n]
        found.append((epsilon(spent, delta, tails), spent))
    worst, spent = max(found, key=lambda each: each[0])
    return Lost(worst, spent, touched)


def epsilon(spent: Uses, delta: float, tails: float = accountant.TAILS) -> float:
    """The accountant's ε; without dp-accounting, a larger one: what has a pure ε adds up. What left
    without noise has none."""
    if not spent:
        return 0.0
    if any(use == NO_NOISE for use, _ in spent):
        return math.inf
    normal = [use for use in spent if use[0].mechanism not in ("laplace", "response")]
    within = max(delta - tails, 0.0) if normal else delta
    try:
        return accountant.epsilon(spent, within)
    except ModuleNotFoundError:
        pure = [use for use in spent if use not in normal]
        added = math.fsum(accountant.epsilon([(use, 1)], 0.0) * times for use, times in pure)
        return added + (accountant.epsilon(normal, within) if normal else 0.0)


@dataclass(frozen=True)
class Organisation:
    """The limit of one organisation, wherever its party books what it spends: see journal.Limit."""

    limits: Limits
    party: str
    source: str  # where to change it

    def check(
        self,
        journal: Journal,
        records: Names,
        about: About,
        more: Sequence[tuple[Spending, int]],
        without: str = "",
    ) -> None:
        """Refuse to spend more on these records, if one of them would lose too much with it."""
        most, delta = self.limits.of(about), self.limits.delta
        if not most or not len(records):
            return
        after = lost(journal, records, about, delta, more, without)
        if after.epsilon <= most * (1 + ROUNDING):
            return
        before = lost(journal, records, about, delta, without=without)
        raise BudgetSpent(
            f"'{self.party}' tells no more of the {about} of these records: "
            f"{beyond(self.limits, about, before.epsilon, after.epsilon)}. Nothing was sent. "
            f"{way_out(about)}, or change `{about}` in [privacy] of {self.source}"
        )


def beyond(limits: Limits, about: About, before: float, after: float) -> str:
    """That all runs together would spend more than an organisation lets them."""
    spent = "no run has spent anything on them yet"
    if math.isinf(before):
        return (
            f"all runs together may spend ε = {limits.of(about):g} at δ = {limits.delta:g} on a "
            f"record's {about}, and one of them has left without noise, so no ε holds for it"
        )
    if before:
        spent = f"runs have spent ε = {before:.4g} on one of them before"
    return (
        f"all runs together may spend ε = {limits.of(about):g} at δ = {limits.delta:g} on a "
        f"record's {about}, {spent}, and with this it would be {after:.4g}"
    )


def way_out(about: About) -> str:
    """What to do where the limit is reached."""
    key = "label_epsilon" if about == "labels" else "embedding_epsilon or model_epsilon"
    return (
        "`colonnade privacy` lists what was spent. Take records on which less was spent, agree on "
        f"a smaller {key} in [run.protect]"
    )


def _most(lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of different sums of uses, those that no other one includes; of too many, a single one that
    includes all."""
    if len(lines) > MOST_SORTS**2:
        return np.array([lines.max(axis=0)])
    has_more = np.array([(lines >= line).all(axis=1).sum() > 1 for line in lines])
    kept: NDArray[np.int64] = lines[~has_more]
    return kept if len(kept) <= MOST_SORTS else np.array([lines.max(axis=0)])
