"""How much of a table the leading singular vectors of a joint table determine.

VFedTrans' task party learns U, the q leading left singular vectors of S = [S_t | S_1 | … | S_K].
With K_k = S_k S_kᵀ, S Sᵀ U = U Σ² says of partner k's Gram matrix

    K_k U = U Σ² − K_t U − Σ_{j≠k} K_j U,

up to the q numbers Σ², and these follow where the partners have fewer directions than q. So take Σ
and everybody else's columns for known. Then K_k = (K_k U) (Uᵀ K_k U)⁺ (K_k U)ᵀ + E: the first part
is determined, and of E only E U = 0 is, and that no eigenvalue may push U from the lead.

    trace E  ≥  the sum of all but the q largest eigenvalues of K_k,            since E has K_k
    less a matrix of rank q. This holds for every U: whatever the task party's columns are, also
    made up ones, and also where all other partners help it.

A partner knows its own eigenvalues, so it can bound what is determined, on nobody's word. It lets q
pass if that is at most half of its variance.

Where no column hides them, equal rows give equal numbers in K_k U, and only the true Σ makes many
of them equal: columns of categories and whole numbers are read off at any q. The q vectors have
q − 1 combinations that leave out q − 1 columns; so at least q directions of columns must have
values that seldom repeat.

This bounds what follows by algebra alone, of the whole table, from one U, and refuses one guess. It
is no bound for other guesses, nor for several U beside other columns of the task party, which add
up (privacy/exchange.py counts them): see `docs/concepts/security.md`.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 0.5  # of the variance of a partner's standardised columns
SELDOM = 0.5  # of the rows of a column: so many have a value that no other row has, or it repeats


def determined(matrix: Tensor) -> Tensor:
    """At most these shares of the matrix's variance follow from 1, 2, … vectors: (min(shape),)."""
    # Of a wide matrix the Gram matrix of the rows is smaller; half of the variance needs no digits.
    gram = matrix @ matrix.mT if matrix.shape[1] > matrix.shape[0] else matrix.mT @ matrix
    values = torch.linalg.eigvalsh(gram).flip(0).clamp_min(0.0)
    shares: Tensor = values.cumsum(0) / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return shares


def most_vectors(matrix: Tensor) -> int:
    """The largest q from which at most MOST of the matrix's variance follows; 0: there is none."""
    shares = determined(matrix)
    if not matrix.count_nonzero():
        return 0  # nothing but constants: told is told
    return int((shares <= MOST).sum())


def unrepeated(matrix: Tensor) -> int:
    """How many directions the columns have whose values seldom repeat."""
    alone = [
        float((column.unique(return_counts=True)[1] == 1).sum()) > SELDOM * len(column)
        for column in matrix.mT
    ]
    return int(torch.linalg.matrix_rank(matrix[:, torch.tensor(alone)])) if any(alone) else 0


def refusal(matrix: Tensor, q: int, name: str) -> str:
    """Why q vectors tell too much about the matrix of this party; empty where they do not."""
    most = most_vectors(matrix)
    if q <= most:
        return _read_off(matrix, q, name)
    shares = determined(matrix)
    share = 1.0 if q > len(shares) else float(shares[q - 1])
    next_step = (
        f"Set [vfedtrans] q from 1 to {most}"
        if most
        else (
            f"There is no q that does not: one vector may determine {float(shares[0]):.0%}. This "
            "data cannot be enriched privately by vfedtrans without epsilon"
        )
    )
    return (
        f"vfedtrans.q = {q} is refused by '{name}': from so many singular vectors and its own "
        f"columns the task party may compute up to {share:.0%} of the variance of '{name}''s "
        f"{matrix.shape[1]} columns in {len(matrix)} shared rows, and at most {MOST:.0%} is let "
        f"through. {next_step}; or set epsilon, which protects every row; or unsafe_q = true, if "
        "everybody may see these columns"
    )


def _read_off(matrix: Tensor, q: int, name: str) -> str:
    """Why equal rows would show; empty where enough columns hide them."""
    hiding = unrepeated(matrix)
    if q <= hiding:
        return ""
    return (
        f"vfedtrans.q = {q} is refused by '{name}': {hiding} of '{name}''s {matrix.shape[1]} "
        f"columns have values that seldom repeat in {len(matrix)} shared rows, and {q} of them are "
        "needed. Columns of categories and whole numbers can be read off from singular vectors. "
        + (f"Set [vfedtrans] q from 1 to {hiding}; or set " if hiding else "Set ")
        + "epsilon, which protects every row; or unsafe_q = true, if everybody may see these "
        "columns"
    )
