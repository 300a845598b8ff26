"""Numbers from row to row as a small drawing, in the colours and line styles of the report.

The report's own plots know only epochs; names along the axis are drawn here, as plain SVG.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 360.0, 190.0  # of the lines; the names stand below
LEFT, TOP = 34.0, 6.0
DASHES = ("none", "6 2", "2 2", "7 2 2 2")  # as in plots.line_swatch(0), (1), …
STEPS = (0.5, 1, 2, 5, 10, 20, 25)  # between two lines of the grid


def by_name(
    names: Sequence[str], lines: Sequence[Sequence[float | None]], *, label: str, unit: str = "%"
) -> str:
    """Up to four lines over `names`, in per cent or seconds; a missing number is passed over."""
    known = [value for line in lines for value in line if value is not None] or [0.0, 100.0]
    step = next((s for s in STEPS if max(known) - min(known) <= 5 * s), STEPS[-1])
    low, high = step * math.floor(min(known) / step), step * math.ceil(max(known) / step)
    high = max(high, low + step)

    def x(place: int) -> float:
        return LEFT + (place + 0.5) * (WIDTH - LEFT) / len(names)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - 2 * TOP)

    out = [
        f'<svg class="plot" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {WIDTH:g} {HEIGHT + 6 * max(map(len, names)) + 8:g}" font-size="11">'
    ]
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        out.append(
            f'<path d="M{LEFT:g} {y(value):.1f}H{WIDTH:g}" style="stroke: var(--rule)"/>'
            f'<text x="{LEFT - 6:g}" y="{y(value) + 4:.1f}" text-anchor="end" '
            f'style="fill: var(--muted)">{value:g} {unit}</text>'
        )
    for place, name in enumerate(names):
        turn = f"translate({x(place) + 4:.1f} {HEIGHT:g}) rotate(-90)"
        out.append(
            f'<text transform="{turn}" text-anchor="end" style="fill: var(--muted)">'
            f"{escape(name)}</text>"
        )
    for i, line in enumerate(lines):
        points = [(x(place), y(v)) for place, v in enumerate(line) if v is not None]
        colour = f"var(--series-{i + 1})"
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        style = f"fill: none; stroke: {colour}; stroke-width: 1.8; stroke-dasharray: {DASHES[i]}"
        out.append(f'<path d="M{path}" style="{style}"/>' if points else "")
        style = f"fill: {'var(--paper)' if i else colour}; stroke: {colour}; stroke-width: 1.3"
        for a, b in points:
            shape = (
                f'<rect x="{a - 2.5:.1f}" y="{b - 2.5:.1f}" width="5" height="5" '
                if i
                else f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" '
            )
            out.append(f'{shape}style="{style}"/>')
    return "".join([*out, "</svg>"])
