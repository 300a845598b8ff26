"""`colonnade predict`: what a trained run makes of rows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from colonnade.cli import predicted
from colonnade.cli.predicted import Judged
from colonnade.cli.show import console_for, say
from colonnade.errors import DataError
from colonnade.report import units
from colonnade.report.protections import of_predictions
from colonnade.results import predictions_csv
from colonnade.results.prediction import Prediction, Truth
from colonnade.runs import predict
from colonnade.runs.new_rows import NewRows


def main(arguments: argparse.Namespace) -> None:
    console = console_for(arguments)
    predictions_csv.check_free(arguments.out, arguments.overwrite)
    trained = predict.load(arguments.run)
    rows = _new_rows(arguments, trained)
    warnings = [] if rows is not None else _changed(trained)
    predictions = trained.predict(rows, arguments.absent)
    truth = _truth(rows, trained, predictions)
    out = predictions_csv.write(
        predictions,
        arguments.run,
        truth={name: known.labels for name, known in truth.items()},
        out=arguments.out,
        overwrite=arguments.overwrite,
    )
    judged = [Judged.by(found, truth.get(name)) for name, found in predictions.items()]
    predicted.show(console, judged, _label(trained))
    left_out = dict(rows.left_out) if isinstance(rows, NewRows) else {}
    for name, count in left_out.items():
        if count:
            console.print(
                f"{units.count(count)} rows of {name} are not predicted: not all have them"
            )
    for sentence in of_predictions(trained.protected):
        console.print(Text(sentence))
    for warning in warnings:
        console.print(Text(f"warning: {warning}"))
    predicted.show_file(console, out)
    if arguments.json:
        shown = [one.told() for one in judged]
        warnings += [warning for one in judged for warning in one.warnings()]
        content = {"predictions": str(out), "parties": shown, "left_out": left_out}
        protected = {"protected": trained.protected} if trained.protected else {}
        say(json.dumps(content | protected | {"warnings": warnings}))
    elif arguments.quiet:
        say(str(out))


def _truth(
    rows: Any, trained: predict.Trained, predictions: Mapping[str, Prediction]
) -> Mapping[str, Truth]:
    """What is known of the rows, by who predicts them."""
    if isinstance(rows, NewRows):
        return {name: Truth(labels) for name, labels in rows.truth.items()}
    return {} if rows is not None else trained.truth(predictions)


def _label(trained: predict.Trained) -> str:
    """What the column of labels is called, where that is known."""
    files = trained.config.files
    holder = files.get(trained.config.run.label_holder) or next(iter(files.values()), None)
    return "" if holder is None else holder.label


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
