"""How much of an image a reconstruction shows: PSNR by pixel, SSIM by structure."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# The value for identical images: their ratio is infinite, and JSON has no infinity. Images of eight
# bits stay far below it: one pixel off by one grey level in a 32 × 32 image is 78 dB.
MOST_DECIBELS = 100.0

K1, K2 = 0.01, 0.03  # Wang et al., "Image quality assessment" (2004), §III-B; L = 1 here
WINDOW, SIGMA = 11, 1.5


def psnr(truth: Tensor, made: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB, at most `MOST_DECIBELS`: 10 log10(1 / mean squared error).

    truth, made  (rows, channels, height, width), in [0, 1]; the answer has shape (rows,)
    """
    error = (truth.double() - made.double()).square().mean((1, 2, 3))
    return -10 * error.clamp(min=10 ** (-MOST_DECIBELS / 10)).log10()


def ssim(truth: Tensor, made: Tensor) -> Tensor:
    """Structural similarity, 1 for identical images: the mean over channels and positions.

    Every position at which the Gaussian window lies inside the image counts. An image smaller
    than the window gets the largest odd window that fits. Shapes are those of `psnr`.
    """
    x, y = truth.double(), made.double()
    window = _window(min(*x.shape[2:], WINDOW)).to(x.device)
    mean_x, mean_y = _blur(x, window), _blur(y, window)
    variances = _blur(x * x, window) - mean_x**2 + _blur(y * y, window) - mean_y**2
    covariance = _blur(x * y, window) - mean_x * mean_y
    c1, c2 = K1**2, K2**2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * covariance + c2) / (variances + c2)
    return (luminance * structure).mean((1, 2, 3))


def _window(side: int) -> Tensor:
    half = (side - 1) // 2
    weights = torch.exp(-(torch.arange(-half, half + 1).double() ** 2) / (2 * SIGMA**2))
    return weights / weights.sum()


def _blur(images: Tensor, window: Tensor) -> Tensor:
    """Down, then across: a Gaussian in two dimensions is the product of two in one."""
    rows, channels, height, width = images.shape
    planes = images.reshape(rows * channels, 1, height, width)
    blurred = F.conv2d(F.conv2d(planes, window[None, None, :, None]), window[None, None, None, :])
    return blurred.reshape(rows, channels, *blurred.shape[2:])
