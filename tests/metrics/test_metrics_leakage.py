"""The attack finds what is there, and nothing where there is nothing."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from colonnade.metrics.leakage import label_leak


def test_gradients_of_the_scores_show_every_label() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 10, (500,), generator=generator)
    scores = torch.randn(500, 10, generator=generator, requires_grad=True)
    F.cross_entropy(scores, labels).backward()
    assert label_leak([scores.grad], labels) == 1.0


def test_noise_shows_no_more_than_guessing() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 10, (2000,), generator=generator)
    noise = torch.randn(2, 2000, 10, generator=generator)
    assert 0.07 < label_leak([*noise, None], labels) < 0.13
