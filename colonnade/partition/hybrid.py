"""Rows and columns divided at once: FedEmb's hybrid setting (HBFL)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from colonnade.partition.columns import columns
from colonnade.partition.rows import overlap


def hybrid(
    n: int,
    count: int,
    parties: int,
    seed: int,
    *,
    row_overlap: float = 0.0,
    column_overlap: float = 0.0,
    sizes: Sequence[int] = (),
    shuffle: bool = False,
    labels: Tensor | None = None,
    alpha: float | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """The (rows, columns) of each party: without overlaps 1/M of the rows and 1/M of the columns.

    `row_overlap` is the part of all rows that every party has, `column_overlap` the part of its
    columns that a party shares with the next.
    """
    features = columns(
        count, parties, sizes=sizes, shuffle=seed if shuffle else None, overlap=column_overlap
    )
    rows = overlap(n, len(features), float(row_overlap), seed, labels=labels, alpha=alpha)
    return list(zip(rows, features, strict=True))
