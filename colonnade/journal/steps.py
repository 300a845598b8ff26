"""Which steps of a run a party has begun, and with whom: no step ever meets two sets of members.

    steps = Steps(journal, "3f…", reached)
    steps.begin("train", (4, 12), ("shop",))    # epoch and step; without 'shop'
    steps.fresh                                 # the first step that was never begun

An entry is on the disk before the first step that it speaks of begins. It books the steps that
follow as well, to the end of the epoch or AHEAD of them. A process that dies leaves steps booked
that it may not have begun. The ledger knows how far it came, unless the machine went down, too:
then what was booked counts as begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from colonnade.errors import Untrusted
from colonnade.journal.journal import Journal

AHEAD = 256  # steps that one entry books
Spot = tuple[int, int]  # epoch, step
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Steps:
    """The steps of one run, as one party has taken them."""

    def __init__(self, journal: Journal, run: str, reached: Spot | None = None) -> None:
        """
        reached  of the phase "train": the first step of which the ledger of earlier processes knows
                 nothing; None: they have sent nothing
        """
        self._journal, self.run = journal, run
        self._sets: dict[str, list[tuple[Spot, Spot, tuple[str, ...]]]] = {}  # by phase, in order
        self._begun: dict[str, Spot] = {}  # by phase: the first step that was surely never begun
        self._phase = ""  # the last one
        self._last: tuple[str, Spot, tuple[str, ...]] | None = None
        self._boot = BOOT.read_text().strip() if BOOT.exists() else ""
        for entry in journal.entries("steps", run=run):
            phase, below = str(entry["phase"]), _spot(entry["below"])
            absent = tuple(str(name) for name in entry["absent"])
            self._sets.setdefault(phase, []).append((_spot(entry["from"]), below, absent))
            alive = entry["boot"] == self._boot != ""
            if phase == "train" and alive and reached is not None:
                below = min(below, reached)
            self._begun[phase] = max(self._begun.get(phase, below), below)
            self._phase = phase

    @property
    def fresh(self) -> tuple[str, int, int] | None:
        """The first step that was never begun, with whatever members; None: nothing was."""
        return (self._phase, *self._begun[self._phase]) if self._phase else None

    def begin(self, phase: str, spot: Spot, absent: tuple[str, ...], evaluates: bool) -> None:
        """Take part in a step without these members, or refuse to.

        absent     sorted
        evaluates  it is what follows the last step of the epoch
        """
        if (phase, spot, absent) == self._last:
            if evaluates:
                self._begun[phase] = max(self._begun[phase], (spot[0] + 1, 0))
            return
        before = self._before(phase, spot)
        if before is not None and spot < self._begun[phase] and before[1] != absent:
            raise Untrusted(
                f"{_said(spot)} of '{phase}' was begun {_without(before[1])}, and is to be done "
                f"again {_without(absent)}: the difference would show what a single party has "
                "sent, whatever hides it. Begin a new run, with another --out"
            )
        if before is None or spot >= before[0] or before[1] != absent:
            below = (spot[0], spot[1] + AHEAD)
            self._journal.append(
                "steps",
                run=self.run,
                phase=phase,
                **{"from": spot},
                below=below,
                absent=absent,
                boot=self._boot,
            )
            self._sets.setdefault(phase, []).append((spot, below, absent))
        after = (spot[0] + 1, 0) if evaluates else (spot[0], spot[1] + 1)
        self._begun[phase] = max(self._begun.get(phase, after), after)
        self._phase, self._last = phase, (phase, spot, absent)

    def check_apart(self, phase: str, saved: Spot, spot: Spot, absent: tuple[str, ...]) -> None:
        """Refuse to go on at `spot` with what was saved at `saved`, if another loss since then has
        brought other rows together with the same weights. Rows of one epoch differ in all steps."""
        sets = self._sets.get(phase, [])
        for (_, _, before), (first, _, others) in pairwise(sets):
            changed = before != others != absent
            if changed and first > saved and first[0] != spot[0]:
                raise Untrusted(
                    f"since the checkpoint at {_said(saved)} of '{phase}' the run went on "
                    f"{_without(others)}, and is now to go on {_without(absent)}: rows would meet "
                    "two sets of members under the same weights. Begin a new run, with another "
                    "--out, and write checkpoints more often"
                )

    def _before(self, phase: str, spot: Spot) -> tuple[Spot, tuple[str, ...]] | None:
        """What was booked with a step: to where, and who was absent; None: nothing ever."""
        for first, below, absent in reversed(self._sets.get(phase, ())):
            if first <= spot:
                return below, absent
        return None


def _spot(place: Sequence[int]) -> Spot:
    epoch, step = place
    return int(epoch), int(step)


def _said(spot: Spot) -> str:
    return f"step {spot[1] + 1} of epoch {spot[0] + 1}"


def _without(absent: Sequence[str]) -> str:
    return "without " + ", ".join(f"'{name}'" for name in absent) if absent else "with everybody"
