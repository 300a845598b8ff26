"""Learning rates for EASTER's tables, chosen for every method on validation rows alone.

    python benchmarks/papers/easter/tune.py [--jobs 2] [--device cpu] [--rows 10000] [--epochs 5]
        [--data cifar10] [--networks cnn mlp] [--methods easter splitnn] [--rates 0.1 0.2 0.4]
        [--out FILE] [--test]

Every method gets the same grid. A tenth of the training rows is held out, and rates are chosen on
it alone; test rows are not looked at. Only with --test the test accuracy is written beside, so
that the chosen rate of a run over all rows needs no second run. Results go to the terminal and to
benchmarks/papers/easter/results/tuning.json, after every run: the same command goes on with what is
missing.
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
from colonnade.results.environment import commit

OUT = Path(__file__).parent / "results" / "tuning.json"
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
METHODS: dict[str, dict[str, Any]] = {
    "local": {"method": "local"},
    "centralised": {"method": "centralised"},
    "splitnn": {"method": "splitnn"},
    "aggvfl": {"method": "aggvfl"},
    "easter": {"method": "easter"},
    "easter, LayerNorm": {"method": "easter", "easter": {"normalise": True}},
    "cvfl, Q = 1": {"method": "cvfl"},
    "cvfl, Q = 10": {"method": "cvfl", "cvfl": {"local_steps": 10}},
    "cvfl, Q = 10, momentum 0": {"method": "cvfl", "momentum": 0.0, "cvfl": {"local_steps": 10}},
    "cvfl, Q = 10, labels shared, momentum 0": {
        "method": "cvfl",
        "momentum": 0.0,
        "cvfl": {"local_steps": 10, "labels": "shared"},
    },
}


Case = tuple[str, str, str, float]  # data set, network, method, rate
Found = dict[str, float | None]  # accuracy by split; None where the training diverged


def accuracy(job: tuple[Case, dict[str, Any]]) -> tuple[Case, Found]:
    """On the validation rows, and on the test rows for whoever asks."""
    case, settings = job
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = colonnade.run(settings, out=Path(folder) / "run")
        except ColonnadeError:
            return case, {"validation": None, "test": None}
    scores = {split: float(measures["accuracy"]) for split, measures in result.metrics.items()}
    return case, {split: scores[split] for split in ("validation", "test")}


def settings_of(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    data, model, method, rate = case
    return METHODS[method] | {
        "model": model,
        "lr": rate,
        "epochs": arguments.epochs,
        "evaluate_every": arguments.epochs,
        "device": arguments.device,
        "checkpoint": {"epochs": 0},
        "data": {"name": data, "train_rows": arguments.rows, "validation": 0.1},
        "partition": {"kind": "tiles"},
    }


def write(found: dict[Case, Found], arguments: argparse.Namespace) -> list[list[Any]]:
    """All that is there, one row per data set, network and method."""
    rows = []
    for key in dict.fromkeys(case[:3] for case in found):
        by_rate = {case[3]: found[case] for case in sorted(found) if case[:3] == key}
        values = {rate: one["validation"] for rate, one in by_rate.items()}
        best = max(values, key=lambda rate: values[rate] or 0.0)
        tested = [{rate: one["test"] for rate, one in by_rate.items()}] if arguments.test else []
        rows.append([*key, values, best, *tested])
    asked = {name: getattr(arguments, name) for name in ("jobs", "device", "epochs")}
    content = {"commit": commit(), **asked, "train_rows": arguments.rows, "rows": rows}
    part = arguments.out.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(arguments.out)
    return rows


def known(arguments: argparse.Namespace) -> dict[Case, Found]:
    """What an earlier command of the same sizes and source found; nothing otherwise."""
    if not arguments.out.exists():
        return {}
    content = json.loads(arguments.out.read_text())
    same = {"commit": commit(), "train_rows": arguments.rows, "epochs": arguments.epochs}
    if any(content.get(name) != value for name, value in same.items()):
        return {}
    found: dict[Case, Found] = {}
    for data, model, method, values, _, *tested in content["rows"]:
        if arguments.test and not tested:
            continue
        for rate, value in values.items():
            test = tested[0][rate] if tested else None
            found[data, model, method, float(rate)] = {"validation": value, "test": test}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--data", nargs="+", default=["mnist", "cifar10"])
    parser.add_argument("--networks", nargs="+", default=["cnn", "mlp"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--test", action="store_true", help="write the test accuracy beside")
    arguments = parser.parse_args()
    cases = [
        case
        for case in itertools.product(
            arguments.data, arguments.networks, arguments.methods, arguments.rates
        )
        if "Q = 10" not in case[2] or case[1] == "mlp"  # ten times the work: the quick network
    ]
    arguments.out.parent.mkdir(exist_ok=True)
    found = known(arguments)
    missing = [(case, settings_of(case, arguments)) for case in cases if case not in found]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for case, one in pool.imap_unordered(accuracy, missing, chunksize=1):
            found[case] = one
            write(found, arguments)
    rates = sorted({case[3] for case in found})
    table = Table(title="validation accuracy by learning rate, %")
    for column in ("data", "network", "method", *map(str, rates), "best"):
        table.add_column(column, justify="right" if column[0].isdigit() else "left")
    for data, model, method, values, best, *_ in write(found, arguments):
        shown = ["–" if (v := values.get(rate)) is None else f"{100 * v:.1f}" for rate in rates]
        table.add_row(data, model, method, *shown, str(best))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
