"""A mixture of two networks' probabilities."""

from __future__ import annotations

import torch
from torch.nn import functional

from colonnade.methods.parts.mixture import Mixture
from colonnade.task import Task


def test_it_mixes_probabilities() -> None:
    first, second = torch.randn(4, 3), torch.randn(4, 3)
    mixture = Mixture(Task.of(("no", "yes")))
    mixture.part.fill_(0.25)
    wanted = 0.25 * first.softmax(1) + 0.75 * second.softmax(1)
    torch.testing.assert_close(mixture(first, second).exp(), wanted)


def test_of_equal_mixtures_the_evenest() -> None:
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    mixture = Mixture(Task.of(("no", "yes")))
    mixture.part.fill_(0.25)
    mixture.choose(logits, logits, labels)
    assert float(mixture.part) == 0.5
    sure = 20 * functional.one_hot(labels, 3).float()
    mixture.choose(-sure, sure, labels)
    assert float(mixture.part) == 0.0
    assert torch.allclose(mixture(-sure, sure), sure.log_softmax(1))
