"""Every figure of a report or of a reproduced table, as SVG that lives inside the page.

Matplotlib draws in the placeholder colours of `_THEME`. `inline` then replaces them with the
page's CSS variables, so that one drawing follows a light, a dark and a printed page. It also drops
what belongs in a file but not in a page (metadata, namespaces, fixed sizes, style rules that would
leak) and makes every id unique. The same input gives the same bytes.

Every series has its own colour, marker and line style or hatch, so no figure depends on colour.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from colonnade.report import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path

INK, MUTED, _RULE, _PAPER = "#fe0001", "#fe0002", "#fe0003", "#fe0004"
_TINT, _RIGHT, _WRONG = "#fe0005", "#fe0006", "#fe0007"
SERIES = [f"#fe001{i}" for i in range(8)]
_THEME = (
    {INK: "--ink", MUTED: "--muted", _RULE: "--rule", _PAPER: "--paper"}
    | {_TINT: "--tint", _RIGHT: "--right", _WRONG: "--wrong"}
    | {colour: f"--series-{i + 1}" for i, colour in enumerate(SERIES)}
)
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
_CROWD: dict[str, Any] = {"color": MUTED, "linewidth": 0.8, "alpha": 0.5}
MOST = len(SERIES)  # more lines than this are drawn as a crowd and its mean

_RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a '$' in a name is a dollar sign
    "font.family": "DejaVu Sans",  # for measuring only: the page's own font is narrower
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": _RULE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
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


def curves(
    series: Sequence[Series],
    *,
    key: str,
    label: str,
    percent: bool = False,
    mark: int | None = None,
) -> str:
    """Lines against epochs. `key` is unique in the page; a screen reader speaks `label`.

    With `percent`, y are fractions; `mark` is an epoch that counts. More than
    `MOST` lines become thin lines and their mean.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with figure_of(360, 220) as (figure, axes):
        scale = 100 if percent else 1
        crowd = len(series) > MOST
        for i, line in enumerate(series):
            y = [scale * v for v in line.y]
            if crowd:
                axes.plot(line.x, y, **_CROWD)
            else:
                axes.plot(line.x, y, **line_style(i), markevery=markers_at(i, len(y)))
        if crowd:
            x, mean = _mean(series)
            y = [scale * v for v in mean]
            axes.plot(x, y, **line_style(0), markevery=markers_at(0, len(y)))
        if mark is not None:
            axes.axvline(mark, color=INK, linewidth=1.0, linestyle=(0, (2, 2)))
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
        return inline(figure, key, label)


def by_name(
    names: Sequence[str],
    lines: Sequence[Sequence[float | None]],
    *,
    key: str,
    label: str,
    unit: str = "%",
) -> str:
    """Lines from name to name, such as rows of a table; a missing number is skipped."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    shown = [units.shorten(name, 30) for name in names]
    with figure_of(360, 200 + round(6.5 * max(map(len, shown)))) as (figure, axes):
        for i, line in enumerate(lines[:MOST]):
            known = [(place, value) for place, value in enumerate(line) if value is not None]
            axes.plot([place for place, _ in known], [v for _, v in known], **line_style(i))
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_xticks(range(len(names)), shown, rotation=90)
        axes.xaxis.grid(False)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} {unit}"))
        return inline(figure, key, label)


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

    with figure_of(width, 44 + 26 * len(rows)) as (figure, axes):
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
        axes.set_yticks(places, [units.shorten(r, length) for r in rows], color=INK)
        axes.grid(False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6 if width > 500 else 3))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _round_size(v)))
        return inline(figure, key, label)


def line_swatch(index: int, *, key: str) -> str:
    """The legend's sample of line `index`; -1 stands for one line of a crowd."""
    with figure_of(34, 12, bare=True) as (figure, axes):
        style = _CROWD if index < 0 else line_style(index)
        axes.plot([0, 0.5, 1], [0, 0, 0], **style, markevery=[1])
        axes.set_xlim(-0.02, 1.02)
        return inline(figure, key, "")


def fill_swatch(index: int, *, key: str) -> str:
    """The legend's sample of part `index` of a bar."""
    with figure_of(20, 12, bare=True) as (figure, axes):
        axes.barh([0], [1], height=1, **_fill_style(index))
        axes.set_xlim(0, 1)
        return inline(figure, key, "")


def heat_map(
    confusion: Sequence[Sequence[int]], classes: Sequence[str], *, key: str, label: str
) -> str:
    """A confusion matrix of many classes: one square per cell that is not empty.

    All cells of one shade are one path: an element for each would make the page ten times larger.
    """
    from matplotlib.patches import PathPatch

    number = len(confusion)
    shades: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for i, row in enumerate(confusion):
        for j, level in enumerate(shade_levels(row)):
            if level:
                shades.setdefault((_RIGHT if i == j else _WRONG, level), []).append((i, j))
    with figure_of(400, 400) as (figure, axes):
        for (colour, level), cells in sorted(shades.items()):
            axes.add_patch(
                PathPatch(_squares(cells), facecolor=colour, linewidth=0, alpha=level / 10)
            )
        axes.set(xlim=(0, number), ylim=(number, 0), aspect="equal")
        axes.patch.set(visible=True, facecolor=_TINT)
        axes.spines[:].set_visible(True)
        axes.grid(False)
        axes.xaxis.tick_top()
        shown = range(0, number, math.ceil(number * 10 / 320))  # a label needs ten units
        names = [units.shorten(classes[i], 11) for i in shown]
        places = [i + 0.5 for i in shown]
        axes.set_xticks(places, names, rotation=90, fontsize=9, color=INK)
        axes.set_yticks(places, names, fontsize=9, color=INK)
        return inline(figure, key, label)


def shade_levels(row: Sequence[int]) -> list[int]:
    """0 to 10 per cell: the square root of its share of the row keeps rare mistakes visible."""
    total = sum(row)
    return [math.ceil(10 * math.sqrt(n / total)) if n > 0 else 0 for n in row]


def line_style(index: int) -> dict[str, Any]:
    colour = SERIES[index % MOST]
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
        "facecolor": SERIES[index % MOST],
        "hatch": _HATCHES[index % MOST],
        "edgecolor": _PAPER,
        "linewidth": 0.8,
    }


def _squares(cells: Sequence[tuple[int, int]]) -> Path:
    """One path around the unit squares of (row, column)."""
    from matplotlib.path import Path

    corners = [(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path([(j + x, i + y) for i, j in cells for x, y in corners], codes * len(cells))


def markers_at(index: int, length: int) -> list[int]:
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
def figure_of(width: int, height: int, bare: bool = False) -> Iterator[tuple[Figure, Axes]]:
    """A figure of `width` × `height` SVG units, unaffected by the caller's matplotlib settings."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        # names may be in any script: the browser has the glyphs even where matplotlib does not
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


def inline(figure: Figure, key: str, label: str) -> str:
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
            value = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.2f}", " ".join(value.split()))
        elif name in {"style", "clip-path", "fill"}:
            value = value.replace("url(#", f"url(#{key}-")
            value = re.sub(r" ?font-family: [^;]*;", "", value)  # inherited from the page
            value = re.sub(r"#fe00\d\d", lambda m: f"var({_THEME[m[0]]})", value)
        if name == "fill":  # browsers resolve var() in style alone
            name, value = "style", f"fill: {value}"
        new[name] = value
    return new
