"""The report's figures, as SVG that lives inside the page.

Matplotlib draws in the colours of `_THEME`, which stand for themselves only; `_inline` then
replaces them by the page's CSS variables, so that one drawing follows a light, a dark and a
printed page. It also drops what belongs to a file and not to a page (metadata, namespaces, fixed
sizes, style rules that would leak) and makes every id unique. Same input, same bytes.

Every series has a colour, a marker and a line style or hatch of its own: no figure needs colour.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from colonnade.report import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _MUTED, _RULE, _PAPER = "#fe0001", "#fe0002", "#fe0003", "#fe0004"
_SERIES = [f"#fe001{i}" for i in range(8)]
_THEME = {_INK: "--ink", _MUTED: "--muted", _RULE: "--rule", _PAPER: "--paper"} | {
    colour: f"--series-{i + 1}" for i, colour in enumerate(_SERIES)
}
_MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<"]
_LINES = [
    "-",
    (0, (6, 2)),
    (0, (2, 1.5)),
    (0, (7, 2, 1.5, 2)),
    "-",
    (0, (6, 2)),
    (0, (2, 1.5)),
    "-",
]
_HATCHES = ["", "////", "---", "\\\\\\\\", "|||", "xxx", "+++", "//"]  # no dots: 100 kB each
_CROWD: dict[str, Any] = {"color": _MUTED, "linewidth": 0.8, "alpha": 0.5}
MOST = len(_SERIES)  # more lines than this are drawn as a crowd and its mean

_RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a '$' in a name is a dollar sign
    "font.family": "DejaVu Sans",  # for measuring only; the page's font is narrower
    "font.size": 11,
    "text.color": _INK,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": _RULE,
    "grid.linewidth": 0.7,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 6,
    "hatch.linewidth": 1.1,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def curves(series: Sequence[Series], *, key: str, label: str, percent: bool = False) -> str:
    """Lines against epochs. `key` is unique in the page, `label` is read to who cannot see it.

    With `percent`, y are fractions. More than `MOST` lines become thin ones with their mean.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with _figure(360, 220) as (figure, axes):
        scale = 100 if percent else 1
        crowd = len(series) > MOST
        for i, line in enumerate(series):
            y = [scale * v for v in line.y]
            if crowd:
                axes.plot(line.x, y, **_CROWD)
            else:
                axes.plot(line.x, y, **_line_style(i), markevery=_markers_at(i, len(y)))
        if crowd:
            x, mean = _mean(series)
            y = [scale * v for v in mean]
            axes.plot(x, y, **_line_style(0), markevery=_markers_at(0, len(y)))
        epochs = [x for line in series for x in line.x] or [1]
        margin = max(0.04 * (max(epochs) - min(epochs)), 0.25)
        axes.set_xlim(min(epochs) - margin, max(epochs) + margin)
        if len(set(epochs)) <= 10:
            axes.set_xticks(sorted(set(epochs)))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.xaxis.grid(False)
        axes.set_xlabel("epoch")
        low, high = axes.get_ylim()
        if percent:
            axes.set_ylim(max(low, -2), min(high, 101))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} %"))
        elif low > 0 and low < high / 2:
            axes.set_ylim(0, high)
        return _inline(figure, key, label)


def stacked_bars(
    rows: Sequence[str],
    parts: Sequence[str],
    sizes: Sequence[Sequence[float]],
    *,
    key: str,
    label: str,
    width: int = 680,
) -> str:
    """Horizontal bars of bytes: `sizes[row][part]`, the total written at each bar's end."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with _figure(width, 44 + 26 * len(rows)) as (figure, axes):
        places = range(len(rows))
        totals = [sum(row) for row in sizes]
        left = [0.0] * len(rows)
        for i in range(len(parts)):
            widths = [row[i] for row in sizes]
            axes.barh(places, widths, left=left, height=0.62, **_fill_style(i))
            left = [a + b for a, b in zip(left, widths, strict=True)]
        longest = max([*totals, 1])
        for place, total in zip(places, totals, strict=True):
            axes.text(total + 0.012 * longest, place, units.size(total), va="center", fontsize=10)
        axes.set_xlim(0, longest * (1.16 if width > 500 else 1.38))
        axes.set_ylim(len(rows) - 0.45, -0.55)
        length = 22 if width > 500 else 13
        axes.set_yticks(places, [units.shorten(r, length) for r in rows], color=_INK)
        axes.grid(False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6 if width > 500 else 3))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _round_size(v)))
        return _inline(figure, key, label)


def line_swatch(index: int, *, key: str) -> str:
    """The legend's sample of line `index`; -1 is one of a crowd."""
    with _figure(34, 12, bare=True) as (figure, axes):
        style = _CROWD if index < 0 else _line_style(index)
        axes.plot([0, 0.5, 1], [0, 0, 0], **style, markevery=[1])
        axes.set_xlim(-0.02, 1.02)
        return _inline(figure, key, "")


def fill_swatch(index: int, *, key: str) -> str:
    """The legend's sample of a bar's part."""
    with _figure(20, 12, bare=True) as (figure, axes):
        axes.barh([0], [1], height=1, **_fill_style(index))
        axes.set_xlim(0, 1)
        return _inline(figure, key, "")


def heat_map(confusion: Sequence[Sequence[int]], classes: Sequence[str], *, label: str) -> str:
    """A confusion matrix of many classes: one square per cell that is not empty.

    Matplotlib would write an element per cell or a picture that no theme can colour; here all
    cells of one shade are one path, some 30 kB for 100 classes.
    """
    side, left, top, number = 320.0, 78.0, 78.0, len(confusion)
    cell = side / max(number, 1)
    shades: dict[tuple[str, int], list[str]] = {}
    for i, row in enumerate(confusion):
        for j, level in enumerate(shade_levels(row)):
            if level:
                start = f"M{left + j * cell:.2f} {top + i * cell:.2f}"
                place = f"{start}h{cell:.2f}v{cell:.2f}h-{cell:.2f}z"
                shades.setdefault(("right" if i == j else "wrong", level), []).append(place)
    out = [
        f'<svg class="plot" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {left + side + 2:g} {top + side + 2:g}">',
        f'<rect class="frame" x="{left:g}" y="{top:g}" width="{side:g}" height="{side:g}"/>',
    ]
    for (kind, level), places in sorted(shades.items()):
        out.append(f'<path class="{kind}" fill-opacity="{level / 10:g}" d="{"".join(places)}"/>')
    step = math.ceil(number * 10 / side)  # a label needs ten units
    for i in range(0, number, step):
        name = escape(units.shorten(classes[i], 11))
        middle = (i + 0.5) * cell
        out.append(f'<text x="{left - 6:g}" y="{top + middle + 3:.2f}" class="end">{name}</text>')
        turn = f"translate({left + middle + 3:.2f} {top - 6:g}) rotate(-90)"
        out.append(f'<text transform="{turn}">{name}</text>')
    return "".join([*out, "</svg>"])


def shade_levels(row: Sequence[int]) -> list[int]:
    """0 to 10 per cell: the square root of its share of the row, so that rare mistakes show."""
    total = sum(row)
    return [math.ceil(10 * math.sqrt(n / total)) if n > 0 else 0 for n in row]


def _line_style(index: int) -> dict[str, Any]:
    colour = _SERIES[index % MOST]
    return {
        "color": colour,
        "linestyle": _LINES[index % MOST],
        "marker": _MARKERS[index % MOST],
        "markerfacecolor": _PAPER if index % 2 else colour,
        "markeredgecolor": colour,
        "markeredgewidth": 1.3,
    }


def _fill_style(index: int) -> dict[str, Any]:
    return {
        "facecolor": _SERIES[index % MOST],
        "hatch": _HATCHES[index % MOST],
        "edgecolor": _PAPER,
        "linewidth": 0.8,
    }


def _markers_at(index: int, length: int) -> list[int]:
    """At most a dozen markers, shifted from line to line, and always one at the end."""
    step = max(1, math.ceil(length / 12))
    places = set(range(index % step, length, step))
    return sorted(places | {length - 1} if length else places)


def _mean(series: Sequence[Series]) -> tuple[list[float], list[float]]:
    at: dict[float, list[float]] = {}
    for line in series:
        for x, y in zip(line.x, line.y, strict=True):
            at.setdefault(x, []).append(y)
    return sorted(at), [sum(at[x]) / len(at[x]) for x in sorted(at)]


def _round_size(value: float) -> str:
    """`50 MB` on an axis, not `50.0 MB`."""
    number, unit = units.size(value).split(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


@contextmanager
def _figure(width: int, height: int, bare: bool = False) -> Iterator[tuple[Figure, Axes]]:
    """A figure of `width` × `height` SVG units, drawn by our settings and nobody else's."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        # names may be in any script: the browser has the glyphs, matplotlib need not
        warnings.filterwarnings("ignore", message="(?s)Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        figure = Figure(figsize=(width / 72, height / 72), layout=None if bare else "constrained")
        figure.patch.set_visible(False)
        axes = figure.subplots()
        axes.patch.set_visible(False)
        if bare:
            axes.set_axis_off()
            axes.set_position((0, 0, 1, 1))
        yield figure, axes


def _inline(figure: Figure, key: str, label: str) -> str:
    """The figure as an `<svg>` element for a page; without `label` it is decoration."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = key
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for element in list(root.iter()):
        for child in list(element):
            if child.tag.endswith(("}metadata", "}style")):
                element.remove(child)
    used = set(re.findall(r"(?:url\(#|href=\"#)([\w.-]+)", buffer.getvalue()))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        if element.tag != "text":
            element.text = None
        old = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update(_attributes(old, used, key))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("class", "plot")
    root.attrib.update({"role": "img", "aria-label": label} if label else {"aria-hidden": "true"})
    return ElementTree.tostring(root, encoding="unicode")


def _attributes(old: dict[str, str], used: set[str], key: str) -> dict[str, str]:
    new = {}
    for name, value in old.items():
        if name == "id":
            if value not in used:
                continue
            value = f"{key}-{value}"
        elif name == "href":
            value = value.replace("#", f"#{key}-", 1)
        elif name == "d":
            value = " ".join(value.split())
        elif name in {"style", "clip-path", "fill"}:
            value = value.replace("url(#", f"url(#{key}-")
            value = re.sub(r" ?font-family: [^;]*;", "", value)  # inherited from the page
            value = re.sub(r"#fe00\d\d", lambda m: f"var({_THEME[m[0]]})", value)
        if name == "fill":  # var() is understood in style only
            name, value = "style", f"fill: {value}"
        new[name] = value
    return new
