"""Divides a party's rows into batches, prepared for its models and on its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade.data import Moves, Preparation, Split
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.partition import Rectangle, cut
from colonnade.role.recipe import Batching, Schedule

FEWEST = 2  # rows of a training batch: the embedding of a single one would say what it is alone
CHUNK_BYTES = 16 << 20  # prepared rows in memory at once: one gather serves many batches
EVALUATION_ROWS = 1000  # a batch without gradients


@dataclass(slots=True)
class Batch:
    """Some prepared rows on the party's device."""

    x: Tensor  # float32 (batch, …)
    y: Tensor | None  # (batch,), only where the party holds labels: see Split
    ids: Tensor  # int64 (batch,)
    owner: str = "this party"
    rows: Tensor | None = None  # int64 (batch,): their positions in the split; training only
    flips: Tensor | None = None  # bool (batch,): which images are mirrored; None: no image is
    weights: Tensor | None = None  # (batch,), beside labels: how much each row counts

    @property
    def labels(self) -> Tensor:
        """The labels; an error if the party has none."""
        if self.y is None:
            raise ColonnadeError(f"the role of '{self.owner}' needs labels, and it holds none")
        return self.y

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Intake:
    """Turns rows into input of models; tables come prepared and do not change."""

    preparation: Preparation | None
    window: Rectangle | None  # the part that is cut out of a whole image after it is moved
    margin: tuple[int, int, int, int]  # pixels by which an image is enlarged, as for F.pad

    def made(self, x: Tensor, moves: Moves | None) -> Tensor:
        """Rows of float32; of images (rows, channels, height, width)."""
        if x.dim() != 4 or self.preparation is None:
            return x
        return self._moved(self.preparation.to_float(x), moves)

    def flips(self, moves: Moves, span: slice) -> Tensor:
        """Which tiles are mirrored: none if the whole image was mirrored before it was cut."""
        flips = moves.flips[span]
        return flips if self.window is None else torch.zeros_like(flips)

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


def spread(rows: int, size: int, batching: Batching) -> list[int]:
    """How many rows each batch has: as equal as can be, the larger ones first, or full ones and
    a rest."""
    count = -(-rows // size)
    if batching == "papers":
        return [min(size, rows - at) for at in range(0, rows, size)]
    least, more = divmod(rows, max(count, 1))
    return [least + (number < more) for number in range(count)]


def check_spread(
    owner: str, splits: Mapping[str, Sized], schedule: Schedule, fewest: int = 0
) -> None:
    """Refuse batches that are too small.

    A batch must have at least two rows, unless `batching = "papers"` was chosen, and at least as
    many as the party's policy requires: of training rows always, of others where the party would
    tell them to another organisation.

    fewest  what the policy wants, at least 1; 0: it tells others of no batch
    """
    if "train" not in splits:
        return
    rows = len(splits["train"])
    least = max(fewest, 1 if schedule.batching == "papers" else FEWEST)
    smallest = min(spread(rows, schedule.batch_size, schedule.batching), default=least)
    required = f", and its policy requires {fewest}" if fewest > 1 else ""
    if smallest < least:
        said = f"batch_size = {schedule.batch_size} of {rows} training rows of '{owner}' makes"
        said += " a batch of one row" if smallest == 1 else f" a batch of {smallest} rows"
        move = f"batch_size = {2 * least - 1} or more does not"
        if rows < least:
            move = "bring more rows"
        elif schedule.batching == "papers":
            move = 'choose another batch_size, or batching = "even"'
        raise ConfigError([f"{said}{required}: {move}"])
    for name, others in splits.items() if fewest and schedule.evaluate_every else ():
        sizes = spread(len(others), EVALUATION_ROWS, schedule.batching)
        if name != "train" and min(sizes, default=least) < least:
            said = f"the {len(others)} rows of '{owner}' for '{name}' are evaluated in batches of"
            told = required or ", which would tell others of a single row"
            lower = "lower its `min_batch`, " if required else ""
            move = f"bring more rows, {lower}or set evaluate_every = 0"
            raise ConfigError([f"{said} {min(sizes)}{told}: {move}"])


def batched(
    split: Split,
    intake: Intake,
    owner: str,
    order: Tensor | None,
    sizes: Sequence[int],
    start: int = 0,
    moves: Moves | None = None,
) -> Iterator[Batch]:
    """Batches from number `start` on; rows are gathered and converted many batches at once."""
    moves = moves and moves.to(split.x.device)
    row_bytes = 4 * max(1, split.x[:1].numel())
    together = max(1, CHUNK_BYTES // (row_bytes * max(sizes, default=1)))  # batches
    begins = [0, *accumulate(sizes)]
    # Chunks begin at the same rows after a resume: equal memory alignment gives equal bits.
    for first in range(start // together * together, len(sizes), together):
        some_sizes = list(sizes[first : first + together])
        span = slice(begins[first], begins[first + len(some_sizes)])
        some = split.rows(span if order is None else order[span])
        x = intake.made(some.x, moves and moves.part(span))
        xs, ids = x.split(some_sizes), some.ids.split(some_sizes)
        nothing: list[None] = [None] * len(xs)
        ys = nothing if some.y is None else some.y.split(some_sizes)
        rows = nothing if order is None else order[span].split(some_sizes)
        flips = nothing if moves is None else intake.flips(moves, span).split(some_sizes)
        weights = nothing if some.weights is None else some.weights.split(some_sizes)
        for number, parts in enumerate(zip(xs, ys, ids, rows, flips, weights, strict=True)):
            if first + number >= start:
                x, y, i, row, flipped, weight = parts
                yield Batch(x, y, i, owner, row, flipped, weight)
