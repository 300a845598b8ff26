"""PCam16k: 16 000 patches of PatchCamelyon, 96x96 colour, drawn from the official HDF5 files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.data.sources.files import corrupt, reading
from colonnade.data.sources.source import File, Layout, Options, Source
from colonnade.data.split import as_tensor, check_division
from colonnade.data.types import Dataset, Split
from colonnade.errors import DataError
from colonnade.version import installing

CLASSES = ("no tumour", "tumour")
_ROWS = 16_000
_NAME = "camelyonpatch_level_2_split_{part}_{what}.h5"


def _draw(folder: Path, part: str, count: int, seed: int, first_id: int) -> tuple[Split, int]:
    """`count` patches of one official part, half of each class; also the part's size."""
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            "pcam16k is made of HDF5 files, and h5py is not installed. "
            f"Install it with `{installing('data')}`."
        ) from error
    images, labels = (folder / _NAME.format(part=part, what=what) for what in "xy")
    with reading(labels), h5py.File(labels, "r") as file:
        y: NDArray[np.int64] = file["y"][:].reshape(-1).astype(np.int64)
    if not np.isin(y, (0, 1)).all():
        raise corrupt(labels, "it has labels other than 0 and 1")
    generator = np.random.default_rng(seed)
    drawn: list[NDArray[np.int64]] = []
    for label, wanted in enumerate((count // 2, count - count // 2)):
        members = np.flatnonzero(y == label)
        if not 0 < wanted <= len(members):
            raise DataError(
                f"{labels} has {len(members)} rows of class '{CLASSES[label]}', and {wanted} are "
                "to be drawn. Choose other values of rows and test."
            )
        drawn.append(generator.permutation(members)[:wanted])
    index = np.sort(np.concatenate(drawn))
    x = np.empty((count, 3, 96, 96), np.uint8)
    with reading(images), h5py.File(images, "r") as file:
        stored = file["x"]
        if stored.shape != (len(y), 96, 96, 3) or stored.dtype != np.uint8:
            raise ValueError(
                f"it has {stored.shape} {stored.dtype}, not {(len(y), 96, 96, 3)} uint8"
            )
        for place, row in enumerate(index):  # the file has 7 GB; only these rows are touched
            x[place] = stored[row].transpose(2, 0, 1)
    rows = Split(as_tensor(x), as_tensor(y[index]), torch.from_numpy(first_id + index))
    return rows, len(y)


def read(folder: Path, options: Options) -> Dataset:
    """Training rows come from the official training part and test rows from the official test part.

    The two parts share no slide; a division of rows drawn from one part would not ensure that.
    """
    check_division(options.test, options.seed)
    total = _ROWS if options.rows is None else options.rows
    tested = round(total * options.test)
    train, size = _draw(folder, "train", total - tested, options.seed, 0)
    test, _ = _draw(folder, "test", tested, options.seed, size)
    return Dataset("pcam16k", train, test, CLASSES)


PCAM16K = Source(
    name="pcam16k",
    description="lymph node patches with or without tumour, 96x96 colour, 16 000 drawn",
    kind="image",
    classes=2,
    homepage="https://github.com/basveeling/pcam",
    licence="B. S. Veeling et al. (arXiv:1806.03962); CC0",
    layouts=(
        Layout(
            tuple(
                File(_NAME.format(part=part, what=what))
                for part in ("train", "test")
                for what in "xy"
            ),
            read,
        ),
    ),
    by_hand="unpack the .h5.gz files",
    takes_rows=True,
)
