"""A border of one pixel: as PyTorch pads, on the sides that one asks for, also when mirrored."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.methods.parts.tiles import Cut
from colonnade.models import EVERYWHERE, Sides, split, tell_flips, vgg16
from colonnade.models.border import Border

CUTS = get_args(Cut)

ALL_SIDES: list[Sides] = list(product((False, True), repeat=4))
SHAPES = [(3, 2, 5, 4), (2, 1, 1, 1), (1, 3, 1, 4), (2, 2, 3, 1)]


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=dtype)


def padded(x: Tensor, sides: Sides) -> Tensor:
    """The same in PyTorch's words: repeat on some sides, then zeros on the others."""
    repeated = F.pad(x, [int(side) for side in sides], mode="replicate")
    return F.pad(repeated, [int(not side) for side in sides])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_backward_are_those_of_replicate_padding(shape: tuple[int, ...]) -> None:
    ours, theirs = batch(*shape).requires_grad_(), batch(*shape).requires_grad_()
    out, wanted = Border()(ours), F.pad(theirs, (1, 1, 1, 1), mode="replicate")
    assert torch.equal(out, wanted)
    weight = batch(*wanted.shape)
    (out * weight).sum().backward()
    (wanted * weight).sum().backward()
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("sides", ALL_SIDES, ids=str)
def test_the_other_sides_get_zeros(sides: Sides) -> None:
    ours, theirs = batch(2, 3, 4, 5).requires_grad_(), batch(2, 3, 4, 5).requires_grad_()
    out, wanted = Border(sides)(ours), padded(theirs, sides)
    assert torch.equal(out, wanted)
    weight = batch(*wanted.shape)
    (out * weight).sum().backward()
    (wanted * weight).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("flips", [None, [True, False]], ids=str)
@pytest.mark.parametrize("sides", [EVERYWHERE, (True, False, False, True), (False,) * 4], ids=str)
def test_gradients_by_finite_differences(sides: Sides, flips: list[bool] | None) -> None:
    border = Border(sides)
    tell_flips(border, None if flips is None else torch.tensor(flips))
    for shape in [(2, 1, 3, 2), (2, 2, 1, 1)]:
        x = batch(*shape, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(border, (x,))


@pytest.mark.parametrize("sides", ALL_SIDES, ids=str)
def test_mirrored_images_get_mirrored_sides(sides: Sides) -> None:
    x, flips = batch(4, 2, 3, 5), torch.tensor([True, False, False, True])
    mixed = torch.where(flips[:, None, None, None], x.flip(-1), x).requires_grad_()
    border, wanted = Border(sides), padded(x, sides)
    tell_flips(border, flips)
    out = border(mixed)
    for row, flipped in enumerate(flips):
        assert torch.equal(out[row], wanted[row].flip(-1) if flipped else wanted[row])
    (gradient,) = torch.autograd.grad(out.sum(), mixed)
    plain = x.clone().requires_grad_()
    (straight,) = torch.autograd.grad(padded(plain, sides).sum(), plain)
    torch.testing.assert_close(
        gradient, torch.where(flips[:, None, None, None], straight.flip(-1), straight)
    )
    tell_flips(border, None)  # the next batch has none
    assert torch.equal(border(x), wanted)


@pytest.mark.parametrize("sides", [EVERYWHERE, (True, False, True, False)], ids=str)
def test_channels_stay_last(sides: Sides) -> None:
    x = batch(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    out = Border(sides)(x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, padded(x, sides))
    below = batch(2, 3, 4, 5)  # also of those that were first
    assert Border(sides)(below).is_contiguous(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    other = x.detach().contiguous().requires_grad_()
    (wanted,) = torch.autograd.grad(padded(other, sides).square().sum(), other)
    torch.testing.assert_close(gradient, wanted)


def test_every_border_of_a_network_is_told() -> None:
    model = vgg16((1, 16, 16), 3, width=1 / 32, fc=(), padding=(True, False, True, False))
    borders = [layer for layer in model.modules() if isinstance(layer, Border)]
    assert len(borders) == 13
    flips = torch.tensor([True, False])
    tell_flips(model, flips)
    assert all(border.flips is flips for border in borders)
    tell_flips(model, None)
    assert all(border.flips is None for border in borders)


@pytest.mark.parametrize("cut", ["2C+1M", "4C+2M"])
def test_a_network_without_left_and_right_mirrors_its_maps(cut: str) -> None:
    """Kernels that are their own mirror images: then only the borders know left from right."""
    whole = vgg16((2, 8, 8), 3, width=1 / 16, fc=(), padding=(True, False, False, True)).eval()
    extractor, _ = split(whole, cut)
    with torch.no_grad():
        for layer in extractor.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.add_(layer.weight.flip(-1).clone())
    x, flips = batch(3, 2, 8, 8), torch.tensor([True, True, False])
    mixed = torch.where(flips[:, None, None, None], x.flip(-1), x)
    with torch.no_grad():
        plain = extractor(x)
        untold = extractor(mixed)
        tell_flips(extractor, flips)
        told = extractor(mixed)
    wanted = torch.where(flips[:, None, None, None], plain.flip(-1), plain)
    torch.testing.assert_close(told, wanted)
    assert not torch.allclose(untold, wanted, rtol=1e-3)


def test_weights_fit_whatever_the_padding() -> None:
    paddings: list[Sides | str] = ["zeros", "replicate", EVERYWHERE, (True, False, True, False)]
    made = [vgg16((3, 8, 8), 4, width=1 / 16, fc=(8,), padding=p).eval() for p in paddings]  # type: ignore[arg-type]
    x = batch(2, 3, 8, 8)
    for one, other in product(made, repeat=2):
        one.load_state_dict(other.state_dict())  # strict: the same names, the same shapes
    states = [list(model.state_dict()) for model in made]
    assert states[0] == states[1] == states[2] == states[3]
    outputs = [split(model, "2C")[0](x) for model in made]
    assert torch.equal(outputs[1], outputs[2])
    assert torch.allclose(outputs[0][..., 2:-2, 2:-2], outputs[1][..., 2:-2, 2:-2], atol=1e-6)
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[3])


def test_sides_are_shown_and_a_zero_border_costs_no_layer() -> None:
    assert "repeated=(True, False, True, False)" in repr(Border((True, False, True, False)))
    plain = vgg16((3, 8, 8), 4, width=1 / 16, fc=())
    assert not [layer for layer in plain.modules() if isinstance(layer, Border)]
    assert set(CUTS[:4]) <= set(dict(plain.named_children()))
