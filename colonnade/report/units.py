"""Numbers as a person reads them: one place for rounding, units and separators.

Every function takes None or a value that is not finite and answers with a dash.
"""

from __future__ import annotations

import math

MISSING = "–"
MINUS = "−"


def size(number: float | None) -> str:
    """Bytes in decimal units, three significant digits: `244 MB`."""
    if number is None or not math.isfinite(number):
        return MISSING
    value, units = float(number), ["B", "kB", "MB", "GB", "TB", "PB"]
    unit = 0
    # 999.5 and more would be written as 1000 of its unit
    while abs(value) >= 999.5 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:,.0f} B" if unit == 0 else f"{_three_digits(value)} {units[unit]}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them: `3.2 ms`, `12.3 s`, `1 min 4 s`, `2 h 5 min`."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def count(number: float | None) -> str:
    """A whole number with thousands separated: `1,234,567`."""
    if number is None or not math.isfinite(number):
        return MISSING
    return f"{number:,.0f}"


def percent(fraction: float | None, digits: int = 2) -> str:
    """A fraction as a percentage: `98.61 %`."""
    if fraction is None or not math.isfinite(fraction):
        return MISSING
    return f"{100 * fraction:.{digits}f} %"


def points(difference: float | None) -> str:
    """A difference of two percentages, always with its sign: `+1.20`, `−0.35`."""
    if difference is None or not math.isfinite(difference):
        return MISSING
    shown = f"{abs(difference):.2f}"
    if shown == "0.00":
        return shown
    return f"{'+' if difference > 0 else MINUS}{shown}"


def decimal(number: float | None, digits: int = 2) -> str:
    """A number without a unit: `0.87`."""
    if number is None or not math.isfinite(number):
        return MISSING
    return f"{number:z.{digits}f}".replace("-", MINUS)


def decibels(number: float | None) -> str:
    """A ratio on a logarithmic scale: `24.1 dB`."""
    shown = decimal(number, 1)
    return shown if shown == MISSING else f"{shown} dB"


def plain(text: object) -> str:
    """A name that is safe to draw: what cannot be printed becomes a question mark."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def shorten(text: object, length: int) -> str:
    """A printable name of at most `length` characters; names often differ at their end."""
    whole = plain(text)
    end = (length - 1) // 2
    return whole if len(whole) <= length else f"{whole[: length - 1 - end]}…{whole[-end:]}"


def names(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def _three_digits(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
