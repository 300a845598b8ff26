"""CSV, read by the standard library: pandas would silently fill short rows, and silently take long
rows' first cells for an index."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from colonnade.data.own import table
from colonnade.data.own.phrases import character
from colonnade.data.own.table import Cells, text, unreadable
from colonnade.errors import DataError

_SAMPLE = 20  # lines that show the delimiter
_DELIMITERS = (",", ";", "\t", "|")


@dataclass(frozen=True)
class Csv:
    path: Path
    names: list[str]
    delimiter: str

    @staticmethod
    def open(path: Path, delimiter: str) -> Csv:
        with unreadable(path), text(path) as file:
            sample = list(islice(filter(str.strip, file), _SAMPLE))
        if not sample:
            raise DataError(f"{path} has no rows: it is empty")
        found = max(_DELIMITERS, key=lambda one: _fit(sample, one))
        several = _fit(sample, found)[0]
        names = [cell.strip() for cell in _cells(sample, delimiter or found)[0]]
        if delimiter and len(names) == 1 and several:
            raise DataError(
                f"{path}: with the delimiter {character(delimiter)} there is one column only. It "
                f"looks like {character(found)}: set delimiter = {_toml(found)}, or omit it"
            )
        return Csv(path, names, delimiter or found)

    def pieces(self, wanted: Sequence[str], texts: Collection[str]) -> Iterator[list[Cells]]:
        places = [self.names.index(name) for name in wanted]
        most = max(1, table.CHUNK // len(self.names))
        rows: list[list[str]] = []
        for _, cells in self._records():
            rows.append(cells)
            if len(rows) == most:
                yield self._columns(rows, places)
                rows = []
        if rows:
            yield self._columns(rows, places)

    @staticmethod
    def _columns(rows: list[list[str]], places: list[int]) -> list[Cells]:
        columns = list(zip(*rows, strict=True))
        return [columns[place] for place in places]

    def place(self, row: int) -> str:
        line, _ = next(islice(self._records(), row, None))
        return f"line {line}"

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Each row with the line in which it begins; empty lines are skipped."""
        with unreadable(self.path), text(self.path) as file:
            lines = csv.reader(file, delimiter=self.delimiter, strict=True)
            width, header, line = len(self.names), True, 1
            try:
                for cells in lines:
                    if header:
                        header = not any(map(str.strip, cells))
                    elif cells:
                        if len(cells) != width:
                            raise DataError(
                                f"{self.path}, line {line}: {len(cells)} cells, and the first "
                                f"line has {width}. Put a cell that holds "
                                f'{character(self.delimiter)} in "quotation marks"'
                            )
                        yield line, cells
                    line = lines.line_num + 1
            except csv.Error as error:
                raise DataError(
                    f"{self.path}, line {line}: {error}. Is a quotation mark left open, or is this "
                    "not a text file?"
                ) from None


def _fit(sample: list[str], delimiter: str) -> tuple[bool, float, int]:
    """Whether a delimiter cuts the first line, how many lines have as many cells, and how many."""
    counts = [len(cells) for cells in _cells(sample, delimiter)]
    return counts[0] > 1, counts.count(counts[0]) / len(counts), counts[0]


def _cells(sample: list[str], delimiter: str) -> list[list[str]]:
    try:
        return [cells for cells in csv.reader(sample, delimiter=delimiter) if cells]
    except csv.Error:  # _records reports the line
        return [sample[0].split(delimiter)]


def _toml(delimiter: str) -> str:
    return '"\\t"' if delimiter == "\t" else f'"{delimiter}"'
