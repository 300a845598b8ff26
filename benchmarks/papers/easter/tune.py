"""Learning rates for EASTER's tables, chosen for every method on validation rows alone.

    python benchmarks/papers/easter/tune.py [--jobs 2] [--device cpu] [--rows 10000] [--epochs 5]

Every method gets the same grid. A tenth of the training rows is held out; test rows are never
looked at, and a small sample of the rows must do. Results go to the terminal and to
benchmarks/papers/easter/results/tuning.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import colonnade
from colonnade.errors import ColonnadeError
from colonnade.results.result import commit

OUT = Path(__file__).parent / "results" / "tuning.json"
RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
METHODS: dict[str, dict[str, Any]] = {
    "local": {"method": "local"},
    "centralised": {"method": "centralised"},
    "splitnn": {"method": "splitnn"},
    "aggvfl": {"method": "aggvfl"},
    "easter": {"method": "easter"},
    "cvfl, Q = 1": {"method": "cvfl"},
    "cvfl, Q = 10": {"method": "cvfl", "cvfl": {"local_steps": 10}},
    "cvfl, Q = 10, momentum 0": {"method": "cvfl", "momentum": 0.0, "cvfl": {"local_steps": 10}},
    "cvfl, Q = 10, labels shared, momentum 0": {
        "method": "cvfl",
        "momentum": 0.0,
        "cvfl": {"local_steps": 10, "labels": "shared"},
    },
}


def accuracy(settings: dict[str, Any]) -> float | None:
    """On the validation rows; None where the training diverged."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = colonnade.run(settings, out=Path(folder) / "run")
        except ColonnadeError:
            return None
    return float(result.metrics["validation"]["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    cases = [
        case
        for case in itertools.product(("mnist", "cifar10"), ("cnn", "mlp"), METHODS, RATES)
        if "Q = 10" not in case[2] or case[1] == "mlp"  # ten times the work: the quick network
    ]
    settings = [
        METHODS[method]
        | {
            "model": model,
            "lr": rate,
            "epochs": arguments.epochs,
            "evaluate_every": arguments.epochs,
            "device": arguments.device,
            "checkpoint": {"epochs": 0},
            "data": {"name": data, "train_rows": arguments.rows, "validation": 0.1},
            "partition": {"kind": "tiles"},
        }
        for data, model, method, rate in cases
    ]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        found = pool.map(accuracy, settings, chunksize=1)
    table = Table(title="validation accuracy by learning rate, %")
    for column in ("data", "network", "method", *map(str, RATES), "best"):
        table.add_column(column, justify="right" if column[0].isdigit() else "left")
    rows = []
    for key, group in itertools.groupby(zip(cases, found, strict=True), lambda pair: pair[0][:3]):
        values = {case[3]: value for case, value in group}
        best = max(values, key=lambda rate: values[rate] or 0.0)
        shown = ["–" if v is None else f"{100 * v:.1f}" for v in values.values()]
        table.add_row(*key, *shown, str(best))
        rows.append([*key, values, best])
    Console(width=140).print(table)
    OUT.parent.mkdir(exist_ok=True)
    content = {"commit": commit(), **vars(arguments), "rows": rows}
    OUT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
