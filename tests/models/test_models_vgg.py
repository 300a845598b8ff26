"""VGG-16: its size, its ten cuts, its padding, and the decoder that mirrors it."""

from itertools import pairwise
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from colonnade.errors import ConfigError
from colonnade.methods.parts.tiles import Cut
from colonnade.models import cuts, split, vgg16, vgg_decoder
from colonnade.partition import cut, paste, tiles

CUTS = get_args(Cut)

# What a client of AdptVFedConv with a 16×16 tile uploads
MAPS = {
    "1C": (64, 16, 16),
    "2C": (64, 16, 16),
    "2C+1M": (64, 8, 8),
    "3C+1M": (128, 8, 8),
    "4C+1M": (128, 8, 8),
    "4C+2M": (128, 4, 4),
    "5C+2M": (256, 4, 4),
    "6C+2M": (256, 4, 4),
    "7C+2M": (256, 4, 4),
    "7C+3M": (256, 2, 2),
}


def batch(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def tile_network() -> nn.Sequential:
    return vgg16((3, 16, 16), 10, fc=(8,), activated=False).eval()


def test_the_number_of_parameters() -> None:
    with torch.device("meta"):  # only shapes are needed
        model = vgg16((3, 32, 32), 100, activated=False)
    channels = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    convolutions = sum(9 * a * b for a, b in pairwise(channels))
    norms = 2 * sum(channels[1:])
    full = 512 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 100 + 100
    assert convolutions + norms + full == 34_011_172
    assert sum(p.numel() for p in model.parameters()) == 34_011_172
    extractor, _ = split(model, "2C+1M")
    # the first message of AdptVFedConv: the server's pre-trained extractor
    assert sum(p.numel() for p in extractor.parameters()) == 9 * 3 * 64 + 9 * 64 * 64 + 4 * 64


def test_the_ten_cuts_and_their_maps(tile_network: nn.Sequential) -> None:
    assert tuple(MAPS) == CUTS == cuts(tile_network)[:10]
    x = batch(1, 3, 16, 16)
    for name, shape in MAPS.items():
        assert split(tile_network, name)[0](x).shape == (1, *shape)


@pytest.mark.parametrize(
    ("shape", "pools", "features"),
    [
        ((3, 32, 32), 5, 32),
        ((3, 16, 16), 4, 32),  # our default: the fifth pool is dropped
        ((1, 14, 14), 3, 32),
        ((1, 28, 28), 4, 32),
        ((1, 28, 7), 2, 32 * 7),
        ((3, 64, 64), 5, 32 * 4),
        ((1, 4, 4), 2, 32),
    ],
)
def test_pools_as_far_as_the_map_allows(
    shape: tuple[int, int, int], pools: int, features: int
) -> None:
    model = vgg16(shape, 6, width=1 / 16, fc=(8, 8))
    assert sum(isinstance(m, nn.MaxPool2d) for m in model) == pools
    first = model.get_submodule("fc1.linear")
    assert isinstance(first, nn.Linear)
    assert first.in_features == features
    assert model(batch(2, *shape)).shape == (2, 6)


def test_a_cut_that_the_map_does_not_reach() -> None:
    with pytest.raises(ConfigError, match=r"no cut '7C\+3M'.*4C\+2M"):
        split(vgg16((1, 4, 4), 2, width=1 / 16, fc=()), "7C+3M")


def test_classifiers_of_one_or_no_hidden_layer() -> None:
    assert cuts(vgg16((3, 32, 32), 10, width=1 / 16, fc=(32,)))[-1] == "fc1"
    assert cuts(vgg16((3, 32, 32), 10, width=1 / 16, fc=()))[-1] == "13C+5M"


@pytest.mark.parametrize("padding", ["zeros", "replicate"])
@pytest.mark.parametrize(("at", "reach"), [("1C", 1), ("2C", 2)])
def test_stitched_maps_equal_the_full_ones_away_from_the_cuts(
    padding: str, at: str, reach: int
) -> None:
    model = vgg16((3, 32, 32), 4, width=1 / 8, fc=(), padding=padding).eval()  # type: ignore[arg-type]
    extractor, _ = split(model, at)
    images, views = batch(2, 3, 32, 32), tiles(32, 32)
    with torch.no_grad():
        full = extractor(images)
        stitched = paste([extractor(cut(images, v)) for v in views], views, 32, 32)
    near = torch.zeros(32, dtype=torch.bool)
    near[16 - reach : 16 + reach] = True
    far = ~(near[:, None] | near[None, :])
    torch.testing.assert_close(stitched[..., far], full[..., far])
    assert not torch.allclose(stitched[..., ~far], full[..., ~far])


def test_a_constant_image_has_no_border_under_replicate_padding() -> None:
    x = torch.ones(1, 3, 8, 8)
    for padding, flat in (("replicate", True), ("zeros", False)):
        model = vgg16((3, 8, 8), 4, width=1 / 8, fc=(), padding=padding).eval()  # type: ignore[arg-type]
        features = split(model, "2C")[0](x)
        inner = features[..., 4:5, 4:5].expand_as(features)
        assert torch.allclose(features, inner) is flat


@pytest.mark.parametrize("at", CUTS)
@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 14, 9)], ids=str)
def test_the_decoder_mirrors_the_extractor(at: str, shape: tuple[int, int, int]) -> None:
    extractor, _ = split(vgg16(shape, 4, width=1 / 16, fc=()), at)
    decoder = vgg_decoder(extractor, shape)
    model = nn.Sequential(extractor, decoder)
    x = batch(4, *shape)
    y = model(x)
    assert y.shape == x.shape
    assert (y < 0).any()  # normalised pixels are negative too
    (y - x).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    convolutions = sum(isinstance(m, nn.Conv2d) for m in extractor.modules())
    transposed = [m for m in decoder.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert len(transposed) == convolutions


def test_the_decoder_of_the_standard_cut() -> None:
    extractor, _ = split(vgg16((3, 16, 16), 4, fc=()), "2C+1M")
    decoder = vgg_decoder(extractor, (3, 16, 16))
    up, inner, last = ([type(m).__name__ for m in layer.modules()] for layer in decoder)
    assert up == ["Upsample"]
    assert inner == ["Sequential", "ConvTranspose2d", "BatchNorm2d", "ReLU"]
    assert last == ["Sequential", "ConvTranspose2d"]
    shapes = [tuple(p.shape) for p in decoder.parameters() if p.dim() == 4]
    assert shapes == [(64, 64, 3, 3), (64, 3, 3, 3)]


@pytest.mark.parametrize(
    ("output", "low", "high"), [("relu", 0.0, float("inf")), ("sigmoid", 0.0, 1.0)]
)
def test_other_decoder_outputs(output: str, low: float, high: float) -> None:
    extractor, _ = split(vgg16((3, 8, 8), 4, width=1 / 8, fc=()), "2C+1M")
    decoder = vgg_decoder(extractor, (3, 8, 8), output=output)  # type: ignore[arg-type]
    y = decoder(extractor(batch(2, 3, 8, 8)))
    assert low <= y.min()
    assert y.max() <= high


def test_a_decoder_ends_at_the_classifier() -> None:
    model = vgg16((3, 8, 8), 4, width=1 / 16, fc=(8,))
    with pytest.raises(ConfigError, match="convolutions and max-pools only"):
        vgg_decoder(model, (3, 8, 8))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_auto_encoder_repeats_itself_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    vgg = vgg16((3, 16, 16), 4, width=1 / 4, fc=(), padding="replicate")
    extractor, _ = split(vgg, "4C+2M")
    model = nn.Sequential(extractor, vgg_decoder(extractor, (3, 16, 16))).cuda()
    x = batch(32, 3, 16, 16).cuda()

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad((model(x) - x).square().mean(), list(model.parameters()))

    torch.use_deterministic_algorithms(True)
    try:
        first, second = gradients(), gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
