"""Lines about a run: one for each epoch, whole in a log, and no wider than a narrow screen."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from colonnade.cli.progress import Progress
from colonnade.config import load
from colonnade.role.progress import Meter

ROW: dict[str, Any] = {
    "phase": "train",
    "epoch": 10,
    "of": 10,
    "seconds": 12.5,
    "loss": 0.123,
    "train_accuracy": 0.987,
    "validation_accuracy": 0.943,
    "test_accuracy": 0.941,
}


class Ledger:
    bytes = 123_456_789


def progress(terminal: bool, meter: Meter) -> tuple[Progress, io.StringIO]:
    said = io.StringIO()
    console = Console(file=said, width=80, force_terminal=terminal, color_system=None)
    one = Progress(console)
    one.began(load({"method": "splitnn"}), {"bank": meter}, Ledger())
    one.ended()
    return one, said


@pytest.mark.parametrize("terminal", [False, True])
def test_an_epoch_is_one_line(terminal: bool) -> None:
    one, said = progress(terminal, Meter(True))
    one.epoch("bank", ROW)
    (line,) = [line for line in said.getvalue().splitlines() if "epoch" in line]
    line = line[line.index("  epoch") :]  # a terminal is also told where to write
    for words in ("epoch 10/10", "loss 0.1230", "test accuracy 94.10 %"):
        assert words in line
    # A log has all of it; a narrow screen, what there is room for.
    assert ("12.5 s" in line) != terminal and (len(line) <= 80) == terminal


def test_an_epoch_shows_the_measure_that_decides() -> None:
    """Where that is not the accuracy, it takes its place."""
    row = {"phase": "train", "epoch": 1, "of": 2, "seconds": 1.0, "loss": 0.5}
    row |= {"test_accuracy": 0.9, "test_loss": 0.4, "test_auc": 0.7714}
    one, said = progress(False, Meter(True))
    one.epoch("bank", row)
    assert "test AUC 0.771" in said.getvalue() and "accuracy" not in said.getvalue()
    one, said = progress(False, Meter(True))
    one.epoch("bank", row | {"test_rmse": 1131.2})
    assert "test RMSE 1,131" in said.getvalue()


def test_an_alignment_tells_its_points() -> None:
    meter = Meter(False, "align", 0.25, 1, 48_000)
    one, _ = progress(False, meter)
    assert "align 12,000 of 48,000 points" in one._bar().plain
    meter.points = 6_000_000
    assert len(one._bar().plain) <= 80
    meter.phase, meter.share, meter.epochs, meter.points = "train", 0.25, 8, 0
    assert "train 3/8" in one._bar().plain
