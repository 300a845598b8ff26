"""Random flips and shifts of images, drawn once per sample and applied by each party to its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moves:
    """What happens to each row of an epoch; parties with one seed draw the same."""

    flips: Tensor  # bool (rows,)
    down: Tensor  # int64 (rows,), pixels
    right: Tensor  # int64 (rows,)
    turns: Tensor | None = None  # bool (rows,): upside down; None: no image is

    @staticmethod
    def draw(
        rows: int, flip: bool, shift: int, generator: torch.Generator, upside_down: bool = False
    ) -> Moves:
        flips = torch.rand(rows, generator=generator) < 0.5 if flip else torch.zeros(rows).bool()
        down, right = torch.randint(-shift, shift + 1, (2, rows), generator=generator)
        turns = torch.rand(rows, generator=generator) < 0.5 if upside_down else None
        return Moves(flips, down, right, turns)

    def part(self, which: slice | Tensor) -> Moves:
        return self._each(lambda tensor: tensor[which])

    def to(self, device: torch.device) -> Moves:
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Moves:
        turns = None if self.turns is None else change(self.turns)
        return Moves(change(self.flips), change(self.down), change(self.right), turns)

    def places(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Where each row and column of a moved image comes from: (rows, height), (rows, width)."""
        y = torch.arange(height, device=self.down.device) - self.down[:, None]
        x = torch.arange(width, device=self.down.device) - self.right[:, None]
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        if self.turns is not None:
            y = torch.where(self.turns[:, None], height - 1 - y, y)
        return y, torch.where(self.flips[:, None], width - 1 - x, x)

    def apply(self, images: Tensor) -> Tensor:
        """Moved images (batch, channels, height, width); what a shift uncovers repeats the edge."""
        rows, channels, height, width = images.shape
        y, x = self.to(images.device).places(height, width)
        number = torch.arange(rows, device=images.device)[:, None, None, None]
        channel = torch.arange(channels, device=images.device)[None, :, None, None]
        return images[number, channel, y[:, None, :, None], x[:, None, None, :]]
