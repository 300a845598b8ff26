"""VFedTrans' task party computes partners' columns from U and its own columns: not from a q that is
let through, as far as that is possible, and what is possible is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from singular_vectors import column_of, latent, reconstructed_gram, regressed, wrong
from torch import Tensor

import colonnade
from colonnade.errors import ColonnadeError
from colonnade.privacy import fedsvd

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
    settings = {"shared": 1.0, "q": q, "hidden": 8, "distil_epochs": 1} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedsvd, "mask_matrix", masked)
        patch.setattr(fedsvd, "unmask", unmasked)
        colonnade.run(
            {"method": "vfedtrans", "epochs": 1, "vfedtrans": settings}, parties=held, out=out
        )
    return seen["own"], seen["u"]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="every q below the rank is accepted")
@pytest.mark.parametrize("q", [2, 5])
def test_the_only_column_of_a_partner_is_not_computed(q: int, tmp_path: Path) -> None:
    """20 columns of a bank, 1 of a laboratory: 13 digits of it, up to its sign."""
    tables = [t.float().double() for t in latent([20, 1], ROWS, 4, 1.0, 0)]
    try:
        own, u = task_partys_view(tmp_path / "run", tables, q)
    except ColonnadeError as refused:
        assert f"q = {q}" in str(refused)
        return
    # Which of the rows are shared, and in which order, is known to all; here: from its own rows.
    rows = torch.cdist(own, fedsvd.standardised(tables[0])).argmin(1)
    true = fedsvd.standardised(tables[1][rows])
    gram = reconstructed_gram(own, u, 21)
    assert gram is not None
    found = column_of(gram)
    found = found * (found @ true[:, 0]).sign()
    assert wrong(found, true[:, 0]) > wrong(regressed(own, true), true)
