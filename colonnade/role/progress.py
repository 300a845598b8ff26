"""Where a party is in its run: the phase, the epoch, the step, and its virtual time.

The runtimes read it and steer by it; a role only loops with `me.epochs()` and `me.batches()`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from colonnade.role.recipe import Schedule
from colonnade.role.seeds import random_state, set_random_state


class Stopped(KeyboardInterrupt):
    """The run was asked to stop, and its state is saved."""


@dataclass(slots=True)
class Meter:
    """How far a party is; a progress display sees nothing else of it."""

    labelled: bool
    phase: str = ""
    share: float = 0.0  # of that phase
    epochs: int = 1  # of that phase
    points: int = 0  # of an alignment, of which the share is done; 0: it is none


class Progress:
    """Counts epochs and steps, so that a checkpoint may fall between any two steps."""

    def __init__(self, schedule: Schedule, device: torch.device, labelled: bool) -> None:
        self.phase = "setup"  # setup, train or eval: the ledger books messages under it
        self.clock = 0.0  # virtual seconds, in one process
        self.hop = 0  # the longest chain of messages this party has waited for
        self.steps = 0  # training steps taken, over all phases
        self.meter = Meter(labelled)
        self.stop_at: int | None = None  # the number of steps after which it saves and stops
        self.count = schedule.epochs  # of the phase that runs now
        self.enough = False  # the phase ends before its last epoch; nothing of this one was done
        self.last = False  # the phase ends with this epoch, once it is done
        # Places whose rows have met other members under the present weights; a step empties it
        self.met: list[tuple[int, int]] = []  # epoch, step
        self._schedule, self._device = schedule, device
        self._places: dict[str, list[int]] = {}  # phase -> [epoch, step]
        self._at = ""  # the phase that runs now
        self._began = 0.0
        self._random: dict[str, Tensor] = {}  # restored when the saved position is reached

    @property
    def position(self) -> tuple[str, int, int]:
        """(phase, epoch, step) of the next step to take."""
        place = self._places.get(self._at)
        return (self._at, 0, 0) if place is None else (self._at, place[0], place[1])

    def place(self, phase: str) -> tuple[int, int]:
        """(epoch, step) of the next step of a phase."""
        epoch, step = self._places.get(phase, (0, 0))
        return epoch, step

    # ---- epochs ------------------------------------------------------------------------------

    def enter(self, phase: str, count: int) -> bool:
        """Begin the next epoch of a phase; False: all epochs are over, and the phase is left."""
        place = self._places.setdefault(phase, [0, 0])
        if place[0] >= count:
            self._at, self.phase = "", "setup"
            return False
        self._at, self.phase, self.count = phase, "train", count
        self._began = time.perf_counter()
        if place[1] == 0:
            self._restore_random()
        self.meter.phase, self.meter.share = phase, place[0] / count
        self.meter.epochs, self.meter.points = count, 0
        return True

    def leave(self, phase: str) -> bool:
        """End an epoch of a phase; False: the role ended the phase early."""
        if self.enough:
            self.enough, self._places[phase][:] = False, [self.count, 0]
            return False
        self._places[phase][:] = self._places[phase][0] + 1, 0
        return True

    def close(self, phase: str) -> None:
        """Epochs that are left of a phase are not needed."""
        if self.last:
            self.last, self._places[phase][:] = False, [self.count, 0]

    def epochs_of(self, phase: str) -> int:
        """How many epochs of this phase are over."""
        return self._places[phase][0]

    @property
    def seconds(self) -> float:
        """How long this epoch has taken so far."""
        return time.perf_counter() - self._began

    @property
    def saves(self) -> bool:
        """Whether the epoch that has just ended ends with a checkpoint."""
        every, (_, epoch, _) = self._schedule.checkpoint_epochs, self.position
        return every > 0 and (epoch % every == 0 or epoch == self.count)

    @property
    def evaluates(self) -> bool:
        """Whether this epoch ends with an evaluation; the same at every party."""
        every, (_, epoch, _) = self._schedule.evaluate_every, self.position
        return every > 0 and not self.met and (epoch + 1 == self.count or (epoch + 1) % every == 0)

    # ---- steps -------------------------------------------------------------------------------

    def resume_epoch(self) -> int:
        """The step at which to go on in this epoch; restores its random numbers."""
        _, _, step = self.position
        if step:
            self._restore_random()
        return step

    def epochs_done(self, total: int) -> float:
        """How many epochs of this phase are done, of `total` steps each; updates the meter."""
        _, epoch, step = self.position
        done = epoch + step / total
        self.meter.share = done / self.count
        return done

    def count_step(self) -> tuple[bool, bool]:
        """Count one step; returns whether a checkpoint follows it, and whether the run stops."""
        self._places[self._at][1] += 1
        self.steps += 1
        self.met.clear()
        every = self._schedule.checkpoint_steps
        stops = self.stop_at is not None and self.steps >= self.stop_at
        return stops or (every > 0 and self.steps % every == 0), stops

    # ---- checkpoints -------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything that a checkpoint needs of it."""
        return {
            "positions": {phase: list(place) for phase, place in self._places.items()},
            "random": random_state(self._device),
            "hop": self.hop,
            "clock": self.clock,
            "steps": self.steps,
            "met": [list(place) for place in self.met],
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self._places, self._random = snapshot["positions"], snapshot["random"]
        self.hop, self.clock, self.steps = (snapshot[k] for k in ("hop", "clock", "steps"))
        self.met = [(epoch, step) for epoch, step in snapshot.get("met", ())]

    def skip_to(self, phase: str, epoch: int, step: int) -> None:
        """Skip to a later position: a step that others have already taken with different members is
        never taken again."""
        self._places[phase] = [epoch, step]

    def go_on_at(self, phase: str, epoch: int, step: int) -> None:
        """Skip to a later position because a member was lost.

        The step at the present place was taken with the members of before, under these weights.
        Until the weights change, its rows are neither trained on nor evaluated.
        """
        self.met.append(self.place(phase))
        self.skip_to(phase, epoch, step)

    def pass_over_the_met(
        self, order: Tensor, orders: Sequence[Tensor], sizes: list[int], start: int
    ) -> int:
        """The next step with none of the rows that other members have met under these weights.

        The weights are the present ones: a step changes them, and with them the answer. Others
        leave the steps before it out, too.

        order   the rows of this epoch; orders: those of the epochs in `met`
        """
        met = [
            rows.split(sizes)[step]
            for rows, (_, step) in zip(orders, self.met, strict=True)
            if step < len(sizes)
        ]
        found = torch.cat([*met, order[:0]])
        batches = order.split(sizes)
        while start < len(sizes) and torch.isin(batches[start], found).any():
            self._places[self._at][1] += 1
            self.steps += 1
            start += 1
        return start

    def _restore_random(self) -> None:
        if self._random:
            set_random_state(self._random, self._device)
            self._random = {}
