"""CSV, read by the standard library: pandas would silently fill short rows, and silently take long
rows' first cells for an index."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from colonnade.data.own import table
from colonnade.data.own.phrases import character
from colonnade.data.own.table import Cells, text, unreadable
from colonnade.errors import DataError, enumerated

_SAMPLE = 20  # lines that show the delimiter
_DELIMITERS = (",", ";", "\t", "|")
_NAMED = 3  # lines with a wrong number of cells that are named; the rest are counted


@dataclass
class Ragged:
    """The rows with a wrong number of cells. They are skipped, so that the reading goes on."""

    count: int = 0
    longer: int = 0  # of them, than the first line
    first: list[tuple[int, int]] = field(default_factory=list)  # line and number of cells

    def add(self, line: int, cells: int, width: int) -> None:
        self.count += 1
        self.longer += cells > width
        if len(self.first) < _NAMED:
            self.first.append((line, cells))


@dataclass(frozen=True)
class Csv:
    path: Path
    names: list[str]
    delimiter: str
    ragged: list[Ragged] = field(default_factory=list)  # one for each time all rows were read

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
        self.ragged.append(Ragged())
        for _, cells in self._records(self.ragged[-1]):
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

    def check_rows(self) -> None:
        if self.ragged and self.ragged[-1].count:
            raise DataError(self._uneven(self.ragged[-1]))

    def _uneven(self, ragged: Ragged) -> str:
        """Which rows have a wrong number of cells, and what to do about it."""
        width, moves = len(self.names), list[str]()
        if ragged.longer:
            moves.append(f'Put a cell that holds {character(self.delimiter)} in "quotation marks"')
        if ragged.longer < ragged.count:
            moves.append("Give a short row all its cells; a cell may be empty")
        (line, cells), *others = ragged.first
        if not others:
            said = f"line {line}: {cells} cells, and the first line has {width}"
            return f"{self.path}, {said}. {'. '.join(moves)}"
        shown = ", ".join(f"{line} has {cells}" for line, cells in ragged.first)
        if rest := ragged.count - len(ragged.first):
            shown += f", and so on: {rest:,} more"
        said = f"the first line has {width} cells, but {ragged.count:,} rows have not: line {shown}"
        return f"{self.path}: {said}. {'. '.join(moves)}"

    def _records(self, ragged: Ragged | None = None) -> Iterator[tuple[int, list[str]]]:
        """Each row with the line in which it begins. Empty lines are skipped, and so are rows with
        a wrong number of cells, which `ragged` notes."""
        ragged = ragged or Ragged()
        with unreadable(self.path), text(self.path) as file:
            lines = csv.reader(file, delimiter=self.delimiter, strict=True)
            width, header, line = len(self.names), True, 1
            try:
                for cells in lines:
                    if header:
                        header = not any(map(str.strip, cells))
                    elif cells:
                        if len(cells) == width:
                            yield line, cells
                        else:
                            ragged.add(line, len(cells), width)
                    line = lines.line_num + 1
            except csv.Error as error:
                said = (
                    f"{self.path}, line {line}: {error}. Is a quotation mark left open, or is this "
                    "not a text file?"
                )
                both = [self._uneven(ragged), said] if ragged.count else [said]
                raise DataError(
                    enumerated(both, str(self.path)) if both[1:] else said, both
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
