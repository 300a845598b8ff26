"""A party's own images: NumPy's .npz of plain arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from colonnade.data.labels import Called
from colonnade.data.own.checks import whole
from colonnade.data.own.table import Own
from colonnade.data.weights import weights_from
from colonnade.errors import DataError

ID, LABEL = "id", "label"


def read_images(path: Path, weight: str = "") -> Own:
    """All images; `weight` names the array that says how much each counts."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} is not an .npz file of plain arrays: {error}") from None
    needed = (ID, "x", *[weight] * bool(weight))
    if missing := [name for name in needed if name not in found]:
        raise DataError(f"{path} has no {' and no '.join(map(repr, missing))}: save both in it")
    x = found["x"]
    if x.ndim != 4 or x.dtype != np.uint8:
        raise DataError(
            f"{path}: x is {x.dtype} {x.shape}; images are uint8 (rows, channels, height, width)"
        )
    counts = {name: len(array) for name, array in found.items() if name in (*needed, LABEL)}
    if len(set(counts.values())) > 1:
        raise DataError(f"{path}: arrays of different lengths, {counts}")
    ids = whole([str(name) for name in found[ID]])
    if not ids:
        raise DataError(f"{path} has no rows")
    seen: set[str] = set()
    for name in ids:
        if not name or name in seen:
            raise DataError(f"{path}: the id {name!r} is empty or comes twice; ids must be unique")
        seen.add(name)
    labels = [str(label) for label in found[LABEL]] if LABEL in found else None
    size = "x".join(map(str, x.shape[1:]))
    notes = (f"{len(ids):,} images of {size}", "no labels" if labels is None else "with labels")
    called = Called(
        str(path), LABEL if LABEL in found else "", "image {}".format
    )  # counted from 0, as in NumPy
    weights = None
    if weight:
        weights = weights_from(found[weight], len(ids), replace(called, column=weight, of="weight"))
    return Own(ids, (), torch.from_numpy(x), labels, notes, weights, called)
