"""The embedded sample: 800 + 200 images of each MNIST digit. The first run needs nothing else."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.files import corrupt, reading
from colonnade.data.sources.source import Layout, Options, Source
from colonnade.data.split import as_tensor
from colonnade.data.types import Dataset, Split

FILE = Path(__file__).with_name("mnist.xz")


def read(folder: Path, options: Options) -> Dataset:
    return unpack(FILE)


def unpack(path: Path) -> Dataset:
    """Two counts, then the ids (uint32), the labels and the pixels of all images (uint8).

    An image's id is its place in MNIST, as in the set `mnist`: those for testing start at 60 000.
    """
    with reading(path):
        content = lzma.decompress(path.read_bytes())
        trained, tested = (int(count) for count in np.frombuffer(content, "<u4", 2))
    total = trained + tested
    if len(content) != 8 + total * (4 + 1 + 28 * 28):
        raise corrupt(path, f"it has {len(content)} bytes for {total} images")
    ids = np.frombuffer(content, "<u4", total, offset=8).astype(np.int64)
    labels = np.frombuffer(content, np.uint8, total, offset=8 + 4 * total)
    pixels = np.frombuffer(content, np.uint8, offset=8 + 5 * total).reshape(total, 1, 28, 28)
    train, test = (
        _split(ids[part], labels[part], pixels[part])
        for part in (slice(0, trained), slice(trained, total))
    )
    return Dataset("mnist-sample", train, test, tuple("0123456789"))


def _split(ids: NDArray[Any], labels: NDArray[Any], pixels: NDArray[Any]) -> Split:
    order = np.argsort(ids)  # stored class by class, which packs better
    return Split(as_tensor(pixels[order]), as_tensor(labels[order]).long(), as_tensor(ids[order]))


MNIST_SAMPLE = Source(
    name="mnist-sample",
    description="a class-balanced part of MNIST, 28x28 grey, 8 000 + 2 000",
    kind="image",
    classes=10,
    homepage="http://yann.lecun.com/exdb/mnist/",
    licence="Y. LeCun, C. Cortes, C. J. C. Burges; CC BY-SA 3.0",
    layouts=(Layout((), read),),
)
