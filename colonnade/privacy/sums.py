"""Noise of which every sender of a sum adds a share, so that only the sum carries all of it.

    1. clip      each row's vector to ‖·‖₂ ≤ C, in whole steps of a grid              see rows.py
    2. noise     a discrete Gaussian of its share of σ², from the sender's own secret
    3. mask      see masking.py; the receiver opens the sum, and the sum alone

Of K senders t may tell the receiver their noise. The others' is still all of σ²: a share is
σ² / (K − t). Where nobody honest may be left, each adds all of it. The receiver's own term is
clipped alike; the noise of the senders covers it towards each of them, unless there are too few.

A sum of discrete Gaussians is one, up to exp(−2π²σ²) with σ in steps of the grid, of which there
are a thousand. The samples come from a table of 64-bit words, whose errors are below 2⁻⁴⁰ for all
numbers about a row in a run; δ has room for that.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import ColonnadeError
from colonnade.privacy.noise import words
from colonnade.privacy.rows import Plan, RowNoise
from colonnade.privacy.settings import Protect
from colonnade.role.party import Party
from colonnade.wire import Kind, Value
from colonnade.wire.counting import RowsAtHand

IN_SUM = "; in the sum alone"
REACH = 10  # in σ, beyond which nothing is drawn: less than 2^-75 is lost


class SumNoise(RowNoise):
    """Of one party, in one run: see above. What is counted, and how, is as in rows.py."""

    def __init__(self, protect: Protect, plan: Plan, *, booked: bool = True) -> None:
        super().__init__(protect, plan, booked=booked)
        self.claim += IN_SUM
        self._added: RowsAtHand | None = None  # of which rows a term was made

    def applied(self, me: Party, kind: Kind, value: Value) -> Value:
        """A term, or a sum: refused unless its noise was added for the rows at hand."""
        if kind.carries == "sums" and (me.at_hand is None or self._added is not me.at_hand):
            raise ColonnadeError(
                f"'{me.name}' does not send '{kind.name}': it is declared as a sum whose terms are "
                "protected where they are added, and nothing has protected one of these rows. Add "
                'up with SecureSum, or declare it with carries = "features"'
            )
        return value

    def term(self, me: Party, kind: Kind, values: Tensor, senders: int) -> Tensor:
        """Steps 1 and 2, with this sender's share."""
        self.note(me)
        self._share = share(self.sigma, senders, self.colluding)
        return self._scaled(self.released(me, kind, values))

    def note(self, me: Party) -> None:
        """A term was made of the rows at hand."""
        self._added = me.at_hand

    def named(self) -> str:
        """For the ledger."""
        divided = f", divided by {self.scale:g}" * (self.scale > 1)
        noise = f"{self._share:.6g} of discrete noise of {self.sigma:.6g}"
        return f"clipped to {self.clip:g}, {noise}{divided}"

    def told(self) -> dict[str, Any]:
        found = super().told()
        return found and {**found, "share": self._share, "colluding": self.colluding}

    def _under(self) -> str:
        return self._share.hex()

    def _drawn(self, shape: torch.Size, secret: bytes, context: str) -> Tensor:
        if not self._share:
            return torch.zeros(shape, dtype=torch.float64)
        drawn = discrete(math.prod(shape), self._share / self.grid, secret, context)
        return torch.from_numpy(drawn.astype(np.float64)).reshape(shape)


def share(sigma: float, senders: int, colluding: int) -> float:
    """The noise that each of so many senders adds."""
    honest = senders - colluding
    return sigma if honest < 1 else sigma / math.sqrt(honest)


def discrete(count: int, sigma: float, secret: bytes, context: str) -> NDArray[np.int64]:
    """So many discrete Gaussian numbers, P(k) ∝ exp(−k²/2σ²), from a secret and a context alone."""
    drawn = words(count, secret, context)
    table = _table(sigma)
    result: NDArray[np.int64] = np.searchsorted(table, drawn, side="right") - len(table) // 2
    return result.astype(np.int64)


@lru_cache(maxsize=8)
def _table(sigma: float) -> NDArray[np.uint64]:
    """P(k ≤ i − reach) in units of 2^-64, for i from 0: how many words lie at or below it."""
    reach = math.ceil(REACH * sigma)
    with localcontext() as context:
        context.prec = 40
        spread = 2 * Decimal(sigma) ** 2
        upper = [(-(Decimal(k) ** 2) / spread).exp() for k in range(reach + 1)]
        weights = [*upper[:0:-1], *upper]
        total, sums, found = sum(weights), Decimal(0), []
        for weight in weights[:-1]:
            sums += weight
            found.append(int(sums / total * 2**64))
    return np.array(found, dtype=np.uint64)
