"""Makes the embedded sample from the real MNIST.

python -m colonnade.data.sources.sample.make
"""

from __future__ import annotations

import lzma
import sys

import numpy as np
from numpy.typing import NDArray

from colonnade.data.sources.catalogue import load
from colonnade.data.sources.files import write_atomically
from colonnade.data.sources.sample import FILE
from colonnade.data.types import Dataset, Split

PER_CLASS_TRAIN = 800
PER_CLASS_TEST = 200
# The best of the orders and filters tried: rows as they are, no filter, literal context of 4 bits.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def pack(mnist: Dataset) -> bytes:
    """The file's content; the same MNIST gives the same bytes with the same liblzma."""
    parts = (
        (mnist.train, chosen(mnist.train, PER_CLASS_TRAIN)),
        (mnist.test, chosen(mnist.test, PER_CLASS_TEST)),
    )
    counts = np.array([len(index) for _, index in parts], "<u4").tobytes()
    ids = b"".join(rows.ids.numpy()[index].astype("<u4").tobytes() for rows, index in parts)
    labels = b"".join(_labels(rows)[index].astype(np.uint8).tobytes() for rows, index in parts)
    pixels = b"".join(rows.x.numpy()[index].tobytes() for rows, index in parts)
    return lzma.compress(counts + ids + labels + pixels, filters=_FILTERS)


def chosen(rows: Split, per_class: int) -> NDArray[np.int64]:
    """Evenly spaced images of each class: MNIST's order is not uniform in difficulty."""
    members = [np.flatnonzero(_labels(rows) == label) for label in range(10)]
    return np.concatenate([m[np.arange(per_class) * len(m) // per_class] for m in members])


def _labels(rows: Split) -> NDArray[np.int64]:
    if rows.y is None:
        raise ValueError("MNIST without labels")
    labels: NDArray[np.int64] = rows.y.numpy()
    return labels


def main() -> None:
    content = pack(load("mnist"))
    write_atomically(FILE, content)
    FILE.chmod(0o644)
    sys.stdout.write(f"{FILE}: {len(content)} bytes\n")


if __name__ == "__main__":
    main()
