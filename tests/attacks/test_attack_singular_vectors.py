"""VFedTrans' task party computes partners' columns from U and its own columns: not from a q that is
let through, as far as that is possible, and what is possible is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from singular_vectors import (
    alike_by_votes,
    best_linear,
    brought,
    column_of,
    gram_of_several,
    latent,
    left_over,
    reconstructed_gram,
    regressed,
    regressed_from,
    told,
    with_equal_columns,
    wrong,
)
from torch import Tensor

import colonnade
from colonnade.errors import ColonnadeError
from colonnade.methods import vfedtrans
from colonnade.privacy import fedsvd
from colonnade.privacy.determined import MOST, determined, most_vectors, refusal

ROWS = 120


def task_partys_view(
    out: Path, tables: list[Tensor], q: int, **options: Any
) -> tuple[Tensor, Tensor]:
    """(its own columns of the shared rows, U) of a run with these columns."""
    seen: dict[str, Tensor] = {}
    mask, unmask = fedsvd.mask_matrix, fedsvd.unmask

    def masked(matrix: Tensor, a: Any, b: Any) -> Tensor:
        seen.setdefault("own", matrix)
        return mask(matrix, a, b)

    def unmasked(vectors: Tensor, a: Any) -> Tensor:
        seen["u"] = unmask(vectors, a)
        return seen["u"]

    labels = torch.arange(len(tables[0])) % 2
    names = ["bank", *(f"lab{k}" for k in range(1, len(tables)))]
    held: dict[str, Any] = {n: t.float().numpy() for n, t in zip(names, tables, strict=True)}
    held["bank"] = (held["bank"], labels.numpy())
    tested = {name: rows[:20] for name, rows in held.items() if name != "bank"}
    tested["bank"] = (held["bank"][0][:20], held["bank"][1][:20])
    settings = {"shared": 1.0, "q": q, "hidden": 8, "distil_epochs": 1} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedsvd, "mask_matrix", masked)
        patch.setattr(fedsvd, "unmask", unmasked)
        colonnade.run(
            {"method": "vfedtrans", "epochs": 1, "vfedtrans": settings},
            parties=held,
            test=tested,
            out=out,
        )
    return seen["own"], seen["u"]


@pytest.mark.parametrize("q", [2, 5])
@pytest.mark.parametrize("options", [{}, {"unsafe_q": True}])
def test_the_only_column_of_a_partner_is_not_computed(
    q: int, options: dict[str, bool], tmp_path: Path
) -> None:
    """20 columns of a bank, 1 of a laboratory; `unsafe_q` gives it away, up to its sign."""
    tables = [t.float().double() for t in latent([20, 1], ROWS, 4, 1.0, 0)]
    try:
        own, u = task_partys_view(tmp_path / "run", tables, q, **options)
    except ColonnadeError as refused:
        assert not options and f"q = {q}" in str(refused)
        assert "'lab1'" in str(refused) and "cannot be enriched privately" in str(refused)
        return
    # Which of the rows are shared, and in which order, is known to all; here: from its own rows.
    rows = torch.cdist(own, fedsvd.standardised(tables[0])).argmin(1)
    true = fedsvd.standardised(tables[1][rows])
    gram = reconstructed_gram(own, u, 21)
    assert gram is not None
    found = column_of(gram)
    found = found * (found @ true[:, 0]).sign()
    error, guess = wrong(found, true[:, 0]), wrong(regressed(own, true), true)
    assert error < 1e-6 < guess if options else error > guess


# ---- what is let through -------------------------------------------------------------------------

SHAPES = [
    (own, other, spectrum)
    for own in (1, 2, 4, 12, 20)
    for other in (2, 6, 20)
    for spectrum in ("flat", "common causes", "falling", "categories")
]


def partners(own: int, columns: int, spectrum: str) -> list[Tensor]:
    """Tables of 60 rows, as a run reads them."""
    factors = 4 if spectrum == "common causes" else 30
    mine, other = latent([own, columns], 60, factors, 1.0, own * 100 + columns)
    if spectrum == "falling":  # a few columns in many mixtures, less of each
        turn = torch.linalg.qr(other.mT @ other + torch.eye(columns)).Q
        other = other @ turn * 0.8 ** torch.arange(columns) @ turn.mT
    if spectrum == "categories":
        other = (other > other.quantile(0.3, 0)) + (other > other.quantile(0.7, 0)).double()
    return [mine.float().double(), other.float().double()]


@pytest.mark.parametrize(("own_columns", "columns", "spectrum"), SHAPES)
def test_on_a_grid_of_60_shapes(
    own_columns: int, columns: int, spectrum: str, tmp_path: Path
) -> None:
    """The partner decides, in a run. At all accepted q the equations have no solution; to
    assume a smaller rank, whichever one, and even to know Σ and all correlations of the partner's
    columns, leaves more than half of its variance wrong, or more than a guess. At refused q the
    error names why."""
    tables = partners(own_columns, columns, spectrum)
    standard = fedsvd.standardised(tables[1])
    most = most_vectors(standard)
    assert most <= columns // 2
    accepted = 0
    for q in range(most + 1, 0, -1):
        try:
            own, u = task_partys_view(tmp_path / f"{q}", tables, q)
        except ColonnadeError as refused:
            check_refusal(str(refused), q, most, columns, spectrum)
            continue
        accepted = q
        break
    assert accepted == (0 if spectrum == "categories" else most)
    if not accepted:
        return
    rows = torch.cdist(own, fedsvd.standardised(tables[0])).argmin(1)
    other = standard[rows]
    guess = wrong(regressed(own, other), other)
    for q in range(1, accepted + 1):  # a run with a smaller q tells the first ones of these
        fewer = u[:, :q]
        assert reconstructed_gram(own, fewer, own_columns + columns) is None
        for rank in range(q, own_columns + q + 1):
            gram = reconstructed_gram(own, fewer, rank)
            assert gram is None or left_over(gram, other) > min(guess, MOST**0.5)
        assert wrong(best_linear(fewer, other), other) > MOST**0.5


def check_refusal(said: str, q: int, most: int, columns: int, spectrum: str) -> None:
    assert f"vfedtrans.q = {q}" in said and "set epsilon" in said.lower()
    if q > columns // 2 and "no party has more" in said:  # by the numbers of columns alone
        return
    assert "refused by 'lab1'" in said and f"{columns} columns" in said and "60 shared rows" in said
    if q <= most:
        assert spectrum == "categories" and "0 of 'lab1'" in said and "can be read off" in said
        return
    assert (f"q from 1 to {most};" in said) == (most > 0)
    assert ("cannot be enriched privately" in said) == (most == 0)


@pytest.mark.parametrize("columns", [12, 20, 30])
def test_another_table_of_the_partner_gives_the_same_vectors(columns: int) -> None:
    """Own columns and U fit a table as well of which the undetermined part is another one."""
    own, other = latent([4, columns], 60, 30, 1.0, columns)
    q = most_vectors(other)
    u, k = told([own, other], q), other @ other.mT
    known = (k @ u) @ torch.linalg.solve(u.mT @ k @ u, u.mT @ k)
    free = k - known
    assert float(free.trace() / k.trace()) >= 1 - float(determined(other)[q - 1]) >= 1 - MOST
    # The same rows, mirrored: a reflection that moves neither U nor the mean of the columns.
    kept = torch.linalg.qr(torch.cat([u, torch.ones(60, 1).double()], 1)).Q
    axis = own[:, :1] - kept @ (kept.mT @ own[:, :1])
    axis = axis + 0.5 * (free[:, :1] / free[:, :1].norm()) * axis.norm()
    axis = axis / axis.norm()
    mirrored = free - 2 * axis @ (axis.mT @ free)
    mirrored = mirrored - 2 * (mirrored @ axis) @ axis.mT
    values, vectors = torch.linalg.eigh(known + mirrored)
    invented = with_equal_columns(vectors[:, -columns:] * values[-columns:].clamp_min(0).sqrt())
    assert (fedsvd.standardised(invented) - invented).abs().max() < 1e-6
    same = told([own, invented], q)
    assert (fedsvd.fix_signs(same) - fedsvd.fix_signs(u)).abs().max() < 1e-6
    assert left_over(invented @ invented.mT, other) > 0.1


def test_columns_that_repeat_others_or_nothing_count_for_nothing() -> None:
    """The rank that counts is that of the numbers, whatever the number of columns says."""
    (other,) = latent([1], 60, 4, 1.0, 0)
    constant = torch.ones(60, 9).double()
    wide = fedsvd.standardised(torch.cat([other, -2 * other, constant], 1))
    assert most_vectors(wide) == 0 and "cannot be enriched privately" in refusal(wide, 1, "lab")
    assert most_vectors(fedsvd.standardised(constant)) == 0
    (unlike,) = latent([12], 60, 30, 1.0, 1)
    nearly = fedsvd.standardised(other + 0.01 * unlike)
    assert most_vectors(nearly) == 0
    # More columns than rows: the share is the same from either side.
    (table,) = latent([90], 60, 30, 1.0, 1)
    shares = (torch.linalg.svdvals(table) ** 2).cumsum(0) / table.pow(2).sum()
    assert torch.allclose(determined(table), shares)


def test_a_partner_refuses_before_it_sends_anything(tmp_path: Path) -> None:
    """From its own rows, so that no party can lie about anything to make it agree."""
    twins = latent([4, 1], ROWS, 4, 1.0, 0)
    tables = [twins[0], twins[1].repeat(1, 8)]
    with pytest.raises(ColonnadeError, match=r"q = 2 is refused by 'lab1'.*100% of the variance"):
        task_partys_view(tmp_path / "run", tables, 2)
    sent = (tmp_path / "run" / "ledger.jsonl").read_text()
    assert "lab1" not in {line.split('"sender": "')[-1].split('"')[0] for line in sent.splitlines()}


def test_an_unsafe_q_is_said_in_the_result() -> None:
    (_, said) = vfedtrans.caveats(vfedtrans.VFedTrans(q=9, unsafe_q=True))
    assert "q = 9" in said and "to the last digit" in said
    (_, said) = vfedtrans.caveats(vfedtrans.VFedTrans(q=2))
    assert "protect no single column" in said


# ---- what works at a small q, and so is refused --------------------------------------------------


def categories(seed: int) -> tuple[Tensor, Tensor]:
    """A task party's columns, and five binary ones that have nothing to do with them."""
    draw = torch.Generator().manual_seed(seed)
    own = fedsvd.standardised(torch.randn(200, 6, generator=draw).double())
    return own, (torch.rand(200, 5, generator=draw) < 0.4).double()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_columns_of_categories_are_read_off_and_so_refused(seed: int) -> None:
    """K_d u = s u − K_t u has equal numbers where rows are equal, and only the true s = σ² makes
    many pairs of rows equal: it wins a vote. Then who is like whom at the partner is known."""
    own, bits = categories(seed)
    other = fedsvd.standardised(bits)
    assert most_vectors(other) >= 1 and "can be read off" in refusal(other, 1, "lab")
    true = (bits[:, None] == bits[None]).all(2)
    alike = alike_by_votes(own, told([own, other], 1)[:, 0])
    assert float((alike == true).double().mean()) > 0.999
    assert float(alike[true].double().mean()) > 0.97 > 0.1 > float(true.double().mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_column_of_numbers_hides_columns_of_categories_from_votes(seed: int) -> None:
    """One is enough for one vector. Two vectors have a combination that leaves it out."""
    own, bits = categories(seed)
    number = torch.randn(200, 1, generator=torch.Generator().manual_seed(seed)).double()
    other = fedsvd.standardised(torch.cat([bits, number], 1))
    assert most_vectors(other) >= 2 and not refusal(other, 1, "lab")
    assert "1 of 'lab''s 6 columns" in refusal(other, 2, "lab")
    true = (bits[:, None] == bits[None]).all(2)
    true.fill_diagonal_(False)
    alike = alike_by_votes(own, told([own, other], 1)[:, 0])
    assert float(alike[true].double().mean()) < 0.01


def test_sparse_columns_and_rounded_ones_are_refused_as_well() -> None:
    """Most rows share their value with others: 0, or a number of few digits."""
    (table,) = latent([8], 200, 30, 1.0, 0)
    sparse = torch.where(table.abs() > table.abs().quantile(0.8), table, 0.0)
    for found in (sparse, table.round(decimals=1)):
        other = fedsvd.standardised(found)
        assert most_vectors(other) >= 1 and "0 of 'lab''s 8 columns" in refusal(other, 1, "lab")
    assert not refusal(table, 1, "lab")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exchanges_beside_other_own_columns_add_up_and_so_are_counted(seed: int) -> None:
    """A task party has the exchange done again, in other runs or by coming back before the first
    checkpoint, and brings other columns each time, made up ones. Each q is accepted; by
    test_attack_exchanges.py a second exchange of the same rows is not."""
    draw = torch.Generator().manual_seed(seed)
    other = fedsvd.standardised(torch.randn(60, 6, generator=draw).double())
    assert not refusal(other, 2, "lab")
    owns = [fedsvd.standardised(torch.randn(60, 4, generator=draw).double()) for _ in range(4)]
    gram = gram_of_several(owns, [told([own, other], 2) for own in owns])
    assert wrong(gram, other @ other.mT) < 1e-9


# ---- what works at an accepted q, and so must be said --------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("q", [1, 2])
def test_who_knows_a_tenth_of_a_column_gets_much_of_it_at_an_accepted_q(q: int, seed: int) -> None:
    """The task party makes up its columns: what it knows of some rows, and 0 for all others. Its
    Gram matrix leads, and the partner's turns the vectors a little, by K_d times what is known."""
    own, other = latent([4, 12], 1000, 30, 1.0, seed)
    assert not refusal(other, q, "lab")
    known = torch.arange(100)
    found = brought(other[known, :q], 1000, 50, lambda made: told([made, other], q))
    by_own = regressed_from(own, other[:, :q], known)
    for column in range(q):
        true = other[100:, column]
        assert abs(float(torch.corrcoef(torch.stack([found[100:, column], true]))[0, 1])) > 0.8
        assert abs(float(torch.corrcoef(torch.stack([by_own[100:, column], true]))[0, 1])) < 0.4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_binary_column_that_others_resemble_is_read_off_at_an_accepted_q(seed: int) -> None:
    """The leading vector is their mean, and one threshold tells the two values apart."""
    draw = torch.Generator().manual_seed(seed)
    own = fedsvd.standardised(torch.randn(200, 6, generator=draw).double())
    binary = (torch.rand(200, 1, generator=draw) < 0.4).double()
    like = 2 * binary + 0.4 * torch.randn(200, 4, generator=draw).double()
    others = torch.randn(200, 7, generator=draw).double()
    other = fedsvd.standardised(torch.cat([binary, like, others], 1))
    assert not refusal(other, 1, "lab")
    lead = told([own, other], 1)[:, 0]
    right = float(((lead > (lead.max() + lead.min()) / 2) == (binary[:, 0] > 0)).double().mean())
    assert max(right, 1 - right) > 0.98


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_independent_groups_of_columns_are_told_apart_at_an_accepted_q(seed: int) -> None:
    """Independent component analysis of U undoes the rotation, where the causes are not normal."""
    from sklearn.decomposition import FastICA

    draw = torch.Generator().manual_seed(seed)
    own = fedsvd.standardised(torch.randn(200, 6, generator=draw).double())
    sign = torch.randn(200, 3, generator=draw).double().sign()
    causes = sign * torch.empty(200, 3).double().exponential_(generator=draw)
    group = causes.repeat_interleave(3, 1) + 0.2 * torch.randn(200, 9, generator=draw).double()
    others = torch.randn(200, 10, generator=draw).double()
    other = fedsvd.standardised(torch.cat([group, others], 1))
    assert not refusal(other, 3, "lab")
    u = told([own, other], 3)
    found = FastICA(3, random_state=0, max_iter=1000).fit_transform((u * 200**0.5).numpy())
    found = fedsvd.standardised(torch.from_numpy(found))
    explained = ((found.mT @ other[:, :9]) / 200).pow(2).amax(0)
    by_guess = 1 - wrong(regressed(own, other[:, :9]), other[:, :9]) ** 2
    assert float(explained.mean()) > 0.8 > 0.2 > by_guess
