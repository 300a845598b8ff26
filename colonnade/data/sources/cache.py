"""Decoded sets, kept beside the fetched files so that slow formats are decoded once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from colonnade.data.sources.files import cache_folder, write_atomically
from colonnade.data.types import Column, Dataset, Split

_FORM = 1  # raise it when a reader gives other values for the same files


def remembered(name: str, key: list[str], decode: Callable[[], Dataset]) -> Dataset:
    """What was decoded from files of these digests before, else `decode()`, then kept."""
    digest = hashlib.sha256(json.dumps([_FORM, name, key]).encode()).hexdigest()
    path = cache_folder() / "decoded" / f"{name}-{digest[:16]}.safetensors"
    kept = _read(path)
    if kept is not None:
        return kept
    dataset = decode()
    with suppress(OSError):  # a read-only or full cache only costs time
        write_atomically(path, _pack(dataset))
    return dataset


def _pack(dataset: Dataset) -> bytes:
    tensors: dict[str, Tensor] = {}
    for part, rows in (("train", dataset.train), ("test", dataset.test)):
        tensors |= {f"{part}.x": rows.x.contiguous(), f"{part}.ids": rows.ids.contiguous()}
        if rows.y is not None:
            tensors[f"{part}.y"] = rows.y.contiguous()
    about = {
        "name": dataset.name,
        "classes": dataset.classes,
        "columns": [[column.name, column.categories] for column in dataset.columns],
    }
    return save(tensors, metadata={"dataset": json.dumps(about)})


def _read(path: Path) -> Dataset | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["dataset"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        columns = tuple(Column(name, tuple(categories)) for name, categories in about["columns"])
        train, test = (
            Split(tensors[f"{part}.x"], tensors.get(f"{part}.y"), tensors[f"{part}.ids"])
            for part in ("train", "test")
        )
        return Dataset(about["name"], train, test, tuple(about["classes"]), columns)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None  # damaged: it is only a copy, so decode again and replace it
