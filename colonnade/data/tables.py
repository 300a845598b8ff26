"""Columns of tables: categories to codes, text to numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.types import Column

_Strings = NDArray[np.str_] | NDArray[np.bytes_]


def encode(name: str, train: _Strings, test: _Strings) -> tuple[Column, NDArray[Any], NDArray[Any]]:
    """Codes by the training part's sorted categories.

    A category that only the test part has gets -1: nobody could have learnt it, and one-hot
    encoding makes it all zeros.
    """
    categories, codes = np.unique(train, return_inverse=True)
    place = np.searchsorted(categories, test).clip(max=len(categories) - 1)
    seen = categories[place] == test
    names = tuple(c.decode() if isinstance(c, bytes) else str(c) for c in categories.tolist())
    return (
        Column(name, names),
        codes.astype(np.float32),
        np.where(seen, place, -1).astype(np.float32),
    )


def assemble(
    names: tuple[str, ...],
    categorical: frozenset[str],
    train: dict[str, NDArray[Any]],
    test: dict[str, NDArray[Any]],
) -> tuple[tuple[Column, ...], NDArray[np.float32], NDArray[np.float32]]:
    """Named columns of two parts as two float32 tables, categorical ones as codes."""
    columns: list[Column] = []
    tables = [np.empty((len(part[names[0]]), len(names)), np.float32) for part in (train, test)]
    for place, name in enumerate(names):
        if name in categorical:
            column, *values = encode(name, train[name], test[name])
        else:
            column, values = Column(name), [train[name], test[name]]
        columns.append(column)
        for table, value in zip(tables, values, strict=True):
            table[:, place] = value
    return tuple(columns), tables[0], tables[1]
