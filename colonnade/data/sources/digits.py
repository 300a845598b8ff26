"""The small digits that scikit-learn brings: 1 797 images of 8x8."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colonnade.data.sources.source import Layout, Options, Source
from colonnade.data.split import undivided
from colonnade.data.types import Dataset


def read(folder: Path, options: Options) -> Dataset:
    from sklearn.datasets import load_digits

    found = load_digits()
    # Values 0..16 are stretched to 0..255, the range of all other images.
    images = (found.images * 255 // 16).astype(np.uint8)[:, None]
    return undivided("digits", images, found.target, tuple("0123456789"))


DIGITS = Source(
    name="digits",
    description="handwritten digits, 8x8 grey, 1 797 rows",
    kind="image",
    classes=10,
    homepage="https://archive.ics.uci.edu/dataset/80",
    licence="E. Alpaydin, C. Kaynak (1998); CC BY 4.0",
    layouts=(Layout((), read),),
)
