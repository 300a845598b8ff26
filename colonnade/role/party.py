"""One party: everything that never leaves it.

A role touches `me`, its peers and its options, nothing else. `me` owns the data, the models and
optimisers, the random numbers, the log, and the position in the run, so that a checkpoint may
fall between any two steps and the role resumes without a line of code for it.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade import store
from colonnade.data import Moves, Preparation, Split
from colonnade.errors import ColonnadeError
from colonnade.partition import Rectangle, View, cut
from colonnade.role.identity import Identity
from colonnade.role.recipe import Recipe, compute_in_bfloat16, make_optimizer, rate_factor
from colonnade.wire import codec

Kept = TypeVar("Kept")

CHUNK_BYTES = 16 << 20  # prepared rows held at once: one gather for many batches
EVALUATION_ROWS = 1000  # a batch without gradients


def derive(seed: int, *names: object) -> int:
    """An independent seed for every purpose: data split, initialisation, batch order, …"""
    text = "/".join(str(name) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@dataclass(frozen=True)
class Schedule:
    """What all parties of a run agree on."""

    seed: int
    epochs: int
    batch_size: int
    evaluate_every: int = 1  # epochs; 0: never
    checkpoint_epochs: int = 1  # 0: never at an epoch's end
    checkpoint_steps: int = 0  # 0: never inside an epoch
    flip: bool = False  # training images: mirror half of them
    shift: int = 0  # training images: move by up to so many pixels
    upside_down: bool = False  # training images: turn half of them
    all_rows: bool = False  # an alignment only tells which rows all have: Party.common


@dataclass(slots=True)
class Batch:
    """Some prepared rows on the party's device."""

    x: Tensor  # float32 (batch, …)
    y: Tensor | None  # int64 (batch,), only where the party holds labels
    ids: Tensor  # int64 (batch,)
    owner: str = "this party"
    rows: Tensor | None = None  # int64 (batch,): their positions in the split; training only
    flips: Tensor | None = None  # bool (batch,): which images are mirrored; None: none is

    @property
    def labels(self) -> Tensor:
        """The labels, for a role that must have them."""
        if self.y is None:
            raise ColonnadeError(f"the role of '{self.owner}' needs labels, and it holds none")
        return self.y

    def __len__(self) -> int:
        return len(self.x)


class Stopped(KeyboardInterrupt):
    """The run was asked to stop, and its state is saved."""


@dataclass(slots=True)
class Meter:
    """How far a party is; all that a progress display gets to see of it."""

    labelled: bool
    phase: str = ""
    share: float = 0.0  # of that phase
    epochs: int = 1  # of that phase


class Party:
    """A name, private rows, models, optimisers, random numbers, a log, and a position."""

    def __init__(
        self,
        name: str,
        role: str,
        recipe: Recipe,
        schedule: Schedule,
        splits: Mapping[str, Split],
        preparation: Preparation | None,
        classes: tuple[str, ...],
        device: torch.device,
        view: View | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.names = tuple(names)  # of its own rows, where these are still to be aligned
        self.common: Tensor | None = None  # ids of those that all parties have, in a common order
        self.view = view  # what it sees of every image, where its rows are parts of images
        # Simulation only: training images are whole, and this is cut out after they are moved.
        self.window: Rectangle | None = None
        self.margin = (0, 0, 0, 0)  # pixels by which its images are enlarged, as for F.pad
        self.name, self.role, self.recipe, self.schedule = name, role, recipe, schedule
        self.classes, self.device, self.preparation = classes, device, preparation
        self.splits = {key: _to(split, device) for key, split in splits.items()}
        self.meter = Meter(self.labelled)
        self.identity: Identity | None = None  # its signing key, where the method needs one
        self.spent: dict[str, float] = defaultdict(float)  # seconds, by purpose; see `timing`
        self.state: dict[str, Any] = {}  # a method's own variables; kept in checkpoints
        self.shelf: dict[str, Tensor] = {}  # large ones that never change: written only once
        self.exhibits: dict[str, Tensor] = {}  # what an attack made, for a simulation to score
        self.phase = "setup"  # setup, train or eval: where the ledger books a message
        self.clock = 0.0  # virtual seconds, in one process
        self.hop = 0  # the longest chain of messages this party has waited for
        self.steps = 0  # training steps taken, over all phases
        self.history: list[dict[str, Any]] = []
        # Predicted classes of the last evaluation: split -> measure -> party -> (rows,)
        self.predictions: dict[str, dict[str, dict[str, Tensor]]] = {}
        self.figures: dict[str, float] = {}  # what it measured beside accuracies, as it is now
        self.remarks: list[str] = []  # what the user should know about this very run
        self.on_epoch: Callable[[str, dict[str, Any]], None] | None = None
        self.on_checkpoint: Callable[[Party], None] | None = None
        # Between two steps: a role that only computes has to hear of others, too.
        self.on_step: Callable[[], None] | None = None
        self.on_phase_end: Callable[[Party], None] | None = None
        self.stop_at: int | None = None  # steps after which to save oneself and stop
        self._kept: dict[str, Any] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self._saved: dict[str, Any] = {}
        self._positions: dict[str, list[int]] = {}  # phase -> [epoch, step]
        self._at = ""  # the phase that runs now
        self._random: dict[str, Tensor] = {}  # to be put back when the saved position is reached
        self._log: dict[str, list[Tensor]] = defaultdict(list)  # "loss", or "loss/shop"
        self._began = 0.0
        self._epochs, self._last_epoch = schedule.epochs, False
        self._enough = False  # see `enough`

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
        return any(split.y is not None for split in self.splits.values())

    def take(self, rows: Tensor) -> None:
        """Keep only these of its rows, by their ids and in this order; new ids are 0, 1, 2 …

        Or, where a method goes on with all rows: remember them in `common`.
        """
        self.common = rows
        if self.schedule.all_rows:
            return
        self.splits = {name: split.only(rows) for name, split in self.splits.items()}

    def keep(self, name: str, make: Callable[[], Kept]) -> Kept:
        """A module or optimiser that belongs to this party: made once, saved, restored.

        The second call returns what the first one made, so training and prediction share it.
        """
        if name not in self._kept:
            random = random_state(self.device)
            thing = make()
            if isinstance(thing, nn.Module):
                # Convolutions are quicker with the channels last; other layers do not mind.
                thing.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
                if self.recipe.precision == "bfloat16":
                    compute_in_bfloat16(thing, self.device)
            if name in self._saved:
                store.restore(thing, self._saved.pop(name))
                # Drawn when it was made for the first time; that must not happen twice.
                set_random_state(random, self.device)
            self._kept[name] = thing
            if isinstance(thing, torch.optim.Optimizer):
                self._optimizers.append(thing)
        kept: Kept = self._kept[name]
        return kept

    def drop(self, *names: str) -> None:
        """Let go of modules and optimisers that have done their work."""
        for name in names:
            self._saved.pop(name, None)
            gone = self._kept.pop(name, None)
            self._optimizers = [o for o in self._optimizers if o is not gone]

    def holds(self, name: str) -> bool:
        """Whether something is kept under this name, or waits in a checkpoint to be."""
        return name in self._kept or name in self._saved

    def optimizer(
        self, *modules: nn.Module, name: str = "optimizer", lr: float | None = None
    ) -> torch.optim.Optimizer:
        """The recipe's optimiser over these modules; its rate follows the schedule."""
        parameters = [p for module in modules for p in module.parameters()]
        return self.keep(name, lambda: make_optimizer(self.recipe, parameters, lr))

    # ---- the loop ----------------------------------------------------------------------------

    def epochs(self, phase: str = "train", count: int | None = None) -> Iterator[int]:
        """Count the epochs of a phase from wherever the last checkpoint left it.

        A phase of one epoch is how to do something exactly once, also across a resume.
        """
        count = self.schedule.epochs if count is None else count
        position = self._positions.setdefault(phase, [0, 0])
        while position[0] < count:
            self._at, self.phase = phase, "train"
            self._began = time.perf_counter()
            if position[1] == 0:
                self._restore_random()
            self.meter.phase, self.meter.share = phase, position[0] / count
            self.meter.epochs = count
            self._last_epoch = position[0] + 1 == count
            self._epochs = count
            self._between_steps()
            yield position[0]
            if self._enough:
                self._enough, position[:] = False, [count, 0]
                self._checkpoint()
                break
            position[:] = position[0] + 1, 0
            self._end_epoch(phase, position[0])
            every = self.schedule.checkpoint_epochs
            if every and (position[0] % every == 0 or position[0] == count):
                self._checkpoint()
            if position[0] == count and self.on_phase_end is not None:
                self.on_phase_end(self)
        self._between_steps()
        self._at, self.phase = "", "setup"

    def _between_steps(self) -> None:
        if self.on_step is not None:
            self.on_step()

    def enough(self) -> None:
        """The phase has ended before its last epoch; nothing of the present one was done."""
        self._enough = True

    def pass_by(self, phase: str, count: int) -> None:
        """Let the epochs of a phase go by in which others work and this party has nothing to do.

        It counts their steps and writes their checkpoints, so that all can go back to one place.
        """
        batches = -(-len(self.splits["train"]) // self.schedule.batch_size)
        for _ in self.epochs(phase, count):
            self.steps += batches

    def batches(self, *, shared: bool = True) -> Iterator[Batch]:
        """This epoch's training batches, in an order that all parties derive from one seed.

        shared=False gives this party an order of its own, for methods without aligned rows.
        """
        split = self.splits["train"]
        position = self._positions[self._at]
        size = self.schedule.batch_size
        owner = () if shared else (self.name,)
        generator = torch.Generator().manual_seed(
            derive(self.schedule.seed, "order", self._at, position[0], *owner)
        )
        order = torch.randperm(len(split), generator=generator).to(self.device)
        moves = None
        plan = self.schedule
        if plan.flip or plan.shift or plan.upside_down:
            moves = Moves.draw(len(split), plan.flip, plan.shift, generator, plan.upside_down)
        total = -(-len(split) // size)
        if position[1]:
            self._restore_random()
        for batch in self._prepared(split, order, size, position[1], moves):
            done = position[0] + position[1] / total  # epochs
            self.meter.share = done / self._epochs
            self._set_rates(done)
            yield batch
            position[1] += 1
            self.steps += 1
            self._between_steps()
            every = self.schedule.checkpoint_steps
            stop = self.stop_at is not None and self.steps >= self.stop_at
            if stop or (every and self.steps % every == 0):
                self._checkpoint()
            if stop:
                raise Stopped

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Models in evaluation mode, no gradients; messages are booked as evaluation."""
        # Layer by layer: what was frozen in evaluation mode before stays so afterwards.
        training = [m for kept in self.modules().values() for m in kept.modules() if m.training]
        before = self.phase
        self.phase = "eval"
        for module in training:
            module.training = False
        try:
            with torch.no_grad():
                yield
        finally:
            self.phase = before
            for module in training:
                module.training = True

    def rows(
        self, split: str = "test", size: int = EVALUATION_ROWS, moves: Moves | None = None
    ) -> Iterator[Batch]:
        """All rows of a split, in their own order; images moved by `moves`."""
        yield from self._prepared(self.splits[split], None, size, 0, moves)

    @property
    def evaluations(self) -> list[str]:
        """The splits to evaluate at the end of this epoch: those never trained on, or none.

        Every party gives the same answer, so that all take part in the same evaluations.
        """
        every, epoch = self.schedule.evaluate_every, self._positions[self._at][0] + 1
        due = every > 0 and (self._last_epoch or epoch % every == 0)
        return [name for name in self.splits if name != "train"] if due else []

    def elapse(self, seconds: float) -> None:
        """Let virtual time pass: in one process, how slow this party is compared with others."""
        self.clock += seconds

    # ---- what it reports ---------------------------------------------------------------------

    def log(self, *, of: str = "", **values: Tensor | float) -> None:
        """Keep numbers for the epoch's mean; device tensors are read only at the epoch's end.

        of="shop" books them under another party, on whose behalf this one computed them.
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
        """What the user should know, and only the data or the networks can tell; said once."""
        if text not in self.remarks:
            self.remarks.append(text)

    @contextmanager
    def timing(self, purpose: str) -> Iterator[None]:
        """Add up the seconds spent inside under a name of the report, such as "masking"."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[purpose] += time.perf_counter() - began

    def score(
        self, split: str, logits: Tensor, *, of: str = "", measure: str = "per_party"
    ) -> None:
        """Compare the predictions for a split with this party's labels, and log the accuracy.

        of       the party whose predictions they are; without it, this one's
        measure  "per_party" for what counts; any other name ("alone") is reported beside it
        """
        labels = self.splits[split].y
        if labels is None:
            raise ColonnadeError(f"'{self.name}' cannot score '{split}': it holds no labels")
        if logits.shape != (len(labels), len(self.classes)):
            raise ColonnadeError(
                f"'{self.name}' scores '{split}' with predictions of shape {tuple(logits.shape)}; "
                f"it has {len(labels)} rows and {len(self.classes)} classes"
            )
        predicted = logits.argmax(1)  # (rows,)
        self.predictions.setdefault(split, {}).setdefault(measure, {})[of or self.name] = predicted
        name = split if measure == "per_party" else f"{split}_{measure}"
        self.log(of=of, **{f"{name}_accuracy": (predicted == labels).double().mean()})

    # ---- checkpoints -------------------------------------------------------------------------

    def modules(self) -> dict[str, nn.Module]:
        return {name: kept for name, kept in self._kept.items() if isinstance(kept, nn.Module)}

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """The state of every module, by name: parameters and buffers."""
        # After a resume also of those that the role did not need again; optimisers are none.
        unused = {name: kept for name, kept in self._saved.items() if "param_groups" not in kept}
        return unused | {name: dict(kept.state_dict()) for name, kept in self.modules().items()}

    def weights_sha256(self) -> str:
        return hashlib.sha256(codec.encode(self.weights())).hexdigest()

    def snapshot(self) -> dict[str, Any]:
        """All that a checkpoint needs; `resume` on a new Party takes it back."""
        return {
            "kept": {name: kept.state_dict() for name, kept in self._kept.items()} | self._saved,
            "state": self.state,
            "positions": {phase: list(place) for phase, place in self._positions.items()},
            "random": random_state(self.device),
            "log": {name: self._gathered(values).cpu() for name, values in self._log.items()},
            "history": list(self.history),
            "predictions": self.predictions,
            "figures": dict(self.figures),
            "remarks": list(self.remarks),
            "hop": self.hop,
            "clock": self.clock,
            "steps": self.steps,
            # The tensors lie beside the checkpoints, each under this name.
            "shelf": {name: f"{self.name}.{name}" for name in self.shelf},
        }

    def resume(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot: call before the role starts."""
        self._saved = snapshot["kept"]
        self.state = snapshot["state"]
        self._positions = snapshot["positions"]
        self._random = snapshot["random"]
        self._log = defaultdict(list, {k: list(v) for k, v in snapshot["log"].items()})
        self.history = snapshot["history"]
        self.predictions = {
            split: {
                measure: {name: codes.to(self.device) for name, codes in by_party.items()}
                for measure, by_party in by_measure.items()
            }
            for split, by_measure in snapshot["predictions"].items()
        }
        self.figures = snapshot["figures"]
        self.remarks = snapshot["remarks"]
        self.hop, self.clock, self.steps = (snapshot[k] for k in ("hop", "clock", "steps"))
        self.shelf = {name: tensor.to(self.device) for name, tensor in snapshot["shelf"].items()}

    def skip_to(self, phase: str, epoch: int, step: int) -> None:
        """Leave out what lies between here and there: a step that others have already taken with
        other members is never taken again."""
        self._positions[phase] = [epoch, step]

    def load_weights(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Trained modules for prediction: `keep` finds them under their names."""
        self._saved = dict(weights)

    @property
    def position(self) -> tuple[str, int, int]:
        """(phase, epoch, step) of the next step to take."""
        epoch, step = self._positions.get(self._at, (0, 0))
        return self._at, epoch, step

    # ---- inner workings ----------------------------------------------------------------------

    def _prepared(
        self,
        split: Split,
        order: Tensor | None,
        size: int,
        start: int,
        moves: Moves | None = None,
    ) -> Iterator[Batch]:
        """Batches from number `start` on; rows are gathered and converted many batches at once."""
        moves = moves and moves.to(self.device)
        row_bytes = 4 * max(1, split.x[:1].numel())
        chunk = size * max(1, CHUNK_BYTES // (row_bytes * size))
        # Chunks lie at the same places after a resume: equal memory alignment, equal bits.
        for low in range(start * size // chunk * chunk, len(split), chunk):
            span = slice(low, low + chunk)
            some = (
                Split(split.x[span], None if split.y is None else split.y[span], split.ids[span])
                if order is None
                else split.rows(order[span])
            )
            x = some.x
            if x.dim() == 4 and self.preparation is not None:  # tables are prepared already
                x = self._moved(self.preparation.to_float(x), moves and moves.part(span))
            xs, ids = x.split(size), some.ids.split(size)
            nothing: list[None] = [None] * len(xs)
            ys = nothing if some.y is None else some.y.split(size)
            rows = nothing if order is None else order[span].split(size)
            flips = nothing if moves is None else self._flips(moves, span).split(size)
            for number, parts in enumerate(zip(xs, ys, ids, rows, flips, strict=True)):
                if low // size + number >= start:
                    x, y, i, row, flipped = parts
                    yield Batch(x, y, i, self.name, row, flipped)

    def _moved(self, x: Tensor, moves: Moves | None) -> Tensor:
        """Images as the models take them: enlarged, mirrored and shifted, channels last."""
        if self.window is not None and x.shape[-2:] != self.window.size:
            x = cut(x if moves is None else moves.apply(x), self.window)
            moves = None
        if any(self.margin):
            x = F.pad(x, self.margin, mode="replicate")
        if moves is not None:
            x = moves.apply(x)
        return x.contiguous(memory_format=torch.channels_last)

    def _flips(self, moves: Moves, span: slice) -> Tensor:
        """Which tiles are mirrored: none, where the whole image was before it was cut."""
        flips = moves.flips[span]
        return flips if self.window is None else torch.zeros_like(flips)

    def _set_rates(self, epochs_done: float) -> None:
        """The learning rate is a function of the position alone, so a resume needs no scheduler."""
        factor = rate_factor(self.recipe, epochs_done, self._epochs)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if "initial_lr" in group:  # else its rate stays as it is
                    group["lr"] = group["initial_lr"] * factor

    def _end_epoch(self, phase: str, epoch: int) -> None:
        seconds = time.perf_counter() - self._began
        row: dict[str, Any] = {"phase": phase, "epoch": epoch, "seconds": seconds}
        row["of"] = self._epochs
        for key, values in self._log.items():
            name, _, other = key.partition("/")
            numbers = row.setdefault("others", {}).setdefault(other, {}) if other else row
            numbers[name] = float(self._gathered(values).double().mean())
        self._log.clear()
        self.history.append(row)
        if self.on_epoch is not None:
            self.on_epoch(self.name, row)

    def _gathered(self, values: list[Tensor]) -> Tensor:
        # Plain numbers, and what a checkpoint brought back, lie on the CPU.
        return torch.stack([value.to(self.device) for value in values])

    def _checkpoint(self) -> None:
        if self.on_checkpoint is not None:
            self.on_checkpoint(self)

    def _restore_random(self) -> None:
        if self._random:
            set_random_state(self._random, self.device)
            self._random = {}


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of the generators that initialisation and dropout draw from."""
    states = {"cpu": torch.default_generator.get_state()}
    if device.type == "cuda":
        states["cuda"] = _cuda_generator(device).get_state()
    return states


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.default_generator.set_state(states["cpu"])
    if device.type == "cuda":
        _cuda_generator(device).set_state(states["cuda"])


def _cuda_generator(device: torch.device) -> torch.Generator:
    # torch.cuda.get_rng_state asks for the same, at ten times the price.
    torch.cuda.init()
    number = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[number]
    return generator


def _to(split: Split, device: torch.device) -> Split:
    y = None if split.y is None else split.y.to(device)
    return Split(split.x.to(device), y, split.ids.to(device))
