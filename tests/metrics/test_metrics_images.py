"""Two measures of a reconstruction, against values known beforehand and a slow reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from colonnade.metrics.images import MOST_DECIBELS, psnr, ssim


def images(rows: int = 3, channels: int = 3, height: int = 16, width: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(rows, channels, height, width, generator=generator)


def noised(truth: Tensor, share: float) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return (truth + share * torch.randn(truth.shape, generator=generator)).clamp(0, 1)


def test_identical_images_get_the_highest_values() -> None:
    truth = images()
    assert torch.allclose(ssim(truth, truth), torch.ones(3).double())
    assert psnr(truth, truth).tolist() == [MOST_DECIBELS] * 3


def test_known_ratios() -> None:
    truth = torch.full((2, 3, 8, 8), 0.5)
    made = truth.clone()
    made[0] += 0.1  # mean squared error 0.01
    made[1, :, :4] += 0.5  # half of the pixels: 0.125
    expected = torch.tensor([20.0, -10 * math.log10(0.125)]).double()
    assert torch.allclose(psnr(truth, made), expected, atol=1e-5)


def test_constant_images_differ_in_luminance_alone() -> None:
    dark, light = torch.full((1, 1, 12, 12), 0.25), torch.full((1, 1, 12, 12), 0.75)
    expected = (2 * 0.25 * 0.75 + 1e-4) / (0.25**2 + 0.75**2 + 1e-4)
    assert ssim(dark, light).item() == pytest.approx(expected)


def test_one_grey_level_in_one_pixel_is_below_the_cap() -> None:
    truth = torch.zeros(1, 1, 32, 32)
    made = truth.clone()
    made[0, 0, 5, 5] = 1 / 255
    assert psnr(truth, made).item() == pytest.approx(78.2, abs=0.1)


def test_symmetric() -> None:
    truth = images()
    made = noised(truth, 0.2)
    assert torch.equal(psnr(truth, made), psnr(made, truth))
    assert torch.allclose(ssim(truth, made), ssim(made, truth))


def test_noise_lowers_both() -> None:
    truth = images()
    for measure in (psnr, ssim):
        values = torch.stack([measure(truth, noised(truth, s)) for s in (0.02, 0.1, 0.3, 1.0)])
        assert (values.diff(dim=0) < 0).all()


@pytest.mark.parametrize(
    ("height", "width", "side"), [(14, 13, 11), (8, 20, 7), (5, 5, 5), (2, 9, 1)]
)
def test_ssim_equals_a_loop_over_windows(height: int, width: int, side: int) -> None:
    truth = images(2, 3, height, width)
    made = noised(truth, 0.3)
    expected = [
        np.mean([reference(x, y, side) for x, y in zip(a, b, strict=True)])
        for a, b in zip(truth.double().numpy(), made.double().numpy(), strict=True)
    ]
    assert ssim(truth, made).tolist() == pytest.approx(expected)


def reference(x: np.ndarray, y: np.ndarray, side: int) -> float:
    """SSIM of two planes, window by window as the paper writes it."""
    place = np.arange(side) - side // 2
    weights = np.exp(-(place[:, None] ** 2 + place[None, :] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    found = []
    for i in range(x.shape[0] - side + 1):
        for j in range(x.shape[1] - side + 1):
            a, b = x[i : i + side, j : j + side], y[i : i + side, j : j + side]
            mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
            var_a = (weights * (a - mean_a) ** 2).sum()
            var_b = (weights * (b - mean_b) ** 2).sum()
            both = (weights * (a - mean_a) * (b - mean_b)).sum()
            top = (2 * mean_a * mean_b + 0.01**2) * (2 * both + 0.03**2)
            bottom = (mean_a**2 + mean_b**2 + 0.01**2) * (var_a + var_b + 0.03**2)
            found.append(top / bottom)
    return float(np.mean(found))
