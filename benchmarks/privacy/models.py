"""What noise on gradients costs models that leave: utility against ε, and time.

    python benchmarks/privacy/models.py mnist --jobs 16 \\
        --out benchmarks/privacy/results/models-mnist.json
    python benchmarks/privacy/models.py adult --jobs 16 \\
        --out benchmarks/privacy/results/models-adult.json

Two clients with their own features and labels of the same rows. ε, at δ = 1e-5, is that of each
training record of a client through all of its models that leave. For each ε the clip, the size of
batches and the number of epochs are chosen by the validation rows of the first seed; test rows are
looked at only afterwards, with these settings, for every seed. The measure is the mean over the two
clients. Beside it stands the same without protection (ε = ∞). The ratio is that of the seconds of
the training epochs with and without noise, three runs each in turns, one at a time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import colonnade
from colonnade.results.environment import commit
from colonnade.task.intervals import over_seeds

EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
EPOCHS, CLIPS, BATCHES = (3, 10, 30), (0.1, 1.0), (100, 600)
TURNS = 3
DATA: Mapping[str, Mapping[str, Any]] = {
    "mnist": {
        "data": {"name": "mnist", "train_rows": 6000, "validation": 0.15},
        "partition": {"kind": "strips", "parties": 2},
    },
    "adult": {
        "data": {"name": "adult", "validation": 0.15},
        "partition": {"kind": "columns", "parties": 2},
    },
}
METHODS: Mapping[str, Mapping[str, Any]] = {"fedemb": {}, "jovefl": {"dim": 32}}


@dataclass(frozen=True)
class Job:
    """One run."""

    data: str
    method: str
    epsilon: float  # 0: none
    clip: float
    batch: int
    epochs: int
    seed: int = 0
    fast: bool = False

    def settings(self) -> dict[str, Any]:
        tree: dict[str, Any] = {
            "method": self.method,
            "name": "models",
            "seed": self.seed,
            "epochs": self.epochs,
            "evaluate_every": self.epochs,
            "batch_size": self.batch,
            "absence": False,
            "model": "mlp",
            self.method: dict(METHODS[self.method]),
            **{key: dict(table) for key, table in DATA[self.data].items()},
        }
        if self.fast:
            tree["data"] |= {"train_rows": 1000, "test_rows": 500}
        if self.epsilon:
            tree["protect"] = {"model_epsilon": self.epsilon, "model_clip": self.clip}
        return tree


def perform(job: Job) -> dict[str, Any]:
    """The measure that decides, on validation and on test rows: the mean over the clients."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = colonnade.run(job.settings(), out=Path(folder) / "run")
    metrics = result.content["metrics"]
    found = {
        split: statistics.fmean(
            measures[metrics[split]["metric"]]["value"]
            for measures in metrics[split]["measures"].values()
        )
        for split in ("validation", "test")
    }
    told = result.content.get("privacy", {}).get("parties", {})
    return {
        **asdict(job),
        **found,
        "metric": metrics["test"]["metric"],
        "spent": [party["models"]["epsilon"] for party in told.values()],
        "seconds": sum(row["seconds"] for row in result.history),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", choices=tuple(DATA))
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--fast", action="store_true", help="1,000 rows and few settings, to try the command"
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    began = time.perf_counter()
    tries = list(candidates(asked.data, asked.methods, asked.fast))
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn")) as pool:
        tried = list(pool.map(perform, tries))
        repeats = [replace(job, seed=seed) for job in best(tried) for seed in range(asked.seeds)]
        runs = list(pool.map(perform, repeats))
    content = {
        "data": asked.data,
        "seeds": asked.seeds,
        "fast": asked.fast,
        "rows": summary(runs),
        "times": {method: ratio(asked.data, method, asked.fast) for method in asked.methods},
        "tried": tried,
        "runs": runs,
        "seconds": time.perf_counter() - began,
        "commit": commit(),
    }
    show(content)
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


def candidates(data: str, methods: list[str], fast: bool) -> Iterator[Job]:
    some = slice(1) if fast else slice(None)
    for method, batch, count in itertools.product(methods, BATCHES[some], EPOCHS[some]):
        yield Job(data, method, 0.0, 1.0, batch, count, fast=fast)
        for epsilon, clip in itertools.product(EPSILONS[::4] if fast else EPSILONS, CLIPS[some]):
            yield Job(data, method, epsilon, clip, batch, count, fast=fast)


def best(tried: list[dict[str, Any]]) -> list[Job]:
    """Of each method and ε, what the validation rows liked best."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in tried:
        key = (run["method"], run["epsilon"])
        if key not in found or run["validation"] > found[key]["validation"]:
            found[key] = run
    return [Job(**{field.name: run[field.name] for field in fields(Job)}) for run in found.values()]


def ratio(data: str, method: str, fast: bool) -> dict[str, Any]:
    """Seconds of training with noise against those without, one run at a time, in turns."""
    taken: dict[float, list[float]] = {0.0: [], 8.0: []}
    for _ in range(TURNS):
        for epsilon, seconds in taken.items():
            seconds.append(perform(Job(data, method, epsilon, 1.0, 100, 3, fast=fast))["seconds"])
    plain, noisy = (statistics.median(seconds) for seconds in taken.values())
    return {"plain": taken[0.0], "noisy": taken[8.0], "ratio": noisy / plain}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        found.setdefault((run["method"], run["epsilon"]), []).append(run)
    return [
        {
            "method": method,
            "epsilon": epsilon or None,
            **{key: some[0][key] for key in ("clip", "batch", "epochs", "metric")},
            "test": [run["test"] for run in some],
            "mean": over_seeds([run["test"] for run in some]).told(),
        }
        for (method, epsilon), some in found.items()
    ]


def show(content: Mapping[str, Any]) -> None:
    shown = Table(title=f"{content['data']}, {content['seeds']} seeds")
    for title in ("method", "ε", "clip", "batch", "epochs", "measure", "mean", "lowest", "highest"):
        shown.add_column(title)
    for row in content["rows"]:
        values = row["test"]
        mean = statistics.fmean(values)
        shown.add_row(
            row["method"],
            f"{row['epsilon']:g}" if row["epsilon"] else "∞",
            f"{row['clip']:g}" if row["epsilon"] else "",
            str(row["batch"]),
            str(row["epochs"]),
            row["metric"],
            *(f"{value:.4f}" for value in (mean, min(values), max(values))),
        )
    console = Console()
    console.print(shown)
    for method, times in content["times"].items():
        console.print(f"{method}: a training with noise takes {times['ratio']:.2f} of the time")


if __name__ == "__main__":
    raise SystemExit(main())
