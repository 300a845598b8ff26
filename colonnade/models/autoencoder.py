"""Mirrored auto-encoders: a decoder for a VGG extractor, and fully connected ones.

Both are `Sequential(encoder, decoder)`, so `split(model, "encoder")` gives the two halves.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from colonnade.errors import ConfigError
from colonnade.models.layers import Activation, image, named
from colonnade.models.mlp import mlp

Output = Literal["linear", "relu", "sigmoid"]


def mlp_autoencoder(
    features: int,
    code: int,
    *,
    layers: int = 3,
    activation: Activation = "sigmoid",
    code_activated: bool = False,
    output_activated: bool = False,
) -> nn.Sequential:
    """VFedTrans' auto-encoder: (batch, features) → (batch, code) → (batch, features).

    `layers` counts the encoder's; widths go linearly from `features` to `code` and back.
    The default code is linear, because its target U has negative entries; with both
    `code_activated` and `output_activated` it is the network of the authors' published code.
    """
    if layers < 1:
        raise ConfigError([f"an auto-encoder has at least one encoder layer, not {layers}."])
    widths = [round(features + (code - features) * k / layers) for k in range(layers + 1)]
    inner = widths[1:-1]
    encoder = mlp((features,), code, hidden=inner, activation=activation, activated=code_activated)
    decoder = mlp(
        (code,), features, hidden=inner[::-1], activation=activation, activated=output_activated
    )
    return named({"encoder": encoder, "decoder": decoder})


def vgg_decoder(
    extractor: nn.Sequential,
    shape: tuple[int, ...],
    *,
    output: Output = "linear",
) -> nn.Sequential:
    """The mirror image of the first layers of a VGG: map → (batch, *shape).

    In reverse order, an upsampling mirrors every max-pool, and a transposed convolution with
    BatchNorm and ReLU mirrors every convolution. The last layer is linear, because normalised
    pixels may be negative; `output="relu"` ends in BatchNorm and ReLU as printed, "sigmoid" fits
    pixels in [0, 1].
    """
    _, h, w = image("vgg16", shape)
    mirrored: list[nn.Module] = []
    for layer in extractor:
        if isinstance(layer, nn.MaxPool2d):
            # The size is given, not the factor: a pool turns 7 into 3, and doubling 3 gives only 6.
            mirrored.append(nn.Upsample(size=(h, w)))
            h, w = h // 2, w // 2
        elif isinstance(conv := getattr(layer, "conv", None), nn.Conv2d):
            # The extractor's first convolution is mirrored by the decoder's last layer.
            end = output if not mirrored else "relu"
            mirrored.append(_transposed(conv.out_channels, conv.in_channels, end))
        else:
            raise ConfigError(
                [
                    "a decoder mirrors convolutions and max-pools only, and this extractor also "
                    f"contains {type(layer).__name__}. Cut the VGG before its fully connected part."
                ]
            )
    mirrored.reverse()
    return nn.Sequential(*mirrored)


def _transposed(channels: int, out: int, end: Output) -> nn.Sequential:
    normed = end == "relu"
    layers: dict[str, nn.Module] = {
        "conv": nn.ConvTranspose2d(channels, out, 3, padding=1, bias=not normed)
    }
    if normed:
        layers |= {"norm": nn.BatchNorm2d(out), "relu": nn.ReLU()}
    elif end == "sigmoid":
        layers["sigmoid"] = nn.Sigmoid()
    return named(layers)
