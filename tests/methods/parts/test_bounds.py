"""Options out of bounds are named, each with what it should be."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from colonnade.methods.parts.bounds import bad_choice, out_of_bounds


@dataclass
class Options:
    lr: float = 0.1
    count: int = 3
    scheme: str = "none"


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_numbers_out_of_bounds(bad: float) -> None:
    assert out_of_bounds(Options(lr=bad), "lr", above=0) == [f"lr = {bad}: above 0"]
    assert not out_of_bounds(Options(), "lr", above=0)


def test_bounds_are_named_together_and_every_option_by_itself() -> None:
    wrong = out_of_bounds(Options(lr=1.0, count=9), "lr", "count", least=0, below=1)
    assert wrong == ["lr = 1.0: at least 0, below 1", "count = 9: at least 0, below 1"]
    assert not out_of_bounds(Options(), "lr", "count", least=0.1, most=3)


def test_a_text_that_was_valid_once_is_told_why_it_is_not() -> None:
    assert not bad_choice(Options(), "scheme", ["none", "all"], {})
    (wrong,) = bad_choice(Options(scheme="some"), "scheme", ["none", "all"], {})
    assert wrong == "scheme = 'some': must be one of none, all"
    (wrong,) = bad_choice(Options(scheme="old"), "scheme", ["none"], {"old": "take none"})
    assert wrong == "scheme = 'old': removed, take none"
