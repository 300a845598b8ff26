"""A party's own file, CSV or Parquet: its types found out, its mistakes named by line or column.

    id,age,town,member,label     the first line names the columns; OwnFile says which is what
    c1,34,Ulm,true,no

1. A first pass reads ids, labels and every number, piece by piece, into the float32 table.
2. A second one, over the columns with text alone, makes it truth values or categories, or says why
   it is neither. Types are those of all rows, so a piece decides nothing.

CSV is read by the standard library: pandas fills rows that are too short, and takes rows that are
too long for an index, without a word.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.data.types import Column
from colonnade.errors import DataError, nearest, unknown

CHUNK = 1 << 18  # cells that are text in memory at a time
MOST_CATEGORIES = 1000
_SLIPS = 0.02  # a smaller share of text among numbers is taken for mistakes
_FEW = 10  # fewer rows do not tell whether a column is an identifier
_SAMPLE = 20  # lines that show the delimiter

_DELIMITERS = (",", ";", "\t", "|")
_ABSENT = {"", "na", "n/a", "#n/a", "<na>", "nan", "null"}  # what no number and no label is
_ABSENT_NUMBER = _ABSENT | {"none", "?", "-"}  # these may be a class, as all of them a category
_TRUTH = {"false": 0.0, "true": 1.0}
_DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{2,4})([T ].*)?|\d{1,2}:\d\d(:\d\d.*)?"
)
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")

Cells = Sequence[str] | NDArray[np.float64]  # of one column; absent ones are "" or NaN


@dataclass(frozen=True)
class OwnFile:
    """Where a party's rows are, and which of their columns are what."""

    data: str  # .csv, .tsv, .txt (also .gz) or .parquet; relative to the folder of the config
    id: str = "id"
    label: str = "label"  # may be absent, unless another name is given; "": there are no labels
    features: tuple[str, ...] = ()  # none: all others
    leave_out: tuple[str, ...] = ()
    delimiter: str = ""  # none: found out among , ; tab |
    missing: Literal["mean", "error"] = "mean"

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("data is empty: name a .csv or .parquet file")
        if not self.id:
            raise ValueError("id is empty: name the column that tells rows apart")
        if self.id == self.label:
            raise ValueError(f"id and label are both '{self.id}': name two columns")
        for key, names in (("features", self.features), ("leave_out", self.leave_out)):
            for role, name in (("id", self.id), ("label", self.label)):
                if name in names:
                    raise ValueError(f"{key} names '{name}', which is the {role}: remove it there")
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{key} names '{twice[0]}' twice: name it once")
        if both := [name for name in self.features if name in self.leave_out]:
            raise ValueError(f"features and leave_out both name '{both[0]}': keep one of them")
        if self.delimiter and (len(self.delimiter) > 1 or self.delimiter in '"\r\n'):
            raise ValueError(
                f"delimiter is {self.delimiter!r}: give one character, or nothing to have it found"
            )
        if self.missing not in ("mean", "error"):
            raise ValueError(f"missing is {self.missing!r}: give 'mean' or 'error'")

    def path(self, folder: Path) -> Path:
        return folder / Path(self.data).expanduser()


@dataclass(frozen=True, eq=False)
class Own:
    """What a file holds; `notes` say it to a person, one line for each column."""

    ids: list[str]
    columns: tuple[Column, ...]
    x: Tensor  # float32 (n, columns); NaN: no number, -1: no category, or one not known
    labels: list[str] | None  # "": later rows may lack one
    notes: tuple[str, ...]


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


def read(file: OwnFile, folder: Path, *, like: tuple[Column, ...] | None = None) -> Own:
    """All rows of a party's file.

    Give `like`, the columns of training, for later rows: they are looked for by name, equal
    categories get equal codes, one that training had not gets -1, and a label may be missing.
    With no columns, `()`, nothing but ids is read.
    """
    path = file.path(folder)
    table, form = _open_table(path, file.delimiter)
    label, features = _choose(table, file, like)
    first = _numbers_of(table, file.id, label, features)
    if not first.ids:
        raise DataError(f"{path} has no rows: below the names of the columns there is nothing")
    _check_ids(table, file.id, first.ids)
    labels = _checked_labels(table, label, first.labels, some=like is not None)
    known = {column.name: column for column in like or ()}
    columns, kinds = _typed(table, features, first, known)
    for place, column in enumerate(columns):
        _check_missing(table, file, column, first.x[:, place])
    if file.missing == "mean":  # in all numeric columns: later rows may lack what these have
        columns = [c if c.categories else Column(c.name, missing=True) for c in columns]
    notes = [f"{len(first.ids):,} rows, {form}, ids in '{file.id}'"]
    notes.append(_about_labels(file.label, labels))
    notes += [
        f"'{column.name}': {kind}{_remarks(column, first.x[:, place])}"
        for place, (column, kind) in enumerate(zip(columns, kinds, strict=True))
    ]
    if unused := [n for n in table.names if n not in (file.id, label, *features)]:
        notes.append(f"not used: {_listed(unused)}")
    x = first.x
    for place, column in enumerate(columns):
        if column.categories:
            x[:, place].clip(-1, None, out=x[:, place])
    return Own(first.ids, tuple(columns), torch.from_numpy(x), labels, tuple(notes))


def _choose(
    table: TableFile, file: OwnFile, like: tuple[Column, ...] | None
) -> tuple[str | None, list[str]]:
    """The column of labels, if it is there, and those of features."""
    names, path = table.names, table.path
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        first, second = [at + 1 for at, name in enumerate(names) if name == twice[0]][:2]
        raise DataError(
            f"{path}: columns {first} and {second} are both named '{twice[0]}'. Rename one"
        )
    if like is not None:
        named = [file.id, *(column.name for column in like)]
    else:
        label_named = file.label not in ("", OwnFile.label)
        named = [file.id, *[file.label] * label_named, *file.features, *file.leave_out]
    for name in named:
        if name not in names:
            raise _no_column(path, name, names)
    label = file.label if file.label in names else None
    if like is not None:
        return (label if like and label not in named else None), named[1:]
    taken = {file.id, label, *file.leave_out}
    features = list(file.features) or [name for name in names if name not in taken]
    for name in features:
        if name == "" or (name.startswith("__index_level_") and name not in file.features):
            raise DataError(
                f"{path}: column {names.index(name) + 1} has no name of its own. Name it, or "
                "remove it (pandas writes its index so, unless index=False is given)"
            )
    return label, features


def _no_column(path: Path, name: str, names: list[str]) -> DataError:
    if len(names) == 1:
        mark = next((repr(one) for one in " :^~#/" if one in names[0]), "something else")
        return DataError(
            f"{path}: no column '{name}', but one column only, {_short(names[0])}: cells are "
            f"separated by none of , ; tab |. It looks like {mark}: set delimiter"
        )
    rule = "" if nearest(name, names) else "; the first line must name the columns"
    return DataError(f"{path}: {unknown(name, names, what='column')}{rule}")


# --- 1. numbers


@dataclass
class _Texts:
    """What of a column is no number, and how much of it is."""

    count: int = 0
    numbers: int = 0
    first: tuple[int, str] = (-1, "")  # row and cell
    infinite: int = -1  # the first such row


@dataclass
class _First:
    ids: list[str]
    labels: list[str]
    x: NDArray[np.float32]  # NaN where there is no number
    texts: list[_Texts]


def _numbers_of(table: TableFile, id: str, label: str | None, features: list[str]) -> _First:
    ids: list[str] = []
    labels: list[str] = []
    texts = [_Texts() for _ in features]
    blocks: list[NDArray[np.float32]] = []
    one = {"": ""}  # equal labels are one object
    leading = [id] if label is None else [id, label]
    for piece in table.pieces([*leading, *features], leading):
        start = len(ids)
        ids += [str(cell).strip() for cell in piece[0]]
        if label is not None:
            labels += [one.setdefault(cell, cell) for cell in map(str.strip, map(str, piece[1]))]
        block = np.empty((len(ids) - start, len(features)), np.float32)
        for place, cells in enumerate(piece[len(leading) :]):
            values, strange = _as_numbers(cells)
            with np.errstate(over="ignore"):
                block[:, place] = values
            seen = texts[place]
            if strange and not seen.count:
                seen.first = (start + strange[0], cells[strange[0]])
            seen.count += len(strange)
            seen.numbers += int((~np.isnan(values)).sum())
            if seen.infinite < 0 and bool((infinite := np.isinf(block[:, place])).any()):
                seen.infinite = start + int(infinite.argmax())
        blocks.append(block)
    x = np.empty((len(ids), len(features)), np.float32)
    end = len(ids)
    while blocks:  # from the last on, each freed when it is copied: the table is held once
        block = blocks.pop()
        x[end - len(block) : end] = block
        end -= len(block)
    return _First(ids, labels, x, texts)


def _as_numbers(cells: Cells) -> tuple[NDArray[np.float64], list[int]]:
    """The cells as numbers, NaN where there is none; and where there is text instead."""
    if isinstance(cells, np.ndarray):
        return cells, []
    if "_" not in "".join(cells):  # Python reads 1_000 as a number, nobody else does
        try:
            return np.array(list(map(float, cells))), []
        except ValueError:
            pass
    known = {cell: _as_number(cell) for cell in set(cells)}
    values = np.array([known[cell] for cell in cells], np.float64)  # None becomes NaN
    return values, [place for place, cell in enumerate(cells) if known[cell] is None]


def _as_number(cell: str) -> float | None:
    text = cell.strip()
    if text.casefold() in _ABSENT_NUMBER:
        return float("nan")
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


# --- 2. text


def _typed(
    table: TableFile, features: list[str], first: _First, known: dict[str, Column]
) -> tuple[list[Column], list[str]]:
    """Columns and, in words, their types; text in `first.x` becomes codes, or 0 and 1."""
    columns = [Column(name) for name in features]
    kinds = ["number"] * len(features)
    places: list[int] = []
    for place, (name, seen) in enumerate(zip(features, first.texts, strict=True)):
        if name in known and known[name].categories:
            places.append(place)
        elif seen.count:
            rare = seen.count < _SLIPS * (seen.count + seen.numbers)
            if rare or (seen.count == 1 and seen.numbers):
                raise _slip(table, name, seen)
            places.append(place)
        elif seen.infinite >= 0:
            raise DataError(
                f"{table.path}, {table.place(seen.infinite)}, column '{name}': the number is "
                "infinite, or beyond 3e38. Correct it, or leave the cell empty"
            )
        elif not seen.numbers and not known:
            raise DataError(
                f"{table.path}, column '{name}': there is no value at all. {_leave_out(name)}"
            )
    if not places:
        return columns, kinds
    found = _codes_of(table, features, first, places, known)
    for place, codes in zip(places, found, strict=True):
        name = features[place]
        coded = first.x[:, place]
        if name in known and known[name].categories:
            columns[place] = known[name]
            kinds[place] = f"{len(known[name].categories)} categories of training"
            if strangers := int((coded == -2).sum()):
                kinds[place] += f", {strangers:,} rows have another one"
            continue
        texts = sorted(codes.keys() - {""})
        if {text.casefold() for text in texts} <= _TRUTH.keys() | _ABSENT_NUMBER:
            truth = [_TRUTH.get(text.casefold(), np.nan) for text in codes if text]
            meant = np.array([*truth, np.nan])
            kinds[place] = "truth value"
        else:
            _check_categories(table, name, texts, first, place, known)
            ranks = {text: rank for rank, text in enumerate(texts)}
            meant = np.array([*(ranks[text] for text in codes if text), -1])
            columns[place] = Column(name, tuple(texts))
            kinds[place] = "1 category" if len(texts) == 1 else f"{len(texts)} categories"
        coded[:] = meant[coded.astype(np.int64)]  # -1, the last: absent
    return columns, kinds


def _codes_of(
    table: TableFile,
    features: list[str],
    first: _First,
    places: list[int],
    known: dict[str, Column],
) -> list[dict[str, int]]:
    """Number the texts of these columns as they come, in `first.x`; -1: absent, -2: not known."""
    names = [features[place] for place in places]
    fixed = [name in known and bool(known[name].categories) for name in names]
    found: list[dict[str, int]] = [{"": -1} for _ in names]
    for name, codes, is_fixed in zip(names, found, fixed, strict=True):
        if is_fixed:
            codes |= {text: code for code, text in enumerate(known[name].categories)}
    start = 0
    for piece in table.pieces(names, names):
        end = start + len(piece[0])
        for place, cells, codes, is_fixed in zip(places, piece, found, fixed, strict=True):
            texts = [str(cell).strip() for cell in cells]
            if not is_fixed:
                for text in dict.fromkeys(texts):
                    codes.setdefault(text, len(codes) - 1)
                if len(codes) > MOST_CATEGORIES + 1:
                    _check_categories(table, features[place], list(codes)[1:], first, place, known)
            first.x[start:end, place] = [codes.get(text, -2) for text in texts]
        start = end
    return found


def _check_categories(
    table: TableFile,
    name: str,
    texts: list[str],
    first: _First,
    place: int,
    known: dict[str, Column],
) -> None:
    """Refuse text that no model should take for categories."""
    seen = first.texts[place]
    rows = seen.count + seen.numbers
    meant = {text: _as_number(text) for text in texts}
    words = [text for text, number in meant.items() if number is None]
    numbers = sum(number is not None and number == number for number in meant.values())
    date = bool(words) and all(map(_DATE.fullmatch, words))
    comma = bool(words) and all(map(_DECIMAL_COMMA.fullmatch, words))
    if date or comma or name in known:
        row, cell = seen.first
        where = f"{table.path}, {table.place(row)}, column '{name}': {_short(cell)}"
        if date:
            raise DataError(
                f"{where} is a date or a time. Turn the column into a number, such as days since "
                f"a day, or leave it out: {_setting(name)}"
            )
        if comma:
            raise DataError(f"{where} has a comma. Write numbers with a point")
        raise DataError(f"{where} is no number, but was in training. Correct it")
    many = len(texts) > MOST_CATEGORIES
    if numbers > len(texts) / 2 and (many or len(texts) > rows / 2 >= _FEW / 2):
        raise _slip(table, name, seen)  # different values, and most of them numbers
    if many or (len(texts) >= rows >= _FEW):
        what = f"over {MOST_CATEGORIES:,} different texts" if many else "another text in every row"
        raise DataError(
            f"{table.path}, column '{name}': {what}, which looks like an identifier and not "
            f"like a category. {_leave_out(name)}"
        )


def _slip(table: TableFile, name: str, seen: _Texts) -> DataError:
    (row, cell), numbers = seen.first, seen.numbers
    return DataError(
        f"{table.path}, {table.place(row)}, column '{name}': {_short(cell)} is no number, and "
        f"{numbers:,} of {numbers + seen.count:,} values are. Correct it, or leave the cell empty "
        "where the number is missing"
    )


def _check_missing(
    table: TableFile, file: OwnFile, column: Column, values: NDArray[np.float32]
) -> None:
    if file.missing == "mean":
        return
    absent = values == -1 if column.categories else np.isnan(values)
    if bool(absent.any()):
        raise DataError(
            f"{table.path}, {table.place(int(absent.argmax()))}, column '{column.name}': there is "
            f'no value, as in {int(absent.sum()):,} rows. Fill it, or set missing = "mean"'
        )


# --- ids and labels


def _check_ids(table: TableFile, name: str, ids: list[str]) -> None:
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
        f"{where.format(f'{table.place(row)} and {again}')}: both have the id {_short(twice)}"
        f"{more}. Ids must be unique"
    )


def _checked_labels(
    table: TableFile, name: str | None, labels: list[str], *, some: bool
) -> list[str] | None:
    """All of them, or none; with `some`, "" where there is none."""
    if name is None:
        return None
    absent = [row for row, label in enumerate(labels) if label.casefold() in _ABSENT]
    if len(absent) == len(labels):
        return None
    if some:
        return ["" if label.casefold() in _ABSENT else label for label in labels]
    if absent:
        raise DataError(
            f"{table.path}, {table.place(absent[0])}, column '{name}': there is no label, as in "
            f"{len(absent):,} of {len(labels):,} rows. Label every row, or remove those without"
        )
    return labels


# --- words


def _about_labels(name: str, labels: list[str] | None) -> str:
    if labels is None:
        return "no labels"
    classes = sorted(set(labels))
    return f"labels in '{name}', {len(classes)} classes: {_listed(classes, 5)}"


def _remarks(column: Column, values: NDArray[np.float32]) -> str:
    said = ""
    absent = values == -1 if column.categories else np.isnan(values)
    if missing := int(absent.sum()):
        become = "zeros" if column.categories else "the mean of the training rows"
        said += f", {missing:,} of {len(values):,} missing ({become})"
    present = values[~absent]
    if len(present) and bool((present == present[0]).all()):
        said += ", constant: it tells nothing"
    return said


def _listed(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more


def _short(cell: str) -> str:
    text = cell.strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _setting(name: str) -> str:
    return f'leave_out = ["{name}"]'


def _leave_out(name: str) -> str:
    return f"Leave it out: {_setting(name)}"


# --- the two forms of files


def _open_table(path: Path, delimiter: str) -> tuple[TableFile, str]:
    """The file, and in words what it is."""
    ends = [end.lower() for end in path.suffixes]
    if ends[-1:] in ([".parquet"], [".pq"]):
        return _Parquet.open(path), "Parquet"
    if ends[-1:] == [".gz"]:
        ends.pop()
    if ends[-1:] not in ([".csv"], [".tsv"], [".txt"]):
        raise DataError(
            f"{path}: rows are read from .csv, .tsv, .txt (also with .gz) and .parquet. Save it "
            "as one of them"
        )
    table = _Csv.open(path, delimiter or ("\t" if ends[-1] == ".tsv" else ""))
    return table, f"separated by {_character(table.delimiter)}"


def _character(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else repr(delimiter)


@dataclass(frozen=True)
class _Csv:
    path: Path
    names: list[str]
    delimiter: str

    @staticmethod
    def open(path: Path, delimiter: str) -> _Csv:
        with _unreadable(path), _text(path) as file:
            sample = list(islice(filter(str.strip, file), _SAMPLE))
        if not sample:
            raise DataError(f"{path} has no rows: it is empty")
        found = max(_DELIMITERS, key=lambda one: _fit(sample, one))
        several = _fit(sample, found)[0]
        names = [cell.strip() for cell in _cells(sample, delimiter or found)[0]]
        if delimiter and len(names) == 1 and several:
            raise DataError(
                f"{path}: with the delimiter {_character(delimiter)} there is one column only. It "
                f"looks like {_character(found)}: set delimiter = {_toml(found)}, or leave it away"
            )
        return _Csv(path, names, delimiter or found)

    def pieces(self, wanted: Sequence[str], texts: Collection[str]) -> Iterator[list[Cells]]:
        places = [self.names.index(name) for name in wanted]
        most = max(1, CHUNK // len(self.names))
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
        """Each row with the line it begins in; empty lines are none."""
        with _unreadable(self.path), _text(self.path) as file:
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
                                f"line has {width}. A cell that holds {_character(self.delimiter)} "
                                'stands in "quotation marks"'
                            )
                        yield line, cells
                    line = lines.line_num + 1
            except csv.Error as error:
                raise DataError(
                    f"{self.path}, line {line}: {error}. Is a quotation mark left open, or is this "
                    "no text file?"
                ) from None


def _fit(sample: list[str], delimiter: str) -> tuple[bool, float, int]:
    """Whether a delimiter cuts the first line, how many lines into as many cells, how many."""
    counts = [len(cells) for cells in _cells(sample, delimiter)]
    return counts[0] > 1, counts.count(counts[0]) / len(counts), counts[0]


def _cells(sample: list[str], delimiter: str) -> list[list[str]]:
    try:
        return [cells for cells in csv.reader(sample, delimiter=delimiter) if cells]
    except csv.Error:  # _records will say in which line
        return [sample[0].split(delimiter)]


def _toml(delimiter: str) -> str:
    return '"\\t"' if delimiter == "\t" else f'"{delimiter}"'


def _text(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    """Whatever keeps a file from being read becomes a DataError with its name."""
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
        raise DataError(f"{path} is no whole gzip file ({error}). Pack it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # of pyarrow
        raise DataError(f"{path} is no whole Parquet file: {error}") from None


def _first_bad_line(path: Path) -> str:
    packed = path.suffix.lower() == ".gz"
    with gzip.open(path) if packed else path.open("rb") as file:
        for line, content in enumerate(file, start=1):
            try:
                content.decode()
            except UnicodeDecodeError:
                return f", line {line}"
    return ""


@dataclass(frozen=True)
class _Parquet:
    path: Path
    names: list[str]
    file: Any  # pyarrow.parquet.ParquetFile

    @staticmethod
    def open(path: Path) -> _Parquet:
        try:
            parquet = import_module("pyarrow.parquet")
        except ImportError:
            raise DataError(
                f"{path}: Parquet needs pyarrow. Install it with: pip install 'colonnade[data]'"
            ) from None
        with _unreadable(path):
            file = parquet.ParquetFile(path)
        return _Parquet(path, list(file.schema_arrow.names), file)

    def pieces(self, wanted: Sequence[str], texts: Collection[str]) -> Iterator[list[Cells]]:
        most = max(1, CHUNK // max(1, len(wanted)))
        with _unreadable(self.path):
            for batch in self.file.iter_batches(batch_size=most, columns=list(wanted)):
                yield [self._cells(name, batch.column(name), name in texts) for name in wanted]

    def place(self, row: int) -> str:
        return f"row {row + 1}"

    def _cells(self, name: str, column: Any, text: bool) -> Cells:
        arrow = import_module("pyarrow")
        types = arrow.types
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            return ["" if cell is None else cell for cell in column.to_pylist()]
        if types.is_boolean(kind):
            return [_written(cell) for cell in column.to_pylist()]
        if types.is_temporal(kind):
            raise DataError(
                f"{self.path}, column '{name}': these are dates or times ({kind}). Turn them into "
                f"a number, such as days since a day, or leave them out: {_setting(name)}"
            )
        number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
        if not number and not types.is_null(kind):
            raise DataError(
                f"{self.path}, column '{name}': values of type {kind} are neither numbers nor "
                f"text. {_leave_out(name)}"
            )
        if text:
            return [_written(cell) for cell in column.to_pylist()]
        numbers: NDArray[np.float64] = column.cast(arrow.float64(), safe=False).to_numpy(
            zero_copy_only=False
        )
        return numbers


def _written(value: Any) -> str:
    """A number as people write it: whole ones, also of a column of fractions, without a point."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
