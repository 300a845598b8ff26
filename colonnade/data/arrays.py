"""Features that are already in memory: NumPy, torch, lists, pandas.

A DataFrame is prepared as a file with the same table: missing numbers and categories may occur.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.data.doubts import dates, decimal_commas, identifier
from colonnade.data.split import as_tensor
from colonnade.data.types import Column
from colonnade.data.values import ABSENT_NUMBER, ACCEPTED, TRUTH, array_of, is_absent, written
from colonnade.errors import DataError


def from_arrays(
    x: object, *, like: tuple[Column, ...] | None = None
) -> tuple[Tensor, tuple[Column, ...]]:
    """Features as Colonnade holds them, and their columns; no columns for images.

    For later rows pass `like`, the columns of training: equal categories get equal codes, and a
    category that did not occur in training gets -1.
    """
    if hasattr(x, "columns") and hasattr(x, "dtypes"):
        return _from_frame(x, like)
    array = array_of(x, "features")
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"features of type {array.dtype} are not numbers. {ACCEPTED} "
            "Put text into a DataFrame, where it becomes categories."
        )
    if array.ndim in (3, 4):
        return _images(array), ()
    if array.ndim not in (1, 2):
        raise DataError(f"features have the shape {array.shape}. {ACCEPTED}")
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
    raise DataError(f"images are {array.dtype}, neither uint8 nor float. {ACCEPTED}")


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
        with np.errstate(over="ignore"):
            column, table[:, place] = _column(name, series, like[place] if like else None)
        columns.append(column)
    return as_tensor(table), tuple(columns)


def _column(name: str, series: Any, known: Column | None) -> tuple[Column, NDArray[Any]]:
    """One column of a frame: numbers with NaN, or codes of categories with -1, for what is
    missing. In an object column the values decide."""
    categorical = known is not None and bool(known.categories)
    kind = getattr(series.dtype, "kind", "O")
    if kind in "biuf" and not categorical:  # also pandas' own nullable types
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        _check_any(name, ~np.isnan(numbers), known)
        return known or Column(name, missing=True), numbers
    if kind not in "OSUTbiuf":
        raise _strange(name, series)
    values = series.to_numpy(dtype=object)
    present = np.array([not _blank(value) for value in values], dtype=bool)
    _check_any(name, present, known)
    said = values[present].tolist()
    if not categorical and (series.dtype.name != "category" or known is not None):
        found = _as_numbers(said)
        if found is not None:
            numbers = np.full(len(values), np.nan)
            numbers[present] = found
            return known or Column(name, missing=True), numbers
        if known is not None:
            raise _strange(name, series)
    texts = [written(value).strip() for value in said]
    column = known or Column(name, _categories(name, texts))
    place = {category: code for code, category in enumerate(column.categories)}
    codes = np.full(len(values), -1.0, np.float32)
    codes[present] = [place.get(text, -1) for text in texts]
    return column, codes


def _as_numbers(values: list[Any]) -> list[float] | None:
    """Numbers and truth values, also where these are written as text; None: it is other text."""
    if values and all(isinstance(value, str) for value in values):
        words = [value.strip().casefold() for value in values]
        if not set(words) <= TRUTH.keys() | ABSENT_NUMBER or not set(words) & TRUTH.keys():
            return None
        return [TRUTH.get(word, np.nan) for word in words]
    if any(isinstance(value, str | bytes) for value in values):
        return None
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        return None


def _categories(name: str, texts: list[str]) -> tuple[str, ...]:
    """Sorted by name."""
    found = sorted(set(texts))
    if dates(found):
        raise DataError(f"column '{name}' has dates or times. Turn them into a number, or omit it.")
    if decimal_commas(found):
        raise DataError(f"column '{name}' has numbers with a comma. Turn them into numbers.")
    if what := identifier(len(found), len(texts)):
        raise DataError(
            f"column '{name}' has {what}, which looks like an identifier and not a category. Omit "
            "it."
        )
    return tuple(found)


def _blank(value: Any) -> bool:
    return is_absent(value) or (isinstance(value, str) and not value.strip())


def _check_any(name: str, present: NDArray[np.bool_], known: Column | None) -> None:
    if known is None and len(present) and not present.any():
        raise DataError(f"column '{name}' has no values at all. Omit it.")


def _strange(name: str, series: Any) -> DataError:
    return DataError(
        f"column '{name}' is of type {series.dtype}. Give numbers, truth values or categories, the "
        "same in training and later; turn dates into numbers first."
    )
