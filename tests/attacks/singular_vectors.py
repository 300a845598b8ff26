"""What a task party of VFedTrans can compute from its own columns S_t and q singular vectors U.

S Sᵀ = K_t + K_d has the columns of U as eigenvectors, so that K_d U = U Σ² − K_t U: the partners'
Gram matrix K_d on the span of U is known up to q numbers, σ_1², …, σ_q².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from colonnade.privacy import fedsvd


def reconstructed_gram(own: Tensor, u: Tensor, columns: int) -> Tensor | None:
    """K_d, where S_tᵀ (S Sᵀ)⁺ S_t = I has one solution; None where it has none or many.

    columns  how many directions S has altogether, its rank: the task party may try several
    """
    lacking = columns - u.shape[1]
    rest = own - u @ (u.mT @ own)
    w = torch.linalg.svd(rest, full_matrices=False).U[:, :lacking]  # the directions that U lacks
    a, b = u.mT @ own, w.mT @ own
    # (I − aᵀ Σ⁻² a) N = 0, where b N = 0: linear in Σ⁻².
    n = torch.linalg.svd(b, full_matrices=True).Vh[lacking:].mT
    if lacking > own.shape[1] or not n.shape[1]:
        return None
    terms = (a[:, :, None] * (a @ n)[:, None, :]).flatten(1).mT
    answer = torch.linalg.lstsq(terms, n.flatten()[:, None], driver="gelsd").solution[:, 0]
    inverse = answer.clamp_min(1e-12)
    m = torch.eye(own.shape[1], dtype=own.dtype) - (a.mT * inverse) @ a
    back = torch.linalg.pinv(b)
    left = torch.linalg.pinv(back.mT @ m @ back)
    gram: Tensor = (u / inverse) @ u.mT + w @ left @ w.mT - own @ own.mT
    return gram


def column_of(gram: Tensor) -> Tensor:
    """The one column behind a Gram matrix of rank 1, up to its sign."""
    values, vectors = torch.linalg.eigh(gram)
    column: Tensor = vectors[:, -1] * values[-1].clamp_min(0).sqrt()
    return column


def regressed(own: Tensor, other: Tensor) -> Tensor:
    """The best linear guess of the partner's columns from the own ones: the other is needed."""
    guess: Tensor = own @ torch.linalg.lstsq(own, other, driver="gelsd").solution
    return guess


def regressed_from(own: Tensor, other: Tensor, known: Tensor) -> Tensor:
    """The same guess of somebody who knows only these rows of the other columns."""
    guess: Tensor = own @ torch.linalg.lstsq(own[known], other[known], driver="gelsd").solution
    return guess


def best_linear(u: Tensor, other: Tensor) -> Tensor:
    """The best linear guess from K_d U, whoever knows Σ and all correlations of the columns."""
    weights = other.mT @ u  # (columns, q)
    seen, inner = other @ weights, other.mT @ other
    guess: Tensor = seen @ torch.linalg.solve(weights.mT @ inner @ weights, weights.mT @ inner)
    return guess


def brought(known: Tensor, rows: int, copies: int, exchange: Callable[[Tensor], Tensor]) -> Tensor:
    """What comes back to a task party that brings copies of columns made of what it knows of the
    partner's, and 0 where it knows nothing: an estimate of these columns for all rows."""
    made = torch.zeros(rows, known.shape[1], dtype=known.dtype)
    made[: len(known)] = known
    made = fedsvd.standardised(made)
    u = exchange(made.repeat(1, copies))
    estimate: Tensor = u @ torch.linalg.lstsq(u, made).solution
    return estimate


def left_over(gram: Tensor, true: Tensor) -> float:
    """The part of the partner's table that is still wrong after the best rotation and scaling."""
    values, vectors = torch.linalg.eigh(gram)
    width = true.shape[1]
    found = vectors[:, -width:] * values[-width:].clamp_min(0).sqrt()
    alike = torch.linalg.svdvals(found.mT @ true).sum() ** 2
    return float((1 - alike / (found.pow(2).sum() * true.pow(2).sum())).clamp_min(0).sqrt())


def wrong(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())


def told(tables: Sequence[Tensor], q: int) -> Tensor:
    """U, as FedSVD finds it; without its masks, for speed."""
    u: Tensor = torch.linalg.svd(torch.cat([*tables], 1), full_matrices=False).U[:, :q]
    return u


def latent(widths: Sequence[int], rows: int, factors: int, noise: float, seed: int) -> list[Tensor]:
    """Standardised tables of parties whose columns have common causes."""
    draw = torch.Generator().manual_seed(seed)
    causes = torch.randn(rows, factors, generator=draw).double()
    return [
        fedsvd.standardised(
            causes @ torch.randn(factors, width, generator=draw).double()
            + noise * factors**0.5 * torch.randn(rows, width, generator=draw).double()
        )
        for width in widths
    ]


def gram_of_several(owns: Sequence[Tensor], us: Sequence[Tensor]) -> Tensor:
    """K_d from several U of the same shared rows, each found beside other own columns.

    K_d is symmetric: U_iᵀ (K_d U_j) = (K_d U_i)ᵀ U_j is linear in all Σ², and determines them up to
    one number, K_d + c I. There the partners' having fewer directions than all U helps.
    """
    q, number = us[0].shape[1], len(us) * us[0].shape[1]
    terms, sums = [], []
    for i, first in enumerate(us):
        for j, second in enumerate(us[:i]):
            alike = first.mT @ second
            gap = owns[j] @ (owns[j].mT @ second) - owns[i] @ (owns[i].mT @ second)
            rows = torch.zeros(q, q, number, dtype=torch.double)
            for a in range(q):
                for b in range(q):
                    rows[a, b, j * q + b] += alike[a, b]
                    rows[a, b, i * q + a] -= alike[a, b]
            terms.append(rows.flatten(0, 1))
            sums.append((first.mT @ gap).flatten())
    squares = torch.linalg.lstsq(
        torch.cat(terms), torch.cat(sums)[:, None], driver="gelsd"
    ).solution.reshape(len(us), q)
    known = [u * s - own @ (own.mT @ u) for own, u, s in zip(owns, us, squares, strict=True)]
    basis, inner = torch.linalg.qr(torch.cat([*us], 1))
    known_there = torch.cat(known, 1) @ torch.linalg.inv(inner)  # (K_d + c I) Q
    least = torch.linalg.eigvalsh(basis.mT @ known_there)[0]
    known_there = known_there - least * basis
    core = basis.mT @ known_there
    back = torch.linalg.pinv((core + core.mT) / 2, rtol=1e-9, hermitian=True)
    gram: Tensor = known_there @ back @ known_there.mT
    return gram


def alike_by_votes(own: Tensor, u: Tensor) -> Tensor:
    """Which rows are equal in the partner's columns, from one singular vector: (rows, rows)."""
    k = own @ (own.mT @ u)
    i, j = torch.triu_indices(len(u), len(u), 1)
    values, counts = ((k[i] - k[j]) / (u[i] - u[j])).round(decimals=6).unique(return_counts=True)
    known = u * values[counts.argmax()] - k  # K_d u
    alike: Tensor = (known[:, None] - known[None]).abs() < 1e-4
    return alike


def with_equal_columns(matrix: Tensor) -> Tensor:
    """The matrix, its columns rotated among themselves until all have variance 1."""
    columns, due = list(matrix.mT), float(len(matrix))
    done: list[Tensor] = []
    while len(columns) > 1:
        columns.sort(key=lambda column: float(column @ column))
        a, b = columns.pop(0), columns.pop()  # the shortest and the longest
        aa, bb, ab = float(a @ a) - due, float(b @ b) - due, float(a @ b)
        tangent = ((ab * ab - aa * bb) ** 0.5 - ab) / bb if bb > 1e-9 else 0.0
        cos = 1 / (1 + tangent * tangent) ** 0.5
        done.append(cos * (a + tangent * b))
        columns.append(cos * (b - tangent * a))
    return torch.stack([*done, *columns], 1)
