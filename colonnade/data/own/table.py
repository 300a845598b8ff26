"""The interface of a file of columns, whatever its form, and the content read from a file."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.data.labels import Called
from colonnade.data.types import Column
from colonnade.errors import DataError

CHUNK = 1 << 18  # cells in memory as text at a time
Cells = Sequence[str] | NDArray[np.float64]  # of one column; absent ones are "" or NaN


@dataclass(frozen=True, eq=False)
class Own:
    """The content of one file; `notes` describe it to a person, one line for each column."""

    ids: list[str]
    columns: tuple[Column, ...]
    x: Tensor  # float32 (n, columns); NaN: no number, -1: no category, or an unknown one
    labels: list[str] | None  # "": no label, allowed in later rows only
    notes: tuple[str, ...]
    weights: Tensor | None = None  # float64 (n,): how much each row counts
    called: Called = field(default_factory=Called)  # its labels and their rows


class TableFile(Protocol):
    """A file of columns that can be read again and again."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> list[str]: ...

    def pieces(self, wanted: Sequence[str], texts: Collection[str]) -> Iterator[list[Cells]]:
        """The wanted columns of some rows, then of the next; those of `texts` as text."""
        ...

    def place(self, row: int) -> str:
        """Where a person finds the row: "line 3"."""
        ...

    def check_rows(self) -> None:
        """Raise what was wrong with the form of rows when all were read last: these were skipped,
        so that the mistakes of others can be found, too."""
        ...


def text(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Turn whatever prevents a file from being read into a DataError with the file's name."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file. Check the name and its folder") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{path}{_first_bad_line(path)}: this is not UTF-8. Save the file as UTF-8 (in a "
            "spreadsheet: CSV UTF-8)"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a complete gzip file ({error}). Pack it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # raised by pyarrow
        raise DataError(f"{path} is not a complete Parquet file: {error}") from None


def _first_bad_line(path: Path) -> str:
    packed = path.suffix.lower() == ".gz"
    with gzip.open(path) if packed else path.open("rb") as file:
        for line, content in enumerate(file, start=1):
            try:
                content.decode()
            except UnicodeDecodeError:
                return f", line {line}"
    return ""
