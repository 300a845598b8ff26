"""One party's rows before any preparation, and checks of rows that several parties share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from colonnade.config import Config
from colonnade.data import Column, Preparation, Split
from colonnade.errors import ConfigError, DataError
from colonnade.partition import Rectangle, View
from colonnade.role.method import Method

POOLED = "all"  # the only party of a method that sees everything


@dataclass(frozen=True)
class Holding:
    """One party's training, validation and test rows, before its own preparation."""

    splits: Mapping[str, Split]
    columns: tuple[Column, ...]
    view: View | None = None  # its part of every image

    def without_labels(self) -> Holding:
        return replace(self, splits={k: s.without_labels() for k, s in self.splits.items()})

    def only(self, rows: Tensor) -> Holding:
        """These rows alone, by their ids and in this order."""
        return replace(self, splits={k: s.only(rows) for k, s in self.splits.items()})


@contextmanager
def of(name: str) -> Iterator[None]:
    """Name this party in the errors raised inside."""
    try:
        yield
    except DataError as error:
        each = [f"party '{name}': {problem}" for problem in error.problems]
        raise type(error)(f"party '{name}': {error}", each) from error


def held_out_ids(train: Split, share: float, seed: int) -> Tensor:
    """The ids of the validation rows: the same for every party."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed + 1))
    return train.ids[order[: round(share * len(train))]]


def holding_of(train: Split, test: Split, columns: tuple[Column, ...], held_out: Tensor) -> Holding:
    """One party's rows; those with the ids `held_out` are for validation."""
    if not len(held_out):
        return Holding({"train": train, "test": test}, columns)
    out = torch.isin(train.ids, held_out)
    kept, validation = train.rows((~out).nonzero().flatten()), train.rows(out.nonzero().flatten())
    return Holding({"train": kept, "validation": validation, "test": test}, columns)


def prepare(
    name: str, holding: Holding, standardise: bool
) -> tuple[dict[str, Split], Preparation | None]:
    """Prepare a party's rows for its models, with the statistics of its own training rows."""
    splits = {key: replace(split, x=as_image(split.x)) for key, split in holding.splits.items()}
    x = splits["train"].x
    if not x[:1].numel():
        return splits, None
    with of(name):
        preparation = Preparation.fit(x, holding.columns, standardise=standardise)
        splits = {key: replace(s, x=preparation.apply(s.x)) for key, s in splits.items()}
    return splits, preparation


def as_image(x: Tensor) -> Tensor:
    """Treat separate pixels as an image of one row, because they share one brightness scale."""
    return x[:, None, None, :] if x.dtype == torch.uint8 and x.dim() == 2 else x


def pool(holdings: Mapping[str, Holding], holder: str) -> Holding:
    """All parties' columns side by side; images are flattened."""
    mine = holdings[holder].splits
    pooled = {}
    for key, split in mine.items():
        sides = [h.splits[key].x.flatten(1).float() for h in holdings.values()]
        pooled[key] = replace(split, x=torch.cat(sides, 1))
    columns: list[Column] = []
    for name, holding in holdings.items():
        width = holding.splits["train"].x.flatten(1).shape[1]
        own = holding.columns or tuple(Column(str(i)) for i in range(width))
        columns += [replace(c, name=f"{name}.{c.name}") for c in own]
    return Holding(pooled, tuple(columns))


def check_equal_rows(counts: Mapping[str, int], where: str) -> None:
    """Refuse parties that hold different numbers of rows."""
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise DataError(
            f"the parties hold different numbers of rows{where}: {listed}. This method needs the "
            "same rows in the same order at every party: align them first, or use a partition "
            "that keeps all rows (tiles, strips, columns)"
        )


def same_ids(holdings: Mapping[str, Holding]) -> None:
    """Refuse parties that hold different rows, or the same ones in different orders."""
    (first, reference), *others = holdings.items()
    for name, holding in others:
        if not torch.equal(holding.splits["train"].ids, reference.splits["train"].ids):
            raise DataError(
                f"'{first}' and '{name}' hold different rows. This method needs the same rows in "
                "the same order at every party: use a partition that keeps all rows (tiles, "
                "strips, columns), or choose a method or options that do not match rows"
            )


def declared_views(config: Config, parties: Sequence[str]) -> dict[str, View]:
    """The places of the parties' own images: [partition] names them, and divides nothing."""
    partition = config.partition
    if partition is None:
        return {}
    if partition.kind != "rectangles" or len(partition.rectangles) != len(parties):
        raise ConfigError(
            [
                "with the parties' own rows there is nothing to divide: [partition] may only name "
                f'the places, kind = "rectangles" with {len(parties)} rectangles, one (top, '
                f"left, height, width) for each party; given: {partition.kind}, "
                f"{len(partition.rectangles)} rectangles"
            ]
        )
    parts = [Rectangle(*numbers) for numbers in partition.rectangles]
    height, width = max(part.bottom for part in parts), max(part.right for part in parts)
    views = [View.of([*numbers, height, width]) for numbers in partition.rectangles]
    return dict(zip(parties, views, strict=True))


def check_view(name: str, x: Tensor, view: View | None, method: Method) -> None:
    """Check that a party's images fit its view."""
    if method.network.images and x.dim() != 4:
        shown = f"a table of {x.shape[1]} columns" if x[:1].numel() else "no features"
        raise ConfigError(
            [
                f"party '{name}' has {shown}, and {method.name} needs images, (rows, channels, "
                "height, width), at every party"
            ]
        )
    if method.network.images and view is None:
        raise ConfigError(
            [
                f"party '{name}': {method.name} joins parts of images by their places, and these "
                'have none. Divide images, [partition] kind = "tiles", "strips" or "rectangles"; '
                "for rows in memory, list their rectangles there"
            ]
        )
    if view is not None and tuple(x.shape[-2:]) != view.part.size:
        raise ConfigError(
            [
                f"party '{name}' has images of {x.shape[-2]}×{x.shape[-1]} pixels, and [partition] "
                f"gives it {view.part}. Images are (rows, channels, height, width)"
            ]
        )
