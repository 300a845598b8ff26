"""CINIC-10, from the official tree of PNG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.cifar import CLASSES
from colonnade.data.sources.files import corrupt, reading
from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.split import official
from colonnade.data.types import Dataset
from colonnade.errors import DataError
from colonnade.version import installing

_SHAPE = (32, 32, 3)


def _part(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "cinic10 is made of PNG files, and Pillow is not installed. "
            f"Install it with `{installing('data')}`."
        ) from error
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(CLASSES):
        images = sorted((folder / name).glob("*.png"))
        if not images:
            raise corrupt(folder / name, "it has no .png files")
        paths += images
        labels += [label] * len(images)
    x = np.empty((len(paths), 3, 32, 32), np.uint8)
    for row, path in enumerate(paths):
        with reading(path), Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))  # a few files are grey
            if pixels.shape != _SHAPE:
                raise ValueError(f"it is {pixels.shape[1]}x{pixels.shape[0]}, not 32x32")
            x[row] = pixels.transpose(2, 0, 1)
    return x, np.array(labels)


def read(folder: Path, options: Options) -> Dataset:
    """The official training and test parts; the validation part stays on disk."""
    return official(
        "cinic10", _part(folder / "cinic10/train"), _part(folder / "cinic10/test"), CLASSES
    )


CINIC10 = Source(
    name="cinic10",
    description="CIFAR-10's classes from two sources, 32x32 colour, 90 000 + 90 000",
    kind="image",
    classes=10,
    homepage="https://datashare.ed.ac.uk/handle/10283/3192",
    licence="L. N. Darlow et al. (arXiv:1810.03505); CC BY 4.0",
    layouts=(Layout((File("cinic10/train"), File("cinic10/test")), read),),
    downloads=(
        Download(
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
            to="cinic10",
            digest="md5:6ee4d0c996905fe93221de577967a372",
            unpack=True,
        ),
    ),
    cached=True,
)
