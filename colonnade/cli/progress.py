"""Shows a run's progress: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from colonnade.config import Config
from colonnade.report import measured, units
from colonnade.results.observer import Observer, Traffic
from colonnade.results.result import NOT_LOGGED
from colonnade.role.progress import Meter
from colonnade.task.measures import MEASURES

BAR = 24


class Progress(Observer):
    """Prints a line per epoch; in a terminal also a bar that moves within the epoch."""

    def __init__(self, console: Console, label: str = "") -> None:
        self._console = console
        self._label = label
        self._live: Live | None = None

    def began(self, config: Config, meters: Mapping[str, Meter], ledger: Traffic) -> None:
        self._meters, self._ledger = meters, ledger
        self._several = sum(meter.labelled for meter in meters.values()) > 1
        self._start = time.perf_counter()
        if self._label:
            self._console.print(Text(self._label, style="bold"))
        for caveat in config.caveats:  # before anything is sent
            self._console.print(Text(f"warning: {caveat}"))
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._bar,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()

    def epoch(self, party: str, row: Mapping[str, Any]) -> None:
        numbers = {k: v for k, v in row.items() if k not in NOT_LOGGED}
        if not numbers:
            return  # a party that only answers others
        for name in [key for key in numbers if key.endswith("accuracy")]:
            others = [each[name] for each in row.get("others", {}).values() if name in each]
            if others:  # one model per party: from the worst to the best
                numbers[name] = (min([numbers[name], *others]), max([numbers[name], *others]))
        phase = "" if row["phase"] == "train" else f"{row['phase']} "
        cells = [f"  {phase}epoch {row['epoch']}/{row['of']}"]
        if self._several or row["phase"] != "train":  # phases in which several parties work
            cells.append(party)
        shown = {k: v for k, v in numbers.items() if k == "loss" or k.endswith("accuracy")}
        decides = {k: v for k, v in numbers.items() if _measure(k) not in ("", "accuracy", "loss")}
        if decides:  # the measure that decides, where that is not the accuracy
            shown = {k: v for k, v in shown.items() if k == "loss"} | decides
        cells += [_metric(name, value) for name, value in (shown or numbers).items()]
        cells += [units.size(self._ledger.bytes), units.duration(row["seconds"])]
        self._console.print(Text(self._fitting(cells)), soft_wrap=True)  # one line in a log, too

    def _fitting(self, cells: list[str]) -> str:
        """One line: on a narrow screen without the time of the epoch, then without bytes, and then
        with the last of several numbers only."""
        tries = [cells]
        if self._console.is_terminal:
            tries += [cells[:-1], cells[:-2], [*cells[:2], *cells[-3:-2]]]
        lines = ["  ".join(one) for one in tries]
        return next((line for line in lines if len(line) <= self._console.width), lines[-1])

    def note(self, text: str) -> None:
        self._console.print(Text(f"  {text}"), soft_wrap=True)

    def ended(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _bar(self) -> Text:
        running = [(m.share, m.phase, m.epochs, m.points) for m in self._meters.values() if m.phase]
        # Those who wait for others stand at the beginning or the end of a phase.
        inside = [one for one in running if 0 < one[0] < 1]
        share, phase, epochs, points = min(inside or running, default=(0.0, "preparing", 1, 0))
        elapsed = time.perf_counter() - self._start
        left = f"{units.duration(elapsed / share * (1 - share))} left" if share > 0.05 else ""
        bar = BAR - 8 if points else BAR
        full = round(share * bar)
        epoch = min(int(share * epochs) + 1, epochs)
        where = f"{epoch}/{epochs}  {units.size(self._ledger.bytes)}"
        if points:  # one line of a narrow screen
            where = f"{round(share * points):,} of {points:,} points"
        return Text(
            f"  {'━' * full}{'╌' * (bar - full)} {100 * share:3.0f} %  {phase} {where}  {left}"
        )


def _measure(name: str) -> str:
    """`auc` of `test_auc`; empty where the name is no measure of a split."""
    split, _, measure = name.partition("_")
    return measure if split in ("test", "validation") and measure in MEASURES else ""


def _metric(name: str, value: float | tuple[float, float]) -> str:
    title = name.replace("_", " ")
    if (measure := _measure(name)) not in ("", "accuracy") and isinstance(value, float):
        called = measured.column(measure)
        return f"{name.partition('_')[0]} {called} {measured.value(measure, value)}"
    if isinstance(value, tuple):
        low, high = (f"{100 * share:.2f}" for share in value)
        return f"{title} {high} %" if low == high else f"{title} {low}–{high} %"
    return f"{title} {units.percent(value) if name.endswith('accuracy') else f'{value:.4f}'}"
