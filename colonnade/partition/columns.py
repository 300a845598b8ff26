"""Divides the columns of a table, or the pixels of an image read row by row, among parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor

from colonnade.errors import PartitionError, unknown
from colonnade.partition.images import same
from colonnade.partition.sizes import even, portion


def columns(
    count: int,
    parties: int = 4,
    *,
    sizes: Sequence[int] = (),
    shuffle: int | None = None,
    overlap: float = 0.0,
) -> list[Tensor]:
    """The columns of each party: contiguous blocks, of even or given `sizes`.

    `shuffle` is a seed: the blocks are then cut from permuted columns. `overlap` is the fraction
    of its columns that every party shares with the next (the last with the first).
    """
    blocks = _sizes(count, parties, sizes)
    order = torch.arange(count)
    if shuffle is not None:
        order = torch.from_numpy(np.random.default_rng((shuffle, 1)).permutation(count))
    return _shared([block.sort().values for block in torch.split(order, blocks)], overlap)


def named_columns(
    names: Sequence[str], groups: Mapping[str, Sequence[str]], *, overlap: float = 0.0
) -> dict[str, Tensor]:
    """The columns of each named party, listed by name or by pattern such as `*Acc*`.

    Patterns of one party may overlap; two parties may not name the same column. A column that no
    party names belongs to none. Every party has its columns in the order of the table.
    """
    if not groups:
        raise PartitionError("groups: none given. List the columns of each party.")
    owner: dict[int, str] = {}
    found: dict[str, Tensor] = {}
    for party, patterns in groups.items():
        mine = sorted({i for pattern in patterns for i in _matches(names, pattern, party)})
        if not mine:
            raise PartitionError(f"groups: '{party}' names no column. Give it one, or omit it.")
        if len(set(patterns)) < len(patterns):
            twice = next(p for p in patterns if list(patterns).count(p) > 1)
            raise PartitionError(f"groups: '{party}' names '{twice}' twice. Remove one.")
        for i in mine:
            if i in owner:
                raise PartitionError(
                    f"groups: '{owner[i]}' and '{party}' both name the column '{names[i]}'. "
                    "Give it to one of them; column_overlap makes parties share columns."
                )
            owner[i] = party
        found[party] = torch.tensor(mine)
    return dict(zip(found, _shared(list(found.values()), overlap), strict=True))


def cut_columns(x: Tensor, index: Tensor) -> Tensor:
    """The columns at `index`, copied; images (n, c, h, w) are read as rows of c·h·w pixels."""
    return x.flatten(1)[:, index]


def join_columns(
    parts: Sequence[Tensor], indices: Sequence[Tensor], count: int, fill: float = 0
) -> Tensor:
    """Put columns back at their places, (n, count); columns that nobody has are `fill`."""
    if not parts or len(parts) != len(indices):
        raise PartitionError(
            f"join_columns: {len(parts)} parts for {len(indices)} lists of columns. "
            "Give one part for each."
        )
    whole = parts[0].new_full((len(parts[0]), count), fill)
    taken = torch.zeros(count, dtype=torch.bool, device=whole.device)
    for k, (part, index) in enumerate(zip(parts, indices, strict=True)):
        index = index.to(whole.device)
        if part.shape != (len(whole), len(index)):
            raise PartitionError(
                f"join_columns: part {k} has the shape {tuple(part.shape)}; expected "
                f"{(len(whole), len(index))} for its {len(index)} columns."
            )
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < count:
            raise PartitionError(
                f"join_columns: part {k} has the columns {int(index.min())} to {int(index.max())}; "
                f"the whole has {count}, counted from 0."
            )
        again = taken[index]
        if bool(again.any()) and not same(whole[:, index[again]], part[:, again]):
            raise PartitionError(
                f"join_columns: part {k} differs from an earlier part in a column that both hold. "
                "They are not cut from the same rows in the same order."
            )
        whole[:, index] = part
        taken[index] = True
    return whole


def _sizes(count: int, parties: int, sizes: Sequence[int]) -> list[int]:
    if sizes:
        if min(sizes) < 1 or sum(sizes) != count:
            raise PartitionError(
                f"columns: sizes {list(sizes)} add up to {sum(sizes)}, there are {count} columns. "
                "Give every column to a party and every party at least one, "
                "or list the columns of each party under groups."
            )
        return list(sizes)
    if not 1 <= parties <= count:
        raise PartitionError(
            f"columns: {count} columns cannot be divided among {parties} parties. "
            f"Use between 1 and {count} parties."
        )
    return even(count, parties)


def _shared(blocks: list[Tensor], overlap: float) -> list[Tensor]:
    """Every party also gets the last columns of the party before it."""
    if not 0 <= overlap <= 1:
        raise PartitionError(f"columns: an overlap of {overlap} is not a fraction between 0 and 1.")
    if overlap == 0:
        return blocks
    if len(blocks) == 1:
        raise PartitionError("columns: a single party has nobody to share columns with.")
    lent = [block[len(block) - portion(len(block), overlap) :] for block in blocks]
    return [torch.cat([own, lent[k - 1]]).sort().values for k, own in enumerate(blocks)]


def _matches(names: Sequence[str], pattern: str, party: str) -> list[int]:
    # A name is taken literally first: published names may contain brackets.
    found = [i for i, name in enumerate(names) if name == pattern]
    found = found or [i for i, name in enumerate(names) if fnmatchcase(name, pattern)]
    if found:
        return found
    raise PartitionError(unknown(pattern, names, f"in partition.groups.{party}", "column"))
