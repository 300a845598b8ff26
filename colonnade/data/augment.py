"""Random flips and shifts of images, drawn once per sample and applied by each party to its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moves:
    """What happens to each row of an epoch; parties with one seed draw the same."""

    flips: Tensor  # bool (rows,)
    down: Tensor  # int64 (rows,), pixels
    right: Tensor  # int64 (rows,)

    @staticmethod
    def draw(rows: int, flip: bool, shift: int, generator: torch.Generator) -> Moves:
        flips = torch.rand(rows, generator=generator) < 0.5 if flip else torch.zeros(rows).bool()
        down, right = torch.randint(-shift, shift + 1, (2, rows), generator=generator)
        return Moves(flips, down, right)

    def part(self, span: slice) -> Moves:
        return Moves(self.flips[span], self.down[span], self.right[span])

    def apply(self, images: Tensor) -> Tensor:
        """Moved images (batch, channels, height, width); what a shift uncovers repeats the edge."""
        rows, channels, height, width = images.shape
        flips, down, right = (t.to(images.device) for t in (self.flips, self.down, self.right))
        y = torch.arange(height, device=images.device) - down[:, None]  # (batch, height)
        x = torch.arange(width, device=images.device) - right[:, None]  # (batch, width)
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        x = torch.where(flips[:, None], width - 1 - x, x)
        number = torch.arange(rows, device=images.device)[:, None, None, None]
        channel = torch.arange(channels, device=images.device)[None, :, None, None]
        return images[number, channel, y[:, None, :, None], x[:, None, None, :]]
