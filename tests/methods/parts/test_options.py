"""Options: out of bounds, removed, and handed on by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from colonnade.methods.parts.options import bounded, chosen, group


@dataclass(frozen=True)
class Some:
    rounds: int = 3
    share: float = 0.5
    how: str = "mean"


@pytest.mark.parametrize(
    ("value", "bounds", "rule"),
    [
        (0.0, {"least": 1}, "at least 1"),
        (0.0, {"above": 0}, "above 0"),
        (1.0, {"least": 0, "below": 1}, "at least 0, below 1"),
        (1.5, {"above": 0, "most": 1}, "above 0, at most 1"),
        (float("inf"), {"least": 0}, "at least 0"),
        (float("nan"), {}, ""),
    ],
)
def test_out_of_bounds(value: float, bounds: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rf"share = {value}: {rule}$"):
        bounded(Some(share=value), "share", **bounds)


def test_within_bounds() -> None:
    bounded(Some(share=0.0), "rounds", "share", least=0, most=3)
    bounded(Some(share=0.1), "share", above=0, below=0.2)


def test_a_removed_text_says_so() -> None:
    removed = {"sum": "as it grows with the clients: use 'mean'"}
    chosen(Some(), "how", ("mean", "max"), removed)
    with pytest.raises(ValueError, match=r"how = 'sum': removed, as it grows .*use 'mean'"):
        chosen(Some(how="sum"), "how", ("mean", "max"), removed)
    with pytest.raises(ValueError, match="how = 'min': must be one of mean, max"):
        chosen(Some(how="min"), "how", ("mean", "max"), removed)


def test_a_part_gets_what_it_declares() -> None:
    @dataclass(frozen=True)
    class Part:
        share: float
        how: str
        seed: int = 0

    assert group(Some(), Part) == Part(0.5, "mean")
    assert group(Some(), Part, seed=7, how="max") == Part(0.5, "max", 7)
