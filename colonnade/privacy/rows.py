"""Vectors of rows that leave with noise: clipped, noised from the party's own secret, and counted.

    1. clip      each row's vector to ‖·‖₂ ≤ C, and cut its numbers to a grid far finer than σ
    2. count     in the journal, before it leaves: every record of the split, once per epoch
    3. noise     N(0, σ²), rounded to the same grid, on every number: what may leave is the same
                 set of numbers whatever the vector was
    4. scale     by a power of two that all know, so that the noise has about length 1: as it is,
                 it would drown what the receiver joins it with

The noise comes from AES, under a key of this vector and this moment, so a step that is done again
after a crash sends the same bytes, which count once. The same rows in the same epoch with other
vectors are beyond the plan, and refused, also after a restart. A run that begins again on other
rows, or in other batches, counts them anew.

**What is claimed.** Another vector of one row, everything else being the same, changes what all
releases of this row show only within (ε, δ): Δ = 2C, because one vector is replaced by another. The
other rows' vectors depend on a record, too, through the network that was trained on it. So this is
a guarantee per release, with the network's weights given. With `bottom = "frozen"` the network
stays as it was drawn, and the guarantee is one for the record (with the means, spreads and
categories given by which columns are prepared); its row's vector never changes, so it leaves once,
and the same noisy one ever after, in whatever place or split.

**Predictions.** The same row under the same weights gets the same answer in all predictions, and is
counted once; another row, or other weights, are a new release with the σ of the training. Rows
without ids are known by what is in them: equal ones get equal answers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import BudgetSpent, ColonnadeError, Diverged
from colonnade.journal import Spending, Spendings
from colonnade.journal.left import HALF
from colonnade.privacy import accountant
from colonnade.privacy.noise import gaussian, secret_of
from colonnade.privacy.settings import TAILS, Protect, of_rows
from colonnade.role.party import Party
from colonnade.role.recipe import Schedule
from colonnade.wire import Kind, Value

GRID = 2.0**-10  # of σ, at most
FINEST = 2.0**-22  # of C: steps of the grid are whole numbers that float32 holds exactly
ROUNDING = 2.0**-20  # more than what float32 loses when a vector is shortened
PER_RELEASE, PER_RECORD = "per release, weights given", "per record"
PER_TRAINED_RECORD = "per record, with the epsilon of models added"
CLAIMS = {"trained": PER_RELEASE, "frozen": PER_RECORD, "private": PER_TRAINED_RECORD}
PREPARED = ", preparation given"  # its means and spreads are those of all training rows
PURPOSES = ("training", "evaluation", "prediction")

Places = NDArray[np.int64]  # of rows, in their split


@dataclass(frozen=True)
class Plan:
    """How often a record leaves in a run, and the noise that this needs."""

    releases: int
    size: float  # σ / Δ
    once: bool = False  # the vector of a row never changes
    discrete: bool = False  # on whole numbers, so that shares of it add up exactly

    @classmethod
    def of(cls, protect: Protect, schedule: Schedule, *, discrete: bool = False) -> Plan:
        """A training row leaves once per epoch, any other row once per evaluation."""
        moved = schedule.flip or schedule.shift or schedule.upside_down
        once = protect.bottom == "frozen" and not moved
        every = schedule.evaluate_every
        evaluations = -(-schedule.epochs // every) if every else 0
        most = 1 if once else max(schedule.epochs, evaluations)
        size = accountant.noise_for(
            protect.embedding_epsilon, protect.delta - TAILS, most, discrete=discrete
        )
        return cls(most, size, once, discrete)


class RowNoise:
    """Of one party, in one run.

    booked  whether it counts; not where nothing leaves the process of a simulation
    """

    def __init__(self, protect: Protect, plan: Plan, *, booked: bool = True) -> None:
        self.clip, self.plan, self._protect = protect.embedding_clip, plan, protect
        self.spending = Spending("discrete" if plan.discrete else "gaussian", plan.size)
        self.sigma = plan.size * 2 * self.clip
        self.grid = 2.0 ** math.floor(math.log2(max(self.sigma * GRID, self.clip * FINEST)))
        self.claim = CLAIMS[protect.bottom]
        self.scale = 1.0  # what noisy vectors were divided by
        self.colluding, self._share = protect.colluding, self.sigma  # its noise
        self._booked = booked
        self._me: Party | None = None
        self._books: dict[str, Spendings] = {}  # by split
        self._keys: set[str] = set()  # booked in this run, as far as this process knows
        self._layouts: dict[str, str] = {}  # of a split: its rows, and how batches are made of them
        self._seen: dict[str, NDArray[np.bool_]] = {}  # rows that have left, by key
        self._answers: dict[str, Tensor] = {}  # by split, where a row leaves once
        self._once_named: dict[str, list[bytes]] = {}  # the same
        self._weights = ""

    def begin(self, me: Party) -> None:
        """The rows are known, and so are their names in the journal."""
        self._me = me
        prepared = me.preparation
        learnt = prepared is not None and not prepared.fixed
        if self.claim.startswith(PER_RECORD) and learnt and PREPARED not in self.claim:
            self.claim = self.claim.replace(PER_RECORD, PER_RECORD + PREPARED)
        self._keys.clear()
        for known in (self._books, self._layouts, self._seen, self._answers, self._once_named):
            known.clear()
        self._weights = "" if "train" in me.splits else me.kept.sha256()

    def applied(self, me: Party, kind: Kind, value: Value) -> Value:
        """What leaves instead of these vectors."""
        if not of_rows(kind) or not isinstance(value, Tensor):
            return value
        self._share = self.sigma
        return self._scaled(self.released(me, kind, value))

    def own_term(self, me: Party, kind: Kind, values: Tensor, senders: int) -> Tensor:
        """What the receiver of so many senders' vectors adds to them before it tells the sum: with
        noise only where no sender but those who may collude has any."""
        self._share = self.sigma if senders <= self.colluding else 0.0
        if not senders:  # nobody is told
            flat = cut(values, self.clip, self.grid) * self.grid
            return self._scaled(flat.reshape(values.shape).to(values.device, values.dtype))
        return self._scaled(self.released(me, kind, values))

    def _scaled(self, noisy: Tensor) -> Tensor:
        """Step 4, alike for all that are added up: what covers one must not be scaled alone."""
        self.scale = scale(self.sigma, noisy[:1].numel())
        return noisy / self.scale

    def released(self, me: Party, kind: Kind, value: Tensor) -> Tensor:
        """The same of vectors of the batch at hand."""
        if me.at_hand is None or len(value) != me.at_hand.count:
            raise ColonnadeError(
                f"'{me.name}' cannot protect '{kind.name}': its rows are not those of the batch at "
                "hand, so nobody can tell whose vectors these are. Send one row for each of the "
                "batch, inside me.batches() or me.rows()"
            )
        split = me.at_hand.split
        rows = np.arange(len(me.splits[split]))[me.at_hand.rows]
        steps = cut(value, self.clip, self.grid)
        if not self._booked:
            noise = self._noise(me, steps.shape, "rehearsal", kind, digest(steps).hex())
            noisy = steps + noise
        elif "train" not in me.splits:
            noisy = self._predicted(me, kind, steps, rows)
        elif self.plan.once:
            noisy = self._once(me, kind, steps, rows)
        else:
            noisy = self._released(me, kind, steps, rows)
        return (noisy * self.grid).reshape(value.shape).to(value.device, value.dtype)

    def named(self) -> str:
        """For the ledger."""
        divided = f", divided by {self.scale:g}" * (self.scale > 1)
        return f"clipped to {self.clip:g}, Gaussian noise of {self.sigma:.6g}{divided}"

    def told(self) -> dict[str, Any]:
        """For the result, from the journal: what this run has spent, and all runs together, on the
        record that lost most."""
        me, protect = self._me, self._protect
        if me is None or not self._booked:
            return {}
        books = [self._book(me, split) for split in me.splits]
        entries = [e for book in books[:1] for e in book.entries() if self._ours(e)]
        if not entries:
            return {}
        here = [book.spent(keys=_of(book, split)) for split, book in self._books.items()]
        before = [_gaussian(book.spent(by_others=True)) for book in self._books.values()]
        ever = [[*now, *then] for now, then in zip(here, before, strict=True)]
        return {
            "epsilon": self._epsilon(here),
            "delta": protect.delta,
            "planned": protect.embedding_epsilon,
            "all_runs": self._epsilon(ever),
            "clip": self.clip,
            "sigma": self.sigma,
            "releases": max(sum(times for _, times in spent) for spent in here),
            "kinds": sorted({str(entry["kind"]) for entry in entries}),
            "claim": self.claim,
        }

    def _ours(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry of the journal is of this sort of noise."""
        ours = entry["mechanism"] == self.spending.mechanism
        return ours and entry["purpose"] in PURPOSES

    # ---- three ways to leave -------------------------------------------------------------------

    def _released(self, me: Party, kind: Kind, steps: Tensor, rows: Places) -> Tensor:
        """In training and evaluation: another vector of a row in every epoch."""
        assert me.at_hand is not None
        purpose = "training" if me.progress.phase == "train" else "evaluation"
        phase, epoch, _ = me.position
        split = me.at_hand.split
        key = f"vectors of {split}, {purpose}, {phase} {epoch}, {self._layout(me, split)}"
        secret = secret_of(me)  # so that nothing of one run is taken for another's
        place, what = digest(secret, key, rows), digest(secret, kind.name, self._under(), steps)
        book = self._book(me, split)
        with book.journal.turn():
            known = book.journal.left.get(place)
            seen = self._seen.setdefault(key, np.zeros(len(me.splits[split]), dtype=bool))
            if (known is None and seen[rows].any()) or known not in (None, what):
                self._refuse(me, kind, f"in {purpose}, epoch {epoch + 1}, as other vectors")
            seen[rows] = True
            if known is None:
                self._count(me, kind, purpose, key)
                book.journal.left.put((place, what))
        return steps + self._noise(me, steps.shape, "moment", kind, f"{place.hex()} {what.hex()}")

    def _once(self, me: Party, kind: Kind, steps: Tensor, rows: Places) -> Tensor:
        """Its network is frozen, so the vector of a row is the same in the whole run: what left at
        first leaves again. After a restart the same noise is on it, in whatever place it is."""
        assert me.at_hand is not None
        split = me.at_hand.split
        if split not in self._once_named:
            self._once_named[split] = self._counted_once(me, kind, split)
        names = self._once_named[split]
        answers = self._answers.get(split)
        if answers is None or answers.shape[1] != steps.shape[1]:
            size = (len(me.splits[split]), steps.shape[1])
            answers = self._answers[split] = torch.full(size, math.nan, dtype=torch.float64)
        for number, row in enumerate(rows.tolist()):
            if answers[row, :1].isnan().any():
                noise = self._noise(me, steps.shape[1:], "once", kind, names[row].hex())
                answers[row] = steps[number] + noise
        return answers[torch.from_numpy(rows)]

    def _counted_once(self, me: Party, kind: Kind, split: str) -> list[bytes]:
        """What each row is called by what is in it; those that have not left yet are booked."""
        book, secret, inside = self._book(me, split), secret_of(me), me.splits[split].x.cpu()
        names = [
            digest(secret, "once", kind.name, str(record), row)
            for record, row in zip(me.records(split).tolist(), inside, strict=True)
        ]
        with book.journal.turn():
            new = [n for n, name in enumerate(names) if book.journal.left.get(name) is None]
            if new:
                purpose = "training" if split == "train" else "evaluation"
                key = f"vectors of {split}, once, {digest(*(names[n] for n in new)).hex()}"
                self._count(me, kind, purpose, key, np.array(new))
                book.journal.left.put(*((names[n], names[n]) for n in new))
        return names

    def _predicted(self, me: Party, kind: Kind, steps: Tensor, rows: Places) -> Tensor:
        """The same row under the same weights gets the same answer, and is counted once."""
        assert me.at_hand is not None
        split = me.at_hand.split
        book = self._book(me, split)
        records, secret = me.records(split)[rows], secret_of(me, lasting=True)
        names = [
            digest(secret, kind.name, self._under(), self._weights, str(record), vector)
            for record, vector in zip(records.tolist(), steps, strict=True)
        ]
        with book.journal.turn():
            new = [n for n, name in enumerate(names) if book.journal.left.get(name) is None]
            if new:
                key = f"vectors of {split}, prediction {digest(*(names[n] for n in new)).hex()}"
                book.book(key, self.spending, kind.name, "prediction", positions=rows[new])
                book.journal.left.put(*((names[n], names[n]) for n in new))
        noise = [self._noise(me, steps.shape[1:], "lasting", kind, name.hex()) for name in names]
        return steps + torch.stack(noise)

    # ---- what they share -----------------------------------------------------------------------

    def _noise(self, me: Party, shape: torch.Size, way: str, kind: Kind, context: str) -> Tensor:
        secret = secret_of(me, lasting=way == "lasting")
        return self._drawn(
            shape, secret, json.dumps([way, kind.name, self.sigma, self._under(), context])
        )

    def _drawn(self, shape: torch.Size, secret: bytes, context: str) -> Tensor:
        """In steps of the grid."""
        if not self._share:
            return torch.zeros(shape, dtype=torch.float64)
        return gaussian(shape, secret, context).mul_(self._share / self.grid).round_()

    def _under(self) -> str:
        """What else the noise depends on: with another one it is another release."""
        return ""

    def _layout(self, me: Party, split: str) -> str:
        if split not in self._layouts:
            self._layouts[split] = layout(me, split)
        return self._layouts[split]

    def _book(self, me: Party, split: str) -> Spendings:
        if split not in self._books:
            assert me.journal is not None, "only a run has rows to send"
            self._books[split] = me.journal.spendings(me.records(split))
        return self._books[split]

    def _count(
        self, me: Party, kind: Kind, purpose: str, key: str, some: Places | None = None
    ) -> None:
        """Book one vector of every record of the split, or of those at some positions, unless that
        is done; it must be planned."""
        assert me.at_hand is not None
        if key in self._keys:
            return
        split = me.at_hand.split
        book = self._book(me, split)
        with book.journal.turn():
            if not any(entry["key"] == key for entry in book.entries()):
                spent = book.spent(keys=_of(book, split), positions=some, without="prediction")
                times = sum(often for _, often in spent)
                if times >= self.plan.releases:
                    self._refuse(me, kind, f"{times} times in this run")
                book.book(key, self.spending, kind.name, purpose, positions=some)
        self._keys.add(key)

    def _refuse(self, me: Party, kind: Kind, how: str) -> None:
        often = "once" if self.plan.once else "once in an epoch"
        raise BudgetSpent(
            f"'{me.name}' does not send '{kind.name}': these rows have left {how}, and the noise "
            f"for ε = {self._protect.embedding_epsilon:g} is planned for "
            f"{self.plan.releases} vectors of each row, {often}. Another one would cost more than "
            "was agreed; nothing was sent. If the run was taken back to an earlier place with "
            "other weights, begin a new one, with another --out: it is counted by itself"
        )

    def _epsilon(self, each: list[list[tuple[Spending, int]]]) -> float:
        delta = self._protect.delta - TAILS
        return max(accountant.epsilon(spent, delta) for spent in each)


def scale(sigma: float, width: int) -> float:
    """Step 4: the power of two that makes the noise on a vector of this width no longer than 1."""
    return float(2.0 ** math.ceil(math.log2(max(1.0, sigma * math.sqrt(width)))))


def layout(me: Party, split: str) -> str:
    """Names the rows of a split in their order, and how batches are made of them: what is done
    again with the same is the same. Others decide which rows are common."""
    plan = me.schedule
    batches = json.dumps([plan.seed, plan.batch_size, plan.batching])
    return digest(batches, me.records(split)).hex()


def cut(x: Tensor, clip: float, grid: float) -> Tensor:
    """Step 1: (rows, …) as whole steps of the grid, float64 (rows, width), each ‖row‖₂ ≤ clip."""
    flat = x.detach().reshape(len(x), -1).float().cpu()
    norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True, dtype=torch.float64)
    if not norms.isfinite().all():
        raise Diverged(
            "a row with NaN or infinite values cannot be clipped, and would leave without noise: "
            "the training has diverged; try a smaller lr"
        )
    factors = clip * (1 - ROUNDING) / norms.clamp_(min=clip) / grid
    steps: Tensor = (flat * factors.float()).trunc_().double()
    return steps


def _of(book: Spendings, split: str) -> str:
    """How keys begin that speak of these rows: with ids, also when they were in another split."""
    return "vectors of " if book.named else f"vectors of {split}, "


def _gaussian(spent: list[tuple[Spending, int]]) -> list[tuple[Spending, int]]:
    return [(use, times) for use, times in spent if use.mechanism in accountant.NORMAL]


def digest(*parts: str | bytes | Tensor | NDArray[Any]) -> bytes:
    """16 bytes of what was sent, or of where; with a secret among it, nobody else can make them."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            part = part.contiguous().numpy()
        data = part.encode() if isinstance(part, str) else part
        data = data.tobytes() if isinstance(data, np.ndarray) else data
        found.update(len(data).to_bytes(8, "little") + data)
    return found.digest()[:HALF]
