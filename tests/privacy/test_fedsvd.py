"""FedSVD: U comes out as if the columns had been joined, and no message shows a party's own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from colonnade.errors import DataError, MaskError, Untrusted
from colonnade.privacy import fedsvd
from colonnade.privacy.masking import Masks

SEED, OTHER_SEED = bytes(range(32)), bytes(32)
ROWS, WIDTHS = 120, (13, 30, 21, 9, 17)


def parts_of(parties: int, rows: int = ROWS, lowest: float = 1e-9) -> tuple[list[Tensor], Tensor]:
    """Matrices whose joined singular values fall evenly from 30 to 30 · lowest; the values."""
    widths = WIDTHS[:parties]
    generator = torch.Generator().manual_seed(parties)
    rank = min(rows, sum(widths))
    u, v = (
        torch.linalg.qr(torch.randn(size, rank, generator=generator, dtype=torch.float64)).Q
        for size in (rows, sum(widths))
    )
    sigma = 30 * lowest ** (torch.arange(rank).double() / (rank - 1))
    return list((u * sigma @ v.mT).split(widths, dim=1)), sigma


def plain(parts: Sequence[Tensor]) -> Tensor:
    u, _, _ = torch.linalg.svd(torch.cat(list(parts), 1), full_matrices=False)
    return fedsvd.fix_signs(u)


def error(found: Tensor, due: Tensor, columns: int) -> float:
    assert found.shape[1] >= columns
    return float((found[:, :columns] - due[:, :columns]).abs().max())


def shares(parts: Sequence[Tensor], block: int = 25) -> tuple[list[Tensor], fedsvd.RowMask]:
    a = fedsvd.row_mask(SEED, len(parts[0]), block=block)
    bs = fedsvd.column_masks(OTHER_SEED, [part.shape[1] for part in parts], block=block)
    return [fedsvd.mask_matrix(part, a, b) for part, b in zip(parts, bs, strict=True)], a


# ---- the result ----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 10, 25])
@pytest.mark.parametrize("parties", [2, 3, 4, 5])
def test_u_is_that_of_the_joined_columns(parties: int, block: int) -> None:
    parts, sigma = parts_of(parties)
    found = fedsvd.left_vectors_of(parts, block=block)
    clear = int((sigma > 1e-6 * sigma[0]).sum())
    assert clear < len(sigma)  # some are below, and may be anything
    assert error(found, plain(parts), clear) < 1e-9


@pytest.mark.parametrize("rows", [40, 90])  # fewer rows than columns, and about as many
def test_wide_matrices(rows: int) -> None:
    parts, sigma = parts_of(5, rows)
    clear = int((sigma > 1e-6 * sigma[0]).sum())
    assert error(fedsvd.left_vectors_of(parts, block=8), plain(parts), clear) < 1e-9


def test_24_fractional_bits_are_not_enough() -> None:
    parts, sigma = parts_of(2)
    clear = int((sigma > 1e-6 * sigma[0]).sum())
    found = fedsvd.left_vectors_of(parts, fraction=24)
    assert error(found, plain(parts), clear) > 1e-6


def test_float32_finds_the_leading_64() -> None:
    parts, _ = parts_of(5, rows=600, lowest=1e-2)
    found = fedsvd.left_vectors_of(parts, dtype=torch.float32)
    assert found.dtype == torch.float32
    assert error(found.double(), plain(parts), 64) < 1e-4


def test_adding_and_joining_masked_parts_give_the_same_u() -> None:
    parts, _ = parts_of(2, lowest=1e-3)
    masked, a = shares(parts)
    joined = fedsvd.unmask(fedsvd.left_vectors(torch.cat(masked, 1)), a)
    added = fedsvd.unmask(fedsvd.left_vectors(masked[0] + masked[1]), a)
    assert error(joined, added, added.shape[1]) < 1e-9


def test_only_the_leading_columns_and_only_true_ones() -> None:
    parts, _ = parts_of(3, lowest=1e-3)
    assert fedsvd.left_vectors_of(parts, 5).shape == (ROWS, 5)
    assert error(fedsvd.left_vectors_of(parts, 5), plain(parts), 5) < 1e-9
    _, a = shares(parts)
    assert fedsvd.unmask(torch.randn(ROWS, 9).double(), a, 4).shape == (ROWS, 4)
    twice = [parts[0], parts[0]]  # rank 13 of 26
    assert fedsvd.left_vectors_of(twice).shape == fedsvd.left_vectors_of(twice, 20).shape
    assert fedsvd.left_vectors_of(twice).shape == (ROWS, 13)


def test_signs_are_fixed() -> None:
    u = plain(parts_of(2)[0])
    assert torch.equal(fedsvd.fix_signs(-u), u)
    assert torch.equal(fedsvd.fix_signs(u), u)
    largest = u.gather(0, u.abs().argmax(0, keepdim=True))
    assert (largest > 0).all()
    flipped = torch.where(torch.arange(u.shape[1]) % 2 == 0, -u, u)
    assert torch.equal(fedsvd.fix_signs(flipped), u)


def test_a_seed_repeats_the_result_to_the_bit_whatever_the_secrets() -> None:
    parts, _ = parts_of(3)
    first, again = (fedsvd.left_vectors_of(parts, 8, seed=SEED) for _ in range(2))
    assert torch.equal(first, again)  # the pairwise masks were fresh each time
    other = fedsvd.left_vectors_of(parts, 8, seed=OTHER_SEED)
    assert not torch.equal(first, other) and error(first, other, 8) < 1e-9


# ---- the masks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 2, 7, 50, 500])
def test_masks_are_orthogonal(block: int) -> None:
    a = fedsvd.row_mask(SEED, 61, block=block)
    whole = a.apply(torch.eye(61).double())
    assert (whole @ whole.mT - torch.eye(61)).abs().max() < 1e-13
    assert torch.equal(a.undo(torch.eye(61).double()), whole.mT)
    bs = fedsvd.column_masks(SEED, [20, 41], block=block)
    b = torch.cat([b.apply(torch.eye(w).double()) for b, w in zip(bs, (20, 41), strict=True)])
    assert (b @ b.mT - torch.eye(61)).abs().max() < 1e-13


@pytest.mark.parametrize("count", [1, 2, 3, 99, 100, 101, 199, 200, 250, 4999])
def test_no_block_is_smaller_than_asked_for(count: int) -> None:
    blocks = [len(block) for block in fedsvd.row_mask(SEED, count, block=20).blocks]
    assert sum(blocks) == count
    assert min(blocks) >= min(20, count)
    assert max(blocks) < 40 and max(blocks) - min(blocks) <= 1


def test_a_mask_is_uniform_over_orthogonal_matrices() -> None:
    """Both determinants, and a mean trace of 0 with variance 1, which plain QR does not give."""
    blocks = fedsvd.row_mask(SEED, 3000, block=5).blocks
    traces = torch.stack([block.trace() for block in blocks])
    assert abs(float(traces.mean())) < 0.2 and 0.7 < float(traces.var()) < 1.4
    positive = float(
        (torch.stack([torch.linalg.det(block) for block in blocks]) > 0).float().mean()
    )
    assert 0.4 < positive < 0.6


def test_every_block_mixes_the_columns_of_all_parties() -> None:
    for mask in fedsvd.column_masks(SEED, [50, 250, 20], block=32):
        counts = [len(columns) for columns in mask.columns]
        assert min(counts) >= 1 and max(counts) - min(counts) <= 2
        assert sorted(torch.cat(mask.columns).tolist()) == list(range(sum(counts)))
        assert torch.cat(mask.columns).tolist() != list(range(sum(counts)))


def test_seeds_make_masks() -> None:
    first, again = (fedsvd.row_mask(SEED, 30, block=10) for _ in range(2))
    assert torch.equal(first.order, again.order)
    assert all(map(torch.equal, first.blocks, again.blocks))
    assert not torch.equal(first.blocks[0], first.blocks[1])
    other = fedsvd.row_mask(OTHER_SEED, 30, block=10)
    assert not torch.equal(first.order, other.order)
    assert not torch.equal(first.blocks[0], other.blocks[0])
    # The seed of A alone must not give B's blocks, were it used for both.
    assert not torch.equal(fedsvd.column_masks(SEED, [30], block=10)[0].blocks[0], first.blocks[0])
    single = fedsvd.row_mask(SEED, 30, block=10, dtype=torch.float32)
    assert torch.equal(single.blocks[0], first.blocks[0].float())
    assert len({fedsvd.new_seed() for _ in range(20)}) == 20


@pytest.mark.parametrize("block", [1, -3])
def test_blocks_that_mask_nothing_are_refused(block: int) -> None:
    with pytest.raises(ValueError, match="would mask nothing"):
        fedsvd.row_mask(SEED, 10, block=block)


def test_what_does_not_fit_is_refused() -> None:
    parts, _ = parts_of(2)
    a, (b, _) = fedsvd.row_mask(SEED, ROWS), fedsvd.column_masks(SEED, [13, 30])
    with pytest.raises(DataError, match="the same shared rows"):
        a.apply(parts[0][1:])
    with pytest.raises(DataError, match="mask of 13 columns"):
        b.apply(parts[1])
    with pytest.raises(DataError, match="the same rows"):
        fedsvd.left_vectors_of([parts[0], parts[1][1:]])
    with pytest.raises(DataError, match="nothing to mask"):
        fedsvd.left_vectors_of([parts[0][:0], parts[1][:0]])
    with pytest.raises(ValueError, match="32 are needed"):
        fedsvd.row_mask(b"short", 10)


# ---- what is sent --------------------------------------------------------------------------------


def sent_by(parts: Sequence[Tensor]) -> tuple[dict[str, list[fedsvd.Strip]], dict[str, Masks]]:
    names = [f"p{k}" for k in range(len(parts))]
    masks = fedsvd.pairwise_masks(names, "server")
    masked, _ = shares(parts)
    return {
        name: list(fedsvd.to_strips(one, masks[name]))
        for name, one in zip(names, masked, strict=True)
    }, masks


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_the_sum_opens_and_no_share_does(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedsvd, "STRIP_BYTES", 8 * 100 * 50)  # several strips, the last one shorter
    parts, _ = parts_of(parties)
    sent, masks = sent_by(parts)
    masked, _ = shares(parts)
    shape = (ROWS, sum(part.shape[1] for part in parts))
    assert len(sent["p0"]) > 1
    total = fedsvd.from_strips(sent, masks["server"], shape)
    assert total.dtype == torch.float64
    assert (total - sum(masked)).abs().max() <= parties * 2.0**-49 + 1e-14
    for (name, own), one in zip(sent.items(), masked, strict=True):
        words = torch.cat([strip["values"] for strip in own if isinstance(strip["values"], Tensor)])
        assert words.shape == one.shape and words.dtype == torch.int64
        shown = words.double() * 2.0**-48
        # Uniform over the ring, and nothing to do with Ŝ_k, let alone S_k.
        assert 0.9 < float(shown.std()) / (2.0**16 / 12**0.5) < 1.1, name
        correlation = torch.corrcoef(torch.stack([shown.reshape(-1), one.reshape(-1)]))[0, 1]
        assert abs(float(correlation)) < 0.1
    # The sum over some of the parties stays as random.
    for few in itertools.combinations(sent, parties - 1):
        some = sum(
            s["values"] for name in few for s in sent[name][:1] if isinstance(s["values"], Tensor)
        )
        assert isinstance(some, Tensor)
        assert float((some.double() * 2.0**-48).std()) > 1e4


def test_a_masked_matrix_hides_rows_and_columns() -> None:
    """Ŝ_k = A S_k B_k: nothing of S_k but its singular values; both masks are at work."""
    parts, _ = parts_of(2)
    masked, a = shares(parts)
    ones = torch.full((ROWS, 13), 0.5, dtype=torch.float64)
    for matrix in (parts[0], ones):
        hidden = shares([matrix, parts[1]])[0][0]
        assert hidden.shape == (ROWS, 43)
        values = [torch.linalg.svdvals(one)[:13] for one in (matrix, hidden)]
        assert (values[0] - values[1]).abs().max() < 1e-12
        # Neither a row keeps its length (A) nor the rows their inner products (A), nor columns (B).
        assert (hidden.norm(dim=1).sort()[0] - matrix.norm(dim=1).sort()[0]).abs().max() > 1e-2
        assert len(hidden.reshape(-1).unique()) == hidden.numel()
    assert (a.undo(masked[0])[:, :13] - parts[0]).abs().max() > 0.1
    assert (a.undo(masked[0]) @ a.undo(masked[0]).mT - parts[0] @ parts[0].mT).abs().max() < 1e-11


@pytest.mark.parametrize(("q", "found"), [(0, True), (16, False), (8, False)])
def test_all_of_u_gives_the_other_party_away_and_its_leading_columns_do_not(
    q: int, found: bool
) -> None:
    """Without Σ: S_tᵀ U Σ⁻² Uᵀ S_t = I is linear in Σ⁻², and S_d S_dᵀ = U Σ² Uᵀ − S_t S_tᵀ."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(200, 6, generator=generator).double()
    own, other = (
        common @ torch.randn(6, width, generator=generator).double()
        + torch.randn(200, width, generator=generator).double()
        for width in (12, 20)
    )
    u = fedsvd.left_vectors_of([own, other], q)
    seen = u.mT @ own  # (q, 12)
    i, j = torch.triu_indices(12, 12)
    inverse = torch.linalg.lstsq((seen[:, i] * seen[:, j]).mT, (i == j).double()).solution
    gram = u / inverse.clamp_min(1e-9) @ u.mT - own @ own.mT
    wrong = float((gram - other @ other.mT).norm() / (other @ other.mT).norm())
    assert wrong < 1e-9 if found else wrong > 0.3


def test_masks_are_spent_and_all_strips_are_due() -> None:
    parts, _ = parts_of(2)
    sent, masks = sent_by(parts)
    with pytest.raises(MaskError, match="already masked"):
        next(fedsvd.to_strips(shares(parts)[0][0], masks["p0"]))
    with pytest.raises(MaskError, match="only the sum over"):
        fedsvd.from_strips({"p0": sent["p0"]}, masks["server"], (ROWS, 43))
    with pytest.raises(Untrusted, match="'p1' sent 0 strips; 1 are due"):
        fedsvd.from_strips({"p0": sent["p0"], "p1": []}, masks["server"], (ROWS, 43))
    with pytest.raises(Untrusted, match="shape"):
        fedsvd.from_strips(sent, masks["server"], (ROWS, 44))


def test_values_that_do_not_fit_the_ring_are_named() -> None:
    parts, _ = parts_of(2)
    with pytest.raises(MaskError, match=r"48 fractional bits.*below 16384.*Standardise"):
        fedsvd.left_vectors_of([parts[0] * 1e5, parts[1]])
    assert fedsvd.left_vectors_of([parts[0] * 1e5, parts[1]], fraction=36).shape[0] == ROWS
    for bad in (float("nan"), float("inf")):
        spoilt = parts[0].clone()
        spoilt[3, 4] = bad
        with pytest.raises(MaskError, match="missing values"):
            fedsvd.left_vectors_of([spoilt, parts[1]])


def test_one_party_alone_is_refused() -> None:
    with pytest.raises(MaskError, match="at least two parties"):
        fedsvd.left_vectors_of(parts_of(2)[0][:1])
    with pytest.raises(ValueError, match="from 1 to 60"):
        fedsvd.ring_for(2, 61)
