"""Checks of plain values that others have told: what they are, how many, and how large."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LETTERS, NAME_LETTERS = 2000, 200  # of a text, of a name


class Unfit(Exception):
    """What is wrong with what was told."""


def table(value: object, where: str, most: int) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or len(value) > most:
        raise Unfit(f"{where} is not a table of at most {most} entries")
    return value


def sequence(value: object, where: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise Unfit(f"{where} is not a list of at most {most} entries")
    return value


def texts(value: object, where: str, most: int) -> None:
    for text in sequence(value, where, most):
        if not isinstance(text, str) or len(text) > LETTERS:
            raise Unfit(f"{where} holds something that is not a text of at most {LETTERS} letters")


def name(value: object, where: str) -> None:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= NAME_LETTERS:
        raise Unfit(
            f"{where} has a name that is not a printable text of 1 to {NAME_LETTERS} letters"
        )


def named(value: object) -> str:
    """A name as a part of a place; unprintable or long ones are not repeated."""
    name(value, "scores")
    return str(value)


def number(value: object, where: str, most: float, least: float | None = None) -> None:
    """A number from `least` to `most`, which is 0 unless it is given; where `most` is infinite, any
    number that is finite."""
    loggable(value, where)
    low = (-math.inf if most == math.inf else 0.0) if least is None else least
    if not (isinstance(value, int | float) and math.isfinite(value) and low <= value <= most):
        raise Unfit(f"{where} holds {value}, which is not between {low:g} and {most:g}")


def loggable(value: object, where: str) -> None:
    """A loss may also be NaN or infinite; a result shows it as null."""
    if type(value) not in (int, float) or (isinstance(value, int) and abs(value) >= 1 << 63):
        raise Unfit(f"{where} holds something that is not a number")


def count(value: object, where: str, most: int, least: int = 1) -> None:
    if type(value) is not int or not least <= value <= most:
        raise Unfit(f"{where} is not a whole number from {least} to {most}")


def protections(value: object, where: str) -> None:
    """What protects a party, in plain values: {"embeddings": {"epsilon": 8.0, "claim": "…"}}."""
    for part, told in table(value, where, 8).items():
        name(part, where)
        for key, item in table(told, where, 32).items():
            name(key, where)
            for one in item if isinstance(item, list) and len(item) <= 100 else [item]:
                if isinstance(one, str):
                    texts([one], where, 1)
                else:
                    loggable(one, where)
