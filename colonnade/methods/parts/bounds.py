"""Checks of options: numbers within bounds, texts among those that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite


def out_of_bounds(
    options: object,
    *names: str,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> list[str]:
    """One sentence for each of these attributes that is out of bounds, infinite or NaN.

    least, most  the bound itself is allowed; above, below  it is not
    """
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    rule = ", ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)
    wrong = []
    for name in names:
        value: float = getattr(options, name)
        within = (
            isfinite(value)
            and (least is None or value >= least)
            and (above is None or value > above)
            and (most is None or value <= most)
            and (below is None or value < below)
        )
        if not within:
            wrong.append(f"{name} = {value}: {rule}")
    return wrong


def bad_choice(
    options: object, name: str, valid: Sequence[str], removed: Mapping[str, str]
) -> list[str]:
    """One sentence where a text is not among the valid ones.

    removed  those that were, with what to say about each
    """
    value: str = getattr(options, name)
    if value in removed:
        return [f"{name} = '{value}': removed, {removed[value]}"]
    return [] if value in valid else [f"{name} = '{value}': must be one of {', '.join(valid)}"]
