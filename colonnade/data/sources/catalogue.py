"""The sets by name: what there is, where it is, and `load`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colonnade.data.sources import (
    adult,
    bikeshare,
    breast_cancer,
    caravan,
    cifar,
    cinic,
    diamonds,
    digits,
    gisette,
    hapt,
    idx,
    kdd,
    microarray,
    pcam,
    rna_seq,
    sample,
    susy,
)
from colonnade.data.sources.cache import remembered
from colonnade.data.sources.fetch import Progress, fetch_source
from colonnade.data.sources.files import cache_folder, compute_digest, find, missing, verify
from colonnade.data.sources.source import File, Layout, Options, Source
from colonnade.data.split import check_division, divide
from colonnade.data.types import Dataset
from colonnade.errors import DataError, unknown
from colonnade.task.task import Kind

SOURCES: tuple[Source, ...] = (
    sample.MNIST_SAMPLE,
    idx.MNIST,
    idx.FASHION_MNIST,
    cifar.CIFAR10,
    cifar.CIFAR100,
    cinic.CINIC10,
    digits.DIGITS,
    pcam.PCAM16K,
    kdd.KDD99,
    kdd.NSL_KDD,
    hapt.HAPT,
    adult.ADULT,
    breast_cancer.BREAST_CANCER,
    caravan.CARAVAN,
    diamonds.DIAMONDS,
    bikeshare.BIKESHARE,
    microarray.GORDON,
    microarray.GOLUB,
    microarray.KHAN,
    microarray.SINGH,
    microarray.CHOWDARY,
    gisette.GISETTE,
    rna_seq.RNA_SEQ,
    susy.SUSY,
)


@dataclass(frozen=True)
class Available:
    """One line of `colonnade data list`."""

    name: str
    description: str
    status: Literal["embedded", "here", "can be fetched", "place by hand"]
    where: str  # a folder, an address, or where to place which files
    bytes: int  # of the files; 0 if unknown
    task: Kind  # what it is for


@dataclass(frozen=True)
class Checked:
    """One line of `colonnade data check`."""

    path: Path
    expected: str  # "" if no checksum is published
    found: str

    @property
    def verdict(self) -> Literal["right", "wrong", "unpublished"]:
        if not self.expected:
            return "unpublished"
        return "right" if self.found == self.expected else "wrong"


def names() -> tuple[str, ...]:
    return tuple(source.name for source in SOURCES)


def source_named(name: str) -> Source:
    for source in SOURCES:
        if source.name == name:
            return source
    raise DataError(unknown(name, names(), what="data set"))


def load(
    name: str,
    *,
    root: Path | None = None,
    test: float = 0.2,
    seed: int = 0,
    rows: int | None = None,
) -> Dataset:
    """Load a data set by name and verify its files.

    `test` and `seed` matter where no test part is published: each class gives that share of its
    rows. `rows` limits how many rows of a very large set are read (susy, pcam16k).
    """
    source = source_named(name)
    check_division(test, seed)
    if rows is not None and not source.takes_rows:
        large = " and ".join(s.name for s in SOURCES if s.takes_rows)
        raise DataError(f"'{name}' is always read whole; rows={rows} is only for {large}. Omit it.")
    if rows is not None and rows < 2:
        raise DataError(f"rows={rows} leaves nothing to divide. Give a larger number.")
    located = find(source, root)
    if located is None:
        raise missing(source, root)
    dataset = _read(source, *located, Options(test, seed, rows))
    return dataset if len(dataset.test) else divide(dataset, test, seed)


def _read(source: Source, layout: Layout, folder: Path, options: Options) -> Dataset:
    digests = verify(source, layout, folder)
    if not source.cached:
        return layout.read(folder, options)
    key = [*digests, f"rows={options.rows}"]
    return remembered(source.name, key, lambda: layout.read(folder, options))


def available(root: Path | None = None) -> list[Available]:
    """Every set, and how to get it on this machine."""
    return [_available(source, root) for source in SOURCES]


def _available(source: Source, root: Path | None) -> Available:
    name, description = source.name, source.description
    if source.embedded:
        return Available(name, description, "embedded", "comes with Colonnade", 0, source.task)
    located = find(source, root)
    if located is not None:
        layout, folder = located
        size = sum(_size(folder, file) for file in layout.files)
        return Available(name, description, "here", str(folder), size, source.task)
    if source.downloads:
        url, size = source.downloads[0].url, source.bytes
        return Available(name, description, "can be fetched", url, size, source.task)
    files = ", ".join(file.path for file in source.layouts[-1].files)
    where = f"{files} in {cache_folder()}, from {source.homepage}"
    return Available(name, description, "place by hand", where, source.bytes, source.task)


def _size(folder: Path, file: File) -> int:
    path = folder / file.path
    return path.stat().st_size if path.is_file() else file.bytes


def check(name: str, *, root: Path | None = None) -> list[Checked]:
    """Read every file of a set again and compare its checksum; none for an embedded set."""
    source = source_named(name)
    located = find(source, root)
    if located is None:
        raise missing(source, root)
    layout, folder = located
    checked = []
    for file in layout.files:
        algorithm = file.digest.partition(":")[0] or "sha256"
        path = folder / file.path
        checked.append(Checked(path, file.digest, compute_digest(path, algorithm)))
    return checked


def fetch(name: str, *, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Download a set into the cache folder or `folder`, and return the folder that now has it."""
    return fetch_source(source_named(name), folder, progress)
