"""The types of a data set before any party owns a part of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

IN_MEMORY = "in memory"  # the data set's name in a run on the user's arrays
OWN_FILES = "the parties' own files"  # the same in a run on the parties' files
OWN_PARTITION = "the parties' own rows"  # the partition's name where nothing was divided


@dataclass(frozen=True)
class Column:
    """One column of a table as published; a categorical one is stored as codes 0..len-1."""

    name: str
    categories: tuple[str, ...] = ()
    missing: bool = False  # NaN may occur, and becomes the mean of the party's own training rows


@dataclass(frozen=True)
class Split:
    """Some rows: features, labels where known, and the identity of each row."""

    x: Tensor  # images: uint8 (n, channels, height, width); tables: float32 (n, columns)
    y: Tensor | None  # int64 (n,): numbers of classes; float64 (n,): numbers to predict
    ids: Tensor  # int64 (n,), unique within a data set
    weights: Tensor | None = None  # float64 (n,), beside labels: how much each row counts

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: Tensor | slice) -> Split:
        """The rows at `index`, in that order."""
        y, weights = (None if v is None else v[index] for v in (self.y, self.weights))
        return Split(self.x[index], y, self.ids[index], weights)

    def only(self, ids: Tensor) -> Split:
        """The rows with these ids, in that order; their new ids are their places in it."""
        place = {row: number for number, row in enumerate(ids.tolist())}
        new = torch.tensor([place.get(row, -1) for row in self.ids.tolist()]).long()
        kept = (new >= 0).nonzero().flatten()
        index = kept[new[kept].argsort()]
        return replace(self.rows(index.to(self.x.device)), ids=new[index].to(self.ids.device))

    def to(self, device: torch.device) -> Split:
        y, weights = (None if v is None else v.to(device) for v in (self.y, self.weights))
        return Split(self.x.to(device), y, self.ids.to(device), weights)

    def without_labels(self) -> Split:
        return replace(self, y=None, weights=None)


@dataclass(frozen=True)
class Dataset:
    """A data set with its official, or seeded, division into training and test rows."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]  # names; a label is an index into them. None: labels are numbers
    columns: tuple[Column, ...] = ()  # empty for images

    @property
    def is_image(self) -> bool:
        return self.train.x.dim() == 4


def numbered(x: Tensor, y: Tensor | None, start: int = 0) -> Split:
    """Rows whose identity is their position."""
    return Split(x, y, torch.arange(start, start + len(x)))
