"""Residual networks for small images: 3×3 stem, no max-pool, global average pool.

Children: stem, stage1 .. stage3 or stage4, embedding. JoVe-FL cuts a ResNet-18 at "stage2".
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from colonnade.models.layers import Norm, embedding, image, named, normed, scaled


@dataclass(frozen=True)
class Plan:
    """How many blocks in each stage, and how wide."""

    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    bottleneck: bool = False


SMALL, LARGE = (16, 32, 64), (64, 128, 256, 512)
PLANS = {
    8: Plan((1, 1, 1), SMALL),
    14: Plan((2, 2, 2), SMALL),
    20: Plan((3, 3, 3), SMALL),
    18: Plan((2, 2, 2, 2), LARGE),
    50: Plan((3, 4, 6, 3), LARGE, bottleneck=True),
    101: Plan((3, 4, 23, 3), LARGE, bottleneck=True),
}


class Block(nn.Module):
    """x + f(x), where f is two 3×3 convolutions, or 1×1, 3×3, 1×1 around a bottleneck."""

    def __init__(
        self, channels: int, width: int, stride: int, bottleneck: bool, norm: Norm = "batch"
    ) -> None:
        super().__init__()
        out = 4 * width if bottleneck else width
        if bottleneck:
            self.residual = nn.Sequential(
                *_conv(channels, width, 1, norm=norm),
                nn.ReLU(),
                *_conv(width, width, 3, stride, norm),
                nn.ReLU(),
                *_conv(width, out, 1, norm=norm),
            )
        else:
            self.residual = nn.Sequential(
                *_conv(channels, width, 3, stride, norm),
                nn.ReLU(),
                *_conv(width, out, 3, norm=norm),
            )
        same = stride == 1 and channels == out
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_conv(channels, out, 1, stride, norm))
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return y


def resnet(
    depth: int,
    shape: tuple[int, ...],
    out: int,
    *,
    width: float = 1.0,
    norm: Norm = "batch",
    activated: bool = True,
) -> nn.Sequential:
    """ResNet-8, -14, -20 (three stages) or -18, -50, -101 (four): (batch, c, h, w) → (batch, out).

    Every stage but the first halves the map. Any height and width will do, also after a cut.
    `norm = "group"` normalises each row by itself, as protect.model_epsilon needs it.
    """
    channels, _, _ = image(f"resnet{depth}", shape)
    plan = PLANS[depth]
    stem = scaled(plan.widths[0], width)
    layers = {"stem": nn.Sequential(*_conv(channels, stem, 3, norm=norm), nn.ReLU())}
    channels = stem
    for k, (count, full) in enumerate(zip(plan.blocks, plan.widths, strict=True), start=1):
        wide, stride = scaled(full, width), 1 if k == 1 else 2
        blocks = []
        for i in range(count):
            blocks.append(Block(channels, wide, stride if i == 0 else 1, plan.bottleneck, norm))
            channels = 4 * wide if plan.bottleneck else wide
        layers[f"stage{k}"] = nn.Sequential(*blocks)
    layers["embedding"] = embedding(channels, out, activated, pool=nn.AdaptiveAvgPool2d(1))
    return named(layers)


def _conv(
    channels: int, out: int, kernel: int, stride: int = 1, norm: Norm = "batch"
) -> tuple[nn.Module, nn.Module]:
    conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
    return conv, normed(norm, out)
