"""Rows that a trained run has not seen: of files, or given as arrays; side by side where pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from colonnade import data
from colonnade.assembly import check_equal_rows, of
from colonnade.data import Column
from colonnade.errors import DataError


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows of new files, as the models take them: those that all parties have, in one order."""

    rows: Mapping[str, Tensor]  # by party, equally many where they are predicted together
    names: Mapping[str, tuple[str, ...]]  # what each party calls them
    left_out: Mapping[str, int]  # rows of its file that not all have
    # Their labels, in the order in which they were asked for, as far as there are any; "": none
    truth: Mapping[str, tuple[str, ...]]
    order: Tensor | None = None  # where the rows are that were asked for first, second …


def pooled_columns(columns: Sequence[Column]) -> dict[str, tuple[Column, ...]]:
    """Whose the columns of a pooled method were, in their order."""
    owned: dict[str, tuple[Column, ...]] = {}
    for column in columns:
        owner, _, name = column.name.partition(".")
        owned[owner] = (*owned.get(owner, ()), replace(column, name=name))
    return owned


def pooled(parties: Mapping[str, Any], owned: Mapping[str, tuple[Column, ...]]) -> Tensor:
    """The columns of all parties side by side, as a pooled method was trained on them."""
    if set(owned) != set(parties):
        raise DataError(f"give the rows of {', '.join(owned)}, or all of them as 'all'")
    sides = []
    for owner, own in owned.items():
        with of(owner):
            sides.append(data.from_arrays(parties[owner], like=own)[0].flatten(1))
    check_equal_rows({n: len(s) for n, s in zip(owned, sides, strict=True)}, "")
    return torch.cat([side.float() for side in sides], 1)
