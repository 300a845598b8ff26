"""Which moved views of the training images the clients of AdptVFedConv upload, and which of them
every epoch takes.

    cached       Upload once. With views = 2 also the maps of mirrored tiles; a random one of the
                 views is shifted, cell by cell, after it was stitched. With views = 1 the
                 stitched map is mirrored instead. Further views are mirrored and shifted tiles.
    consistent   Every party moves its own tile in the same way, from a common seed; mirrored
                 tiles change their slots. New maps every epoch, or `views` of them, once.
    oracle       Whole images are moved, then cut: pixels cross between the parties. What the
                 paper's accuracy needs; no protocol can do it, only a simulation.
    none         Images stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from colonnade.data import Moves
from colonnade.role.party import Party
from colonnade.role.seeds import derive

Augment = Literal["cached", "consistent", "oracle", "none"]


def check_views(augment: Augment, views: int | None) -> None:
    """A ValueError where this many views make no sense."""
    if views == 0 and augment in ("cached", "none"):
        raise ValueError(f'views = 0: augment = "{augment}" uploads once; give at least 1')
    if views and augment == "oracle":
        raise ValueError(f'views = {views}: augment = "oracle" uploads every epoch')
    if (views or 0) > 1 and augment == "none":
        raise ValueError(f'views = {views}: augment = "none" has one')


@dataclass(frozen=True)
class Views:
    """All parties of a run have the same ones, so that their maps fit together."""

    augment: Augment
    wanted: int | None  # uploads; 0: one every epoch; None: as many as the augmentation needs
    rows: int  # of training
    seed: int
    flip: bool
    shift: int  # pixels

    @staticmethod
    def of(me: Party, augment: Augment, wanted: int | None) -> Views:
        plan, rows = me.schedule, len(me.splits["train"])
        return Views(augment, wanted, rows, plan.seed, plan.flip, plan.shift)

    @property
    def streamed(self) -> bool:
        """Whether the clients send new maps every epoch."""
        return self.augment in ("consistent", "oracle") and not self.wanted

    def uploads(self) -> list[Moves | None]:
        """How the tiles of each upload are moved, None for not at all; no uploads if streamed."""
        if self.streamed:
            return []
        moved = []
        for number in range(self.wanted or (2 if self.flip and self.augment == "cached" else 1)):
            generator = torch.Generator().manual_seed(derive(self.seed, "view", number))
            moved.append(Moves.draw(self.rows, self.flip, self.shift, generator))
        if self.augment == "consistent":
            return list(moved)
        nothing = torch.zeros(self.rows, dtype=torch.int64)
        everything = torch.ones(self.rows, dtype=torch.bool)
        mirrored = Moves(everything, nothing, nothing) if self.flip else moved[-1]
        return [None, mirrored, *moved[2:]][: len(moved)]

    def choose(self, epoch: int, stride: int, device: torch.device) -> Choice:
        """What this epoch takes; a cell of a map is `stride` pixels wide."""
        count = len(self.uploads())
        generator = torch.Generator().manual_seed(derive(self.seed, "maps", epoch))
        view = torch.randint(max(count, 1), (self.rows,), generator=generator).to(device)
        if self.augment != "cached":
            return Choice(view, None)
        shift, flip = self.shift // stride, self.flip and count == 1
        if not (flip or shift):
            return Choice(view, None)
        return Choice(view, Moves.draw(self.rows, flip, shift, generator).to(device))


@dataclass(frozen=True)
class Choice:
    """Which view of every row one epoch takes, and how its stitched map is moved."""

    view: Tensor  # int64 (rows,)
    moves: Moves | None  # in cells

    def maps(self, store: Tensor, rows: Tensor) -> Tensor:
        """The maps of these rows, gathered and moved in one go, (batch, channels, height, width).

        store  (views, rows, height, width, channels)
        """
        view = self.view[rows]
        if self.moves is None:
            maps = store[view, rows]
        else:
            y, x = self.moves.part(rows).places(*store.shape[2:4])
            maps = store[view[:, None, None], rows[:, None, None], y[:, :, None], x[:, None, :]]
        return maps.permute(0, 3, 1, 2).float()
