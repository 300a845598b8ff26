"""Adult: does a person of the 1994 census earn more than 50 000 dollars?"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.files import contents, corrupt, reading
from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.sources.tables import assemble
from colonnade.data.split import official
from colonnade.data.types import Dataset

CLASSES = ("<=50K", ">50K")
NAMES = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)
_NUMERIC = frozenset(
    {"age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"}
)
_COMPACT = "adult.csv.gz"


def read_compact(folder: Path, options: Options) -> Dataset:
    """One file for both parts, told apart by the column `split`."""
    path = folder / _COMPACT
    header, *rows = _rows(path) or [[]]
    if tuple(header) != (*NAMES, "income", "split"):
        raise corrupt(path, f"its header is {','.join(header)}")
    if short := [row for row in rows if len(row) != len(header)]:
        raise corrupt(path, f"the row {','.join(short[0])} has {len(short[0])} fields")
    train, test = ([row[:-1] for row in rows if row[-1] == part] for part in ("train", "test"))
    return _dataset((path, train), (path, test))


def read_official(folder: Path, options: Options) -> Dataset:
    """The UCI files: blanks after commas; in the test file a remark on top, dots after labels."""
    paths = [folder / "adult" / name for name in ("adult.data", "adult.test")]
    train, test = ([row for row in _rows(path) if len(row) > 1] for path in paths)
    return _dataset((paths[0], train), (paths[1], test))


def _rows(path: Path) -> list[list[str]]:
    text = contents(path).decode("latin-1")
    with reading(path):
        return [[field.strip() for field in row] for row in csv.reader(text.splitlines()) if row]


def _dataset(train: tuple[Path, list[list[str]]], test: tuple[Path, list[list[str]]]) -> Dataset:
    parts = [_part(path, rows) for path, rows in (train, test)]
    (named, y), (test_named, test_y) = parts
    # `?`, an unknown value, is a category like any other.
    columns, x, test_x = assemble(NAMES, frozenset(NAMES) - _NUMERIC, named, test_named)
    return official("adult", (x, y), (test_x, test_y), CLASSES, columns)


def _part(path: Path, rows: list[list[str]]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    if not rows or any(len(row) != len(NAMES) + 1 for row in rows):
        raise corrupt(path, f"it has no rows, or rows without {len(NAMES) + 1} fields")
    *fields, income = zip(*rows, strict=True)
    with reading(path):
        named = {
            name: np.array(values, dtype=np.float32 if name in _NUMERIC else np.str_)
            for name, values in zip(NAMES, fields, strict=True)
        }
        y = np.array([CLASSES.index(value.rstrip(".")) for value in income])
    return named, y


ADULT = Source(
    name="adult",
    description="census records, 14 columns, 32 561 + 16 281",
    kind="table",
    classes=2,
    homepage="https://archive.ics.uci.edu/dataset/2",
    licence="B. Becker, R. Kohavi (1996); CC BY 4.0",
    layouts=(
        Layout(
            (
                File(
                    _COMPACT,
                    "sha256:ae0655a69eefdf7e0186431236d13982bc29cb8c1ab2dcc1bd68dae2ecec0d92",
                    602_911,
                ),
            ),
            read_compact,
        ),
        Layout((File("adult/adult.data"), File("adult/adult.test")), read_official),
    ),
    downloads=(
        Download("https://archive.ics.uci.edu/static/public/2/adult.zip", to="adult", unpack=True),
    ),
    cached=True,
)
