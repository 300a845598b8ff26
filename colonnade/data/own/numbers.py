"""The first pass over a file: its ids, its labels and weights, and every number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colonnade.data.own.table import Cells, TableFile
from colonnade.data.values import as_number


@dataclass
class Texts:
    """The text in a column: how much of it there is, and where it begins."""

    count: int = 0
    numbers: int = 0
    first: tuple[int, str] = (-1, "")  # row and cell
    infinite: int = -1  # the first such row


@dataclass
class First:
    ids: list[str]
    labels: list[str]
    weights: list[str]
    x: NDArray[np.float32]  # NaN where there is no number
    texts: list[Texts]


def numbers_of(
    table: TableFile, id: str, label: str | None, weight: str | None, features: list[str]
) -> First:
    ids: list[str] = []
    labels: list[str] = []
    weights: list[str] = []
    texts = [Texts() for _ in features]
    blocks: list[NDArray[np.float32]] = []
    one = {"": ""}  # equal labels are one object
    leading = [id, *(name for name in (label, weight) if name is not None)]
    for piece in table.pieces([*leading, *features], leading):
        start = len(ids)
        ids += [str(cell).strip() for cell in piece[0]]
        if label is not None:
            labels += [one.setdefault(cell, cell) for cell in map(str.strip, map(str, piece[1]))]
        if weight is not None:
            weights += [one.setdefault(cell, cell) for cell in map(str, piece[len(leading) - 1])]
        block = np.empty((len(ids) - start, len(features)), np.float32)
        for place, cells in enumerate(piece[len(leading) :]):
            values, strange = as_numbers(cells)
            with np.errstate(over="ignore"):
                block[:, place] = values
            seen = texts[place]
            if strange and not seen.count:
                seen.first = (start + strange[0], cells[strange[0]])
            seen.count += len(strange)
            seen.numbers += int((~np.isnan(values)).sum())
            if seen.infinite < 0 and bool((infinite := np.isinf(block[:, place])).any()):
                seen.infinite = start + int(infinite.argmax())
        blocks.append(block)
    x = np.empty((len(ids), len(features)), np.float32)
    end = len(ids)
    while blocks:  # last first, each freed once copied, so the table is in memory only once
        block = blocks.pop()
        x[end - len(block) : end] = block
        end -= len(block)
    return First(ids, labels, weights, x, texts)


def as_numbers(cells: Cells) -> tuple[NDArray[np.float64], list[int]]:
    """The cells as numbers, NaN where there is none, and the places of text."""
    if isinstance(cells, np.ndarray):
        return cells, []
    if "_" not in "".join(cells):  # Python reads 1_000 as a number, nobody else does
        try:
            return np.array(list(map(float, cells))), []
        except ValueError:
            pass
    known = {cell: as_number(cell) for cell in set(cells)}
    values = np.array([known[cell] for cell in cells], np.float64)  # None becomes NaN
    return values, [place for place, cell in enumerate(cells) if known[cell] is None]
