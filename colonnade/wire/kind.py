"""A Kind declares one type of message: its shape, its dtype, and what it reveals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from colonnade.errors import KindError, foreign

# What may cross the wire: a tensor, a plain scalar or text, or a tree of these by name.
Value = Tensor | bool | int | float | str | bytes | Mapping[str, "Value"]

DTYPES: dict[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "bool": torch.bool,
}
CARRIES = ("", "features", "labels", "models", "sums", "released")
DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, eq=False)
class Kind:
    """A declared message type; every method file lists its Kinds as constants.

    shape       names or sizes of the dimensions, ("batch", "dim"); equal names must have equal
                sizes within one message, and every name keeps its size in a run. "batch", "classes"
                and "dim" are those of the step, the labels and the method's option of that name.
                None declares a tree of named values (model weights).
    dtype       the dtype of the tensor, or of every tensor in the tree; "any" leaves it open.
    reveals     in one line, what the receiver can learn from it.
    randomised  the payload differs between two runs with one seed (fresh keys, fresh masks).
    host        its tensors stay in main memory at the receiver: they are bytes, not network input.
    paces       it only means "go on": waiting for it does not count as a round.
    about       of whose features or labels it speaks: of the "batch" at hand; of all the "training"
                rows, which it was learnt from; of "nothing". A policy counts by it. Omitted: of the
                batch if a dimension is called so, else of the training rows.
    varies      its dimensions may change from message to message, "batch" excepted.
    late        it may be received in another epoch or step than it was sent in.
    finite      it holds neither NaN nor infinity.
    carries     what a protection must cover: "features" of the sender's rows; what is computed from
                "labels"; "models" that were learnt from rows; "sums" over parties, whose terms are
                protected where they are added (privacy/secure_sum.py); "released": nothing that the
                sender has not told before, or heard from others. Omitted: unknown.
    """

    name: str
    shape: tuple[str | int, ...] | None
    reveals: str
    dtype: str = "float32"
    randomised: bool = False
    host: bool = False
    paces: bool = False
    about: Literal["", "batch", "training", "nothing"] = ""
    varies: bool = False
    late: bool = False
    finite: bool = True
    carries: Literal["", "features", "labels", "models", "sums", "released"] = ""

    def __post_init__(self) -> None:
        if not self.name or not self.name.replace("-", "_").isidentifier():
            raise KindError(f"Kind name {self.name!r}: use letters, digits, '-' and '_'")
        if self.shape is not None and not (
            isinstance(self.shape, tuple) and all(_is_dimension(size) for size in self.shape)
        ):
            raise KindError(
                f"Kind '{self.name}': shape = {self.shape!r}; give a tuple of names and sizes, "
                '("batch", 128), or None for a tree'
            )
        if self.dtype != "any" and self.dtype not in DTYPES:
            raise KindError(f"Kind '{self.name}': no dtype '{self.dtype}'; one of {list(DTYPES)}")
        if not self.reveals.strip():
            raise KindError(f"Kind '{self.name}' must say what it reveals; 'nothing' is an answer")
        if self.about not in ("", "batch", "training", "nothing"):
            raise KindError(
                f"Kind '{self.name}': about = {self.about!r}; 'batch', 'training' or 'nothing'"
            )
        if self.carries not in CARRIES:
            raise KindError(
                f"Kind '{self.name}': carries = {self.carries!r}; one of {list(CARRIES[1:])}"
            )
        if not self.about:
            about = "batch" if "batch" in (self.shape or ()) else "training"
            object.__setattr__(self, "about", about)

    def check(self, value: Value, sender: str) -> None:
        """Refuse a value that this Kind does not declare, before anything leaves."""
        if self.shape is None:
            self._check_tree(value, sender, "")
        elif isinstance(value, Tensor):
            self._check_dtype(value.dtype, sender, "")
            self._check_plain(value, sender, "")
            self._check_shape(value.shape, sender)
        else:
            raise KindError(
                f"'{sender}' sent {type(value).__name__} as '{self.name}', "
                f"which is declared as a tensor {self.describe()}"
            )

    def check_announced(self, dtype: torch.dtype, shape: tuple[int, ...], sender: str) -> None:
        """The same for a tensor of which only the dtype and the shape are known yet."""
        self._check_dtype(dtype, sender, "")
        self._check_shape(shape, sender)

    def describe(self) -> str:
        """The shape for a person: 'batch × dim', 'scalar' or 'tree'."""
        if self.shape is None:
            return "tree"
        return " × ".join(str(size) for size in self.shape) or "scalar"

    def _check_shape(self, shape: tuple[int, ...], sender: str) -> None:
        assert self.shape is not None
        sizes: dict[str, int] = {}
        fits = len(self.shape) == len(shape)
        if fits:
            for declared, size in zip(self.shape, shape, strict=True):
                expected = (
                    declared if isinstance(declared, int) else sizes.setdefault(declared, size)
                )
                fits = fits and size == expected
        if not fits:
            raise KindError(
                f"'{sender}' sent a tensor of shape {tuple(shape)} as '{self.name}', "
                f"which is declared as {self.describe()}"
            )

    def _check_dtype(self, dtype: torch.dtype, sender: str, where: str) -> None:
        name = DTYPE_NAMES.get(dtype)
        if name is None or self.dtype not in ("any", name):
            raise KindError(
                f"'{sender}' sent {dtype} as '{self.name}'{_at(where)}, declared as {self.dtype}"
            )

    def _check_plain(self, value: Tensor, sender: str, where: str) -> None:
        if value.layout is not torch.strided:
            raise KindError(
                f"'{sender}' sent a tensor of layout {value.layout} as '{self.name}'{_at(where)}: "
                "only strided tensors cross the wire"
            )
        if value.requires_grad:
            raise KindError(
                f"'{sender}' sent a tensor that is still attached to its autograd graph as "
                f"'{self.name}'{_at(where)}: send value.detach()"
            )

    def _check_tree(self, value: object, sender: str, where: str) -> None:
        if isinstance(value, Tensor):
            self._check_dtype(value.dtype, sender, where)
            self._check_plain(value, sender, where)
        elif isinstance(value, Mapping):
            for key, child in value.items():
                if not isinstance(key, str):
                    raise KindError(
                        f"'{sender}' sent '{self.name}' with the name {key!r}: use text"
                    )
                self._check_tree(child, sender, f"{where}.{key}" if where else key)
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise KindError(
                f"'{sender}' sent the integer {value} as '{self.name}'"
                f"{_at(where)}: it does not fit 64 bits"
            )
        elif not isinstance(value, bool | int | float | str | bytes):
            raise KindError(
                f"'{sender}' sent {type(value).__name__} as '{self.name}'"
                f"{_at(where)}: only tensors, numbers, text, bytes and "
                "maps of them by name may cross the wire"
            )


def _at(where: str) -> str:
    return f" at '{foreign(where, 100)}'" if where else ""


def finite(value: Value) -> bool:
    """Whether all numbers in main memory are finite: one sum per tensor, and a closer look only
    where that is not finite, for a sum may overflow."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or not value.is_cpu:
            return True
        return math.isfinite(value.sum().item()) or bool(value.isfinite().all())
    if isinstance(value, Mapping):
        return all(finite(child) for child in value.values())
    return not isinstance(value, float) or math.isfinite(value)


def _is_dimension(size: object) -> bool:
    if isinstance(size, str):
        return bool(size)
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0
