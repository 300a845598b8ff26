"""Attacks that a receiver could mount on the messages that it received."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def label_leak(gradients: Sequence[Tensor | None], labels: Tensor) -> Tensor:
    """The share of labels that a receiver finds in dL/dscores by the smallest entry of each row.

    Row by row that gradient is softmax minus one-hot, negative at the true class alone.
    """
    received = torch.stack([gradient for gradient in gradients if gradient is not None])
    return (received.argmin(2) == labels).double().mean()
