"""VGG-16 with batch or group normalisation, to be cut at any of its layers.

A layer bears the name of the cut after it: "2C+1M" follows two convolutions and the first max-pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from colonnade.models.border import Border, Sides
from colonnade.models.layers import Norm, Padding, image, named, normed, scaled

# Configuration D: the channels of each convolution, stage by stage; a max-pool ends a stage.
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(
    shape: tuple[int, ...],
    out: int,
    *,
    width: float = 1.0,
    padding: Padding | Sides = "zeros",
    norm: Norm = "batch",
    fc: Sequence[int] = (4096, 4096),
    dropout: float = 0.5,
    activated: bool = True,
) -> nn.Sequential:
    """13 convolutions and `len(fc) + 1` fully connected layers: (batch, c, h, w) → (batch, out).

    With `activated=False` the outputs are class scores. `width` scales the convolutions, not `fc`.
    `norm = "group"` normalises each row by itself, as protect.model_epsilon needs it.
    `padding` may also name the sides (left, right, top, bottom) that repeat their outermost pixels.
    A max-pool for which the map is too small is omitted: the fifth for 16×16 tiles.
    """
    channels, h, w = image("vgg16", shape)
    layers: dict[str, nn.Module] = {}
    convolutions = halved = 0
    for stage in STAGES:
        for full_width in stage:
            convolutions += 1
            wide = scaled(full_width, width)
            layers[_cut(convolutions, halved)] = _conv(channels, wide, padding, norm)
            channels = wide
        if min(h, w) >= 2:
            halved += 1
            layers[_cut(convolutions, halved)] = nn.MaxPool2d(2)
            h, w = h // 2, w // 2
    features = channels * h * w
    for k, wide in enumerate((*fc, out), start=1):
        full: dict[str, nn.Module] = {"flatten": nn.Flatten()} if k == 1 else {}
        full["linear"] = nn.Linear(features, wide)
        if k <= len(fc):
            full |= {"relu": nn.ReLU(), "dropout": nn.Dropout(dropout)}
        elif activated:
            full["relu"] = nn.ReLU()
        layers[f"fc{k}"] = named(full)
        features = wide
    return named(layers)


def pools(cut: str) -> int:
    """How many max-pools lie before a cut; each of them halves the map."""
    return int(cut.partition("+")[2].rstrip("M") or 0)


def _cut(convolutions: int, halved: int) -> str:
    return f"{convolutions}C+{halved}M" if halved else f"{convolutions}C"


def _conv(channels: int, out: int, padding: Padding | Sides, norm: Norm) -> nn.Sequential:
    border: dict[str, nn.Module] = {}
    if padding != "zeros":
        border["border"] = Border() if padding == "replicate" else Border(padding)
    return named(
        border
        | {
            # A normalisation subtracts the mean, so a bias would have no effect.
            "conv": nn.Conv2d(channels, out, 3, padding=0 if border else 1, bias=False),
            "norm": normed(norm, out),
            "relu": nn.ReLU(),
        }
    )
