"""Labels: classes or numbers. The setting `task` says which, or the labels themselves:

    text, truth values                      classes
    whole numbers, up to 20 different ones  classes
    whole numbers, more of them             a question: an error asks for `task`
    a number with a fraction                numbers, so regression

Numbers in a text file are text that reads as numbers: the rule is the same for files and arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.data.values import ABSENT_NUMBER, array_of, as_number, is_absent, short
from colonnade.errors import DataError, listed

Asked = Literal["auto", "binary", "multiclass", "regression"]

MOST_CLASSES = 20  # different whole numbers that are classes without a question
MOST_TEXTS = 1000  # different texts that are classes without a question
_FEW = 10  # fewer rows do not show whether a column is an identifier
_WHOLE = re.compile(r"([-+]?\d+)(\.0*)?")
_OTHER = "or name another column by `label`, or --label"


@dataclass(frozen=True)
class Called:
    """How labels, or other values beside the features, and their rows are named to a person."""

    file: str = ""  # empty: an array
    column: str = ""  # empty: it has no name
    place: Callable[[int], str] = "row {}".format
    of: str = "label"  # what the column holds

    @property
    def all(self) -> str:
        if self.file:
            return f"{self.file}, column '{self.column}': the {self.of}s"
        return f"the {self.of}s '{self.column}'" if self.column else f"the {self.of}s"

    def one(self, row: int) -> str:
        if self.file:
            return f"{self.file}, {self.place(row)}, column '{self.column}': the {self.of}"
        named = f" '{self.column}'" if self.column else ""
        return f"the {self.of}{named} in {self.place(row)}"


def labels_from(
    y: object, task: Asked = "auto", called: Called | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as they are learnt: int64 codes and the sorted names of their classes, or float64
    numbers and no names."""
    seen = _Seen.of(y, called or _called(y))
    if task == "regression" or (task == "auto" and seen.fractions):
        return seen.learnt(), ()
    seen.check_finite()
    names, codes = seen.classes()
    classes = tuple(str(name) for name in names.tolist())
    if len(classes) == 1:
        raise DataError(
            f"{seen.called.all} of all {seen.rows:,} rows are {short(classes[0])}, and there must "
            f"be two classes or more. Bring rows of another class, {_OTHER}."
        )
    if task == "auto":
        _check_doubtful(seen)
    if task == "binary" and len(classes) != 2:
        other = (
            "multiclass" if len(classes) <= MOST_CLASSES or seen.numbers is None else "regression"
        )
        raise DataError(
            f"{seen.called.all} are of {len(classes):,} classes, {listed(classes, 5)}, and task = "
            f'"binary" is about two. Correct them, {_OTHER}, or set task = "{other}".'
        )
    return torch.from_numpy(codes.astype(np.int64)), classes


def label_codes(y: object, classes: tuple[str, ...], called: Called | None = None) -> Tensor:
    """Further rows' labels, by the class names that `labels_from` found; numbers if it found
    none."""
    seen = _Seen.of(y, called or _called(y))
    if not classes:
        return seen.learnt(constant=True)
    places, numbers = list[int](), {name: number for number, name in enumerate(classes)}
    for label, name in enumerate(map(str, seen.found.tolist())):
        known = class_of(name, numbers)
        if known is None:
            raise DataError(
                f"{seen.one(label)} is {short(name)}, which is not one of the classes "
                f"{listed(classes, quoted=False)}. Correct it, or add the class to the "
                "training rows."
            )
        places.append(numbers[known])
    return torch.tensor(places)[torch.from_numpy(seen.codes)]


def class_of(text: str, classes: Container[str]) -> str | None:
    """The class that a text names, "1.0" like "1"; None: there is none."""
    if text in classes:
        return text
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole is not None and whole[1] in classes else None


def described(labels: list[str]) -> str:
    """Labels of a file in a few words, whatever a run makes of them."""
    found = sorted(set(labels))
    read = [_read(text) for text in found]
    numbers = [number for number in read if number is not None]
    fractions = any(number != np.floor(number) for number in numbers)
    if len(numbers) == len(found) and (fractions or len(found) > MOST_CLASSES):
        span = f"from {min(numbers):g} to {max(numbers):g}"
        return f"numbers {span}, {len(found):,} different"
    return f"{len(found):,} classes: {listed(found, 5)}"


def label_values(y: object, called: Called) -> NDArray[Any]:
    """Labels as truth values, whole numbers, numbers or text, which sort as people expect."""
    array = array_of(y, "labels")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not array.size:
        raise DataError(f"labels of shape {array.shape} are not one per row. Pass (rows,).")
    kind = array.dtype.kind
    if kind in "biu":
        return array
    if kind in "US":
        return array.astype(np.str_)
    if kind == "f":
        return _whole_if_all(array.astype(np.float64), called)
    values = array.tolist()
    absent = [row for row, value in enumerate(values) if is_absent(value)]
    if absent:
        raise _missing(absent, len(values), called)
    for row, value in enumerate(values):
        if not isinstance(value, bool | int | float | str | np.bool_ | np.integer | np.floating):
            raise DataError(
                f"{called.one(row)} is {value!r}, neither a number nor text. Give one or the other."
            )
    if all(isinstance(value, bool | np.bool_) for value in values):
        return np.array(values, dtype=np.bool_)
    if any(isinstance(value, str) for value in values):
        return np.array([str(value) for value in values])
    if all(isinstance(value, int | np.integer) for value in values):
        return np.array([int(value) for value in values])
    return _whole_if_all(np.array(values, dtype=np.float64), called)


def check_labels(y: Tensor, classes: tuple[str, ...]) -> None:
    """Refuse labels that are not an index into `classes`, and classes without a row; of numbers
    those that are not finite, or all equal."""
    if not classes:
        _check_numbers(y)
        return
    if y.dim() != 1 or y.dtype != torch.int64:
        raise DataError(f"labels are {y.dtype} of shape {tuple(y.shape)}. Give int64 (rows,).")
    wrong = (y < 0) | (y >= len(classes))
    if bool(wrong.any()):
        row = int(torch.nonzero(wrong)[0])
        raise DataError(
            f"the label in row {row} is {int(y[row])}, but there are {len(classes)} "
            f"classes: labels are 0..{len(classes) - 1}. Correct it, or name all classes."
        )
    counts = torch.bincount(y, minlength=len(classes))
    if bool((counts == 0).any()):
        missing = [classes[int(i)] for i in torch.nonzero(counts == 0)]
        more = f", of {len(classes):,}" if len(missing) > 10 else ""
        raise DataError(
            f"no row has the class {listed(missing)}{more}. Add rows of it, or omit the class."
        )


# ---- inner workings ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Seen:
    """Labels by their different values."""

    found: NDArray[Any]  # sorted
    codes: NDArray[np.int64]  # (rows,)
    numbers: NDArray[np.float64] | None  # of the values, if all are some
    called: Called

    @staticmethod
    def of(y: object, called: Called) -> _Seen:
        found, codes = np.unique(label_values(y, called), return_inverse=True)
        return _Seen(found, codes.astype(np.int64), _numbers(found), called)

    @property
    def rows(self) -> int:
        return len(self.codes)

    @property
    def fractions(self) -> bool:
        """Whether they are numbers that no class has for a name."""
        found = self.numbers
        if found is None or not np.isfinite(found).all():
            return False
        return bool((found != np.floor(found)).any())

    def one(self, value: int) -> str:
        """The first row with this value."""
        return self.called.one(int((self.codes == value).argmax()))

    def check_finite(self) -> None:
        if self.numbers is not None and not np.isfinite(self.numbers).all():
            wrong = int((~np.isfinite(self.numbers)).argmax())
            raise DataError(f"{self.one(wrong)} is infinite. Correct it, or remove the row.")

    def classes(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Names of classes, and codes; where all are whole numbers "1.0" and "1" are one class."""
        matches = [_WHOLE.fullmatch(str(name)) for name in self.found.tolist()]
        if self.found.dtype.kind != "U" or not all(matches):
            return self.found, self.codes
        names, places = np.unique([m[1] for m in matches if m], return_inverse=True)
        return names, places.astype(np.int64)[self.codes]

    def learnt(self, *, constant: bool = False) -> Tensor:
        """Numbers to be predicted; constant: they may all be equal."""
        if self.found.dtype.kind == "b":
            raise DataError(
                f"{self.called.all} are truth values, and a regression predicts numbers. Omit "
                '`task`, or set task = "binary".'
            )
        if self.numbers is None:
            texts = [str(text) for text in self.found.tolist()]
            wrong = next(n for n, text in enumerate(texts) if _read(text) is None)
            raise DataError(
                f"{self.one(wrong)} is {short(texts[wrong])}, not a number, and a regression "
                "predicts numbers. Correct it, or omit `task` if these are classes."
            )
        self.check_finite()
        if len(self.found) == 1 and not constant:
            raise DataError(
                f"{self.called.all} of all {self.rows:,} rows are {self.numbers[0]:g}: there is "
                f"nothing to learn. Bring rows with other values, {_OTHER}."
            )
        return torch.from_numpy(self.numbers[self.codes])


def _numbers(found: NDArray[Any]) -> NDArray[np.float64] | None:
    """Different labels as numbers, if they all are some."""
    if found.dtype.kind in "iuf":
        return found.astype(np.float64)
    read = [None if found.dtype.kind == "b" else _read(str(text)) for text in found.tolist()]
    return None if None in read else np.array(read, dtype=np.float64)


def _read(text: str) -> float | None:
    """A label as a number; "none" and "?" are classes like others."""
    return None if text.strip().casefold() in ABSENT_NUMBER else as_number(text)


def _called(y: object) -> Called:
    name = getattr(y, "name", None)  # a pandas Series has one
    return Called(column=name) if isinstance(name, str) else Called()


def _missing(absent: list[int], of: int, called: Called) -> DataError:
    if len(absent) == of:
        return DataError(f"{called.all} of all {of:,} rows are missing. Give every row a label.")
    return DataError(
        f"{called.one(absent[0])} is missing, as in {len(absent):,} of {of:,} rows. Label every "
        "row, or remove rows without a label."
    )


def _whole_if_all(values: NDArray[np.float64], called: Called) -> NDArray[Any]:
    """Whole numbers that came as fractions, 1.0, as such."""
    if absent := np.flatnonzero(np.isnan(values)).tolist():
        raise _missing(absent, len(values), called)
    whole = bool((np.abs(values) < 2**53).all()) and bool((values == np.floor(values)).all())
    return values.astype(np.int64) if whole else values


def _check_doubtful(seen: _Seen) -> None:
    """Ask where labels might be classes or numbers, or neither of them."""
    different, rows, numbers = len(seen.found), seen.rows, seen.numbers
    if numbers is not None:
        if different > MOST_CLASSES:
            raise DataError(
                f"{seen.called.all} are whole numbers with {different:,} different values, from "
                f"{numbers.min():g} to {numbers.max():g}. Say what they are: set task = "
                '"regression" to predict a number, or task = "multiclass" if each value is a '
                "class of its own."
            )
        return
    texts = [str(text) for text in seen.found.tolist()]
    strange = [n for n, text in enumerate(texts) if _read(text) is None]
    count = int(np.isin(seen.codes, strange).sum())  # rows whose label is no number
    example = short(texts[strange[0]])
    if different > MOST_CLASSES and count < rows / 2:
        raise DataError(
            f"{seen.one(strange[0])} is {example}, not a number, and {rows - count:,} of {rows:,} "
            'labels are numbers. Correct it, or set task = "multiclass" if each value is a class '
            "of its own."
        )
    if different > MOST_TEXTS or different == rows >= _FEW:
        what = "a different text in every row" if different == rows else f"{different:,} texts"
        raise DataError(
            f"{seen.called.all} have {what}, such as {example}, which looks like an identifier and "
            "not like classes. Name another column by `label`, or --label, or set task = "
            '"multiclass" if each text is a class of its own.'
        )


def _check_numbers(y: Tensor) -> None:
    if y.dim() != 1 or y.dtype != torch.float64:
        raise DataError(f"labels are {y.dtype} of shape {tuple(y.shape)}. Give float64 (rows,).")
    right = torch.isfinite(y)
    if not bool(right.all()):
        row = int(torch.nonzero(~right)[0])
        raise DataError(f"the label in row {row} is not a finite number. Correct it, or remove it.")
    if len(y) and bool((y == y[0]).all()):
        raise DataError(
            f"all {len(y):,} labels are the same number: there is nothing to learn. Bring rows "
            "with other values."
        )
