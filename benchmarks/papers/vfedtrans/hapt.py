"""VFedTrans on HAPT: does the distilled auto-encoder help, and is it the other party's doing?

    python benchmarks/papers/vfedtrans/hapt.py [--seeds 0-9] [--q 32] [--jobs 2] [--out FILE]

The task party has 5 000 rows, the last 3 000 of them shared with the data party. Every variant
appends columns to the task party's own, the same classifier is trained on them, and what is
reported is the paired difference to LOCAL (own columns alone) with its 95 % t-interval.

    local  trained on 80 % of the rows that are not shared, tested on the other 20 %, which no
           auto-encoder has seen: what the method is for
    all    80 / 20 of all task rows, as the paper scores; the auto-encoder has seen the features of
           all of them, and fitted the shared ones to U

With --split subject, test rows come from six people of whom nobody has any other row. --modality:
the first columns are the task party's and the next ones the data party's (the specification's
default), both are drawn at random, or the task party has gyroscope columns and the data party
accelerometer ones (sensors).

Settings are those of the specification (§11); the width of the inner layer, which it does not
say, was chosen on seeds 100 to 105. Columns are standardised
with statistics of the rows that are trained on. Codes are appended as they are; principal
components to unit variance, as U is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor

from colonnade import enrich
from colonnade.enrich import Enricher
from colonnade.privacy import fedsvd

ROWS, SHARED, TESTED, FEW = 5000, 3000, 0.2, 100
TEST_SUBJECTS = 6
CLASSIFIERS = ("knn", "lr", "lr100", "rf")
VARIANTS = (
    "distilled",
    "no distillation",
    "PCA",
    "random projection",
    "row-permuted U",
    "random U",
    "published code",
    "FULL",
)
CONTROLS = ("no distillation", "row-permuted U", "PCA")
Array = NDArray[Any]


@dataclass(frozen=True)
class Setting:
    q: int
    task_features: int
    data_features: int
    classifiers: tuple[str, ...]
    variants: tuple[str, ...]
    split: str
    modality: str
    rows: tuple[str, ...]
    options: dict[str, Any]  # of Enricher, against its defaults
    data: str


@dataclass(frozen=True)
class Table:
    x: Array  # (rows, 561)
    y: Array
    subject: Array
    names: list[str]


def hapt(folder: str) -> Table:
    path = Path(folder) / "hapt_features.npz"
    with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
        x = file["features"].astype(np.float64) / 32767
        return Table(x, file["label"], file["subject"], file["feature_names"].tolist())


def seeded(seed: int, purpose: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def columns(names: list[str], setting: Setting, seed: int) -> tuple[Array, Array]:
    """The task party's and the data party's, disjoint."""
    order = seeded(seed, "columns").permutation(len(names))
    if setting.modality == "first":  # §5.7: "task columns first, data columns next"
        order = np.arange(len(names))
    own, other = order, order
    if setting.modality == "sensors":
        sensor = np.array(["Gyro" if "Gyro" in n else "Acc" if "Acc" in n else "" for n in names])
        own, other = order[sensor[order] == "Gyro"], order[sensor[order] == "Acc"]
    task = own[: setting.task_features or None]
    return task, other[~np.isin(other, task)][: setting.data_features or None]


def task_rows(table: Table, setting: Setting, seed: int) -> tuple[Array, Array, Array, Array]:
    """The task party's rows; positions of the shared ones; test masks for `local` and `all`."""
    order = seeded(seed, "rows").permutation(len(table.y))
    tested = round(TESTED * (ROWS - SHARED))
    if setting.split == "subject":
        people = seeded(seed, "people").permutation(np.unique(table.subject))[:TEST_SUBJECTS]
        held = np.isin(table.subject[order], people)
        order = np.concatenate([order[held][:tested], order[~held]])
    rows = order[:ROWS]  # the first are local, the last shared
    local = np.zeros(ROWS, bool)
    local[:tested] = True
    whole = local.copy()
    if setting.split == "rows":
        whole[:] = False
        whole[seeded(seed, "all").permutation(ROWS)[: round(TESTED * ROWS)]] = True
    shared = np.arange(ROWS - SHARED, ROWS)
    return rows, shared, local, whole


def classifier(name: str, seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    if name == "knn":
        return KNeighborsClassifier(8)
    if name == "rf":
        return RandomForestClassifier(200, max_depth=20, random_state=seed)
    return LogisticRegression(max_iter=3000)


@dataclass(frozen=True)
class Fit:
    """What the appended columns of one seed and one scoring are made of."""

    x: Array  # all task rows, standardised
    seen: Array  # bool: those that anything may be fitted to
    u: Tensor  # (SHARED, r), for the last rows
    masks: fedsvd.RowMask  # A
    seed: int

    def columns(self, variant: str, s: Setting) -> Array:
        """(task rows, further columns)"""
        own, seen = torch.from_numpy(self.x), torch.from_numpy(self.seen)
        if variant == "PCA":
            scores = (own - own[seen].mean(0)) @ enrich.pca(own[seen], s.q)
            return np.asarray((scores / scores[seen].std(0)).numpy())
        if variant == "random projection":
            return np.asarray(
                (own @ enrich.random_projection(own.shape[1], s.q, self.seed)).numpy()
            )
        options, target = Enricher(q=s.q, seed=self.seed, **s.options), self.u[:, : s.q]
        if variant == "no distillation":
            options = replace(options, theta=0.0)
        elif variant == "row-permuted U":
            target = enrich.permuted(target, self.seed)
        elif variant == "random U":
            target = enrich.noise_like(target, self.seed)
        elif variant == "published code":
            # As wide as U, and unmasked twice: the rows of Aᵀ U belong to no sample (§5.10-7).
            options = Enricher(q=self.u.shape[1], seed=self.seed, **enrich.PUBLISHED)
            target = self.masks.undo(self.u)
        # Shared rows come last, and all of them are seen.
        shared = torch.arange(int(seen.sum()))[-SHARED:]
        encoder = enrich.train(own[seen], shared, target, options)
        return np.asarray(enrich.encode(encoder, own).numpy())


def standardised(x: Array, seen: Array) -> Array:
    spread = x[seen].std(0)
    return np.asarray((x - x[seen].mean(0)) / np.where(spread > 0, spread, 1.0))


def measure(job: tuple[Setting, int]) -> dict[str, Any]:
    """Accuracies of one seed: {"local": {"knn": {"LOCAL": 81.5, …}}, "all": …}."""
    s, seed = job
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
    began = time.perf_counter()
    table = hapt(s.data)
    task, data = columns(table.names, s, seed)
    rows, shared, local, whole = task_rows(table, s, seed)
    y = table.y[rows]
    own, other = table.x[rows][:, task], table.x[rows][:, data]
    # Step 1, once: only shared rows take part, and all parties standardise with those.
    every = np.ones(SHARED, bool)
    key = hashlib.sha256(f"masks/{seed}".encode()).digest()
    parts = [torch.from_numpy(standardised(part[shared], every)) for part in (own, other)]
    u = fedsvd.left_vectors_of(parts, seed=key)
    masks = fedsvd.row_mask(key, SHARED)
    found: dict[str, Any] = {"seed": seed}
    for scored, tested in (("local", local), ("all", whole)):
        if scored not in s.rows:
            continue
        seen = ~tested if scored == "local" or s.split == "subject" else np.ones(ROWS, bool)
        x = standardised(own, seen)
        fit = Fit(x, seen, u, masks, seed)
        trained = ~tested
        if scored == "local":
            trained = trained & ~np.isin(np.arange(ROWS), shared)
        few = seeded(seed, f"few/{scored}").permutation(np.flatnonzero(trained))[:FEW]
        accuracy: dict[str, dict[str, float]] = {name: {} for name in s.classifiers}
        for variant in ("LOCAL", *s.variants):
            if variant == "LOCAL":
                columns_now = x
            elif variant == "FULL":
                columns_now = np.hstack([x, standardised(other, seen)])
            else:
                columns_now = np.hstack([x, fit.columns(variant, s)])
            for name in s.classifiers:
                chosen = few if name == "lr100" else np.flatnonzero(trained)
                model = classifier(name, seed).fit(columns_now[chosen], y[chosen])
                score = model.score(columns_now[tested], y[tested])
                accuracy[name][variant] = 100 * float(score)
        found[scored] = accuracy
    found["seconds"] = time.perf_counter() - began
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of the 95 % t-interval."""
    if len(values) < 2:
        return float(np.mean(values)), float("nan")
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return float(np.mean(values)), float(half)


def summary(found: list[dict[str, Any]], s: Setting) -> dict[str, Any]:
    """{"local": {"knn": {"LOCAL": [81.5, 0.9], "distilled": [5.2, 1.1], "… vs …": …}}}."""
    out: dict[str, Any] = {}
    for scored in s.rows:
        for name in s.classifiers:
            runs = [one[scored][name] for one in found]
            cell = out.setdefault(scored, {}).setdefault(name, {})
            cell["LOCAL"] = interval([run["LOCAL"] for run in runs])
            for variant in s.variants:
                cell[variant] = interval([run[variant] - run["LOCAL"] for run in runs])
            for control in CONTROLS:
                if control in s.variants and "distilled" in s.variants:
                    gaps = [run["distilled"] - run[control] for run in runs]
                    cell[f"distilled − {control}"] = interval(gaps)
    return out


def markdown(table: dict[str, Any]) -> str:
    lines = []
    for scored, by_classifier in table.items():
        lines += [f"\n`{scored}` rows, points of accuracy, difference to LOCAL\n"]
        lines += [
            "| | " + " | ".join(by_classifier) + " |",
            "|---" * (len(by_classifier) + 1) + "|",
        ]
        for variant in next(iter(by_classifier.values())):
            cells = []
            for cell in by_classifier.values():
                mean, half = cell[variant]
                sign = "" if variant == "LOCAL" else "+"
                cells.append(f"{mean:{sign}.1f} ± {half:.1f}")
            label = "LOCAL itself" if variant == "LOCAL" else variant
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    """ "0-4,7" → 0, 1, 2, 3, 4, 7."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=numbers, default=numbers("0-9"), help="0-9 or 0,3,5")
    parser.add_argument("--q", type=int, default=32)
    parser.add_argument("--task-features", type=int, default=50, help="0: all of the modality")
    parser.add_argument("--data-features", type=int, default=250, help="0: all that are left")
    parser.add_argument("--classifiers", nargs="+", default=CLASSIFIERS, choices=CLASSIFIERS)
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--split", default="rows", choices=["rows", "subject"])
    parser.add_argument("--modality", default="first", choices=["first", "random", "sensors"])
    parser.add_argument("--rows", nargs="+", default=["local", "all"], choices=["local", "all"])
    parser.add_argument("--options", type=json.loads, default={}, help="of Enricher, as JSON")
    parser.add_argument("--data", default=os.environ.get("COLONNADE_DATA", "data"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = vars(parser.parse_args())
    seeds, jobs, out = given.pop("seeds"), given.pop("jobs"), given.pop("out")
    settings: dict[str, Any] = {k: tuple(v) if type(v) is list else v for k, v in given.items()}
    setting = Setting(**settings)
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for one in pool.map(measure, [(setting, seed) for seed in seeds]):
            found.append(one)
            print(f"seed {one['seed']}: {one['seconds']:.0f} s", flush=True)
            if out:  # after every seed: a run that is cut off has not been in vain
                told = {key: value for key, value in vars(setting).items() if key != "data"}
                record = {"setting": told, "summary": summary(found, setting)}
                text = json.dumps({**record, "runs": found}, indent=1, default=list)
                out.write_text(text + "\n", encoding="utf-8")
    print(f"\nHAPT, {setting}, {len(seeds)} seeds: {seeds}")
    print(markdown(summary(found, setting)))


if __name__ == "__main__":
    main()
