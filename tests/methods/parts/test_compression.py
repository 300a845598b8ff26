"""Compressors: how large the error may be, that it is 0 on average, and how many bytes cross."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from colonnade.errors import Diverged, WireError
from colonnade.methods.parts.compression import (
    Compressor,
    Float16,
    Float32,
    Lattice,
    Scalar,
    TopK,
    compressor,
    pack,
    packed_size,
    unpack,
)
from colonnade.wire import Kind, codec

ALL = (Scalar, Lattice, TopK)
QUANTISERS = (Scalar, Lattice)
all_bits = st.integers(1, 8)
seeds = st.integers(0, (1 << 63) - 1)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Few or many, even or odd, tiny or huge numbers, with zeros among them, in any layout."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    x = torch.randn(shape, generator=generator) * 10.0 ** draw(st.integers(-30, 30))
    if draw(st.booleans()):
        x = x.relu()
    return x.transpose(0, -1) if draw(st.booleans()) else x


def there_and_back(c: Compressor, x: Tensor, seed: int) -> Tensor:
    return c.decompress(c.compress(x, seed), x.shape, seed)


def bytes_of(message: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in message.values())


# ---- the error ---------------------------------------------------------------------------------


def half_range(x: Tensor) -> float:
    return float(x.max() - x.min()) / 2


def rounding(x: Tensor) -> float:
    """Of a few float32 operations on numbers of this size."""
    return 1e-6 * float(x.abs().max())


@given(tensors(), all_bits, seeds)
def test_the_error_of_a_scalar_is_at_most_half_a_step(x: Tensor, bits: int, seed: int) -> None:
    back = there_and_back(Scalar(bits), x, seed)
    half = half_range(x) / (2**bits - 1)
    assert back.shape == x.shape
    assert float((back - x).abs().max()) <= half * 1.0001 + rounding(x)


@given(tensors(), all_bits, seeds)
def test_the_error_of_a_pair_lies_in_the_hexagon(x: Tensor, bits: int, seed: int) -> None:
    error = (there_and_back(Lattice(bits), x, seed) - x).reshape(-1)
    pairs = torch.cat([error, error.new_zeros(len(error) % 2)]).reshape(-1, 2)
    radius = half_range(x) * Lattice(bits).grid[2] / math.sqrt(3)
    longest = float(torch.linalg.vector_norm(pairs.double(), dim=1).max())
    assert longest <= radius * 1.0001 + rounding(x)


@given(tensors(), all_bits, seeds)
def test_top_k_keeps_the_largest_exactly(x: Tensor, bits: int, seed: int) -> None:
    back = there_and_back(TopK(bits), x, seed)
    kept = back != 0
    share = math.ceil(x.numel() * bits / 32)
    assert int(kept.sum()) == min(share, int((x != 0).sum()))
    assert torch.equal(back[kept], x[kept])
    if not kept.all() and kept.any():
        assert x[~kept].abs().max() <= x[kept].abs().min()


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("kind", QUANTISERS)
def test_the_error_is_0_on_average_and_as_large_as_theory_says(
    kind: type[Scalar] | type[Lattice], bits: int
) -> None:
    """Also at the border of the range, where a quantiser without room for the dither is biased."""
    values = torch.tensor([3.0, -3.0, 3.0, 3.0, -3.0, -3.0, 0.0, 0.0, 0.123, -2.9, 1.5, 0.777])
    copies = 20_000
    error = there_and_back(kind(bits), values.repeat(copies, 1), 7) - values  # (copies, 12)
    if kind is Scalar:
        variance = (2 * 3.0 / (2**bits - 1)) ** 2 / 12
    else:  # the hexagon's second moment is 5 / (36 √3) times its area
        step = 3.0 * Lattice(bits).grid[2]
        variance = 5 / (36 * math.sqrt(3)) * (step**2 * math.sqrt(3) / 2)
    # Standard errors of a mean and of a variance of so many uniform numbers; five are wide.
    assert float(error.mean(0).abs().max()) < 5 * math.sqrt(variance / copies)
    assert torch.allclose(error.var(0), torch.tensor(variance), rtol=5 / math.sqrt(copies))


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_lattice_has_no_more_points_than_its_bits_can_name(bits: int) -> None:
    columns, rows, _ = Lattice(bits).grid
    assert columns * rows <= 4**bits


@pytest.mark.parametrize("kind", QUANTISERS)
def test_the_receiver_needs_the_senders_seed(kind: type[Scalar] | type[Lattice]) -> None:
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    message = kind(4).compress(x, 1)
    right = (kind(4).decompress(message, x.shape, 1) - x).square().mean()
    wrong = (kind(4).decompress(message, x.shape, 2) - x).square().mean()
    assert wrong > 1.5 * right
    assert not torch.equal(kind(4).compress(x, 2)["packed"], message["packed"])


# ---- the bytes ---------------------------------------------------------------------------------


@given(st.integers(1, 24), st.integers(0, 40), st.integers(0, 1000))
def test_packing_has_an_inverse_and_no_gaps(width: int, count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << width, (count,), generator=generator)
    packed = pack(codes, width)
    assert packed.dtype == torch.uint8
    assert len(packed) == packed_size(count, width) == math.ceil(count * width / 8)
    assert torch.equal(unpack(packed, width, count), codes)


def test_packing_by_hand() -> None:
    # 5 = 101, 3 = 011, 6 = 110, lowest bits first: 0b10_011_101, 0b1
    assert pack(torch.tensor([5, 3, 6]), 3).tolist() == [0b10_011_101, 0b1]
    assert unpack(torch.tensor([0b10_011_101, 0b1], dtype=torch.uint8), 3, 3).tolist() == [5, 3, 6]


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("shape", [(128, 128), (1, 128), (3, 5), (1,)])
@pytest.mark.parametrize("kind", QUANTISERS)
def test_a_quantised_tensor_is_its_bits_and_a_scale(
    kind: type[Scalar] | type[Lattice], shape: Sequence[int], bits: int
) -> None:
    count = math.prod(shape)
    if kind is Lattice:
        count += count % 2
    message = kind(bits).compress(torch.ones(*shape), 1)
    assert bytes_of(message) == math.ceil(count * bits / 8) + 8
    Kind("embedding", None, "the features", dtype="any").check(message, "shop")
    assert codec.size(message) == bytes_of(message) + 42  # names, dtypes and sizes


@pytest.mark.parametrize(
    ("bits", "positions"),
    [
        (1, 512 * 14 // 8),  # 512 indices of 14 bits
        (2, 1024 * 14 // 8),
        (3, 16384 // 8),  # a mask
        (8, 16384 // 8),
    ],
)
def test_top_k_pays_for_the_positions(bits: int, positions: int) -> None:
    x = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    message = TopK(bits).compress(x, 1)
    assert bytes_of(message) == 4 * 16384 * bits // 32 + positions


# ---- the edges ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 6), (1, 7), (1,), (0, 8)])
@pytest.mark.parametrize("kind", ALL)
def test_zeros_stay_zeros(kind: type[Scalar], shape: Sequence[int]) -> None:
    back = there_and_back(kind(3), torch.zeros(*shape), 5)
    assert torch.equal(back, torch.zeros(*shape))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ALL)
def test_what_is_not_finite_is_refused(kind: type[Scalar], bad: float) -> None:
    x = torch.ones(4, 4)
    x[2, 1] = bad
    with pytest.raises(Diverged, match=r"NaN or infinite.*smaller lr"):
        kind(3).compress(x, 1)


@pytest.mark.parametrize("kind", ALL)
def test_other_dtypes_and_numbers_of_bits_are_refused(kind: type[Scalar]) -> None:
    with pytest.raises(WireError, match="float64"):
        kind(3).compress(torch.ones(2, 2, dtype=torch.float64), 1)
    for bits in (0, 9):
        with pytest.raises(ValueError, match=f"bits = {bits}: from 1 to 8"):
            kind(bits)


NAMES = ["scalar", "lattice", "topk", "float16", "none"]


@pytest.mark.parametrize("name", NAMES)
def test_a_message_of_another_compressor_is_refused(name: str) -> None:
    x = torch.ones(4, 6)
    here = compressor(name, 3)  # type: ignore[arg-type]
    message = here.compress(x, 1)
    assert here.decompress(message, (4, 6), 1).shape == x.shape
    for wrong in ({}, 3, {name: part[:0] for name, part in message.items() if part.dim()}):
        with pytest.raises(WireError, match="the same compressor"):
            here.decompress(wrong, (4, 6), 1)
    with pytest.raises(WireError, match="the same rows"):
        here.decompress(message, (9, 6), 1)


@pytest.mark.parametrize("name", NAMES)
def test_the_senders_tensor_and_random_numbers_stay_as_they_are(name: str) -> None:
    here = compressor(name, 3)  # type: ignore[arg-type]
    weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
    before, random = weight.detach().clone(), torch.get_rng_state()
    message = here.compress(weight, 1)
    back = here.decompress(message, (3, 4), 1)
    assert torch.equal(weight, before)
    assert torch.equal(torch.get_rng_state(), random)
    assert not back.requires_grad
    with torch.no_grad():
        weight.mul_(2)  # a later step of the sender must not reach what was sent
    assert torch.equal(here.decompress(message, (3, 4), 1), back)


def test_without_compression_nothing_is_lost() -> None:
    x = torch.randn(5, 7)
    assert torch.equal(there_and_back(Float32(), x, 1), x)


@given(tensors(), seeds)
def test_half_precision_is_half_the_bytes_and_eleven_bits(x: Tensor, seed: int) -> None:
    message = Float16().compress(x, seed)
    assert message["values"].dtype == torch.float16
    assert bytes_of(message) == 2 * x.numel()
    Kind("head", None, "the weights", dtype="any").check(message, "shop")
    back = Float16().decompress(message, x.shape, seed)
    assert back.dtype == torch.float32 and back.shape == x.shape
    # Half of the last of 11 bits; below 2^-14 a step is 2^-24 everywhere; above 65504 is nothing.
    bound = torch.maximum(x.abs() * 2.0**-11, torch.tensor(2.0**-25))
    within = x.abs() <= 65504.0
    assert bool(((back - x).abs() <= bound)[within].all())
    assert torch.equal(back[~within], 65504.0 * x[~within].sign())


def test_half_precision_keeps_what_it_can_say() -> None:
    x = torch.tensor([[0.0, 1.0, -0.5], [1024.0, 65504.0, 2.0**-24]])
    assert torch.equal(there_and_back(Float16(), x, 1), x)
    assert there_and_back(Float16(), torch.tensor([1e38, -1e38]), 1).tolist() == [65504.0, -65504.0]
    assert torch.equal(there_and_back(Float16(), torch.zeros(0, 3), 1), torch.zeros(0, 3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_and_a_cpu_understand_each_other(name: str) -> None:
    here = compressor(name, 4)  # type: ignore[arg-type]
    x = torch.randn(33, 7, generator=torch.Generator().manual_seed(0))
    message = here.compress(x.cuda(), 1)
    assert {part.device.type for part in message.values()} == {"cuda"}
    back = here.decompress(message, x.shape, 1)
    assert back.device.type == "cuda"
    at_home = {name: part.cpu() for name, part in message.items()}
    assert torch.allclose(here.decompress(at_home, x.shape, 1), back.cpu(), atol=1e-5)
