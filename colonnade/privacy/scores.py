"""A table in few noisy columns: an (ε, δ) for each of its rows, whatever is done with them later.

Rows are told one by one, so whatever tells of a row needs noise for this row. The fewer the numbers
of a row, the less noise each of them needs. What they mean is learnt from all rows together, which
costs little.

    1. clip       rows of d standardised columns to ‖s‖₂ ≤ C = clip · √d
    2. directions V and Λ, the r leading eigenvectors and -values of Σ s sᵀ / n + N, where N is
                  symmetric, N(0, σ₁²) on and above its diagonal; one replaced row moves Σ s sᵀ by
                  √2 · C² at most, in the Frobenius norm (Analyze Gauss, Dwork et al., STOC 2014)
    3. scores     z = Λ^-½ Vᵀ s, clipped to ‖z‖₂ ≤ c = clip · √r
    4. noise      z + N(0, σ₂²); one replaced row moves one z by 2 c at most

σ₁ = √2 C² z₁ / n and σ₂ = 2 c z₂. Two Gaussian releases of which the second knows the first tell as
much as a single one of the size z, with 1/z² = 1/z₁² + 1/z₂².

**What is protected**: one row of the table, against everybody, whatever they know of other rows:
replaced by any other row, it changes no probability of what leaves by more than (ε, δ).
**What is not**: the means and spreads by which the columns were standardised are taken as given;
so are which rows there are, and how many. Rows that belong together, such as those of one person,
need a multiple of ε. The proof is about real numbers; what is told is rounded to a grid, so that
last bits say nothing.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from colonnade.privacy.noise import gaussian

DIRECTIONS = 0.1  # of 1/z²: for the directions; the rest is for the rows' own numbers
LEAST = 0.01  # of an eigenvalue: noise may push it below 0
GRID = 2.0**-10  # of σ₂


def noisy_scores(
    table: Tensor, wanted: int, clip: float, size: float, secret: bytes, key: str
) -> Tensor:
    """Steps 1 to 4, in columns of variance 1: (rows, columns) → (rows, at most `wanted`).

    size    z
    secret  32 bytes that only this party has
    key     of this release alone: another table, or another size, has another key
    """
    rows, columns = table.shape
    width = min(wanted, columns)
    bound, told = clip * sqrt(columns), clip * sqrt(width)  # C, c
    first, second = sigmas(bound, told, rows, size)
    clipped = shortened(table.double(), bound)
    moments = clipped.mT @ clipped / rows
    upper = (moments + first * gaussian(moments.shape, secret, f"directions {key}")).triu()
    values, vectors = torch.linalg.eigh(upper + upper.triu(1).mT)
    leading = vectors[:, -width:] / values[-width:].clamp_min(LEAST).sqrt()
    scores = shortened(clipped @ leading, told)
    noisy = scores + second * gaussian(scores.shape, secret, f"scores {key}")
    grid = GRID * second
    noisy = (noisy / grid).round() * grid
    return (noisy - noisy.mean(0)) / noisy.std(0, correction=0).clamp_min(grid)


def sigmas(bound: float, told: float, rows: int, size: float) -> tuple[float, float]:
    """σ₁ and σ₂, for C, c, n and z."""
    first = sqrt(2) * bound**2 / rows * size / sqrt(DIRECTIONS)
    return first, 2 * told * size / sqrt(1 - DIRECTIONS)


def shortened(rows: Tensor, bound: float) -> Tensor:
    """Rows of at most this length, (rows, columns); shorter ones stay as they are."""
    lengths = rows.norm(dim=1, keepdim=True)
    # Slightly below: entries are rounded, and the length must not exceed the bound.
    factors = bound * (1 - 1e-12) / lengths
    return torch.where(lengths <= bound, rows, rows * factors)
