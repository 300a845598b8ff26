"""Models that leave, trained so that no record tells much through them (DP-SGD).

At each step of an optimiser that trains what leaves:

    1. clip      each record's own gradient to ‖·‖₂ ≤ C, of all parameters together
    2. sum       over the rows of the batch, in float64
    3. count     in the journal: every training record, once per epoch
    4. noise     N(0, σ²) on every number of the sum, rounded to a grid; divided by the rows

Whatever is made of such weights later, sent, averaged or trained on by others, costs nothing more.
Δ = 2C, because one record is replaced by another, and a record is in one batch of an epoch. Others
may know in which one, so nothing is amplified by sampling.

The noise comes from AES, under a key of this moment and this sum: a step that is done again after
a crash takes the same noise and counts once. With another sum it is refused, after a restart too.
A run that begins again on other rows counts them anew.

**What is not covered.** How many rows there are, by what columns were scaled and the spread of
numbers that are learnt count as known. Held-out rows choose nothing that leaves.

The noise has no tails beyond MOST_SIGMAS. A record moves one number by Δ at most, so its releases
differ there with a probability below δ/40 in all, which is taken off δ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from colonnade.errors import BudgetSpent, ColonnadeError, ConfigError, Diverged
from colonnade.journal import Spending, Spendings
from colonnade.privacy import accountant
from colonnade.privacy.gradients import Each, RecordGradients
from colonnade.privacy.noise import MOST_SIGMAS, gaussian, secret_of
from colonnade.privacy.rows import GRID, PREPARED, ROUNDING, digest, layout
from colonnade.privacy.settings import MODEL_TAILS, Protect
from colonnade.role.party import Party

PURPOSE, KEYS = "model", "gradients of "
LEAST = 1 / (MOST_SIGMAS - 5.5)  # σ / Δ: smaller noise would end where another record's begins
CLAIM = "per record"


@dataclass(frozen=True)
class Training:
    """How often a record is trained on in a run by what leaves, and the noise that this needs."""

    epochs: Mapping[str, int]  # by the name of the optimiser
    size: float  # σ / Δ

    @classmethod
    def of(cls, protect: Protect, epochs: Mapping[str, int]) -> Training:
        total = sum(epochs.values())
        delta = protect.delta - MODEL_TAILS
        size = accountant.noise_for(protect.model_epsilon, delta, max(total, 1))
        return cls(epochs, max(size, LEAST))

    @property
    def releases(self) -> int:
        return sum(self.epochs.values())


class ModelNoise:
    """Of one party, in one run."""

    def __init__(self, protect: Protect, plan: Training) -> None:
        self.clip, self.plan, self._protect = protect.model_clip, plan, protect
        self.sigma = plan.size * 2 * self.clip
        self.grid = 2.0 ** math.floor(math.log2(self.sigma * GRID))
        self._me: Party | None = None
        self._spendings: Spendings | None = None
        self._layout = ""  # which rows there are, and how batches are made of them
        self._keys: set[str] = set()  # booked in this run
        self._seen: dict[str, NDArray[np.bool_]] = {}  # rows that were trained on, by key

    def begin(self, me: Party) -> None:
        """The rows are known, and so are their names in the journal."""
        self._me, self._spendings, self._layout = me, None, ""
        self._seen.clear()
        if self.plan.epochs and "train" in me.splits:
            self._check(me)

    def on_thing(self, me: Party, name: str, thing: Any) -> None:
        """Protect an optimiser that trains what leaves; the modules that it trains are there."""
        if name not in self.plan.epochs or not isinstance(thing, torch.optim.Optimizer):
            return
        trained = [p for group in thing.param_groups for p in group["params"]]

        def at_hand() -> object | None:
            wanted = me.holds(name) and me.at_hand is not None and me.at_hand.split == "train"
            return me.at_hand if wanted else None

        each = RecordGradients(me.name, trained, at_hand)
        for kept, module in me.kept.modules().items():
            each.watch(kept, module)
        hook = thing.register_step_pre_hook(partial(self._before_step, me, name, each))
        hooks: Any = thing._optimizer_step_pre_hooks
        hooks.move_to_end(hook.id, last=False)  # what others do to gradients comes after the noise

    def told(self) -> dict[str, Any]:
        """For the result, from the journal: what this run has spent, and all runs together, on the
        record that lost most."""
        me = self._me
        if me is None or not self.plan.epochs or "train" not in me.splits:
            return {}
        book = self._book(me)
        here = book.spent(keys=KEYS)
        if not here:
            return {}
        delta = self._protect.delta - MODEL_TAILS
        others = book.spent(by_others=True)
        ever = [*here, *((use, n) for use, n in others if use.mechanism in accountant.NORMAL)]
        return {
            "epsilon": accountant.epsilon(here, delta),
            "delta": self._protect.delta,
            "planned": self._protect.model_epsilon,
            "all_runs": accountant.epsilon(ever, delta),
            "clip": self.clip,
            "sigma": self.sigma,
            "releases": sum(times for _, times in here),
            "claim": CLAIM + PREPARED * (me.preparation is not None and not me.preparation.fixed),
        }

    # ---- a step --------------------------------------------------------------------------------

    def _before_step(
        self, me: Party, name: str, each: RecordGradients, optimizer: Any, args: Any, options: Any
    ) -> None:
        if me.at_hand is None or me.at_hand.split != "train":
            raise ColonnadeError(
                f"'{me.name}' cannot protect a step of '{name}': it is taken outside of "
                "me.batches(), so nobody can tell whose gradients these are"
            )
        with me.timing("protecting gradients"):
            taken = each.take(me.at_hand.count)
            total = clipped_sum(taken, self.clip, me.at_hand.count)
            noisy = self._released(me, name, total) / me.at_hand.count
            begin = 0
            for parameter, _ in taken:
                assert parameter.grad is not None
                part = noisy[begin : begin + parameter.numel()].view(parameter.shape)
                parameter.grad.copy_(part.to(parameter.device, parameter.dtype))
                begin += parameter.numel()

    def _released(self, me: Party, name: str, total: Tensor) -> Tensor:
        """Steps 3 and 4, on the CPU."""
        assert me.at_hand is not None
        phase, epoch, _ = me.position
        rows = np.arange(len(me.splits["train"]))[me.at_hand.rows]
        self._layout = self._layout or layout(me, "train")
        key, secret = f"{KEYS}{name}, {phase} {epoch}, {self._layout}", secret_of(me)
        place, what = digest(secret, key, rows), digest(secret, name, total)
        book = self._book(me)
        with book.journal.turn():
            known = book.journal.left.get(place)
            seen = self._seen.setdefault(key, np.zeros(len(me.splits["train"]), dtype=bool))
            if (known is None and seen[rows].any()) or known not in (None, what):
                self._refuse(me, f"in epoch {epoch + 1} of '{phase}', with other gradients")
            seen[rows] = True
            if known is None:
                self._count(me, book, key)
                book.journal.left.put((place, what))
        context = json.dumps(["model", name, self.sigma, place.hex(), what.hex()])
        noise = gaussian(total.shape, secret, context).mul_(self.sigma)
        return noise.add_(total).div_(self.grid).round_().mul_(self.grid)

    def _count(self, me: Party, book: Spendings, key: str) -> None:
        """Book one gradient of every training record, unless that is done; it must be planned."""
        if key in self._keys:
            return
        if len(self._keys) >= self.plan.releases:
            self._refuse(me, f"in {len(self._keys)} epochs of this run")
        book.book(key, Spending("gaussian", self.plan.size), "models", PURPOSE)
        self._keys.add(key)

    def _book(self, me: Party) -> Spendings:
        if self._spendings is None:
            assert me.journal is not None, "only a run trains"
            self._spendings = me.journal.spendings(me.records("train"))
            keys = {str(entry["key"]) for entry in self._spendings.entries()}
            self._keys = {key for key in keys if key.startswith(KEYS)}
        return self._spendings

    def _refuse(self, me: Party, how: str) -> None:
        raise BudgetSpent(
            f"'{me.name}' trains no further on these rows: it has trained on them {how}, and the "
            f"noise for ε = {self._protect.model_epsilon:g} is planned for {self.plan.releases} "
            "epochs, with each row once in each. More would cost more than was agreed. If the run "
            "was taken back to an earlier place with other weights, begin a new one, with another "
            "--out: it is counted by itself"
        )

    def _check(self, me: Party) -> None:
        """Refuse what one ε for each record does not cover."""
        if me.task.class_weight != "none" or me.splits["train"].weights is not None:
            raise ConfigError(
                [
                    f"protect.model_epsilon: the training rows of '{me.name}' have weights, which "
                    "follow from all rows together, so one record changes what every other adds. "
                    "Omit class_weight and the column of weights, or omit model_epsilon"
                ]
            )
        if me.schedule.patience and me.labelled:
            raise ConfigError(
                [
                    f"protect.model_epsilon: with patience = {me.schedule.patience} the held-out "
                    f"rows of '{me.name}' choose when it stops, and with which weights. Omit "
                    "patience, and choose the number of epochs beforehand"
                ]
            )
        if me.recipe.precision != "float32":
            raise ConfigError(
                [
                    f"protect.model_epsilon: precision = '{me.recipe.precision}' of '{me.name}': "
                    "gradients of single records need precision = 'float32'"
                ]
            )


def clipped_sum(taken: list[tuple[nn.Parameter, Each]], clip: float, rows: int) -> Tensor:
    """Steps 1 and 2: (numbers,), float64, on the CPU.

    taken  what each row adds to the gradient of a mean over the rows, by parameter
    """
    if not taken:
        raise ColonnadeError("a step without gradients trains nothing: was backward() called?")
    squares = torch.stack([each.squares() for _, each in taken])
    norms = squares.sum(0).sqrt_().mul_(rows)  # (rows,): of each record's own gradient
    if not norms.isfinite().all():
        raise Diverged(
            "a record's gradient is NaN or infinite and cannot be clipped: the training has "
            "diverged; try a smaller lr"
        )
    factors = clip * (1 - ROUNDING) * rows / norms.clamp_(min=clip)
    sums = [each.total(factors).flatten() for _, each in taken]
    return torch.cat(sums).cpu()
