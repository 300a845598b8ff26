"""Describes a source: which files it has, where they come from and how they become a Dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colonnade.data.types import Dataset
from colonnade.task.task import Kind


@dataclass(frozen=True)
class File:
    """A file, or a folder of files, below one of the data folders."""

    path: str
    digest: str = ""  # "sha256:…", "md5:…", "gunzip-sha256:…" (of the content); "" if none is known
    bytes: int = 0  # 0 if not known


@dataclass(frozen=True)
class Options:
    """What a reader may need to know beyond the folder."""

    test: float = 0.2
    seed: int = 0
    rows: int | None = None


# A set without an official test part comes back whole, as `train` with an empty `test`;
# `load` then divides it.
Reader = Callable[[Path, Options], Dataset]


@dataclass(frozen=True)
class Layout:
    """One form in which a set may lie on disk; without files it comes with Colonnade."""

    files: tuple[File, ...]
    read: Reader


@dataclass(frozen=True)
class Download:
    """One file to fetch; an archive is unpacked into the folder `to`."""

    url: str
    to: str
    digest: str = ""
    unpack: bool = False


@dataclass(frozen=True)
class Source:
    """A data set by name: its description, its licence, and every way to obtain it."""

    name: str
    description: str
    kind: Literal["image", "table"]
    classes: int  # 0: the labels are numbers
    homepage: str
    licence: str
    layouts: tuple[Layout, ...]  # one complete layout is enough
    downloads: tuple[Download, ...] = ()  # empty: the user has to place the files
    by_hand: str = ""  # what to do if there is no download
    cached: bool = False  # slow to decode, so cached decoded; may depend on `rows` alone
    takes_rows: bool = False  # can read some rows without reading the whole

    @property
    def task(self) -> Kind:
        """What it is for."""
        if not self.classes:
            return "regression"
        return "binary" if self.classes == 2 else "multiclass"

    @property
    def embedded(self) -> bool:
        return not self.layouts[0].files

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.layouts[0].files)
