"""What noise on vectors of rows costs: utility against ε, on MNIST and Adult.

    python benchmarks/privacy/embeddings.py mnist --jobs 16 \\
        --out benchmarks/privacy/results/embeddings-mnist.json
    python benchmarks/privacy/embeddings.py adult --jobs 16 \\
        --out benchmarks/privacy/results/embeddings-adult.json

SplitNN between two parties: the label holder with features of its own, and a partner whose vectors
leave clipped and noised. EASTER among four, with noise of its own on every vector ("easter") and
with shares of noise in the masked sum ("sums"). ε, at δ = 1e-5, is that of each training row for
the whole run. For each ε the width of a vector and the number of epochs are chosen by the
validation rows of the first seed; test rows are looked at only afterwards, with these settings, for
every seed. Beside it stand the label holder alone (`local`), and the same without protection
(ε = ∞).
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import colonnade
from colonnade.results.environment import commit
from colonnade.task.intervals import over_seeds

EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
WIDTHS, EPOCHS = (2, 8, 32), (1, 3, 10)
DATA: Mapping[str, Mapping[str, Any]] = {
    "mnist": {
        "data": {"name": "mnist", "train_rows": 6000, "validation": 0.15},
    },
    "adult": {
        "data": {"name": "adult", "validation": 0.15},
    },
}
PARTITIONS: Mapping[str, Mapping[int, Mapping[str, Any]]] = {
    "mnist": {2: {"kind": "strips", "parties": 2}, 4: {"kind": "tiles", "grid": [2, 2]}},
    "adult": {n: {"kind": "columns", "parties": n} for n in (2, 4)},
}
METHODS: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {  # method, parties, options
    "splitnn": ("splitnn", 2, {}),
    "easter": ("easter", 4, {"mask": "none"}),
    "sums": ("easter", 4, {}),
}
WAYS = ("trained", "frozen")


@dataclass(frozen=True)
class Job:
    """One run."""

    data: str
    method: str
    epsilon: float  # 0: none
    bottom: str
    dim: int
    epochs: int
    seed: int
    fast: bool

    def settings(self) -> dict[str, Any]:
        method, parties, options = METHODS.get(self.method, (self.method, 2, {}))
        tree: dict[str, Any] = {
            "method": method,
            "name": "embeddings",
            "seed": self.seed,
            "epochs": self.epochs,
            "evaluate_every": 0 if self.method == "local" else self.epochs,
            "batch_size": 100,
            "absence": False,
            "partition": dict(PARTITIONS[self.data][parties]),
            **{key: dict(table) for key, table in DATA[self.data].items()},
        }
        if self.method != "local":
            tree[method] = {**options, "dim": self.dim}
        else:
            tree["evaluate_every"] = 1
        if self.fast:
            tree["data"] |= {"train_rows": 1000, "test_rows": 500}
        if self.epsilon:
            tree["protect"] = {"embedding_epsilon": self.epsilon, "bottom": self.bottom}
        return tree


def perform(job: Job) -> dict[str, Any]:
    """The measure that decides, on validation and on test rows."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        content = colonnade.run(job.settings(), out=Path(folder) / "run").content
    holder = content["parties"][0]
    metrics = content["metrics"]
    found = {
        split: metrics[split]["measures"][holder][metrics[split]["metric"]]["value"]
        for split in ("validation", "test")
    }
    told = content.get("privacy", {}).get("parties", {})
    epsilons = [noise["epsilon"] for party in told.values() for noise in party.values()]
    return {**asdict(job), **found, "metric": metrics["test"]["metric"], "spent": epsilons}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", choices=tuple(DATA))
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fast", action="store_true", help="1,000 rows, to try the command")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    began = time.perf_counter()
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn")) as pool:
        tried = list(pool.map(perform, candidates(asked.data, asked.methods, asked.fast)))
        chosen = best(tried)
        repeats = [
            Job(*[job[key] for key in Job.__dataclass_fields__ if key not in ("seed", "fast")],
                seed=seed, fast=asked.fast)
            for job in chosen
            for seed in range(asked.seeds)
        ]  # fmt: skip
        runs = list(pool.map(perform, repeats))
    content = {
        "data": asked.data,
        "seeds": asked.seeds,
        "fast": asked.fast,
        "rows": summary(runs),
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
    for epochs in EPOCHS:
        yield Job(data, "local", 0.0, "trained", 0, epochs, 0, fast)
    for method, dim, epochs in itertools.product(methods, WIDTHS, EPOCHS):
        yield Job(data, method, 0.0, "trained", dim, epochs, 0, fast)
        for epsilon, way in itertools.product(EPSILONS, WAYS):
            if way == "trained" or method == "splitnn":
                yield Job(data, method, epsilon, way, dim, epochs, 0, fast)


def best(tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each method, ε and way, what the validation rows liked best."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in tried:
        key = (run["method"], run["epsilon"], run["bottom"])
        if key not in found or run["validation"] > found[key]["validation"]:
            found[key] = run
    return list(found.values())


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        found.setdefault((run["method"], run["epsilon"], run["bottom"]), []).append(run)
    return [
        {
            "method": method,
            "epsilon": epsilon or None,
            "bottom": bottom,
            "dim": some[0]["dim"],
            "epochs": some[0]["epochs"],
            "metric": some[0]["metric"],
            "test": [run["test"] for run in some],
            "mean": over_seeds([run["test"] for run in some]).told(),
        }
        for (method, epsilon, bottom), some in found.items()
    ]


def show(content: Mapping[str, Any]) -> None:
    shown = Table(title=f"{content['data']}, {content['seeds']} seeds")
    for title in ("method", "ε", "network", "d", "epochs", "measure", "mean", "lowest", "highest"):
        shown.add_column(title)
    for row in content["rows"]:
        values = row["test"]
        mean = sum(values) / len(values)
        shown.add_row(
            row["method"],
            f"{row['epsilon']:g}" if row["epsilon"] else "∞",
            row["bottom"],
            str(row["dim"] or ""),
            str(row["epochs"]),
            row["metric"],
            *(f"{value:.4f}" for value in (mean, min(values), max(values))),
        )
    Console().print(shown)


if __name__ == "__main__":
    raise SystemExit(main())
