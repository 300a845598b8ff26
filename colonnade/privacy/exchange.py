"""What of a partner's rows enters an exchange of singular vectors, if anything may.

    without noise   refuse a q at which known attacks work               determined
                    refuse rows that were exchanged before, in any run   journal
    with `epsilon`  few noisy columns instead of the own ones            scores
                    count them, and refuse what exceeds the budget       accountant, journal
    `unsafe_q`      refuse nothing

A partner decides by its own rows and its own journal, on nobody's word, before it sends anything.
With `epsilon` no decision depends on what is in the rows.

An exchange without noise counts when it begins: whether the vectors have reached the task party is
not for a partner to see. What is done again after a crash is another exchange, since the task party
may bring other columns to it. An exchange with noise that is done again tells the same, and counts
once.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from math import fsum, sqrt

from torch import Tensor

from colonnade.errors import BudgetSpent, ColonnadeError, MethodError
from colonnade.journal import Exchanges, Names, Spending, Spendings
from colonnade.privacy import accountant
from colonnade.privacy.determined import refusal
from colonnade.privacy.noise import secret_of
from colonnade.privacy.scores import noisy_scores
from colonnade.role.party import Party

ROUNDING = 1e-6  # of the budget: less than that is left by rounding alone


@dataclass(frozen=True)
class Terms:
    """What all members have agreed on, in the method's options."""

    q: int
    unsafe_q: bool
    exchanges: int
    epsilon: float
    delta: float
    clip: float


def admitted(me: Party, table: Tensor, names: Names, terms: Terms) -> Tensor:
    """The columns that enter: the table's own, or noisy ones; or it is refused.

    table  the standardised shared rows of a partner, (rows, columns)
    names  what its journal calls them
    """
    if me.journal is None:
        raise ColonnadeError(f"'{me.name}' has no journal to count exchanges in")
    exchanges = me.journal.exchanges(names)
    if terms.epsilon:
        return _noisy(me, table, exchanges, me.journal.spendings(names), terms)
    if not terms.unsafe_q and (why := refusal(table, terms.q, me.name)):
        raise MethodError(why)
    with exchanges.journal.turn():
        before = exchanges.most()
        if before >= terms.exchanges and not terms.unsafe_q:
            raise BudgetSpent(
                f"'{me.name}' does not exchange these rows again: by its journal some of them took "
                f"part in {before} exchanges without noise, in this run or in others, and "
                f"[vfedtrans] exchanges = {terms.exchanges}. Beside other columns of the task "
                "party a few of them add up to the whole table. Take other rows; or, if an "
                "exchange broke off and its vectors never arrived, begin a new run with "
                f"exchanges = {before + 1}"
            )
        exchanges.book()
    return table


def _noisy(
    me: Party, table: Tensor, exchanges: Exchanges, spendings: Spendings, terms: Terms
) -> Tensor:
    secret = secret_of(me)
    content = json.dumps([list(table.shape), terms.q, terms.clip]).encode()
    content += table.double().cpu().contiguous().numpy().tobytes()
    key = f"exchange {hmac.digest(secret, content, 'sha256').hex()[:32]}"
    with spendings.journal.turn():
        size = next((float(e["size"]) for e in spendings.entries() if e["key"] == key), 0.0)
        if not size:
            size = _left(me, exchanges, spendings, terms)
            spendings.book(key, Spending("gaussian", size), "masked_matrix", "training")
    me.figure(epsilon=accountant.epsilon(_gaussian(spendings), terms.delta))
    # As much variance as the own columns had, so that the noisy ones weigh as much in U.
    noisy = noisy_scores(table, terms.q, terms.clip, size, secret, f"{key} {size!r}")
    return noisy * sqrt(table.shape[1] / noisy.shape[1])


def _left(me: Party, exchanges: Exchanges, spendings: Spendings, terms: Terms) -> float:
    """The σ / Δ of one release that takes all that is left of the budget."""
    if exchanges.most():
        raise BudgetSpent(
            f"'{me.name}' exchanged some of these rows without noise before, as its journal says: "
            "no epsilon holds for them any more. Take other rows"
        )
    spent = _gaussian(spendings)
    before = fsum(times / use.size**2 for use, times in spent)
    discrete = any(use.mechanism == "discrete" for use, _ in spent)
    total = accountant.noise_for(terms.epsilon, terms.delta, 1, discrete=discrete) ** -2
    if total - before <= ROUNDING * total:
        raise BudgetSpent(
            f"the privacy budget is spent: '{me.name}' has released something of these rows in "
            f"earlier runs, with ε = {accountant.epsilon(spent, terms.delta):.6g} at δ = "
            f"{terms.delta:g} in all, and {terms.epsilon:g} is allowed. Nothing was released. Take "
            "other rows, or a larger epsilon"
        )
    return 1 / sqrt(total - before)


def _gaussian(spendings: Spendings) -> list[tuple[Spending, int]]:
    """What tells of features; answers for labels tell of labels."""
    return [one for one in spendings.spent() if one[0].mechanism in accountant.NORMAL]
