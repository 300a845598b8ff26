"""Single values, wherever they stand: what is missing, what is a number, and how it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import DataError

ABSENT = {"", "na", "n/a", "#n/a", "<na>", "nan", "null"}  # texts that stand for a missing value
ABSENT_NUMBER = ABSENT | {"none", "?", "-"}  # not numbers, although they may be a class or category
TRUTH = {"false": 0.0, "true": 1.0}
ACCEPTED = (
    "Accepted are tables (rows, columns) or (rows,) of numbers, images (rows, channels, height, "
    "width) or (rows, height, width) as uint8 or float, and pandas DataFrames."
)


def as_number(cell: str) -> float | None:
    """A text as a number, NaN if that is missing; None: it is none."""
    text = cell.strip()
    if text.casefold() in ABSENT_NUMBER:
        return float("nan")
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def is_absent(value: Any) -> bool:
    """Whether a value of an array of objects is missing: None, NaN, or what pandas has for it."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def written(value: Any) -> str:
    """A number as people write it: whole numbers without a point, even in a column of fractions."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def short(cell: object) -> str:
    """A value in quotation marks, cut where it is long."""
    text = str(cell).strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")


def array_of(values: object, what: str) -> NDArray[Any]:
    """Arrays, tensors and lists as an array; `what` they are is for the error."""
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what} differ in length: {error}. {ACCEPTED}") from error
    if array.ndim == 0:
        raise DataError(f"{what} of type {type(values).__name__} have no rows. {ACCEPTED}")
    return array
