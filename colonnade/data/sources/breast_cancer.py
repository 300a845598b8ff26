"""Breast cancer Wisconsin (diagnostic), as scikit-learn brings it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colonnade.data.sources.source import Layout, Options, Source
from colonnade.data.split import undivided
from colonnade.data.types import Column, Dataset


def read(folder: Path, options: Options) -> Dataset:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    columns = tuple(Column(str(name)) for name in found.feature_names)
    x = found.data.astype(np.float32)
    return undivided("breast-cancer", x, found.target, ("malignant", "benign"), columns)


BREAST_CANCER = Source(
    name="breast-cancer",
    description="cell nuclei, malignant or benign, 30 columns, 569 rows",
    kind="table",
    classes=2,
    homepage="https://archive.ics.uci.edu/dataset/17",
    licence="W. Wolberg, O. Mangasarian, N. Street, W. Street; CC BY 4.0",
    layouts=(Layout((), read),),
)
