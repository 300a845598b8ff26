"""Training that stops by itself, and returns to its best epoch.

    the label holder, after its evaluations         every other party
    1. is the metric of its validation rows
       better than ever, by more than min_delta?
    2. send the verdict: best, and whether     →    2. wait for the verdict
       patience is used up
    3. best: remember the weights                   3. best: remember the weights
    4. used up: this epoch is the last one          4. used up: this epoch is the last one

After the last epoch, whichever it is, every party takes back the weights of the best one, and the
label holder the predictions and figures that belong to them. Without `patience` nothing of this
happens and nothing is sent. Rows of the test split decide nothing.

    for split in me.evaluations:
        me.score(split, …)
    stopping.decide(me, passives)           # or decide(me) where each party stops by itself
    await stopping.follow(me, active)       # the others
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from colonnade.errors import ColonnadeError, DataError, Untrusted
from colonnade.task.measures import better
from colonnade.wire import Kind, Peer

if TYPE_CHECKING:
    from colonnade.role.party import Party

VERDICT = Kind(
    "verdict",
    (2,),
    dtype="bool",
    reveals="of the label holder's validation rows: whether this epoch is the best so far, and "
    "whether the training ends",
    host=True,
    carries="labels",
)
JUDGES = "validation"  # the split that decides

Predictions = dict[str, dict[str, dict[str, Tensor]]]


class Stopping:
    """The best epoch so far, and what a party needs to return to it."""

    def __init__(self) -> None:
        self.phase = ""  # in which it was found
        self.best_epoch = 0  # 0: none yet
        self.of = 0  # epochs that were judged, with those between two evaluations
        self.metric = ""
        self.value: float | None = None  # at the label holder
        self._absent: list[str] = []  # who took no part
        self._weights: dict[str, Any] = {}
        self._predictions: Predictions = {}
        self._figures: dict[str, float] = {}
        self._heard: dict[str, float | None] = {}  # since the last decision, by party

    def hear(self, split: str, party: str, value: Tensor | float | None) -> None:
        """The metric of one party's predictions, as they were scored."""
        if split == JUDGES:
            self._heard[party] = None if value is None else float(value)

    def begin(self, absent: Collection[str]) -> None:
        """A role begins, without these parties. What was reached with somebody who has gone since
        is neither compared with what is reached without them, nor returned to."""
        if self._absent != sorted(absent):
            self._absent, self.best_epoch, self.value = sorted(absent), 0, None
            self._weights, self._predictions, self._figures = {}, {}, {}

    def judge(self, me: Party) -> bool:
        """Whether this epoch is the best so far, by the mean over all predictions that count."""
        heard, self._heard = self._heard, {}
        if not heard:
            raise ColonnadeError(
                f"'{me.name}' cannot tell which epoch is the best: it scored no predictions of "
                f"'{JUDGES}' rows. A role calls me.score for every split of me.evaluations first"
            )
        known = [value for value in heard.values() if value is not None]
        if len(known) < len(heard) and _finite(me):
            raise DataError(
                f"'{me.name}' cannot stop by {me.task.decides_by}: its "
                f"{len(me.splits[JUDGES])} validation rows do not define it, as where all are of "
                "one class. Raise data.validation, or choose a metric such as log_loss"
            )
        value = sum(known) / len(known) if len(known) == len(heard) else None
        best = better(me.task.decides_by, value, self.value, me.schedule.min_delta)
        if best:
            self.metric, self.value = me.task.decides_by, value
        return best

    def used_up(self, me: Party, best: bool) -> bool:
        """Whether the training ends: so many epochs did not become better."""
        _, epoch, _ = me.position
        return not best and epoch + 1 - self.best_epoch >= me.schedule.patience

    def take(self, me: Party, best: bool, ends: bool) -> None:
        """Act on a verdict about the present epoch."""
        self.phase, epoch, _ = me.position
        self.of = epoch + 1
        if best:
            self.best_epoch = self.of
            self._weights = me.kept.copied()
            self._predictions, self._figures = _copied(me.predictions), dict(me.figures)
        me.progress.last = ends

    def end(self, me: Party, phase: str) -> None:
        """The phase is over: return to the best epoch, if there is one."""
        if self.phase != phase:
            return
        if self._weights:
            me.kept.go_back_to(self._weights)
            me.predictions, me.figures = self._predictions, self._figures
            self._weights, self._predictions, self._figures = {}, {}, {}
        if me.on_training is not None:
            me.on_training()  # the step after the best epoch met others under these very weights

    def told(self) -> dict[str, Any]:
        """What the party that decided says about it in the result; nothing if none did."""
        if self.value is None:
            return {}
        named = {"best_epoch": self.best_epoch, "of": self.of}
        return named | {"metric": self.metric, "value": self.value}

    # ---- checkpoints -------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything of it, for a checkpoint."""
        return {
            "phase": self.phase,
            "best_epoch": self.best_epoch,
            "of": self.of,
            "metric": self.metric,
            "value": self.value,
            "absent": list(self._absent),
            "weights": self._weights,
            "predictions": self._predictions,
            "figures": dict(self._figures),
        }

    def resume(self, snapshot: Mapping[str, Any], device: torch.device) -> None:
        """Go on from a snapshot."""
        self.phase, self.metric = snapshot["phase"], snapshot["metric"]
        self.best_epoch, self.of = snapshot["best_epoch"], snapshot["of"]
        self.value, self._absent = snapshot["value"], snapshot["absent"]
        self._weights, self._figures = snapshot["weights"], snapshot["figures"]
        self._predictions = _copied(snapshot["predictions"], device)


def decide(me: Party, others: Sequence[Peer] = ()) -> None:
    """The label holder decides about this epoch, and tells the others.

    others  all who follow; none where a party stops by itself
    """
    if not _due(me):
        return
    present = [peer for peer in others if peer.present]
    best = me.stopping.judge(me)
    ends = me.stopping.used_up(me, best)
    with me.evaluating():
        for peer in present:
            peer.send(VERDICT, torch.tensor([best, ends]))
    me.stopping.take(me, best, ends)


async def follow(me: Party, active: Peer) -> None:
    """Another party waits for the label holder's verdict, and acts on it."""
    if not _due(me):
        return
    with me.evaluating():
        best, ends = (await active.recv(VERDICT)).tolist()
    if ends != me.stopping.used_up(me, best):
        raise Untrusted(_wrong(me, active.name, best, ends))
    me.stopping.take(me, best, ends)


def _due(me: Party) -> bool:
    return me.schedule.patience > 0 and me.progress.evaluates


def _wrong(me: Party, active: str, best: bool, ends: bool) -> str:
    _, epoch, _ = me.position
    said = "the best so far" if best else "not the best"
    then = "the training ends" if ends else "the training goes on"
    before = f"the best before is epoch {me.stopping.best_epoch}" if me.stopping.best_epoch else ""
    return (
        f"'{active}' sent a 'verdict' that contradicts itself: epoch {epoch + 1} is {said}, and "
        f"{then}; with patience = {me.schedule.patience}{' ' + before if before else ''} it cannot "
        "be so. Its program was changed, or is of another version"
    )


def _finite(me: Party) -> bool:
    """Whether an undefined metric is a matter of the rows, not of the predictions."""
    judged = me.predictions[JUDGES]["per_party"]
    return all(bool(outputs.isfinite().all()) for outputs in judged.values())


def _copied(predictions: Predictions, device: torch.device | None = None) -> Predictions:
    """The same tensors in tables of their own."""
    return {
        split: {
            measure: {name: outputs.to(device or outputs.device) for name, outputs in found.items()}
            for measure, found in by_measure.items()
        }
        for split, by_measure in predictions.items()
    }
