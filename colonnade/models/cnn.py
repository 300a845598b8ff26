"""EASTER's two small convolutional networks, as embedding networks h: image → d.

The paper names a CNN of two convolutions and two fully connected layers, and a LeNet of three
convolutions, one pooling and three fully connected layers; widths and kernels are our defaults.
"""

from __future__ import annotations

from torch import nn

from colonnade.models.layers import embedding, image, named, scaled


def cnn(
    shape: tuple[int, ...], out: int, *, width: float = 1.0, activated: bool = True
) -> nn.Sequential:
    """conv 32 3×3 ReLU, pool → conv 64 3×3 ReLU, pool → FC d ReLU."""
    channels, h, w = image("cnn", shape, smallest=4)
    a, b = scaled(32, width), scaled(64, width)
    return named(
        {
            "conv1": _conv(channels, a, 3, pool=True),  # (a, h/2, w/2)
            "conv2": _conv(a, b, 3, pool=True),  # (b, h/4, w/4)
            "embedding": embedding(b * (h // 4) * (w // 4), out, activated),
        }
    )


def lenet(
    shape: tuple[int, ...], out: int, *, width: float = 1.0, activated: bool = True
) -> nn.Sequential:
    """conv 6 5×5 ReLU → conv 16 5×5 ReLU, pool → conv 120 5×5 ReLU → FC d ReLU."""
    channels, h, w = image("lenet", shape, smallest=2)
    a, b, c = (scaled(n, width) for n in (6, 16, 120))
    return named(
        {
            "conv1": _conv(channels, a, 5),  # (a, h, w)
            "conv2": _conv(a, b, 5, pool=True),  # (b, h/2, w/2)
            "conv3": _conv(b, c, 5),  # (c, h/2, w/2)
            "embedding": embedding(c * (h // 2) * (w // 2), out, activated),
        }
    )


def _conv(channels: int, out: int, kernel: int, pool: bool = False) -> nn.Sequential:
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(channels, out, kernel, padding=kernel // 2),
        "relu": nn.ReLU(),
    }
    return named(layers | {"pool": nn.MaxPool2d(2)} if pool else layers)
