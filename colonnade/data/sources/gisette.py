"""Gisette: the digits 4 and 9 hidden among 5 000 columns, from the UCI files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.files import corrupt
from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.sources.tables import numbers, text_lines
from colonnade.data.split import official
from colonnade.data.types import Column, Dataset

_FILES = (
    "gisette_train.data",
    "gisette_train.labels",
    "gisette_valid.data",
    "gisette_valid.labels",
)


def _part(folder: Path, part: str) -> tuple[NDArray[Any], NDArray[Any]]:
    features, labels = folder / f"gisette_{part}.data", folder / f"gisette_{part}.labels"
    x = numbers(features, text_lines(features))
    y = numbers(labels, text_lines(labels), np.int64)[:, 0]
    if len(x) != len(y) or not np.isin(y, (-1, 1)).all():
        raise corrupt(labels, f"it must have -1 or 1 for each of {len(x)} rows")
    return x, (y > 0).astype(np.int64)


def read(folder: Path, options: Options) -> Dataset:
    """The labelled rows. The test labels are secret, so the validation part serves as test part."""
    train, test = _part(folder, "train"), _part(folder, "valid")
    if train[0].shape[1] != test[0].shape[1]:
        raise corrupt(folder / _FILES[2], f"its rows have {test[0].shape[1]} columns")
    columns = tuple(Column(f"column {number}") for number in range(train[0].shape[1]))
    return official("gisette", train, test, ("-1", "1"), columns)


_HOST = "https://archive.ics.uci.edu/ml/machine-learning-databases/gisette/"

GISETTE = Source(
    name="gisette",
    description="4 against 9 among distractors, 5 000 columns, 6 000 + 1 000",
    kind="table",
    classes=2,
    homepage="https://archive.ics.uci.edu/dataset/170",
    licence="I. Guyon et al., NIPS 2003 feature selection challenge; CC BY 4.0",
    layouts=(Layout(tuple(File(name) for name in _FILES), read),),
    downloads=(
        Download(_HOST + "GISETTE/gisette_train.data", "gisette/gisette_train.data"),
        Download(_HOST + "GISETTE/gisette_train.labels", "gisette/gisette_train.labels"),
        Download(_HOST + "GISETTE/gisette_valid.data", "gisette/gisette_valid.data"),
        Download(_HOST + "gisette_valid.labels", "gisette/gisette_valid.labels"),
    ),
    cached=True,
)
