"""The curves behind the measures: ROC, precision over recall, calibration, residuals.

Drawn by the same rules as all other figures, see `plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from colonnade.report import units
from colonnade.report.plots import INK, MUTED, SERIES, Series, figure_of, inline, line_style

SIDE = 250  # of a square figure
ENDS = (4, 20, 40, 100)  # of an axis in per cent; quarters of them are whole numbers
CHANCE: dict[str, Any] = {"color": MUTED, "linewidth": 1.0, "linestyle": (0, (3, 3))}


def shares(
    line: Series,
    *,
    key: str,
    label: str,
    axes: tuple[str, str],
    chance: tuple[float, float] | None = None,
    points: bool = False,
    at: tuple[float, float] | None = None,
    close: bool = False,
) -> str:
    """One share over another, both from 0 to 100 %.

    chance  where a line without any skill begins and ends, on the left and on the right
    points  mark every point
    at      the point of the threshold
    close   end both axes sooner, where all points are small: a rare class has small probabilities
    """
    from matplotlib.ticker import FuncFormatter

    with figure_of(300, SIDE) as (figure, plot):
        if chance is not None:
            plot.plot([0, 100], [100 * end for end in chance], **CHANCE)
        style = line_style(0) | ({} if points else {"marker": ""})
        plot.plot([100 * x for x in line.x], [100 * y for y in line.y], **style)
        if at is not None:
            plot.plot(
                [100 * at[0]],
                [100 * at[1]],
                marker="D",
                markersize=7,
                color=SERIES[1],
                linestyle="",
            )
        most = 100 * max([*line.x, *line.y, 0.0])
        end = next((end for end in ENDS if most <= end), 100) if close else 100
        limits = (-0.02 * end, 1.02 * end)
        plot.set(xlim=limits, ylim=limits, xlabel=axes[0], ylabel=axes[1])
        for axis in (plot.xaxis, plot.yaxis):
            axis.set_ticks([quarter * end // 4 for quarter in range(5)])
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} %"))
        return inline(figure, key, label)


def agreement(
    predicted: Sequence[float],
    truth: Sequence[float],
    spread: Sequence[float],
    *,
    key: str,
    label: str,
) -> str:
    """The mean truth over the prediction, with the spread around it; on the line they agree."""
    with figure_of(300, SIDE) as (figure, plot):
        ends = [min([*predicted, *truth]), max([*predicted, *truth])]
        low = [t - s for t, s in zip(truth, spread, strict=True)]
        high = [t + s for t, s in zip(truth, spread, strict=True)]
        plot.plot(ends, ends, **CHANCE)
        plot.fill_between(predicted, low, high, color=SERIES[0], alpha=0.15, linewidth=0)
        plot.plot(predicted, truth, **line_style(0))
        plot.set(xlabel="predicted", ylabel="true, mean")
        _few_ticks(plot)
        return inline(figure, key, label)


def histogram(edges: Sequence[float], share: Sequence[float], *, key: str, label: str) -> str:
    """How residuals are distributed: bars of equal areas where they hold as many rows each."""
    with figure_of(300, SIDE) as (figure, plot):
        widths = [right - left for left, right in pairwise(edges)]
        heights = [s / w if w > 0 else 0.0 for s, w in zip(share, widths, strict=True)]
        plot.bar(
            edges[:-1],
            heights,
            width=widths,
            align="edge",
            color=SERIES[0],
            alpha=0.75,
            linewidth=0,
        )
        plot.axvline(0, color=INK, linewidth=0.8)
        plot.set(xlabel="true minus predicted")
        plot.set_yticks([])
        plot.grid(False)
        _few_ticks(plot)
        return inline(figure, key, label)


def _number(value: float, _: object) -> str:
    return f"{value:,g}".replace("-", units.MINUS)


def _few_ticks(plot: object) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    assert isinstance(plot, Axes)
    plot.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes = [plot.xaxis]
    if plot.get_yticks().size:
        plot.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.append(plot.yaxis)  # type: ignore[arg-type]
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(_number))
