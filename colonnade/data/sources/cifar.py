"""CIFAR-10 and CIFAR-100, from the official binary versions or the compact form of CIFAR-10."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.files import contents, corrupt
from colonnade.data.sources.source import Download, File, Layout, Options, Source
from colonnade.data.split import official
from colonnade.data.types import Dataset

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_PIXELS = 3 * 32 * 32
_COMPACT = ("cifar10_train_1.xz", "cifar10_train_2.xz", "cifar10_test.xz")
_BATCHES = tuple(f"cifar-10-batches-bin/data_batch_{n}.bin" for n in range(1, 6))
_TEST_BATCH = "cifar-10-batches-bin/test_batch.bin"
_NAMES_100 = "cifar-100-binary/fine_label_names.txt"

_Rows = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def records(path: Path, label_bytes: int, classes: int) -> _Rows:
    """Official records: label bytes (the last is the class), then 1024 R, 1024 G, 1024 B."""
    content = contents(path)
    size = label_bytes + _PIXELS
    if not content or len(content) % size:
        raise corrupt(path, f"its {len(content)} bytes are not whole records of {size}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, size)
    return _checked(
        path, rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1], classes
    )


def compact(path: Path) -> _Rows:
    """All labels, then the planes R-G, G, B-G modulo 256, differenced along rows and columns."""
    content = contents(path)
    count, rest = divmod(len(content), 1 + _PIXELS)
    if not count or rest:
        raise corrupt(path, f"its {len(content)} bytes are not whole records of {1 + _PIXELS}")
    coded = np.frombuffer(content, np.uint8)
    planes = coded[count:].reshape(3, count, 32, 32)
    images = np.empty((count, 3, 32, 32), np.uint8)
    for channel in (1, 0, 2):
        plane = planes[channel].cumsum(1, dtype=np.uint8).cumsum(2, dtype=np.uint8)
        images[:, channel] = plane if channel == 1 else plane + images[:, 1]
    return _checked(path, images, coded[:count], 10)


def _checked(path: Path, x: NDArray[np.uint8], y: NDArray[np.uint8], classes: int) -> _Rows:
    if y.max() >= classes:
        raise corrupt(path, f"it has the label {y.max()} of 0..{classes - 1}")
    return x, y


def _joined(parts: list[_Rows]) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def read_compact(folder: Path, options: Options) -> Dataset:
    with ThreadPoolExecutor(len(_COMPACT)) as pool:  # lzma works outside the interpreter's lock
        first, second, test = pool.map(compact, [folder / name for name in _COMPACT])
    return official("cifar10", _joined([first, second]), test, CLASSES)


def read_binary(folder: Path, options: Options) -> Dataset:
    train = _joined([records(folder / name, 1, 10) for name in _BATCHES])
    return official("cifar10", train, records(folder / _TEST_BATCH, 1, 10), CLASSES)


def read_cifar100(folder: Path, options: Options) -> Dataset:
    """The 100 fine classes; the coarse label byte is skipped."""
    train, test = (records(folder / f"cifar-100-binary/{p}.bin", 2, 100) for p in ("train", "test"))
    names = tuple(str(label) for label in range(100))
    if (listed := folder / _NAMES_100).exists():
        names = tuple(contents(listed).decode("ascii", "replace").split())
        if len(names) != 100:
            raise corrupt(listed, f"it names {len(names)} classes, not 100")
    return official("cifar100", train, test, names)


_LICENCE = "A. Krizhevsky, V. Nair, G. Hinton (2009); no explicit licence, citation asked for"
_HOMEPAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"

CIFAR10 = Source(
    name="cifar10",
    description="photographs of ten classes, 32x32 colour, 50 000 + 10 000",
    kind="image",
    classes=10,
    homepage=_HOMEPAGE,
    licence=_LICENCE,
    layouts=(
        Layout(
            (
                File(
                    _COMPACT[0],
                    "sha256:fd5c87401d33d134a58a4dba8c4a3927e0cb89b73639968de21ba6d8e0715947",
                    42_393_992,
                ),
                File(
                    _COMPACT[1],
                    "sha256:489b1a1e99a23025e88192d0d934f0a593c64d4e5701d7c8079a830979eb9ad7",
                    42_381_992,
                ),
                File(
                    _COMPACT[2],
                    "sha256:ccf5a1d32e49da63cd2fe90b0d42e8d2ec4be4e68ed2581984816417752283e3",
                    16_865_624,
                ),
            ),
            read_compact,
        ),
        Layout(tuple(File(name) for name in (*_BATCHES, _TEST_BATCH)), read_binary),
    ),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            to="",
            digest="md5:c32a1d4ab5d03f1284b67883e8d87530",
            unpack=True,
        ),
    ),
    cached=True,
)

CIFAR100 = Source(
    name="cifar100",
    description="photographs of a hundred classes, 32x32 colour, 50 000 + 10 000",
    kind="image",
    classes=100,
    homepage=_HOMEPAGE,
    licence=_LICENCE,
    layouts=(
        Layout(
            (File("cifar-100-binary/train.bin"), File("cifar-100-binary/test.bin")), read_cifar100
        ),
    ),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            to="",
            digest="md5:03b5dce01913d631647c71ecec9e9cb8",
            unpack=True,
        ),
    ),
)
