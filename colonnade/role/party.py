"""One party: everything that never leaves it.

A role touches `me`, its peers and its options, nothing else. `me` owns the rows, the models and
optimisers (`kept`), the log, and the place in the run (`progress`), so that a checkpoint may fall
between any two steps and the role resumes without a line of code for it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from colonnade.data import Moves, Preparation, Split
from colonnade.errors import ColonnadeError
from colonnade.journal import Names
from colonnade.partition import Rectangle, View
from colonnade.role.batches import EVALUATION_ROWS, Batch, Intake, batched, spread
from colonnade.role.checks import Checks
from colonnade.role.identity import Identity
from colonnade.role.journal import OwnJournal
from colonnade.role.kept import Kept
from colonnade.role.progress import Progress, Stopped
from colonnade.role.protection import Protection
from colonnade.role.recipe import Recipe, Schedule, make_optimizer, slower
from colonnade.role.seeds import derive
from colonnade.role.stopping import Stopping
from colonnade.task import Task
from colonnade.wire.counting import RowsAtHand

Thing = TypeVar("Thing")


class Party:
    """A name, private rows, models and optimisers, a log, and a place in the run."""

    def __init__(
        self,
        name: str,
        role: str,
        recipe: Recipe,
        schedule: Schedule,
        splits: Mapping[str, Split],
        preparation: Preparation | None,
        task: Task,
        device: torch.device,
        view: View | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.names = tuple(names)  # of its own rows, if these are still to be aligned
        self.common: Tensor | None = None  # ids of the rows that all have, in a common order
        self.view = view  # its part of every image, if its rows are parts of images
        # Simulation only: training images are whole, and this part is cut out after they are moved.
        self.window: Rectangle | None = None
        self.margin = (0, 0, 0, 0)  # pixels by which its images are enlarged, as for F.pad
        self.name, self.role, self.recipe, self.schedule = name, role, recipe, schedule
        self.task, self.device, self.preparation = task, device, preparation
        self.splits = {key: split.to(device) for key, split in splits.items()}
        # Training rows as they came, and as they count in the loss
        self._weighed: tuple[Split, Split] | None = None
        self.progress = Progress(schedule, device, self.labelled)
        most = max(map(len, self.splits.values()), default=None)
        self.checks = Checks(name, most, self.progress, slower(recipe))  # of messages
        self.kept = Kept(recipe, device)  # modules and optimisers, by name
        self.stopping = Stopping()  # the best epoch so far, if the run stops by itself
        self.identity: Identity | None = None  # its signing key, if the method needs one
        self.protection: Protection | None = None  # of what it sends; set by the run
        self.journal: OwnJournal | None = None  # what it must not forget; set by the run
        self.at_hand: RowsAtHand | None = None  # the rows that it works on: its gate counts them
        self.fewest = 0  # rows of a batch, as its policy wants them: see check_spread
        self.spent: dict[str, float] = defaultdict(float)  # seconds, by purpose; see `timing`
        self.state: dict[str, Any] = {}  # a method's own variables; kept in checkpoints
        self.shelf: dict[str, Tensor] = {}  # large tensors that never change: written only once
        self.reconstructions: dict[
            str, Tensor
        ] = {}  # an attack's output, for a simulation to score
        self.source = ""  # the file of the program that plays its role; set by `bind`
        self.history: list[dict[str, Any]] = []
        # Outputs of the last evaluation: split -> measure -> party -> (rows, outputs)
        self.predictions: dict[str, dict[str, dict[str, Tensor]]] = {}
        self.figures: dict[str, float] = {}  # the last values of measures beside accuracy
        self.remarks: list[str] = []  # what the user should know about this run
        self.on_epoch: Callable[[str, dict[str, Any]], None] | None = None
        self.on_checkpoint: Callable[[Party], None] | None = None
        # Called between two steps, because a role that only computes must hear of the others, too.
        self.on_step: Callable[[], None] | None = None
        self.on_rows: Callable[[str], None] | None = None  # rows of a split are to be evaluated
        self.on_training: Callable[[], None] | None = (
            None  # begins from nothing, or its last step is done
        )
        self.on_phase_end: Callable[[Party], None] | None = None
        self._log: dict[str, list[Tensor]] = defaultdict(list)  # "loss", or "loss/shop"

    # ---- what it has -------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one prepared row: (channels, height, width) or (features,)."""
        split = next(iter(self.splits.values()), None)
        if split is None:
            raise ColonnadeError(f"'{self.name}' ({self.role}) holds no rows")
        shape = tuple(split.x.shape[1:])
        return shape if self.window is None else (*shape[:-2], *self.window.size)

    @property
    def has_features(self) -> bool:
        """False for a party that brings labels only."""
        return any(split.x[:1].numel() for split in self.splits.values())

    @property
    def labelled(self) -> bool:
        """Whether it holds labels."""
        return any(split.y is not None for split in self.splits.values())

    def take(self, rows: Tensor) -> None:
        """Keep only these of its rows, by their ids and in this order; new ids are 0, 1, 2 …

        If the method goes on with all rows, remember these in `common` instead.
        """
        self.common = rows
        if self.schedule.all_rows:
            return
        self.splits = {name: split.only(rows) for name, split in self.splits.items()}

    def records(self, split: str = "train") -> Names:
        """What the rows of a split are called in the party's journal, in their order."""
        if self.journal is None:
            raise ColonnadeError(f"'{self.name}' has no journal: only a run gives it one")
        rows, aligned = self.splits[split], self.common is not None and not self.schedule.all_rows
        numbers = self.common[rows.ids.cpu()] if aligned and self.common is not None else rows.ids
        return self.journal.names(numbers, rows.x)

    def keep(self, name: str, make: Callable[[], Thing]) -> Thing:
        """A module or optimiser that belongs to this party: made once, saved, restored.

        The second call returns what the first one made, so training and prediction share it.
        """
        return self.kept.keep(name, make)

    def drop(self, *names: str) -> None:
        """Remove modules and optimisers that are no longer needed."""
        for name in names:
            self.kept.drop(name)

    def holds(self, name: str) -> bool:
        """Whether there is a thing of this name, or a saved state that waits to be restored."""
        return self.kept.holds(name)

    def optimizer(
        self, *modules: nn.Module, name: str = "optimizer", lr: float | None = None
    ) -> torch.optim.Optimizer:
        """The recipe's optimiser over these modules; its rate follows the schedule."""
        parameters = [p for module in modules for p in module.parameters()]
        return self.keep(name, lambda: make_optimizer(self.recipe, parameters, lr))

    # ---- the loop ----------------------------------------------------------------------------

    def epochs(self, phase: str = "train", count: int | None = None) -> Iterator[int]:
        """Count the epochs of a phase from wherever the last checkpoint left it.

        Use a phase of one epoch to do something exactly once, also across a resume.
        """
        count = self.schedule.epochs if count is None else count
        at = self.progress
        while at.enter(phase, count):
            self._between_steps()
            yield at.epochs_of(phase)
            if not at.leave(phase):
                self.stopping.end(self, phase)
                self._checkpoint()
                continue
            self._end_epoch(phase, at.epochs_of(phase))
            at.close(phase)
            if at.epochs_of(phase) == count:
                self.stopping.end(self, phase)
            if at.saves:
                self._checkpoint()
            if at.epochs_of(phase) == count and self.on_phase_end is not None:
                self.on_phase_end(self)
        self._between_steps()

    def enough(self) -> None:
        """End the phase before its last epoch; nothing of the present epoch was done."""
        self.progress.enough = True

    def pass_by(self, phase: str, count: int) -> None:
        """Pass through the epochs of a phase in which only others work.

        It counts their steps and writes their checkpoints, so that all can go back to one place.
        """
        batches = len(self._spread(len(self.splits["train"])))
        for _ in self.epochs(phase, count):
            self.progress.steps += batches

    def batches(self, *, shared: bool = True) -> Iterator[Batch]:
        """This epoch's training batches, in an order that all parties derive from one seed.

        shared=False gives this party an order of its own, for methods without aligned rows.
        """
        if self.protection is not None:
            self.protection.epoch(self)
        split, plan = self._weighted(self.splits["train"]), self.schedule
        phase, epoch, _ = self.position
        generator, drawn = self._order(phase, epoch, shared)
        order, places = drawn.to(self.device), drawn.numpy()
        moves = None
        if plan.flip or plan.shift or plan.upside_down:
            moves = Moves.draw(len(split), plan.flip, plan.shift, generator, plan.upside_down)
        sizes, at = self._spread(len(split)), self.progress
        start = at.resume_epoch()
        watch = self.on_training if shared else None
        if watch is not None and (epoch, start) == (0, 0):
            watch()
        if shared and at.met:
            met = [self._order(phase, epoch, shared=True)[1] for epoch, _ in at.met]
            start = at.pass_over_the_met(drawn, met, sizes, start)
        end = sum(sizes[:start])
        for batch in batched(split, self._intake(), self.name, order, sizes, start, moves):
            self._set_rates(at.epochs_done(len(sizes)))
            begin, end = end, end + len(batch)
            with self._at(RowsAtHand("train", places[begin:end], len(batch))):
                yield batch
            self._between_steps()
            saves, stops = at.count_step()
            if saves:
                self._checkpoint()
            if stops:
                raise Stopped
        if watch is not None and epoch + 1 == at.count:
            watch()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Models in evaluation mode, no gradients; messages are booked as evaluation."""
        at = self.progress
        before, at.phase = at.phase, "eval"
        try:
            with torch.no_grad(), self.kept.evaluating():
                yield
        finally:
            at.phase = before

    def rows(
        self, split: str = "test", size: int = EVALUATION_ROWS, moves: Moves | None = None
    ) -> Iterator[Batch]:
        """All rows of a split, in their own order; images moved by `moves`."""
        if self.on_rows is not None:
            self.on_rows(split)
        rows = self.splits[split]
        sizes, end = spread(len(rows), size, self.schedule.batching), 0
        for batch in batched(rows, self._intake(), self.name, None, sizes, 0, moves):
            begin, end = end, end + len(batch)
            with self._at(RowsAtHand(split, slice(begin, end), len(batch))):
                yield batch

    @contextmanager
    def _at(self, at_hand: RowsAtHand) -> Iterator[None]:
        """What is sent inside is about these rows."""
        before, self.at_hand = self.at_hand, at_hand
        try:
            yield
        finally:
            self.at_hand = before

    @property
    def evaluations(self) -> list[str]:
        """The splits to evaluate at the end of this epoch: those never trained on, or none.

        Every party gives the same answer, so that all take part in the same evaluations.
        """
        due = self.progress.evaluates
        return [name for name in self.splits if name != "train"] if due else []

    def elapse(self, seconds: float) -> None:
        """Let virtual time pass: in one process, it makes this party slower than others."""
        self.progress.clock += seconds

    # ---- what it reports ---------------------------------------------------------------------

    def log(self, *, of: str = "", **values: Tensor | float) -> None:
        """Log numbers for the epoch's mean; device tensors are read only at the epoch's end.

        of="shop" books them under another party, for which this one computed them.
        """
        for name, value in values.items():
            tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.double)
            self._log[f"{name}/{of}" if of and of != self.name else name].append(tensor.detach())

    def figure(self, **values: Tensor | float) -> None:
        """Numbers for the result beside accuracies, such as ppm=…; the last one counts."""
        named: dict[str, Any] = dict(values)
        self.figures |= {name: float(value) for name, value in named.items()}
        for name in named:
            self._log.pop(name, None)
        self.log(**named)

    def remark(self, text: str) -> None:
        """Report once what the user should know and only the data or the networks show."""
        if text not in self.remarks:
            self.remarks.append(text)

    @contextmanager
    def timing(self, purpose: str) -> Iterator[None]:
        """Add the seconds spent inside to a purpose of the report, such as "masking"."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[purpose] += time.perf_counter() - began

    def score(
        self, split: str, outputs: Tensor, *, of: str = "", measure: str = "per_party"
    ) -> None:
        """Compare the outputs for a split with this party's labels, and log how good they are.

        of       the party that made the predictions; default: this one
        measure  "per_party" for what counts; any other name ("alone") is reported beside it
        """
        labels = self.splits[split].y
        if labels is None:
            raise ColonnadeError(f"'{self.name}' cannot score '{split}': it holds no labels")
        if outputs.shape != (len(labels), self.task.outputs):
            due = f"{len(self.task.classes)} classes" if self.task.classes else "one number each"
            raise ColonnadeError(
                f"'{self.name}' scores '{split}' with predictions of shape {tuple(outputs.shape)}; "
                f"it has {len(labels)} rows and {due}"
            )
        by_party = self.predictions.setdefault(split, {}).setdefault(measure, {})
        by_party[of or self.name] = outputs.detach()
        name, counts = (
            split if measure == "per_party" else f"{split}_{measure}",
            measure == "per_party",
        )
        weights = self.splits[split].weights
        found = self.task.progress(outputs, labels, weights, whole=counts)
        if counts and self.schedule.patience:
            self.stopping.hear(split, of or self.name, found.get(self.task.decides_by))
        self.log(of=of, **{f"{name}_{what}": value for what, value in found.items()})

    # ---- checkpoints -------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything that a checkpoint needs; `resume` on a new Party restores it."""
        return self.progress.snapshot() | {
            "kept": self.kept.snapshot(),
            "state": self.state,
            "log": {name: self._gathered(values).cpu() for name, values in self._log.items()},
            "history": list(self.history),
            "predictions": self.predictions,
            "figures": dict(self.figures),
            "remarks": list(self.remarks),
            "stopping": self.stopping.snapshot(),
            # The tensors lie beside the checkpoints, each under this name.
            "shelf": {name: f"{self.name}.{name}" for name in self.shelf},
        }

    def resume(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot: call before the role starts."""
        self.kept.load(snapshot["kept"])
        self.progress.resume(snapshot)
        self.state = snapshot["state"]
        self._log = defaultdict(list, {k: list(v) for k, v in snapshot["log"].items()})
        self.history = snapshot["history"]
        self.predictions = {
            split: {
                measure: {name: outputs.to(self.device) for name, outputs in by_party.items()}
                for measure, by_party in by_measure.items()
            }
            for split, by_measure in snapshot["predictions"].items()
        }
        self.figures = snapshot["figures"]
        self.remarks = snapshot["remarks"]
        self.stopping.resume(snapshot["stopping"], self.device)
        self.shelf = {name: tensor.to(self.device) for name, tensor in snapshot["shelf"].items()}

    @property
    def position(self) -> tuple[str, int, int]:
        """(phase, epoch, step) of the next step to take."""
        return self.progress.position

    # ---- inner workings ----------------------------------------------------------------------

    def _order(self, phase: str, epoch: int, shared: bool) -> tuple[torch.Generator, Tensor]:
        """The rows of an epoch in its order, and what draws how they are moved."""
        owner = () if shared else (self.name,)
        seed = derive(self.schedule.seed, "order", phase, epoch, *owner)
        generator = torch.Generator().manual_seed(seed)
        return generator, torch.randperm(len(self.splits["train"]), generator=generator)

    def _weighted(self, train: Split) -> Split:
        """Training rows with the weights that they have in the loss; none if all count alike."""
        if train.y is None:
            return train
        if self._weighed is None or self._weighed[0] is not train:
            weights = self.task.row_weights(train.y, train.weights)
            self._weighed = train, replace(train, weights=weights)
        return self._weighed[1]

    def _intake(self) -> Intake:
        """How images become input of the models, with the settings known so far."""
        return Intake(self.preparation, self.window, self.margin)

    def _spread(self, rows: int) -> list[int]:
        """The sizes of an epoch's batches."""
        return spread(rows, self.schedule.batch_size, self.schedule.batching)

    def _between_steps(self) -> None:
        if self.on_step is not None:
            self.on_step()

    def _set_rates(self, epochs_done: float) -> None:
        self.kept.set_rates(epochs_done, self.progress.count)

    def _end_epoch(self, phase: str, epoch: int) -> None:
        self._settle()
        at = self.progress
        row: dict[str, Any] = {"phase": phase, "epoch": epoch, "seconds": at.seconds}
        row["of"] = at.count
        for key, values in self._log.items():
            name, _, other = key.partition("/")
            numbers = row.setdefault("others", {}).setdefault(other, {}) if other else row
            numbers[name] = float(self._gathered(values).double().mean())
        self._log.clear()
        self.history.append(row)
        if self.on_epoch is not None:
            self.on_epoch(self.name, row)

    def _gathered(self, values: list[Tensor]) -> Tensor:
        # Plain numbers, and values from a checkpoint, are on the CPU.
        return torch.stack([value.to(self.device) for value in values])

    def _settle(self) -> None:
        self.checks.settle(self.kept.trained())

    def _checkpoint(self) -> None:
        self._settle()
        if self.on_checkpoint is not None:
            self.on_checkpoint(self)
