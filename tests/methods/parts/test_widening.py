"""Widened means of groups vary as rows do."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from colonnade.methods.parts.widening import widened


def test_widened_means_vary_like_rows() -> None:
    """Also together: what two clients see of the same rows is as correlated as before."""
    draw = torch.Generator().manual_seed(0)
    rows, k, classes = 200_000, 20, torch.arange(2).repeat_interleave(100_000)
    seen = torch.randn(rows, 1, 2, generator=draw)  # both clients see this, each beside its own
    values = seen + torch.randn(rows, 2, 2, generator=draw) + 3 * classes[:, None, None]
    of_groups = values.view(-1, k, 2, 2).mean(1)
    targets = F.one_hot(classes.view(-1, k)[:, 0]).float()
    found = widened(of_groups, targets, torch.tensor([k, k]))
    for label in (0, 1):
        wanted = values[classes == label].flatten(1).T.cov()
        got = found[targets[:, label] == 1].flatten(1).T.cov()
        assert wanted[0, 2] > 0.9  # of different clients
        assert float((got - wanted).abs().max()) < 0.15
        middle = values[classes == label].mean(0)
        torch.testing.assert_close(
            found[targets[:, label] == 1].mean(0), middle, rtol=1e-4, atol=1e-4
        )
