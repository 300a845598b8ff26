"""Bikeshare: how many bicycles are rented in an hour of a year in Washington?"""

from __future__ import annotations

from pathlib import Path

from colonnade.data.sources.source import File, Layout, Options, Source
from colonnade.data.sources.tables import labelled
from colonnade.data.types import Dataset

_COMPACT = "bikeshare.csv.gz"


def read(folder: Path, options: Options) -> Dataset:
    return labelled(folder / _COMPACT, "bikeshare", "bikers", (), 12)


BIKESHARE = Source(
    name="bikeshare",
    description="bicycles rented in an hour, a number; 12 columns, 8 645 rows",
    kind="table",
    classes=0,
    homepage="https://archive.ics.uci.edu/dataset/275/bike+sharing+dataset",
    licence="H. Fanaee-T, J. Gama (2013); CC BY 4.0",
    layouts=(
        Layout(
            (
                File(
                    _COMPACT,
                    "sha256:b0ae1dbd54f9028766792beba21afbe345735ab8f3614cdfdb2cebc1b6934162",
                    75_973,
                ),
            ),
            read,
        ),
    ),
    by_hand="without the two columns that add up to bikers",
)
