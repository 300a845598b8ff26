"""Columns of tables: text to numbers, categories to codes."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from colonnade.data.sources.files import contents, corrupt, reading
from colonnade.data.split import undivided
from colonnade.data.types import Column, Dataset

_Strings = NDArray[np.str_] | NDArray[np.bytes_]


def text_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank; unpacked if its name says so."""
    return [line for line in contents(path).decode("latin-1").splitlines() if line.strip()]


def numbers(
    path: Path, lines: Iterable[str], kind: DTypeLike = np.float32, delimiter: str | None = None
) -> NDArray[Any]:
    """Lines of `path` as a table, or as records if `kind` has fields; DataCorrupt without lines."""
    lines = list(lines)
    if not lines:
        raise corrupt(path, "it has no rows")
    dimensions: Literal[1, 2] = 2 if np.dtype(kind).names is None else 1
    with reading(path):
        return np.loadtxt(lines, kind, comments=None, delimiter=delimiter, ndmin=dimensions)


def encode(name: str, train: _Strings, test: _Strings) -> tuple[Column, NDArray[Any], NDArray[Any]]:
    """Codes by the training part's sorted categories.

    A category that only the test part has gets -1, because no model could have learnt it; one-hot
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


def labelled(path: Path, name: str, label: str, classes: tuple[str, ...], columns: int) -> Dataset:
    """A CSV file with names in its first line: numbers, text as categories, and a label.

    classes  of the label; none: it is a number
    """
    lines = text_lines(path)
    with reading(path):
        header, *rows = csv.reader(lines)
    if label not in header or len(header) != columns + 1:
        raise corrupt(path, f"its columns are {', '.join(header)[:200]}")
    if not rows or any(len(row) != len(header) for row in rows):
        raise corrupt(path, f"it has no rows, or rows without {len(header)} fields")
    cells = {
        name: np.array(values) for name, values in zip(header, zip(*rows, strict=True), strict=True)
    }
    with reading(path):
        given = cells.pop(label)
        y = np.array([classes.index(c) for c in given]) if classes else given.astype(np.float64)
    read = {name: _numbers(values) for name, values in cells.items()}
    named = {name: cells[name] if values is None else values for name, values in read.items()}
    text = frozenset(name for name, values in read.items() if values is None)
    found, x, _ = assemble(tuple(cells), text, named, named)
    return undivided(name, x, y, classes, found)


def _numbers(cells: NDArray[np.str_]) -> NDArray[np.float32] | None:
    try:
        return cells.astype(np.float32)
    except ValueError:
        return None


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
