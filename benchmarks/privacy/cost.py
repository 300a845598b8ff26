"""What noise on vectors costs beside a step of a CNN, in the same run.

    python benchmarks/privacy/cost.py --out benchmarks/privacy/results/cost.json

Split learning on MNIST in one process; both parties have a CNN. `share` is the time that a party
spends in its protection, divided by the rest of its epoch. Journals of organisations also wait for
their disk once per message, which a simulation does not: `flush` is how long that takes here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

import colonnade
from colonnade.privacy.rows import RowNoise
from colonnade.results.environment import commit

ROWS, EPOCHS = 2560, 4


@contextmanager
def timed() -> Iterator[list[float]]:
    """The seconds of each call of the protection."""
    spent: list[float] = []
    inner = RowNoise.applied

    def applied(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*arguments)
        finally:
            spent.append(time.perf_counter() - began)

    with mock.patch.object(RowNoise, "applied", applied):
        yield spent


def measure(batch: int, dim: int, protection: dict[str, Any]) -> dict[str, Any]:
    tree = {
        "method": "splitnn",
        "name": "cost",
        "epochs": EPOCHS,
        "evaluate_every": 0,
        "batch_size": batch,
        "model": "cnn",
        "absence": False,
        "checkpoint": {"epochs": 0},
        "data": {"name": "mnist", "train_rows": ROWS, "test_rows": 100},
        "partition": {"kind": "strips", "parties": 2},
        "splitnn": {"dim": dim},
        "protect": protection,
    }
    with timed() as spent, tempfile.TemporaryDirectory() as folder:
        content = colonnade.run(tree, out=Path(folder) / "run").content
    steps = ROWS // batch
    seconds = content["timing"]["seconds_per_epoch"][1:]  # the first one warms up
    step = statistics.median(seconds) / steps
    mine = spent[steps:]  # of the epochs that count
    call = statistics.median(mine) if mine else 0.0
    told = {"batch": batch, "dim": dim, "bottom": protection.get("bottom", "trained")}
    return told | {"calls": len(spent), "step": step, "call": call, "share": call / (step - call)}


def flush() -> float:
    """Seconds for one entry to be on the disk."""
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        each = []
        for _ in range(50):
            began = time.perf_counter()
            os.write(file.fileno(), bytes(32))
            os.fdatasync(file.fileno())
            each.append(time.perf_counter() - began)
    return statistics.median(each)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    ways: list[tuple[int, int, dict[str, Any]]] = [
        (128, 128, {}),
        (128, 128, {"embedding_epsilon": 8.0}),
        (128, 32, {"embedding_epsilon": 8.0}),
        (32, 32, {"embedding_epsilon": 8.0}),
        (128, 128, {"embedding_epsilon": 8.0, "bottom": "frozen"}),
    ]
    found = [measure(*way) for way in ways]
    shown = Table(title="MNIST, two CNNs, one process")
    for title in ("batch", "d", "network", "step", "protection", "share"):
        shown.add_column(title)
    for one in found:
        shown.add_row(
            str(one["batch"]),
            str(one["dim"]),
            one["bottom"] if one["calls"] else "not protected",
            f"{1e3 * one['step']:.1f} ms",
            f"{1e3 * one['call']:.2f} ms",
            f"{one['share']:.1%}",
        )
    Console().print(shown)
    disk = flush()
    Console().print(f"one entry on the disk: {1e3 * disk:.2f} ms")
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"rows": ROWS, "ways": found, "flush": disk, "commit": commit()}
        asked.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
