"""`colonnade predict`: what a trained run makes of rows."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from colonnade.cli.show import console_for, say
from colonnade.errors import DataError, RunError
from colonnade.report import units
from colonnade.runs import predict


def main(arguments: argparse.Namespace) -> None:
    console = console_for(arguments)
    trained = predict.load(arguments.run)
    rows = _new_rows(arguments, trained)
    warnings = [] if rows is not None else _changed(trained)
    predictions = trained.predict(rows, arguments.absent)
    truth = _truth(rows, trained, predictions)
    out = arguments.out or arguments.run / "predictions.csv"
    _write_predictions(predictions, truth, out)
    table = Table("Party", "Rows", "Accuracy", box=None)
    shown = []
    for name, prediction in predictions.items():
        pairs = zip(prediction.labels, truth.get(name, ()), strict=name in truth)
        hits = [label == true for label, true in pairs if true]
        right = sum(hits) / len(hits) if hits else None
        table.add_row(name, str(len(prediction)), "" if right is None else units.percent(right))
        shown.append({"party": name, "rows": len(prediction), "accuracy": right})
    console.print(table)
    left_out = dict(rows.left_out) if isinstance(rows, predict.NewRows) else {}
    for name, count in left_out.items():
        if count:
            console.print(
                f"{units.count(count)} rows of {name} are not predicted: not all have them"
            )
    for warning in warnings:
        console.print(Text(f"warning: {warning}"))
    console.print(Text(f"\npredictions  {out}"), soft_wrap=True)
    if arguments.json:
        content = {"predictions": str(out), "parties": shown, "left_out": left_out}
        say(json.dumps(content | {"warnings": warnings}))
    elif arguments.quiet:
        say(str(out))


def _truth(
    rows: Any, trained: predict.Trained, predictions: Mapping[str, predict.Prediction]
) -> Mapping[str, Sequence[str]]:
    """The true labels, by who predicts; "" where there is none."""
    if isinstance(rows, predict.NewRows):
        return rows.truth
    if rows is not None:
        return {}
    codes = trained.labels().tolist()
    return {name: [found.classes[code] for code in codes] for name, found in predictions.items()}


def _new_rows(arguments: argparse.Namespace, trained: predict.Trained) -> Any:
    """The rows that --data names: files with ids, of a run on such; else arrays."""
    named: dict[str, Path] = {}
    for text in arguments.data:
        name, equals, file = text.partition("=")
        if not equals:
            raise DataError(f"--data {text}: write PARTY=FILE, for example bank=bank.npy")
        named[name] = Path(file)
    if trained.config.files and not all(path.suffix == ".npy" for path in named.values()):
        return trained.read_files(named, arguments.absent)
    return {name: _rows(path, f"--data {name}={path}") for name, path in named.items()} or None


def _changed(trained: predict.Trained) -> list[str]:
    return [
        f"the file of '{name}' has changed since the training, so these are other test rows"
        for name in trained.changed()
    ]


def _rows(path: Path, text: str) -> Any:

    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        with path.open(encoding="utf-8-sig") as lines:
            rows = list(lines)
        start = 0 if rows and _has_number(rows[0]) else 1  # a header is text alone
        return np.loadtxt(rows[start:], delimiter=",", ndmin=2, dtype=np.float32)
    except OSError as error:
        raise DataError(f"{text}: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(
            f"{text}: {error}. Give a .npy array, or a .csv of numbers, with or without a "
            "header line"
        ) from None


def _has_number(line: str) -> bool:
    for cell in line.split(","):
        try:
            float(cell)
        except ValueError:
            continue
        return True
    return False


def _write_predictions(
    predictions: Mapping[str, predict.Prediction], truth: Mapping[str, Sequence[str]], out: Path
) -> None:
    try:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            label = ["label"] if truth else []
            writer.writerow(["party", "id", "predicted", "probability", *label])
            for name, prediction in predictions.items():
                best = prediction.probabilities.max(1).values.tolist()
                ids, labels = prediction.names or prediction.ids.tolist(), prediction.labels
                known = truth.get(name, [""] * len(labels)) if truth else ()
                for number, (row, predicted, share) in enumerate(
                    zip(ids, labels, best, strict=True)
                ):
                    end = [known[number]] if known else []
                    writer.writerow([name, row, predicted, f"{share:.6f}", *end])
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror}") from None
