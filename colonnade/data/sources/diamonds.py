"""Diamonds: what does a stone of this grading and these measures cost?"""

from __future__ import annotations

from pathlib import Path

from colonnade.data.sources.source import File, Layout, Options, Source
from colonnade.data.sources.tables import labelled
from colonnade.data.types import Dataset

_COMPACT = "diamonds.csv.gz"


def read(folder: Path, options: Options) -> Dataset:
    return labelled(folder / _COMPACT, "diamonds", "price", (), 9)


DIAMONDS = Source(
    name="diamonds",
    description="price of a diamond, a number; 9 columns, 53 940 rows",
    kind="table",
    classes=0,
    homepage="https://ggplot2.tidyverse.org/reference/diamonds.html",
    licence="the ggplot2 authors; MIT",
    layouts=(
        Layout(
            (
                File(
                    _COMPACT,
                    "sha256:ab11a58136e3e3253881cf4986b98991bb9074cd75a6bb9a2c5c84da61099bf4",
                    557_224,
                ),
            ),
            read,
        ),
    ),
    by_hand="the table as CSV, packed by gzip, with carat first",
)
