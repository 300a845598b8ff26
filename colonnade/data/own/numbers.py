"""The first pass over a file: its ids, its labels and every number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colonnade.data.own.table import ABSENT, Cells, TableFile

ABSENT_NUMBER = ABSENT | {"none", "?", "-"}  # not numbers, although they may be a class or category


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
    x: NDArray[np.float32]  # NaN where there is no number
    texts: list[Texts]


def numbers_of(table: TableFile, id: str, label: str | None, features: list[str]) -> First:
    ids: list[str] = []
    labels: list[str] = []
    texts = [Texts() for _ in features]
    blocks: list[NDArray[np.float32]] = []
    one = {"": ""}  # equal labels are one object
    leading = [id] if label is None else [id, label]
    for piece in table.pieces([*leading, *features], leading):
        start = len(ids)
        ids += [str(cell).strip() for cell in piece[0]]
        if label is not None:
            labels += [one.setdefault(cell, cell) for cell in map(str.strip, map(str, piece[1]))]
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
    return First(ids, labels, x, texts)


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


def as_number(cell: str) -> float | None:
    text = cell.strip()
    if text.casefold() in ABSENT_NUMBER:
        return float("nan")
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
