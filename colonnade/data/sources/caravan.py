"""Caravan: who buys an insurance for a caravan? Six in a hundred do."""

from __future__ import annotations

from pathlib import Path

from colonnade.data.sources.source import File, Layout, Options, Source
from colonnade.data.sources.tables import labelled
from colonnade.data.types import Dataset

_COMPACT = "caravan.csv.gz"


def read(folder: Path, options: Options) -> Dataset:
    return labelled(folder / _COMPACT, "caravan", "Purchase", ("No", "Yes"), 85)


CARAVAN = Source(
    name="caravan",
    description="customers of an insurance, 6 % buy another; 85 columns, 5 822 rows",
    kind="table",
    classes=2,
    homepage="https://archive.ics.uci.edu/dataset/125/insurance+company+benchmark+coil+2000",
    licence="P. van der Putten, Sentient Machine Research (2000); for research",
    layouts=(
        Layout(
            (
                File(
                    _COMPACT,
                    "sha256:82847df98be785817b46c6cb6fea9f8ac73bca78caa0ee7732d4a583a45eaa4a",
                    124_767,
                ),
            ),
            read,
        ),
    ),
    by_hand="the training part with its columns' names",
)
