"""Options of a method: checked, and handed in groups to the parts that work with them.

A config table is flat, so a method declares all its options in one dataclass. A part declares those
that it needs in a dataclass of its own, under the same names, and checks them; `group` fills it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import Annotated, Any, TypeVar

from colonnade.toml import Bounds

Part = TypeVar("Part")

# Types of options, whose bounds `check_bounds` checks
Count = Annotated[int, Bounds(least=1)]
CountOr0 = Annotated[int, Bounds(least=0)]
Size = Annotated[float, Bounds(least=0)]
Above0 = Annotated[float, Bounds(above=0)]
Share = Annotated[float, Bounds(least=0, below=1)]


def bounded(
    options: object,
    *names: str,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Raise a ValueError that names the first of these attributes that is out of bounds.

    least, most  the bound itself is allowed; above, below  it is not
    """
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    rule = ", ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)
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
            raise ValueError(f"{name} = {value}: {rule}")


def chosen(options: object, name: str, valid: Sequence[str], removed: Mapping[str, str]) -> None:
    """Raise a ValueError where a text is none of the valid ones, or one that was removed.

    removed  what to say about each such text
    """
    value: str = getattr(options, name)
    if value in removed:
        raise ValueError(f"{name} = '{value}': removed, {removed[value]}")
    if value not in valid:
        raise ValueError(f"{name} = '{value}': must be one of {', '.join(valid)}")


def group(options: object, part: type[Part], **more: Any) -> Part:
    """The options that a part declares, by name, and `more` that are no options."""
    names = {each.name for each in fields(part) if hasattr(options, each.name)}  # type: ignore[arg-type]
    return part(**{name: getattr(options, name) for name in names - more.keys()}, **more)
