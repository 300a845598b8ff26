"""Labels with differential privacy: what answers in their place cost, and what a prior gains.

    python benchmarks/privacy/labels.py --jobs 16 --out benchmarks/privacy/results/labels.json

EASTER and SplitNN on 6,000 rows of MNIST, a quadrant at each of four parties, and SplitNN on the
table Adult in two halves. Every number is of test rows, which have their true labels; the same seed
has the same rows at every ε, so differences are paired. `--held-out` scores training rows that no
model has seen in place of test rows: all settings were chosen by it, on seeds from 100 on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import colonnade
from colonnade import data
from colonnade.results.environment import commit
from colonnade.task.intervals import over_seeds

EPSILONS = (4.0, 3.0, 2.0, 1.0)
RESPONSES = ("plain", "prior")
MNIST = {"epochs": 15, "batch_size": 64, "optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01}
SETTINGS: dict[str, dict[str, Any]] = {
    "mnist, easter": {"method": "easter", **MNIST},
    "mnist, splitnn": {"method": "splitnn", **MNIST},
    "adult, splitnn": {"method": "splitnn", "epochs": 5, "batch_size": 128, "optimizer": "adamw"},
}
ROWS = 6000  # of MNIST, to train on
Rows = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One training."""

    problem: str
    epsilon: float  # 0: labels as they are
    response: str
    seed: int
    held_out: bool
    overrides: tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=SETTINGS, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--response", choices=RESPONSES, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began, named = time.perf_counter(), commit()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    ways = [(0.0, "plain")] if given.epsilon is None else []
    ways += itertools.product(given.epsilon or EPSILONS, given.response or RESPONSES)
    jobs = [
        Job(problem, epsilon, response, seed, given.held_out, tuple(given.set))
        for problem in given.only or SETTINGS
        for seed in seeds
        for epsilon, response in ways
    ]
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        each = [asdict(job) | found for job, found in zip(jobs, pool.map(done, jobs), strict=True)]
    content = {
        "settings": SETTINGS,
        "overrides": given.set,
        "rows": ROWS,
        "scored": "other training rows" if given.held_out else "test rows",
        "seeds": list(seeds),
        "summary": {problem: summary(each, problem) for problem in given.only or SETTINGS},
        "each": each,
        "seconds": time.perf_counter() - began,
        "commit": named,
    }
    show(content)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


def done(job: Job) -> dict[str, Any]:
    """Train, and say how good it became."""
    settings: dict[str, Any] = {
        **SETTINGS[job.problem],
        "seed": job.seed,
        "absence": False,
        "evaluate_every": 1000,  # at the end alone
        "checkpoint": {"epochs": 0},
    }
    if job.epsilon:
        settings["protect"] = {"label_epsilon": job.epsilon, "label_response": job.response}
    began = time.perf_counter()
    train, test = rows_of(job.problem, job.seed, job.held_out)
    with tempfile.TemporaryDirectory() as folder:
        result = colonnade.run(
            settings,
            overrides=list(job.overrides),
            parties=train,
            test=test,
            out=Path(folder) / "run",
        )
    metrics = result.content["metrics"]["test"]
    told = result.content.get("privacy", {}).get("parties", {})
    return {
        "value": metrics["value"] if "value" in metrics else metrics["accuracy"],
        "accuracy": metrics["accuracy"],
        "per_party": metrics["per_party"],
        "kept": next((found["labels"]["kept"] for found in told.values()), 1.0),
        "seconds": time.perf_counter() - began,
    }


# ---- rows ----------------------------------------------------------------------------------------


def rows_of(problem: str, seed: int, held_out: bool) -> tuple[Rows, Rows]:
    """What every party holds, to train on and to be tested on."""
    name = problem.partition(",")[0]
    loaded = data.load(name)
    x, y = loaded.train.x.numpy(), labels(loaded.train)
    order = np.random.default_rng(seed).permutation(len(x))
    count = ROWS if name == "mnist" else len(x)
    if held_out:
        count = min(count, len(x) * 4 // 5)
        other = order[count:][:10_000]
        later = x[other], y[other]
    else:
        later = loaded.test.x.numpy(), labels(loaded.test)
    divide = quadrants if name == "mnist" else halves
    kept = order[:count]
    return divide(loaded, x[kept], y[kept]), divide(loaded, *later)


def labels(split: Any) -> Any:
    assert split.y is not None
    return split.y.numpy()


def quadrants(_: Any, x: Any, y: Any) -> Rows:
    """The label holder has the upper left one."""
    middle = x.shape[-1] // 2
    spans = slice(0, middle), slice(middle, None)
    parts = [x[:, :, down, across] for down, across in itertools.product(spans, spans)]
    return {"holder": (parts[0], y)} | {f"partner{n}": part for n, part in enumerate(parts[1:], 1)}


def halves(loaded: Any, x: Any, y: Any) -> Rows:
    """Every other column; the label holder has the first."""
    import pandas as pd

    frame = {
        column.name: np.array(column.categories, dtype=object)[x[:, place].astype(int)]
        if column.categories
        else x[:, place].astype(np.float64)
        for place, column in enumerate(loaded.columns)
    }
    table = pd.DataFrame(frame)
    return {"holder": (table.iloc[:, ::2], y), "partner": table.iloc[:, 1::2]}


# ---- what came out -------------------------------------------------------------------------------


def summary(each: Sequence[Mapping[str, Any]], problem: str) -> dict[str, Any]:
    """By ε and response the mean over seeds; of the prior also the gain, with its interval."""
    found: dict[str, Any] = {}
    mine = [one for one in each if one["problem"] == problem]
    for epsilon, response in dict.fromkeys((one["epsilon"], one["response"]) for one in mine):
        values = by_seed(mine, epsilon, response)
        told: dict[str, Any] = {"mean": float(np.mean(list(values.values())))}
        told |= {"lowest": min(values.values()), "highest": max(values.values())}
        for key, other in (
            ("minus without", by_seed(mine, 0.0, "plain")),
            ("minus plain", by_seed(mine, epsilon, "plain") if response == "prior" else {}),
        ):
            pairs = [values[seed] - other[seed] for seed in values if seed in other]
            if epsilon and len(pairs) > 1:
                told[key] = over_seeds(pairs).told()
        found[f"{epsilon:g} {response}" if epsilon else "without"] = told
    return found


def by_seed(each: Sequence[Mapping[str, Any]], epsilon: float, response: str) -> dict[int, float]:
    wanted = epsilon, response
    return {
        one["seed"]: one["value"] for one in each if (one["epsilon"], one["response"]) == wanted
    }


def show(content: Mapping[str, Any]) -> None:
    for problem, found in content["summary"].items():
        measure = "AUC" if problem.startswith("adult") else "accuracy"
        shown = Table(title=f"{problem}: {measure} of {content['scored']}, %")
        for title in ("ε, response", "mean", "lowest", "highest", "minus plain, 95 %"):
            shown.add_column(title, justify="right")
        for name, told in found.items():
            numbers = [f"{100 * told[key]:.2f}" for key in ("mean", "lowest", "highest")]
            gain = told.get("minus plain")
            span = (
                "" if gain is None else " … ".join(f"{100 * gain[k]:+.2f}" for k in ("low", "high"))
            )
            shown.add_row(name, *numbers, span)
        Console().print(shown)


if __name__ == "__main__":
    raise SystemExit(main())
