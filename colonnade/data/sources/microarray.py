"""Five cancer microarray sets: few patients, thousands of genes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from colonnade.data.sources.files import corrupt, reading
from colonnade.data.sources.source import File, Layout, Options, Source
from colonnade.data.split import undivided
from colonnade.data.types import Column, Dataset

_FILE = File(
    "microarray_cancer.npz",
    "sha256:2b6eb5d718ff9c1de54053778003a0ec01e64665807dc691a2a69f2588955e1b",
    12_903_302,
)


def read(folder: Path, options: Options, *, key: str) -> Dataset:
    """Expression levels as published; genes are numbered, their names were not kept."""
    path = folder / _FILE.path
    with reading(path), path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        x, y, classes = file[f"{key}_x"], file[f"{key}_y"], file[f"{key}_classes"].tolist()
    if x.ndim != 2 or y.shape != x.shape[:1] or y.max(initial=0) >= len(classes):
        raise corrupt(path, f"{key}: {x.shape} levels, {y.shape} labels, {len(classes)} classes")
    columns = tuple(Column(f"gene {number}") for number in range(x.shape[1]))
    return undivided(f"microarray-{key}", x.astype(np.float32), y, tuple(classes), columns)


def _source(key: str, description: str, classes: int, reference: str) -> Source:
    return Source(
        name=f"microarray-{key}",
        description=description,
        kind="table",
        classes=classes,
        homepage="https://github.com/ramhiser/datamicroarray",
        licence=f"{reference}; published without an explicit licence",
        layouts=(Layout((_FILE,), partial(read, key=key)),),
        by_hand="as arrays NAME_x, NAME_y and NAME_classes, NAME being gordon, golub and so on",
    )


GORDON = _source(
    "gordon",
    "lung cancer, 12 533 genes, 181 rows",
    2,
    "G. J. Gordon et al., Cancer Research 62 (2002)",
)
GOLUB = _source(
    "golub", "leukaemia, 7 129 genes, 72 rows", 2, "T. R. Golub et al., Science 286 (1999)"
)
KHAN = _source(
    "khan",
    "small round blue cell tumours, 2 308 genes, 63 rows",
    4,
    "J. Khan et al., Nature Medicine 7 (2001)",
)
SINGH = _source(
    "singh", "prostate cancer, 12 600 genes, 102 rows", 2, "D. Singh et al., Cancer Cell 1 (2002)"
)
CHOWDARY = _source(
    "chowdary",
    "breast or colon cancer, 22 283 genes, 104 rows",
    2,
    "D. Chowdary et al., J. Molecular Diagnostics 8 (2006)",
)
