"""Divides a count among parties."""

from __future__ import annotations

from math import floor


def even(count: int, parties: int) -> list[int]:
    """`count` over `parties`: sizes differ by at most one, the larger first."""
    size, larger = divmod(count, parties)
    return [size + 1] * larger + [size] * (parties - larger)


def portion(count: int, fraction: float) -> int:
    """The nearest whole number to a fraction of `count`; at least one if the fraction is not 0."""
    if fraction == 0:
        return 0
    return min(count, max(1, floor(count * fraction + 0.5)))
