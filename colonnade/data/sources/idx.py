"""MNIST and Fashion-MNIST, from their original IDX files."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.files import contents, corrupt
from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.split import official
from colonnade.data.types import Dataset

_UINT8 = 0x08  # the only element type these two sets use
_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """One IDX file: two zero bytes, element type, rank, big-endian sizes, then the elements."""
    content = contents(path)
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, _UINT8, dimensions]):
        raise corrupt(path, f"its magic number is {content[:4].hex()}, not 000008{dimensions:02x}")
    shape = [int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4)]
    if len(content) != header + math.prod(shape):
        raise corrupt(path, f"it announces {math.prod(shape)} bytes, has {len(content) - header}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read(folder: Path, options: Options, *, name: str, classes: tuple[str, ...]) -> Dataset:
    """Both parts, as images of one channel."""
    train, test = (
        _part(folder / name / images, folder / name / labels, classes)
        for images, labels in (_FILES[:2], _FILES[2:])
    )
    return official(name, train, test, classes)


def _part(
    images: Path, labels: Path, classes: tuple[str, ...]
) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if len(x) != len(y):
        raise corrupt(labels, f"it has {len(y)} labels for {len(x)} images")
    if y.size and y.max() >= len(classes):
        raise corrupt(labels, f"it has the label {y.max()} of 0..{len(classes) - 1}")
    return x[:, None], y


def _source(
    name: str,
    description: str,
    homepage: str,
    mirror: str,
    licence: str,
    classes: tuple[str, ...],
    sums: tuple[tuple[str, int], ...],
) -> Source:
    files = tuple(
        File(f"{name}/{file}", f"sha256:{digest}", size)
        for file, (digest, size) in zip(_FILES, sums, strict=True)
    )
    return Source(
        name=name,
        description=description,
        kind="image",
        classes=10,
        homepage=homepage,
        licence=licence,
        layouts=(Layout(files, partial(read, name=name, classes=classes)),),
        downloads=tuple(
            Download(mirror + Path(file.path).name, file.path, file.digest) for file in files
        ),
    )


MNIST = _source(
    "mnist",
    "handwritten digits, 28x28 grey, 60 000 + 10 000",
    "http://yann.lecun.com/exdb/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",  # the original host refuses most requests
    "Y. LeCun, C. Cortes, C. J. C. Burges; CC BY-SA 3.0",
    tuple("0123456789"),
    (
        ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
        ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
        ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
        ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
    ),
)

FASHION_MNIST = _source(
    "fashion-mnist",
    "articles of clothing, 28x28 grey, 60 000 + 10 000",
    "https://github.com/zalandoresearch/fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "H. Xiao, K. Rasul, R. Vollgraf (arXiv:1708.07747); MIT",
    _FASHION,
    (
        ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
        ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
        ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
    ),
)
