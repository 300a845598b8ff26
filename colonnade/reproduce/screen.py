"""The same in a terminal: progress while it works, tables at the end; plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from colonnade.report import units
from colonnade.reproduce import catalogue, view
from colonnade.reproduce.cells import value
from colonnade.reproduce.exhibit import PSNR, SECONDS, SSIM, Planned, Size
from colonnade.reproduce.flow import Watch
from colonnade.reproduce.queue import Job
from colonnade.reproduce.view import Content

BAR = 24
WIDEST = 16  # of a column with numbers


class Screen(Watch):
    """A line for every run that ends; in a terminal also a bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def note(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def began(self, total: int, reused: int) -> None:
        self._total, self._reused, self._done = total, reused, reused
        self._start = time.perf_counter()
        kept = f", {reused} finished already" if reused else ""
        self._console.print(Text(f"{total} run{'' if total == 1 else 's'}{kept}"))
        if self._console.is_terminal and reused < total:
            self._live = Live(
                console=self._console,
                get_renderable=self._bar,
                refresh_per_second=2,
                transient=True,
            )
            self._live.start()

    def ended(self, run: Planned, result: Mapping[str, Any] | None, error: str) -> None:
        self._done += 1
        if result is None:
            outcome = [f"failed: {error}"]
        else:
            accuracies = [fill for fill in run.fills if _accuracy(fill.metric)]
            numbers = [n for fill in accuracies if (n := value(result, fill)) is not None]
            low, high = min(numbers, default=0.0), max(numbers, default=0.0)
            shown = f"{low:.2f} %" if low == high else f"{low:.2f} to {high:.2f} %"
            outcome = [
                shown if numbers else "",
                units.duration(result["timing"]["seconds_total"]),
                self._left(),
            ]
        line = "  ".join([f"  {self._done}/{self._total}", run.key, *filter(None, outcome)])
        self._console.print(Text(line), soft_wrap=True)

    def closed(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _left(self) -> str:
        made, left = self._done - self._reused, self._total - self._done
        if not made or not left:
            return ""
        return f"about {units.duration((time.perf_counter() - self._start) / made * left)} left"

    def _bar(self) -> Text:
        full = round(self._done / self._total * BAR)
        bar = "━" * full + "╌" * (BAR - full)
        return Text(f"  {bar} {self._done} of {self._total} runs  {self._left()}")


def _accuracy(metric: str) -> bool:
    return metric not in (PSNR, SSIM, SECONDS) and not metric.startswith("ppm")


def show(content: Content, console: Console) -> None:
    """The table, section by section, and the claims."""
    console.print()
    console.print(Text(content["title"], style="bold"))
    if not content["comparable"]:
        console.print(Text(f"{view.NOT_COMPARABLE}. {content['note']}"))
    compared = content["comparable"] and any(c["paper"] is not None for c in content["cells"])
    for section in view.sections(content):
        label = max(len(row["name"]) for row in section["rows"]) + 2
        width = max(
            WIDEST, *(len(view.ours(c)) + 2 for row in section["rows"] for c in row["cells"])
        )
        step = max(1, (console.width - label) // width)
        console.print(Text(f"\n{section['title']}"))
        for first in range(0, len(section["columns"]), step):
            console.print(_rectangle(section, slice(first, first + step), compared))
    if compared:
        console.print(Text("Ours; below it the paper and the difference in points."))
        if any(row["variant"] for s in view.sections(content) for row in s["rows"]):
            console.print(Text(f"{view.VARIANT}."))
    for fit in content.get("fits", []):
        console.print(Text(fit["text"]))
    for claim in view.measured(content):
        said = f"; in the paper's numbers {view.printed(claim)}" if view.printed(claim) else ""
        console.print(Text(f"{claim['text']}: {view.count(claim)}{said}"))
        for line in view.listed(claim):
            console.print(Text(f"    {line}"))


def _rectangle(section: Mapping[str, Any], part: slice, compared: bool) -> RichTable:
    table = RichTable(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("")
    for column in section["columns"][part]:
        table.add_column(Text(column), justify="right", no_wrap=True)
    for row in section["rows"]:
        name = Text(row["name"] + ("*" if row["variant"] and compared else ""))
        table.add_row(name, *(_cell(cell, compared) for cell in row["cells"][part]))
    return table


def _cell(cell: Mapping[str, Any] | None, compared: bool) -> Text:
    """Ours; below it the paper's mean and the difference. There is no room for its deviation."""
    shown = view.ours(cell)
    if compared and cell and cell["paper"] is not None:
        shown += f"\n{cell['paper']:.2f}  {view.difference(cell)}"
    return Text(shown)


def shelf() -> list[dict[str, Any]]:
    """Every table there is, with the number of its runs for one seed."""
    found = []
    for name in catalogue.names():
        table = catalogue.find(name)
        runs = {}
        for size in get_args(Size):
            runs[f"{size}_runs"] = len(table.plan(size, 1, {}, "cpu"))
        found.append({"name": name, "title": table.title, **runs})
    return found


def show_shelf(rows: list[dict[str, Any]], console: Console) -> None:
    table = RichTable("Name", "What", box=None)
    table.add_column("Runs per seed: fast", justify="right")
    table.add_column("full", justify="right")
    for row in rows:
        table.add_row(row["name"], row["title"], str(row["fast_runs"]), str(row["full_runs"]))
    console.print(table)


def show_missing(jobs: Sequence[Job], console: Console) -> None:
    """What is missing of each table, and what it would take; a ~ where nothing alike is known."""
    table = RichTable("Table", box=None)
    for heading in ("Missing", "Shortest", "All, one after the other"):
        table.add_column(heading, justify="right")
    table.add_column("Held back")
    together: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        together.setdefault((job.table, job.held), []).append(job)
    for (name, held), same in together.items():
        sign = "~" if any(job.guessed for job in same) else ""
        shortest = min(job.seconds for job in same)
        whole = sum(job.seconds for job in same)
        times = (sign + units.duration(seconds) for seconds in (shortest, whole))
        table.add_row(name, str(len(same)), *times, held)
    console.print(table)
    ready = [job for job in jobs if not job.held]
    takes = units.duration(sum(job.seconds for job in ready))
    console.print(Text(f"{len(ready)} runs can be made, about {takes} one after the other"))
