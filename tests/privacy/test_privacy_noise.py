"""Generalisation keeps the order, noise has the law it claims, PPM is Eq. 4."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from colonnade.privacy.grouping import Grouping, random_groups, single_groups
from colonnade.privacy.noise import (
    generalise,
    laplace,
    ppm,
    secret_gaussian,
    secret_laplace,
    secret_steps,
)

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SECRET = bytes(range(32))


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(column: list[float], size: int) -> list[float]:
    """Algorithm 2 on one column, word for word; the last group takes what is left over."""
    order = sorted(range(len(column)), key=lambda row: column[row])
    groups = [order[low : low + size] for low in range(0, len(order), size)]
    if len(groups) > 1 and len(groups[-1]) < size:
        groups[-2:] = [groups[-2] + groups[-1]]
    made = [0.0] * len(column)
    for group in groups:
        for row in group:
            made[row] = min(column[one] for one in group)
    return made


# ---- generalisation ------------------------------------------------------------------------------


@given(
    rows=st.integers(1, 60),
    share=st.floats(0, 1),
    coarse=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=150, deadline=None)
def test_generalisation_keeps_the_order_and_every_minimum(
    rows: int, share: float, coarse: bool, seed: int
) -> None:
    x = torch.randn(rows, 3, generator=drawn(seed), dtype=torch.float64)
    x = x.round() if coarse else x  # with ties, or without
    before = x.clone()
    made = generalise(x, share)
    assert torch.equal(x, before)
    assert made.shape == x.shape and made.dtype == x.dtype
    assert (made <= x).all()
    size = max(1, math.floor(share * rows + 0.5))
    for column, old in zip(made.T, x.T, strict=True):
        assert column.tolist() == by_hand(old.tolist(), size)
        # What was smaller is not larger now.
        assert not ((old[:, None] < old[None]) & (column[:, None] > column[None])).any()
        values, counts = column.unique(return_counts=True)
        assert set(values.tolist()) <= set(old.tolist())
        assert column.min() == old.min()
        assert counts.min() >= min(size, rows)
        if not coarse:
            kept = old.sort().values[::size][: max(1, rows // size)]
            assert values.tolist() == kept.tolist()


@pytest.mark.parametrize(
    ("rows", "share", "size"),
    [
        (15_000, 0.0083, 125),
        (15_000, 0.0333, 500),
        (15_000, 0.1, 1500),
        (1200, 0.0083, 10),
        (1200, 0.0333, 40),
        (1200, 1 / 30, 40),
        (600, 0.0083, 5),
        (600, 1 / 120, 5),
        (600, 0.0333, 20),
        (600, 0.1, 60),
    ],
)
def test_the_papers_shares_give_its_groups(rows: int, share: float, size: int) -> None:
    x = torch.randperm(rows, generator=drawn())[:, None].double()
    _, counts = generalise(x, share).unique(return_counts=True)
    assert set(counts.tolist()) == {size}


def test_what_is_left_over_joins_the_last_group() -> None:
    x = torch.tensor([9.0, 0, 1, 2, 3, 4, 5, 6, 7, 8])[:, None]
    made = generalise(x, 0.4).flatten().tolist()
    assert made == [4.0, 0, 0, 0, 0, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.0149, 0.0299])
def test_groups_of_one_row_change_nothing(share: float) -> None:
    x = torch.randn(50, 4)
    assert torch.equal(generalise(x, share), x)


def test_a_share_of_one_leaves_the_least_value_of_each_column() -> None:
    x = torch.randn(50, 4)
    assert torch.equal(generalise(x, 1.0), x.min(0).values.expand(50, 4))


@pytest.mark.parametrize("share", [-0.1, 1.1, 10, math.nan])
def test_a_share_in_per_cent_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        generalise(torch.zeros(3, 1), share)


# ---- noise ---------------------------------------------------------------------------------------

Draw = Callable[[Tensor, float], Tensor]
SOURCES: list[Draw] = [
    lambda x, scale: laplace(x, scale, drawn()),
    lambda x, scale: secret_laplace(x, scale, SECRET, 0),
]


@pytest.mark.parametrize("draw", SOURCES, ids=["generator", "secret"])
@pytest.mark.parametrize("scale", [0.1, 2.5])
def test_the_noise_is_laplace(draw: Draw, scale: float) -> None:
    x = torch.full((1000, 1000), 3.0, dtype=torch.float64)
    noise = draw(x, scale) - x
    assert abs(float(noise.mean())) < 0.01 * scale
    assert float(noise.var()) == pytest.approx(2 * scale**2, rel=0.02)
    assert float(noise.abs().mean()) == pytest.approx(scale, rel=0.01)
    assert float((noise > 0).double().mean()) == pytest.approx(0.5, abs=0.002)
    some = noise[:100].flatten().numpy()
    assert stats.kstest(some, stats.laplace(scale=scale).cdf).pvalue > 0.001
    # Entries do not go together: neither neighbours nor size and sign.
    for one, other in ((noise[:, 1:], noise[:, :-1]), (noise[1:], noise[:-1])):
        pair = torch.stack([one.flatten(), other.flatten()])
        assert abs(float(pair.corrcoef()[0, 1])) < 0.005
        assert abs(float(pair.abs().corrcoef()[0, 1])) < 0.005
    pair = torch.stack([noise.sign().flatten(), noise.abs().flatten()])
    assert abs(float(pair.corrcoef()[0, 1])) < 0.005


@pytest.mark.parametrize("draw", SOURCES, ids=["generator", "secret"])
def test_every_row_may_have_its_own_scale(draw: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = torch.zeros(3, 100_000)
    scale = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
    size = (draw(x, scale) - x).abs().mean(1)
    assert size.tolist() == pytest.approx([0, 1, 10], rel=0.02)


def test_the_noise_of_named_rows_is_gaussian() -> None:
    x, names = torch.full((200, 10_001), 3.0), [f"row {n}" for n in range(200)]
    noise = (secret_gaussian(x, 2.5, SECRET, names) - x).double()
    some = noise[:20].flatten().numpy()
    assert stats.kstest(some, stats.norm(scale=2.5).cdf).pvalue > 0.001
    assert float(noise.std()) == pytest.approx(2.5, rel=0.005)
    for one, other in ((noise[:, 1:], noise[:, :-1]), (noise[1:], noise[:-1])):
        pair = torch.stack([one.flatten(), other.flatten()])
        assert abs(float(pair.corrcoef()[0, 1])) < 0.005
        assert abs(float(pair.abs().corrcoef()[0, 1])) < 0.005
    again = secret_gaussian(x[:3], 2.5, SECRET, ["row 7", "row 0", "new"])
    whole = secret_gaussian(x, 2.5, SECRET, names)
    assert torch.equal(again[0], whole[7]) and torch.equal(again[1], whole[0])
    with pytest.raises(ValueError, match="32 are needed"):
        secret_gaussian(x, 1.0, b"short", names)


@pytest.mark.parametrize("decay", [0.05, 0.7, 3.0])
def test_noise_in_whole_steps_has_its_law(decay: float) -> None:
    """10⁵ draws against P(z) ∝ exp(−decay |z|), by chi-square; and entries do not go together."""
    noise = secret_steps(torch.full((100, 1000), 5), decay, SECRET) - 5
    ratio = math.exp(-decay)
    most = int(math.log(1e-3) / -decay) + 1  # beyond it all are one bin
    law = [(1 - ratio) / (1 + ratio) * ratio ** abs(z) for z in range(-most, most + 1)]
    seen = [int((noise == z).sum()) for z in range(-most, most + 1)]
    law, seen = [*law, 1 - sum(law)], [*seen, noise.numel() - sum(seen)]
    expected = [noise.numel() * p for p in law]
    assert stats.chisquare(seen, expected).pvalue > 0.001
    for one, other in ((noise[:, 1:], noise[:, :-1]), (noise[1:], noise[:-1])):
        pair = torch.stack([one.flatten(), other.flatten()]).double()
        assert abs(float(pair.corrcoef()[0, 1])) < 0.015
        assert abs(float(pair.abs().corrcoef()[0, 1])) < 0.015


def test_fine_steps_are_laplace_noise() -> None:
    """10⁵ draws with 2¹⁷ steps to a bound: what a budget's releases have."""
    noise = secret_steps(torch.zeros(100_000, dtype=torch.int64), 2.0**-17, SECRET).double()
    assert stats.kstest(noise.numpy() * 2.0**-17, stats.laplace.cdf).pvalue > 0.001
    again = secret_steps(torch.zeros(100_000, dtype=torch.int64), 2.0**-17, SECRET, 1).double()
    assert not torch.equal(noise, again)
    pair = torch.stack([noise, again])
    assert abs(float(pair.corrcoef()[0, 1])) < 0.015


def test_a_generator_gives_the_same_noise_once_and_goes_on() -> None:
    x = torch.randn(20, 3)
    before = x.clone()
    generator = drawn(4)
    first, second = laplace(x, 1.0, generator), laplace(x, 1.0, generator)
    assert torch.equal(first, laplace(x, 1.0, drawn(4)))
    assert not torch.equal(first, second)
    assert torch.equal(x, before)
    assert first.dtype == x.dtype


def test_secret_noise_is_repeated_for_the_same_release_alone() -> None:
    """A repeated step sends the same bytes; any other release cannot be subtracted from it."""
    x = torch.randn(20, 3)
    first = secret_laplace(x, 1.0, SECRET, 0)
    assert torch.equal(first, secret_laplace(x.clone(), 1.0, SECRET, 0))
    noise = (first - x).double()
    nearly = x.clone()
    nearly[7, 2] = torch.nextafter(x[7, 2], torch.tensor(9.0))
    others = [
        (x, secret_laplace(x, 1.0, SECRET, 1)),
        (x, secret_laplace(x, 1.0, SECRET[::-1], 0)),
        (nearly, secret_laplace(nearly, 1.0, SECRET, 0)),
        (x, secret_laplace(x.reshape(3, 20), 1.0, SECRET, 0).reshape(20, 3)),
        (x, secret_laplace(x.double(), 1.0, SECRET, 0)),
    ]
    for plain, other in others:
        assert ((other - plain) - noise).abs().median() > 0.1


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_secret_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"{size} bytes; 32"):
        secret_laplace(torch.zeros(2, 2), 1.0, bytes(size), 0)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=gpu)])
def test_a_gpu_gets_the_same_to_the_bit(device: str) -> None:
    x = torch.randn(300, 16, generator=drawn(1)).round(decimals=1)  # with ties
    scale = torch.rand(300, 1, generator=drawn(2))
    there = x.to(device)
    assert torch.equal(laplace(there, scale, drawn()).cpu(), laplace(x, scale, drawn()))
    secret = secret_laplace(there, scale, SECRET, 0)
    assert torch.equal(secret.cpu(), secret_laplace(x, scale, SECRET, 0))
    assert torch.equal(generalise(there, 0.033).cpu(), generalise(x, 0.033))
    grouping = random_groups(300, 20, 0)
    here, far = (ppm(v, grouping.means(v) + 1, grouping) for v in (x, there))
    assert float(here) == pytest.approx(float(far), rel=1e-6)


# ---- PPM -----------------------------------------------------------------------------------------


def test_what_is_sent_as_it_is_has_no_ppm() -> None:
    x = torch.randn(30, 4)
    grouping = single_groups(30)
    assert float(ppm(x, x)) == 0
    assert float(ppm(x, grouping.means(x), grouping)) == 0
    assert float(ppm(torch.zeros(3, 2), torch.zeros(3, 2))) == 0


def test_ppm_is_equation_4() -> None:
    x = torch.tensor([[1.0, -1.0], [3.0, 1.0], [0.0, 4.0]])
    grouping = Grouping(torch.tensor([0, 0, 1]), 2)
    processed = torch.tensor([[2.5, 0.0], [0.0, 3.0]])  # the means are (2, 0) and (0, 4)
    # |2.5-1| + |0+1| + |2.5-3| + |0-1| + 0 + |3-4| = 5 of 1+1+3+1+0+4 = 10
    assert float(ppm(x, processed, grouping)) == 0.5
    # |2.5-2| + 0 + 0 + |3-4| = 1.5 of 2+4 = 6
    assert float(ppm(grouping.means(x), processed)) == 0.25
    assert ppm(x, processed, grouping).dtype == torch.float64


def test_ppm_grows_with_coarser_groups_and_with_noise() -> None:
    x = torch.randn(2000, 8, generator=drawn()).relu()
    terms = []
    for groups in (2000, 500, 20):
        grouping = random_groups(2000, groups, 0)
        terms.append(float(ppm(x, grouping.means(x), grouping)))
    assert terms[0] == 0 < terms[1] < terms[2]
    means = random_groups(2000, 20, 0).means(x)
    noised = [float(ppm(means, laplace(means, b, drawn()))) for b in (0.1, 1.0, 10.0)]
    assert noised[0] < noised[1] < noised[2]
    # E|noise| = b
    assert noised[2] == pytest.approx(10 / float(means.abs().mean()), rel=0.2)


def test_ppm_does_not_hide_what_has_diverged() -> None:
    x, broken = torch.ones(3, 2), torch.ones(3, 2)
    broken[1, 1] = math.nan
    assert math.isnan(ppm(x, broken))
    assert math.isinf(ppm(torch.zeros(3, 2), x))


@pytest.mark.parametrize("shape", [(2, 2), (3, 1), (1, 2)])
def test_ppm_does_not_stretch_rows(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"against \(3, 2\)"):
        ppm(torch.ones(3, 2), torch.ones(shape))
