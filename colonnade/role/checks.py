"""What a party knows about the messages it sends and is fed, and refuses where they differ.

    rows     "batch" is the number of rows of the batch that its role works on
    width    "classes" and "dim" are known beforehand; any other dimension, and the dtype, stay what
             they were in the first message of a Kind between two parties
    place    a message is received in the epoch in which it was sent, and if it is about a batch, in
             the step of that batch
    numbers  no NaN, no infinity: in main memory at once; on a GPU, which is not to be waited for,
             before every checkpoint and at the end of every epoch

A Kind says where it is otherwise. What is finite and of the right shape may still be wrong: nobody
can know that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from colonnade.errors import Diverged, KindError, Untrusted, either
from colonnade.role.progress import Progress
from colonnade.wire import Kind, Message, Value
from colonnade.wire.counting import RowsAtHand
from colonnade.wire.kind import finite

MOST_HOPS = 1 << 40  # messages in a chain; no run has so many
Seen = tuple[torch.Size, torch.dtype, int | None]


class Checks:
    """
    name      of the party
    most      how many rows a batch of it can have; None: it holds no rows
    progress  where it is
    """

    def __init__(
        self,
        name: str,
        most: int | None,
        progress: Progress,
        remedies: Sequence[str] = ("a smaller lr", "clip_norm = 1"),
    ) -> None:
        self.fed = False  # whether something of another party has reached its role
        # What helps against a training that diverges; a role may add what its own options offer
        self.remedies = list(remedies)
        self._name, self._most, self._progress = name, most, progress
        self._known: dict[str, int] = {}  # sizes of dimensions, whoever sends
        # By sender, receiver and Kind: what the first message was like, and what was right before.
        self._first: dict[tuple[str, str, str], dict[str, int | torch.dtype]] = {}
        self._last: dict[tuple[str, str, str], Seen] = {}
        self._largest: dict[tuple[str, str], Tensor] = {}  # number on a GPU, by receiver and Kind
        self._announced: dict[tuple[str, str], tuple[int, ...]] = {}  # last, by sender, Kind

    def know(self, sizes: Mapping[str, int]) -> None:
        """The sizes that dimensions of these names have at all parties."""
        self._known.update(sizes)
        self._announced.clear()

    # ---- one message -------------------------------------------------------------------------

    def sending(
        self,
        receiver: str,
        kind: Kind,
        value: Value,
        at_hand: RowsAtHand | None,
        sound: bool = False,
    ) -> None:
        """Refuse to send what cannot be right.

        at_hand  what its role works on
        sound    the very same bytes were found to be finite before, for another receiver
        """
        self._look(self._name, receiver, kind, value, at_hand)
        if not kind.finite:
            return
        if not sound and not finite(value):
            raise Diverged(
                f"'{self._name}' does not send a '{kind.name}' that is not finite to '{receiver}', "
                f"{self._place()}: its training has diverged, by itself or by what others sent. "
                f"Try {either(self.remedies)}, or resume without the party that sends nonsense"
            )
        if not isinstance(value, Tensor) or not value.is_cpu:
            self._note_largest(receiver, kind, value)

    def announced(self, kind: Kind, shape: tuple[int, ...], sender: str) -> None:
        """Refuse a tensor of which nothing but the shape has come yet."""
        assert kind.shape is not None
        if self._announced.get((sender, kind.name)) == shape:
            return
        for dimension, size in zip(kind.shape, shape, strict=True):
            if dimension == "batch":
                if self._most is not None and size > self._most:
                    raise KindError(
                        f"'{sender}' sends '{kind.name}' of {size} rows to '{self._name}', which "
                        f"has {self._most}"
                    )
            elif isinstance(dimension, str) and not kind.varies:
                known = self._known.get(dimension, size)
                if size != known:
                    raise self._wrong(sender, self._name, kind, dimension, size, known)
        self._announced[sender, kind.name] = shape

    def received(self, message: Message, at_hand: RowsAtHand | None) -> None:
        """Refuse what its role must not be fed; `at_hand` is what it works on."""
        m, kind = message, message.kind
        self.fed = True
        phase, epoch, step = self._progress.position
        same = (m.phase == "setup") == (self._progress.phase == "setup") and m.epoch == epoch
        if kind.about == "batch" and at_hand is not None:
            same = same and m.step == step
        if phase and not kind.late and not same:
            said = f"epoch {m.epoch + 1}, step {m.step + 1}" if m.phase != "setup" else "its set-up"
            raise Untrusted(
                f"'{m.sender}' says that its '{kind.name}' is of {said}; '{self._name}' waits for "
                f"that of epoch {epoch + 1}, step {step + 1}. A Kind whose messages may come late "
                "must say so: late=True"
            )
        if m.hop > MOST_HOPS + 1:  # a party counts to MOST_HOPS, and sends one more
            raise Untrusted(
                f"'{m.sender}' says that its '{kind.name}' ends a chain of {m.hop} messages; no "
                "run has so many"
            )
        self._look(m.sender, self._name, kind, m.value, at_hand)

    def _look(
        self, sender: str, receiver: str, kind: Kind, value: Value, at_hand: RowsAtHand | None
    ) -> None:
        """Rows, widths and dtype. What was right a moment ago is looked at no further."""
        if kind.shape is None or not isinstance(value, Tensor):
            return
        rows = None if at_hand is None else at_hand.count
        seen, key = (value.shape, value.dtype, rows), (sender, receiver, kind.name)
        if self._last.get(key) == seen:
            return
        first = self._first.setdefault(key, {})
        if first.setdefault("", value.dtype) != value.dtype and not kind.varies:
            raise self._wrong(sender, receiver, kind, "dtype", value.dtype, first[""])
        for dimension, size in zip(kind.shape, value.shape, strict=True):
            if isinstance(dimension, int):
                continue
            due: int | torch.dtype | None = rows
            if dimension != "batch":
                due = self._known.get(dimension) or first.setdefault(dimension, size)
                due = size if kind.varies else due
            if due is not None and size != due:
                raise self._wrong(sender, receiver, kind, dimension, size, due)
        self._last[key] = seen

    def _wrong(
        self, sender: str, receiver: str, kind: Kind, what: str, value: object, due: object
    ) -> KindError:
        said = f"'{sender}' sent '{kind.name}' to '{receiver}' with {what} = {value}; {due} is due"
        return KindError(f"{said}, {self._place()}")

    def _place(self) -> str:
        phase, epoch, step = self._progress.position
        return f"in '{phase}', epoch {epoch + 1}, step {step + 1}" if phase else "in its set-up"

    # ---- on a GPU, without waiting for it ----------------------------------------------------

    def _note_largest(self, receiver: str, kind: Kind, value: Value) -> None:
        if isinstance(value, Mapping):
            for child in value.values():
                self._note_largest(receiver, kind, child)
        elif isinstance(value, Tensor) and not value.is_cpu and _numbers(value):
            largest = torch.linalg.vector_norm(value.detach(), math.inf).double()
            before = self._largest.get((receiver, kind.name), largest)
            self._largest[receiver, kind.name] = torch.maximum(before, largest)  # NaN stays

    def settle(self, trained: Iterable[Tensor]) -> None:
        """Called before every checkpoint and at the end of an epoch: refuse to keep what is not
        finite, where others may have caused it."""
        if not all_finite(self._largest.values()):
            receiver, kind = next(k for k, v in self._largest.items() if not v.isfinite())
            raise Diverged(
                f"'{self._name}' sent a '{kind}' that is not finite to '{receiver}', "
                f"{self._place()} or before: the training has diverged; try "
                f"{either(self.remedies)}"
            )
        self._largest.clear()
        if self.fed and not all_finite(trained):
            raise Diverged(
                f"the weights of '{self._name}', or its optimiser, are not finite, "
                f"{self._place()}: its training has diverged, by itself or by what others sent. "
                f"Nothing of it was saved; try {either(self.remedies)}, or resume without the "
                "party that sends nonsense"
            )


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """One look at many tensors of one device."""
    found = [
        torch.linalg.vector_norm(tensor.detach(), math.inf).double()
        for tensor in tensors
        if _numbers(tensor)
    ]
    return not found or bool(torch.stack(found).isfinite().all())


def _numbers(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0
