"""Splits a data set into the parties' parts, and joins the parts again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

import torch
from torch import Tensor

from colonnade.data.split import strata
from colonnade.data.types import Column, Dataset, Split
from colonnade.errors import PartitionError
from colonnade.partition.columns import columns, cut_columns, join_columns, named_columns
from colonnade.partition.images import Rectangle, cut, paste, rectangles, same, strips, tiles
from colonnade.partition.rows import overlap

PARTIES = 4  # where neither the number nor anything that implies it is given


@dataclass(frozen=True)
class Part:
    """What one party holds: some rows for training, all rows for testing, and its own features."""

    train: Split
    test: Split
    columns: tuple[Column, ...]  # of a table; empty for images and pixels
    view: Rectangle | None = None  # what it sees of every image
    index: Tensor | None = None  # int64: its columns, or pixels, in the data set


@dataclass(frozen=True)
class Partition:
    """Who owns what. `split` divides a data set, `join` is its inverse."""

    kind: Literal["tiles", "strips", "rectangles", "columns", "rows", "hybrid", "whole"]
    grid: tuple[int, int] = (2, 2)  # tiles: rows × columns
    parties: int = 0  # 0: as many as grid, rectangles, sizes or groups say, else 4 (whole: 1)
    axis: Literal["columns", "rows"] = "columns"  # strips
    rectangles: tuple[tuple[int, int, int, int], ...] = ()  # (top, left, height, width) each
    sizes: tuple[int, ...] = ()  # columns of each party
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names or patterns
    shuffle: bool = False  # permuted columns
    alpha: float | None = None  # rows, hybrid: label skew, Dirichlet(alpha)
    row_overlap: float = 0.0  # rows, hybrid: part of all rows that every party has
    column_overlap: float = 0.0  # columns, hybrid: part of its columns shared with the next party

    def count(self, dataset: Dataset) -> int:
        """The number of parties."""
        implied = self._implied()
        if len(set(implied.values())) > 1:
            listed = " and ".join(f"{what} for {number}" for what, number in implied.items())
            raise PartitionError(
                f"'{dataset.name}': the partition asks {listed} parties. Give only one of them."
            )
        if self.parties < 0:
            raise PartitionError(f"'{dataset.name}': there cannot be {self.parties} parties.")
        return next(iter(implied.values()), 1 if self.kind == "whole" else PARTIES)

    def split(self, dataset: Dataset, seed: int) -> list[Part]:
        """The part of each party; the same seed gives the same parts.

        Every party keeps all test rows and the labels; the caller removes labels where a party must
        not have them. No two parts share memory.
        """
        parties = self.count(dataset)
        nothing: list[None] = [None] * parties
        views = self._views(dataset, parties) or nothing
        indices = self._indices(dataset, parties, seed) or nothing
        rows = self._rows(dataset, parties, seed) or nothing
        return [
            _part(dataset, view, index, mine)
            for view, index, mine in zip(views, indices, rows, strict=True)
        ]

    def join(self, parts: Sequence[Part], dataset: Dataset) -> Dataset:
        """Join the parts to a data set again, as far as the parties own it.

        Pixels that nobody sees are 0, and so are values of a row that nobody knows in a hybrid
        partition; columns and rows that nobody has are omitted. Labels come from `dataset`.
        """
        if not parts:
            raise PartitionError("join: there are no parts. Give those that split returned.")
        train = _united([part.train for part in parts], parts, dataset.train)
        test = _united([part.test for part in parts], parts, dataset.test)
        index = [part.index for part in parts if part.index is not None]
        if not index or dataset.is_image:
            return replace(dataset, train=train, test=test)
        known = torch.unique(torch.cat(index))
        return replace(
            dataset,
            train=replace(train, x=train.x[:, known]),
            test=replace(test, x=test.x[:, known]),
            columns=_named(dataset, known),
        )

    def _implied(self) -> dict[str, int]:
        """Each given option that fixes the number of parties."""
        given = {"parties": self.parties} if self.parties > 0 else {}
        if self.kind == "tiles":
            given["grid"] = self.grid[0] * self.grid[1]
        if self.kind in ("columns", "hybrid"):
            given |= {"sizes": len(self.sizes)} if self.sizes else {}
            given |= {"groups": len(self.groups)} if self.groups else {}
        if self.kind == "rectangles" or (self.kind == "hybrid" and self.rectangles):
            given["rectangles"] = len(self.rectangles)
        return given

    def _views(self, dataset: Dataset, parties: int) -> list[Rectangle] | None:
        wanted = self.kind in ("tiles", "strips", "rectangles")
        if not wanted and not (self.kind == "hybrid" and self.rectangles):
            return None
        if not dataset.is_image:
            raise PartitionError(
                f"'{dataset.name}' is a table of {dataset.train.x.shape[1]} columns; "
                f"'{self.kind if wanted else 'rectangles'}' cuts images. Use kind = \"columns\"."
            )
        height, width = dataset.train.x.shape[-2:]
        if self.kind == "tiles":
            return tiles(height, width, self.grid)
        if self.kind == "strips":
            return strips(height, width, parties, self.axis)
        return rectangles(height, width, self.rectangles)

    def _indices(self, dataset: Dataset, parties: int, seed: int) -> list[Tensor] | None:
        if self.kind not in ("columns", "hybrid") or (self.kind == "hybrid" and self.rectangles):
            return None
        if self.groups and (self.sizes or self.shuffle):
            other = "sizes" if self.sizes else "shuffle"
            raise PartitionError(
                f"'{dataset.name}': groups names the columns of each party, so {other} has no "
                "meaning. Give only one of them."
            )
        if self.groups:
            if not dataset.columns:
                raise PartitionError(
                    f"'{dataset.name}' has no column names for groups to refer to. "
                    "Use sizes or parties."
                )
            names = [column.name for column in dataset.columns]
            return list(named_columns(names, self.groups, overlap=self.column_overlap).values())
        return columns(
            prod(dataset.train.x.shape[1:]),
            parties,
            sizes=self.sizes,
            shuffle=seed if self.shuffle else None,
            overlap=self.column_overlap,
        )

    def _rows(self, dataset: Dataset, parties: int, seed: int) -> list[Tensor] | None:
        if self.kind not in ("rows", "hybrid"):
            return None
        train = dataset.train
        # float(): from TOML `row_overlap = 1` is the fraction 1, not one row.
        shared = float(self.row_overlap)
        labels = None if train.y is None else strata(train.y)
        return overlap(len(train), parties, shared, seed, labels=labels, alpha=self.alpha)


def _part(
    dataset: Dataset, view: Rectangle | None, index: Tensor | None, rows: Tensor | None
) -> Part:
    def mine(split: Split) -> Split:
        if view is not None:
            x = cut(split.x, view)
        elif index is not None:
            x = cut_columns(split.x, index)
        else:
            x = split.x.clone()
        return Split(x, None if split.y is None else split.y.clone(), split.ids.clone())

    train = dataset.train if rows is None else dataset.train.rows(rows)
    return Part(mine(train), mine(dataset.test), _named(dataset, index), view, index)


def _named(dataset: Dataset, index: Tensor | None) -> tuple[Column, ...]:
    if index is None or not dataset.columns:
        return dataset.columns
    return tuple(dataset.columns[i] for i in index.tolist())


def _united(splits: Sequence[Split], parts: Sequence[Part], whole: Split) -> Split:
    if all(torch.equal(split.ids, whole.ids) for split in splits):
        x = _features([split.x for split in splits], parts, whole.x.shape[1:])
        return Split(x, whole.y, whole.ids)
    # Parties with different rows are laid one after the other over an empty whole.
    shape = whole.x.shape[1:]
    x = splits[0].x.new_zeros(whole.x.shape)
    known = torch.zeros(whole.x.shape, dtype=torch.bool)
    seen = torch.zeros(len(whole), dtype=torch.bool)  # rows of which something is known
    for split, part in zip(splits, parts, strict=True):
        rows = _positions(split.ids, whole.ids)
        mine = _features([split.x], [part], shape)
        owned = _features([torch.ones_like(split.x[:1])], [part], shape)[:1].bool()  # (1, *shape)
        new, old = ~seen[rows], seen[rows]
        x[rows[new]] = mine[new]
        known[rows[new]] = owned
        if old.any():
            _merge(x, known, rows[old], mine[old], owned)
        seen[rows] = True
    rows = seen.nonzero().flatten()
    return Split(x[rows], None if whole.y is None else whole.y[rows], whole.ids[rows])


def _merge(x: Tensor, known: Tensor, rows: Tensor, mine: Tensor, owned: Tensor) -> None:
    """Add what one more party knows of rows that others know, in place."""
    before, both = x[rows], known[rows] & owned
    if not same(before[both], mine[both]):
        raise PartitionError(
            "join: two parts differ in a value that both hold. They are not parts of one split."
        )
    x[rows] = torch.where(owned, mine, before)
    known[rows] |= owned


def _features(xs: Sequence[Tensor], parts: Sequence[Part], shape: torch.Size) -> Tensor:
    """The features of parties that hold the same rows, at their places in the whole."""
    views = [part.view for part in parts if part.view is not None]
    indices = [part.index for part in parts if part.index is not None]
    if views:
        return paste(xs, views, shape[-2], shape[-1])
    if indices:
        return join_columns(xs, indices, prod(shape)).reshape(-1, *shape)
    if not all(same(xs[0], x) for x in xs[1:]):
        raise PartitionError("join: two parts hold the same rows and differ in their values.")
    return xs[0]


def _positions(ids: Tensor, among: Tensor) -> Tensor:
    """Where each of `ids` stands in `among`."""
    ordered, order = among.sort()
    place = torch.searchsorted(ordered, ids).clamp(max=len(among) - 1)
    if not torch.equal(ordered[place], ids):
        raise PartitionError(
            "join: a part holds rows that are not in the data set. "
            "Give the data set that the parts were split from."
        )
    return order[place]
