"""Vectors of rows that leave with noise: clipped, noised from the party's own secret, and counted.

    1. clip      each row's vector to ‖·‖₂ ≤ C
    2. noise     N(0, σ²) on every number, from AES under a key of this vector and this moment
    3. round     to a grid far finer than σ, so that the bits of a number tell nothing
    4. count     in the journal, before it leaves: every record of the split, once per epoch

**What is claimed.** Another vector of one row, everything else being the same, changes what all
releases of this row show only within (ε, δ): Δ = 2C, because one vector is replaced by another. The
other rows' vectors depend on a record, too, through the network that was trained on it. So this is
a guarantee per release, with the network's weights given; one for the record itself needs a network
that does not learn from it.

Gradients come back as if nothing had been clipped.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from colonnade.errors import Diverged
from colonnade.journal import Spending, Spendings
from colonnade.privacy import accountant
from colonnade.privacy.noise import gaussian, secret_of
from colonnade.privacy.settings import Protect, of_rows
from colonnade.role.party import Party
from colonnade.wire import Kind, Value

GRID = 2.0**-10  # of σ, at most
CLAIM = "per release, weights given"


@dataclass(frozen=True)
class Plan:
    """How often a record leaves in a run, and the noise that this needs."""

    releases: int
    size: float  # σ / Δ

    @classmethod
    def of(cls, protect: Protect, epochs: int, evaluations: int) -> Plan:
        """
        epochs       in each of which a training row leaves once
        evaluations  in each of which any other row leaves once
        """
        most = max(epochs, evaluations, 1)
        size = accountant.noise_for(protect.embedding_epsilon, protect.delta, most)
        return cls(most, size)


class RowNoise:
    """Of one party, in one run."""

    def __init__(self, protect: Protect, plan: Plan) -> None:
        self.clip, self.plan, self._protect = protect.embedding_clip, plan, protect
        self.sigma = plan.size * 2 * self.clip
        self.grid = 2.0 ** math.floor(math.log2(self.sigma * GRID))
        self.kinds: dict[str, int] = {}  # that were released, and how often a record at most
        self._books: dict[str, Spendings] = {}  # by split
        self._left: Counter[str] = Counter()  # messages by booking and rows
        self._secret = b""

    def begin(self, me: Party) -> None:
        """The rows are known, and so are their names in the journal."""
        self._books.clear()
        self._secret = secret_of(me)

    def applied(self, me: Party, kind: Kind, value: Value) -> Value:
        """What leaves instead of these vectors."""
        if not of_rows(kind) or not isinstance(value, Tensor):
            return value
        self._count(me, kind)
        phase, epoch, step = me.position
        moment = json.dumps([kind.name, me.progress.phase, phase, epoch, step])
        return released(value, self.clip, self.sigma, self.grid, self._secret, moment)

    def told(self) -> dict[str, Any]:
        """For the result."""
        protect = self._protect
        return {
            "epsilon": protect.embedding_epsilon,
            "delta": protect.delta,
            "clip": self.clip,
            "sigma": self.sigma,
            "releases": self.plan.releases,
            "kinds": sorted(self.kinds),
            "claim": CLAIM,
        }

    def _count(self, me: Party, kind: Kind) -> None:
        """Book this message for all rows of its split, unless this epoch's is booked."""
        at_hand = me.at_hand
        assert at_hand is not None, "the gate lets no row leave that is not at hand"
        phase, epoch, _ = me.position
        purpose = {"train": "training", "eval": "evaluation"}.get(me.progress.phase, "prediction")
        key = f"{kind.name} {purpose} {phase} {epoch} {at_hand.split}"
        if key in self._left:
            return
        book = self._books.get(at_hand.split)
        if book is None:
            assert me.journal is not None
            book = self._books[at_hand.split] = me.journal.spendings(me.records(at_hand.split))
        spending = Spending("gaussian", self.plan.size)
        if book.book(key, spending, kind.name, purpose):
            self.kinds[kind.name] = self.kinds.get(kind.name, 0) + 1
        self._left[key] += 1


def released(
    x: Tensor, clip: float, sigma: float, grid: float, secret: bytes, moment: str
) -> Tensor:
    """Steps 1 to 3 on (rows, …). The same vectors at the same moment have the same noise."""
    flat = x.detach().reshape(len(x), -1).double().cpu()
    norms = flat.norm(dim=1, keepdim=True)
    if not norms.isfinite().all():
        raise Diverged(
            "a row with NaN or infinite values cannot be clipped, and would leave without noise: "
            "the training has diverged; try a smaller lr"
        )
    flat = flat * (clip / norms.clamp(min=clip))
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
    noise = gaussian(flat.shape, secret, f"{moment} {digest}")
    noisy: Tensor = ((flat + sigma * noise) / grid).round() * grid
    return noisy.reshape(x.shape).to(x.device, x.dtype)
