"""Ids that are unique, labels for all rows or none, and values that may not be missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.data.labels import Called
from colonnade.data.own.settings import OwnFile
from colonnade.data.own.table import TableFile
from colonnade.data.types import Column
from colonnade.data.values import ABSENT, as_number, short
from colonnade.data.weights import weights_from
from colonnade.errors import DataError, enumerated

_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.0+")
EXACT = 2**53  # from here on a decimal no longer tells one whole number from the next


class Mistakes:
    """What is wrong with a file, gathered so that all of it is said at once."""

    def __init__(self, path: Path) -> None:
        self._path, self._found = path, list[DataError]()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Keep an error that is raised inside, and go on."""
        try:
            yield
        except DataError as error:
            self._found.append(error)

    def tell(self) -> None:
        """Raise what was found, if anything was."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            problems = [str(error) for error in self._found]
            raise DataError(enumerated(problems, str(self._path)), problems)


def check_missing(
    table: TableFile, file: OwnFile, column: Column, values: NDArray[np.float32]
) -> None:
    if file.missing == "mean":
        return
    absent = values == -1 if column.categories else np.isnan(values)
    if bool(absent.any()):
        raise DataError(
            f"{table.path}, {table.place(int(absent.argmax()))}, column '{column.name}': there is "
            f'no value, as in {int(absent.sum()):,} rows. Fill it in, or set missing = "mean"'
        )


def check_ids(table: TableFile, name: str, ids: list[str]) -> None:
    where = f"{table.path}, {{}}, column '{name}'"
    if "" in ids:
        row = ids.index("")
        raise DataError(f"{where.format(table.place(row))}: the id is empty. Give every row one")
    if len(set(ids)) == len(ids):
        return
    counts = Counter(ids)
    twice = next(id for id in ids if counts[id] > 1)
    row = ids.index(twice)
    again = table.place(ids.index(twice, row + 1))
    others = sum(count > 1 for count in counts.values()) - 1
    more = f", and {others:,} more ids come more than once" if others else ""
    raise DataError(
        f"{where.format(f'{table.place(row)} and {again}')}: both have the same id{more}. Ids "
        "must be unique: remove one of the rows, or name another column by `id`, or --id"
    )


def whole(ids: list[str]) -> list[str]:
    """Ids that were saved as decimals, "100.0", as whole numbers: where all of them are so
    written, none begins with a zero, and no two become one. Otherwise as they stand."""
    if not all(map(_DECIMAL.fullmatch, ids)):
        return ids
    found = [id.partition(".")[0] for id in ids]
    return found if len(set(found)) == len(found) else ids


def check_decimal_ids(table: TableFile, name: str, ids: list[str]) -> None:
    """Refuse ids in a column of decimals that are not whole, or too large to be told apart."""
    for row, id in enumerate(ids):
        if id and (not id.lstrip("-").isdigit() or abs(int(id)) >= EXACT):
            raise DataError(
                f"{table.path}, {table.place(row)}, column '{name}': the ids are decimals, and "
                "this one is not a whole number below 2^53. Save them as whole numbers or as text"
            )


def checked_weights(
    table: TableFile, name: str | None, weights: list[str], *, rows: int
) -> Tensor | None:
    """How much each row counts, if a column says so."""
    if name is None:
        return None
    called = Called(str(table.path), name, table.place, "weight")
    read: list[float | None] = [as_number(cell) for cell in weights]
    for row, number in enumerate(read):
        if number is None:
            raise DataError(f"{called.one(row)} is {short(weights[row])}, not a number. Correct it")
    return weights_from(read, rows, called)


def checked_labels(
    table: TableFile, name: str | None, labels: list[str], *, some: bool, named: bool
) -> list[str] | None:
    """Labels of all rows or of none; with `some`, "" stands for a missing label.

    named  the column was chosen, so that it may not be empty
    """
    if name is None:
        return None
    absent = [row for row, label in enumerate(labels) if label.casefold() in ABSENT]
    if len(absent) == len(labels):
        if not some and named:
            raise DataError(
                f"{table.path}, column '{name}': all {len(labels):,} labels are missing. Label the "
                "rows, or name another column by `label`, or --label"
            )
        return None
    if some:
        return ["" if label.casefold() in ABSENT else label for label in labels]
    if absent:
        raise DataError(
            f"{table.path}, {table.place(absent[0])}, column '{name}': there is no label, as in "
            f"{len(absent):,} of {len(labels):,} rows. Label every row, or remove those without"
        )
    return labels
