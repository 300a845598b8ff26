"""Features and labels that are already in memory: NumPy, torch, lists, pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.data.split import as_tensor
from colonnade.data.types import Column
from colonnade.errors import DataError

_ACCEPTED = (
    "Accepted are tables (rows, columns) or (rows,) of numbers, images (rows, channels, height, "
    "width) or (rows, height, width) as uint8 or float, and pandas DataFrames."
)


def from_arrays(
    x: object, *, like: tuple[Column, ...] | None = None
) -> tuple[Tensor, tuple[Column, ...]]:
    """Features as Colonnade holds them, and their columns; no columns for images.

    For later rows pass `like`, the columns of training: equal categories get equal codes, and a
    category that did not occur in training gets -1.
    """
    if hasattr(x, "columns") and hasattr(x, "dtypes"):
        return _from_frame(x, like)
    array = _array(x, "features")
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"features of type {array.dtype} are not numbers. {_ACCEPTED} "
            "Put text into a DataFrame, where it becomes categories."
        )
    if array.ndim in (3, 4):
        return _images(array), ()
    if array.ndim not in (1, 2):
        raise DataError(f"features have the shape {array.shape}. {_ACCEPTED}")
    table = array[:, None] if array.ndim == 1 else array
    if like:
        if len(like) != table.shape[1]:
            raise DataError(f"{table.shape[1]} columns given, {len(like)} in training.")
        return _float32(table), like
    name = getattr(x, "name", None)  # a pandas Series may have one
    if array.ndim == 1 and isinstance(name, str):
        return _float32(table), (Column(name),)
    return _float32(table), tuple(Column(f"column {place}") for place in range(table.shape[1]))


def _images(array: NDArray[Any]) -> Tensor:
    images = array if array.ndim == 4 else array[:, None]
    if images.shape[3] in (3, 4) and images.shape[1] > 4:
        raise DataError(
            f"images of shape {images.shape} seem to have their channels last. Put them first: "
            "x.transpose(0, 3, 1, 2)."
        )
    if images.dtype == np.uint8:
        return as_tensor(images)
    if images.dtype.kind == "f":
        return _float32(images)
    raise DataError(f"images are {array.dtype}, neither uint8 nor float. {_ACCEPTED}")


def _float32(values: NDArray[Any]) -> Tensor:
    with np.errstate(over="ignore"):  # infinity, which Preparation reports by column and row
        return as_tensor(values.astype(np.float32))


def _from_frame(frame: Any, like: tuple[Column, ...] | None) -> tuple[Tensor, tuple[Column, ...]]:
    names = [str(name) for name in frame.columns]
    wanted = [column.name for column in like] if like else names
    if absent := [name for name in wanted if name not in names]:
        raise DataError(f"column {absent[0]!r}, which training had, is missing. Add it.")
    columns: list[Column] = []
    table = np.empty((len(frame), len(wanted)), np.float32)
    for place, name in enumerate(wanted):
        series = frame.iloc[:, names.index(name) if like else place]
        known = like[place] if like else None
        kind = getattr(series.dtype, "kind", "O")
        if kind in "biuf" and not (known and known.categories):
            # Also pandas' own nullable types, whose missing values become NaN.
            with np.errstate(over="ignore"):
                table[:, place] = series.to_numpy(dtype=np.float64, na_value=np.nan)
            columns.append(Column(name))
        elif kind in "OSUTbiuf" and (known is None or known.categories):
            column, table[:, place] = _categories(name, series, known)
            columns.append(column)
        else:
            raise DataError(
                f"column '{name}' is of type {series.dtype}. Give numbers, truth values "
                "or categories, the same in training and later; turn dates into numbers first."
            )
    return as_tensor(table), tuple(columns)


def _categories(name: str, series: Any, known: Column | None) -> tuple[Column, NDArray[Any]]:
    """Sorted by name; a missing value gets -1, which one-hot encoding makes zeros."""
    absent = series.isna().to_numpy()
    values = [str(value) for value in series.to_numpy(dtype=object)[~absent]]
    if not values and known is None:
        raise DataError(f"column '{name}' has no values at all. Omit it.")
    column = known or Column(name, tuple(sorted(set(values))))
    place = {category: code for code, category in enumerate(column.categories)}
    codes = np.full(len(absent), -1.0, np.float32)
    codes[~absent] = [place.get(value, -1) for value in values]
    return column, codes


def labels_from(y: object) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as int64 codes, and the names of the classes found, sorted."""
    found, codes = np.unique(_label_values(y), return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), tuple(str(value) for value in found.tolist())


def label_codes(y: object, classes: tuple[str, ...]) -> Tensor:
    """The codes of further rows' labels, by the class names that `labels_from` found."""
    codes, names = labels_from(y)
    for label, name in enumerate(names):
        if name not in classes:
            row = int(torch.nonzero(codes == label)[0])
            raise DataError(
                f"the label in row {row} is '{name}', which is not one of the classes "
                f"{', '.join(classes)}. Correct it, or add the class to the training rows."
            )
    return torch.tensor([classes.index(name) for name in names])[codes]


def _label_values(y: object) -> NDArray[Any]:
    """Labels as truth values, integers or text, which sort as people expect."""
    array = _array(y, "labels")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not array.size:
        raise DataError(f"labels of shape {array.shape} are not one per row. Pass (rows,).")
    kind = array.dtype.kind
    if kind in "biuU":
        return array
    if kind == "S":
        return array.astype(np.str_)
    values = array.tolist()
    for row, value in enumerate(values):
        if value is None or value != value:
            raise DataError(f"the label in row {row} is missing. Remove rows without a label.")
        if not isinstance(value, (int, str)) and not (kind == "f" and value.is_integer()):
            raise DataError(
                f"the label in row {row} is {value!r}, neither integer nor text. "
                "Give one or the other."
            )
    if all(isinstance(value, bool) for value in values):
        return np.array(values)
    if any(isinstance(value, str) for value in values):
        return np.array([str(value) for value in values])
    return np.array([int(value) for value in values])


def _array(values: object, what: str) -> NDArray[Any]:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what} differ in length: {error}. {_ACCEPTED}") from error
    if array.ndim == 0:
        raise DataError(f"{what} of type {type(values).__name__} have no rows. {_ACCEPTED}")
    return array
