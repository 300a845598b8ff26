"""predictions.csv: one line per row, whoever has predicted it.

    [party,] id, p(<class>) …, predicted, threshold, [label,] run, model      of classes
    [party,] id, predicted, [label,] run, model                               of numbers

`party` is there where several parties' predictions lie in one file, `label` where labels are known,
`threshold` of two classes. Numbers are written in full: whoever compares p with the threshold, or
measures anything again, finds what was found here.

Ids and names of classes are written as they are, also those that begin with = + - or @, which
a spreadsheet would take for a formula: an id with a mark before it would find its row in no other
file. docs/guides/data.md says how to open such a file.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

from colonnade.errors import RunError
from colonnade.owner import private
from colonnade.results.prediction import Prediction
from colonnade.task.measures import BINARY, REGRESSION

NAME = "predictions.csv"


def check_free(out: Path | None, overwrite: bool) -> None:
    """Refuse a file that is there already, before anything is predicted."""
    if out is not None and out.is_dir():
        raise RunError(f"{out} is a folder, and --out is the file of predictions: {out / NAME}")
    if out is not None and out.is_file() and not overwrite:
        raise _taken(out)


def _taken(out: Path) -> RunError:
    return RunError(
        f"{out} exists: give another --out, or replace it with --overwrite. Without --out the "
        "next free name in the run's folder is taken"
    )


@private()
def write(
    predictions: Mapping[str, Prediction],
    folder: Path,
    *,
    truth: Mapping[str, Sequence[str]] | None = None,
    out: Path | None = None,
    overwrite: bool = False,
) -> Path:
    """The file that was written: `out`, else the first free one of predictions.csv,
    predictions-2.csv … in the folder of the run.

    truth  labels by party, "" where there is none
    """
    check_free(out, overwrite)
    path, number = out or folder / NAME, 2
    lines = _lines(predictions, truth or {})
    while True:
        try:
            if out is not None and out.exists() and not out.is_file():  # such as /dev/stdout
                with out.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows(lines)
            elif overwrite:
                _whole(path.resolve(), lines)
            else:
                _new(path, lines)
            return path
        except FileExistsError:
            if out is not None:  # it has come since the check
                raise _taken(out) from None
            path, number = folder / f"predictions-{number}.csv", number + 1
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from None


def _new(path: Path, lines: Iterator[Sequence[Any]]) -> None:
    """Write a file that is not there yet, whoever else is looking for a free name."""
    path.open("x").close()
    try:
        _whole(path, lines)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _whole(path: Path, lines: Iterator[Sequence[Any]]) -> None:
    """Write all lines or none: what is there stays until the new file is complete."""
    with tempfile.NamedTemporaryFile(
        "w", newline="", encoding="utf-8", dir=path.parent, prefix=f".{path.name}-", delete=False
    ) as file:
        try:
            csv.writer(file).writerows(lines)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _lines(
    predictions: Mapping[str, Prediction], truth: Mapping[str, Sequence[str]]
) -> Iterator[Sequence[Any]]:
    """The header, and a line for each predicted row."""
    several = len(predictions) > 1
    classes = list(dict.fromkeys(name for p in predictions.values() for name in p.classes))
    two = any(p.task.kind == BINARY for p in predictions.values())
    yield [
        *["party"] * several,
        "id",
        *(f"p({name})" for name in classes),
        "predicted",
        *["threshold"] * two,
        *["label"] * bool(truth),
        "run",
        "model",
    ]
    for party, prediction in predictions.items():
        labels = truth.get(party)
        columns: list[Any] = [
            *[repeat(party)] * several,
            prediction.names or prediction.ids.tolist(),
            *_found(prediction, classes),
            *[repeat(prediction.threshold)] * two,
            *[repeat("") if labels is None else labels] * bool(truth),
            repeat(prediction.run),
            repeat(prediction.model),
        ]
        for _, *cells in zip(range(len(prediction)), *columns, strict=False):
            yield cells


def _found(prediction: Prediction, classes: Sequence[str]) -> list[Any]:
    """The probabilities, one column for each class, and what is predicted."""
    if prediction.task.kind == REGRESSION:
        return [prediction.values.double().tolist()]
    shares = dict(
        zip(prediction.classes, prediction.probabilities.double().T.tolist(), strict=True)
    )
    return [*(shares.get(name, repeat("")) for name in classes), prediction.decisions]
