from __future__ import annotations

import math

import pytest

from colonnade.report import units


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (243_900_000, "244 MB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (9_995, "10.0 kB"),
        (1.02e9, "1.02 GB"),
        (2e18, "2000 PB"),
        (None, "–"),
    ],
)
def test_size(number: float | None, shown: str) -> None:
    assert units.size(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0004, "0.40 ms"),
        (0.0123, "12.3 ms"),
        (0.82, "820 ms"),
        (0.9996, "1.00 s"),
        (12.34, "12.3 s"),
        (59.96, "1 min"),
        (64, "1 min 4 s"),
        (3599.6, "1 h"),
        (7500, "2 h 5 min"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert units.duration(seconds) == shown


def test_count() -> None:
    assert units.count(1_234_567) == "1,234,567"
    assert units.count(None) == "–"


def test_percent() -> None:
    assert units.percent(0.98612) == "98.61 %"
    assert units.percent(0.98612, 1) == "98.6 %"
    assert units.percent(1) == "100.00 %"
    assert units.percent(None) == units.percent(math.inf) == "–"


def test_points_always_show_their_sign() -> None:
    assert units.points(1.2) == "+1.20"
    assert units.points(-0.35) == "−0.35"
    assert units.points(-0.001) == "0.00"
    assert units.points(None) == "–"


def test_similarities() -> None:
    assert units.decimal(0.8714) == "0.87"
    assert units.decimal(-0.0514, 3) == "−0.051"
    assert units.decimal(-0.001) == "0.00"
    assert units.decibels(24.06) == "24.1 dB"
    assert units.decimal(None) == units.decibels(math.inf) == "–"


def test_names_are_printable_and_short() -> None:
    assert units.plain("a\x1b[31m\nb\ud800") == "a?[31m?b?"
    assert units.shorten("class name 17", 9) == "clas…e 17"
    assert units.shorten("short", 9) == "short"
