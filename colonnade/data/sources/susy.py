"""SUSY: simulated collisions, with or without supersymmetric particles; five million rows."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.files import corrupt, reading
from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.sources.tables import numbers
from colonnade.data.split import official, undivided
from colonnade.data.types import Column, Dataset
from colonnade.errors import DataError

NAMES = (
    "lepton 1 pT",
    "lepton 1 eta",
    "lepton 1 phi",
    "lepton 2 pT",
    "lepton 2 eta",
    "lepton 2 phi",
    "missing energy magnitude",
    "missing energy phi",
    "MET_rel",
    "axial MET",
    "M_R",
    "M_TR_2",
    "R",
    "MT2",
    "S_R",
    "M_Delta_R",
    "dPhi_r_b",
    "cos(theta_r1)",
)
CLASSES = ("background", "signal")
OFFICIAL_TEST = 500_000  # "the last 500,000 examples are used as a test set"
_Chunk = tuple[NDArray[np.float32], NDArray[np.int64]]


def stream(path: Path, rows: int | None = None, chunk: int = 100_000) -> Iterator[_Chunk]:
    """The file's rows (all, or the first `rows`) in order, at most `chunk` at a time."""
    packed = path.suffix == ".gz"
    with reading(path), gzip.open(path, "rt") if packed else path.open() as file:
        lines = islice((line for line in file if line.strip()), rows)
        while block := list(islice(lines, chunk)):
            table = numbers(path, block, delimiter=",")
            if table.shape[1] != 1 + len(NAMES):
                raise ValueError(f"its rows have {table.shape[1]} fields, not {1 + len(NAMES)}")
            if not np.isin(table[:, 0], (0, 1)).all():
                raise ValueError("its first column has labels other than 0 and 1")
            yield table[:, 1:], table[:, 0].astype(np.int64)


def read(
    folder: Path, options: Options, *, file: str, official_test: int = OFFICIAL_TEST
) -> Dataset:
    """The official division, or only the first `rows` rows, which `load` then divides."""
    path = folder / file
    chunks = list(stream(path, options.rows))
    if not chunks:
        raise corrupt(path, "it has no rows")
    x = np.concatenate([x for x, _ in chunks])
    y = np.concatenate([y for _, y in chunks])
    columns = tuple(Column(name) for name in NAMES)
    if options.rows is not None:
        return undivided("susy", x, y, CLASSES, columns)
    cut = len(x) - official_test
    if cut <= 0:
        raise DataError(
            f"{path} has {len(x)} rows, but the official test part alone has {official_test}. "
            f"Place the complete file, or give rows={len(x)} to have these rows divided."
        )
    return official("susy", (x[:cut], y[:cut]), (x[cut:], y[cut:]), CLASSES, columns)


SUSY = Source(
    name="susy",
    description="particle collisions, 18 columns, 4 500 000 + 500 000",
    kind="table",
    classes=2,
    homepage="https://archive.ics.uci.edu/dataset/279",
    licence="P. Baldi, P. Sadowski, D. Whiteson, Nature Communications 5 (2014); CC BY 4.0",
    layouts=tuple(
        Layout((File(name),), partial(read, file=name)) for name in ("SUSY.csv.gz", "SUSY.csv")
    ),
    downloads=(
        Download("https://archive.ics.uci.edu/static/public/279/susy.zip", to="", unpack=True),
    ),
    cached=True,
    takes_rows=True,
)
