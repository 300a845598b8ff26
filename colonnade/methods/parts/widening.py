"""Widens the means of groups so that they vary as much as rows do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from colonnade.role.party import Party


def widen(me: Party, means: Tensor, targets: Tensor, rows: Sequence[float]) -> Tensor:
    """`widened`, for parties whose groups have so many rows each; says where it changes nothing."""
    sizes = torch.tensor(rows, device=means.device)
    if sizes.max() == 1 or targets.argmax(1).bincount().max() == 1:
        me.remark(
            "widen has changed nothing: it needs several groups of a class, of several rows. "
            "Choose groups between the numbers of classes and rows"
        )
    return widened(means, targets, sizes)


def widened(means: Tensor, targets: Tensor, sizes: Tensor) -> Tensor:
    """Means of groups, (groups, parties, width), as far apart as rows of their class are.

    Means of k rows of a class lie about its middle as the rows do, but √k times nearer to it. √k
    times farther out they vary like rows, and so does what several parties see of the same rows
    together: of this the sum of the parties' outputs knows nothing.

    targets  (groups, classes): the largest says the class of a group
    sizes    (parties,): k, the rows of a group
    """
    classes = targets.argmax(1)
    of_class = F.one_hot(classes, targets.shape[1]).to(means.dtype)
    middles = torch.einsum("gc,gmw->cmw", of_class, means)
    middles /= of_class.sum(0).clamp(min=1)[:, None, None]
    middle = middles[classes]
    return middle + sizes.sqrt()[:, None] * (means - middle)
