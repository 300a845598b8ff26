"""x → ⟨x, Enc(x)⟩ as a module, for a network on top of it and for checkpoints."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from colonnade.methods.parts import enrichment as enrich
from colonnade.methods.parts.enrichment import Encoder, Enricher


class Enriched(nn.Module):
    """x → ⟨x, Enc(x)⟩; what it knows comes from `learn` or from a checkpoint."""

    shift: Tensor
    scale: Tensor

    def __init__(self, features: int, options: Enricher) -> None:
        super().__init__()
        nobody = torch.empty(0, dtype=torch.int64), torch.empty(0, options.q)
        blank = enrich.train(torch.zeros(1, features), *nobody, replace(options, epochs=0))
        self.network, self.options = blank.network, blank.options
        self.register_buffer("shift", blank.shift)
        self.register_buffer("scale", blank.scale)

    @property
    def width(self) -> int:
        """How many columns are appended."""
        return Encoder(self.network, self.shift, self.scale, self.options).width

    def learn(self, encoder: Encoder) -> None:
        self.network.load_state_dict(encoder.network.state_dict())
        self.shift.copy_(encoder.shift)
        self.scale.copy_(encoder.scale)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        code = enrich.encode(Encoder(self.network, self.shift, self.scale, self.options), x)
        return torch.cat([x, code.to(x.dtype)], 1)
