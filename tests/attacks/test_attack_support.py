"""Which numbers can be released does not depend on the rows: only how likely each of them is.

Noise that is drawn as a floating-point number and added to another one leaves holes: some sums
cannot come from one value and can from its neighbour, and one release then tells them apart for
certain, whatever ε says (Mironov, "On Significance of the Least Significant Bits For Differential
Privacy", 2012). What is released here are whole multiples of a public step.
"""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from colonnade.privacy.budget import Budget, release
from colonnade.privacy.grouping import Grouping, single_groups

CLIP, EPSILON, WIDTH = 1.0, 1.0, 400
SPREAD = 2 * CLIP / EPSILON  # b of the Laplace noise of a row by itself


def row(first: float) -> Tensor:
    """A row that differs from others of this kind in its first entry."""
    x = torch.zeros(1, WIDTH, dtype=torch.float64)
    x[0, :] = first / WIDTH
    return x


def possible(told: Tensor, value: float) -> Tensor:
    """Whether each number can be this value plus noise that a float of 53 random bits gave."""
    size = torch.exp(-(told - value).abs() / SPREAD) * 2.0**53 - 0.5
    found = torch.zeros(told.shape, dtype=torch.bool)
    for step in range(-8, 9):
        noise = -SPREAD * ((size.round() + step + 0.5) * 2.0**-53).log()
        found |= (value + noise == told) | (value - noise == told)
    return found


def test_the_last_bits_do_not_tell_two_rows_apart() -> None:
    """The attacker knows that a row is one of two, and asks of each number whether the one or the
    other could have given it. Were it the right one more often, it would know the row."""
    right, wrong = [], []
    for number in range(20):
        secret = number.to_bytes(32, "little")
        told = release(row(1.0), single_groups(1), CLIP, EPSILON, Budget(1.0), secret)
        right.append(possible(told, 1.0 / WIDTH).double().mean())
        wrong.append(possible(told, -1.0 / WIDTH).double().mean())
    gap = float(torch.stack(right).mean() - torch.stack(wrong).mean())
    assert abs(gap) < 0.02, f"the right row is possible {gap:.0%} more often than the wrong one"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_released_numbers_are_multiples_of_a_public_step(dtype: torch.dtype) -> None:
    """Of other rows, with another order of the same rows and after another sum: the same step,
    which follows from the bound and the sizes of groups alone."""
    groups = Grouping(torch.tensor([0] * 7 + [1]), 2)
    generator = torch.Generator().manual_seed(1)
    for number in range(20):
        x = torch.randn(8, WIDTH, generator=generator, dtype=dtype) * 10.0 ** (number % 7 - 3)
        told = release(x, groups, CLIP, EPSILON, Budget(1.0), number.to_bytes(32, "little"))
        sums = told.double() * groups.sizes[:, None] * 2.0**17
        far = (sums - sums.round()).abs()
        # Rounding to the dtype moves a number that has been a multiple, and by no more than that.
        assert float((far / sums.abs().clamp(min=1)).max()) < 4 * torch.finfo(dtype).eps


def test_the_noise_of_a_release_is_laplace() -> None:
    """10⁵ draws of what is added, against the law that ε asks for."""
    x = torch.zeros(1, 100_000)
    for number, epsilon in enumerate((0.1, 1.0, 8.0)):
        told = release(x, single_groups(1), CLIP, epsilon, Budget(9.0), bytes([number] * 32))
        law = stats.laplace(scale=2 * CLIP / epsilon)
        assert stats.kstest(told.flatten().numpy(), law.cdf).pvalue > 0.001
        assert float(told.double().abs().mean()) == pytest.approx(2 * CLIP / epsilon, rel=0.02)
        assert math.isclose(float((told > 0).double().mean()), 0.5, abs_tol=0.01)
