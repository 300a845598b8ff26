"""`colonnade demo`: real digits, four parties with four different networks, two baselines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colonnade.cli.progress import Progress
from colonnade.cli.show import console_for, finish
from colonnade.results.observer import Observer
from colonnade.results.result import Result
from colonnade.runs.run import run

# The quarters of every image; the first party also holds the labels.
CONFIG: dict[str, Any] = {
    "seed": 7,
    "epochs": 5,
    "batch_size": 64,
    "model": "cnn",
    "data": {"name": "mnist-sample"},
    "partition": {"kind": "tiles", "grid": [2, 2]},
    "parties": {
        "north-west": {"model": "cnn"},
        "north-east": {"model": "lenet"},
        "south-west": {"model": "mlp", "optimizer": "adam"},
        "south-east": {"model": "resnet8", "model_options": {"width": 0.5}, "optimizer": "adamw"},
    },
}
METHODS = {
    "local": "Local: north-west alone, with its own quarter",
    "centralised": "Centralised: one party that sees whole images",
    "easter": "EASTER: four parties, four networks, embeddings leave a party only masked",
}


def main(arguments: argparse.Namespace) -> None:
    console = console_for(arguments)
    console.print(
        "Real handwritten digits, cut into quarters; four parties, each holding one of them.\n"
    )
    results = demo(arguments.out, lambda label: Progress(console, label))
    finish(arguments, console, results)


def demo(out: Path, observer: Callable[[str], Observer]) -> list[Result]:
    """Run the baselines and the method; the method's result comes first."""
    results = []
    for method, label in METHODS.items():
        folder = out if method == "easter" else out.with_name(f"{out.name}-{method}")
        settings = CONFIG | {"method": method}
        try:
            results.append(run(settings, out=folder, overwrite=True, observer=observer(label)))
        except KeyboardInterrupt as stop:
            stop.__notes__ = ["start again with: colonnade demo"]  # a part of it helps nobody
            raise
    return results[::-1]
