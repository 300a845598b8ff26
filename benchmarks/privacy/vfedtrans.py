"""What VFedTrans gains with q singular vectors, with noise and without, against own columns alone.

    cd benchmarks/privacy
    python vfedtrans.py adult --out results/vfedtrans-adult.json
    python vfedtrans.py hapt --out results/vfedtrans-hapt.json

Every variant is a run of the method, on the same rows for a seed. Classifiers are trained on
[x | Enc(x)] of the task party's rows, and scored on test rows that no run has seen: k nearest
neighbours on all labels, a logistic regression on 100. Differences to `local`, the own columns
alone, are paired by seed; intervals of 95 % are over seeds.

    q = 2, unsafe    the default q, refused or not
    q = 32, unsafe   that of the paper's tables
    accepted         the largest q that the partner lets through, if any; why q = 2 is refused is
                     in the file
    ε = 1, 2, …      two noisy columns of the partner, δ = 1e-6
    ε = 4, q = 8     the same ε, for eight noisy columns
    noise alone      ε = 0.01: the noisy columns say nothing, and the code is a projection of the
                     own columns, as wide and as large as with a larger ε

With and without noise, the encoder is linear and learns from U alone (layers = 1, reconstruction =
0); `MLP` has the default one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

import colonnade
from colonnade.privacy.determined import most_vectors, refusal
from colonnade.privacy.fedsvd import standardised
from colonnade.reproduce import study
from colonnade.reproduce.study import Setting
from colonnade.results.environment import commit
from colonnade.sklearn import FederatedEnricher
from colonnade.task.intervals import over_seeds

ROWS, SHARED, TESTED, FEW = 6000, 0.8, 2000, 100
SETTINGS = {
    "adult": Setting(name="adult", rows=ROWS, shared=1, task_columns=7, data_columns=7),
    "hapt": Setting(name="hapt", rows=ROWS, shared=1, task_columns=50, data_columns=250),
}
LINEAR = {"layers": 1, "reconstruction": 0.0, "theta": 1.0}
LOCAL = "local"
Scores = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", choices=tuple(SETTINGS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # scikit-learn's: not yet converged, a class without a row
    began, each, accepted = time.perf_counter(), [], []
    for seed in range(arguments.seeds):
        rows = Rows(SETTINGS[arguments.data], seed)
        accepted.append({"q": rows.accepted, "at q = 2": rows.refused})
        each.append({name: rows.scores(options) for name, options in rows.variants().items()})
        Console(stderr=True).print(f"seed {seed}: {time.perf_counter() - began:.0f} s")
    content = {
        "data": arguments.data,
        "rows": {"own": ROWS, "shared": SHARED, "tested": TESTED, "labels of few": FEW},
        "seeds": arguments.seeds,
        "accepted": accepted,
        "summary": summary(each),
        "each": each,
        "seconds": time.perf_counter() - began,
        "commit": commit(),
    }
    show(content)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


class Rows:
    """Who has what, for one seed."""

    def __init__(self, setting: Setting, seed: int) -> None:
        table = study.load(setting)
        mine, (theirs,) = study.columns(table, setting, seed)
        order = study.seeded(seed, "rows").permutation(len(table.y))[: ROWS + TESTED]
        x = study.standardised(table.x[order], np.arange(ROWS))
        self.seed, self.y = seed, table.y[order]
        self.own, self.other = x[:, mine].astype(np.float32), x[:, theirs].astype(np.float32)
        self.few = study.seeded(seed, "few").permutation(ROWS)[:FEW]
        partners = standardised(torch.from_numpy(self.other[:ROWS]).double())
        most = most_vectors(partners)
        self.accepted = next((q for q in range(most, 0, -1) if not refusal(partners, q, "")), 0)
        self.refused = refusal(partners, 2, "partner")

    def variants(self) -> dict[str, Mapping[str, Any] | None]:
        found: dict[str, Mapping[str, Any] | None] = {LOCAL: None}
        found |= {f"q = {q}, unsafe": LINEAR | {"q": q, "unsafe_q": True} for q in (2, 32)}
        found["q = 2, unsafe, MLP"] = {"q": 2, "unsafe_q": True}
        if self.accepted:
            found["accepted"] = LINEAR | {"q": self.accepted}
        found |= {f"ε = {e}": LINEAR | {"q": 2, "epsilon": float(e)} for e in (1, 2, 4, 8, 16)}
        found["ε = 4, q = 8"] = LINEAR | {"q": 8, "epsilon": 4.0}
        found["noise alone"] = LINEAR | {"q": 2, "epsilon": 0.01}
        found["ε = 4, MLP"] = {"q": 2, "epsilon": 4.0}
        return found

    def scores(self, options: Mapping[str, Any] | None) -> Scores:
        """AUC and accuracy of every classifier, in test rows."""
        x = self.own if options is None else self.enriched(options)
        found: Scores = {}
        for name, model, rows in (
            ("neighbours", KNeighborsClassifier(8), np.arange(ROWS)),
            ("regression, 100 labels", LogisticRegression(max_iter=3000), self.few),
        ):
            model.fit(x[rows], self.y[rows])
            shares, truth = model.predict_proba(x[ROWS:]), self.y[ROWS:]
            found[f"{name}, accuracy"] = float((model.predict(x[ROWS:]) == truth).mean())
            found[f"{name}, AUC"] = auc(truth, shares, model.classes_)
        return found

    def enriched(self, options: Mapping[str, Any]) -> NDArray[Any]:
        """What a run of the method has taught the task party."""
        held = {"bank": (self.own[:ROWS], self.y[:ROWS]), "partner": self.other[:ROWS]}
        test = {"bank": (self.own[ROWS:], self.y[ROWS:]), "partner": self.other[ROWS:]}
        settings = {
            "method": "vfedtrans",
            "seed": self.seed,
            "epochs": 1,
            "protect": {"simulate_noise_seed": self.seed},  # to make the numbers again
            "vfedtrans": {"shared": SHARED, **options},
        }
        with tempfile.TemporaryDirectory() as folder:
            run = colonnade.run(settings, parties=held, test=test, out=Path(folder) / "run").path
            enricher = FederatedEnricher(run).fit(self.own)
            return np.asarray(enricher.transform(self.own))


def auc(truth: NDArray[Any], shares: NDArray[Any], classes: NDArray[Any]) -> float:
    """Of many classes the mean over those that were in training and are in test."""
    if len(classes) == 2:
        return float(roc_auc_score(truth, shares[:, 1]))
    found = [
        roc_auc_score(truth == label, share)
        for label, share in zip(classes, shares.T, strict=True)
        if (truth == label).any()
    ]
    return float(np.mean(found))


def summary(each: list[dict[str, Scores]]) -> dict[str, Any]:
    """By variant and score: the mean, and the difference to `local` with its interval."""
    found: dict[str, Any] = {}
    for variant in each[0]:
        having = [seed for seed in each if variant in seed]
        for score in each[0][variant]:
            values = [seed[variant][score] for seed in having]
            cell: dict[str, Any] = {"mean": float(np.mean(values)), "seeds": len(values)}
            if variant != LOCAL and len(values) > 1:
                gaps = [seed[variant][score] - seed[LOCAL][score] for seed in having]
                cell["minus local"] = over_seeds(gaps).told()
            found.setdefault(variant, {})[score] = cell
    return found


def show(content: Mapping[str, Any]) -> None:
    scores = list(content["summary"][LOCAL])
    shown = Table(title=f"{content['data']}, {content['seeds']} seeds: means, points to local")
    for title in ("", *scores):
        shown.add_column(title)
    for variant, cells in content["summary"].items():
        told = []
        for score in scores:
            gap = cells[score].get("minus local")
            text = f"{100 * cells[score]['mean']:.1f}"
            if gap is not None:
                text += (
                    f" {100 * gap['value']:+.2f} ({100 * gap['low']:.2f}, {100 * gap['high']:.2f})"
                )
            told.append(text)
        shown.add_row(variant, *told)
    Console(width=200).print(shown)


if __name__ == "__main__":
    raise SystemExit(main())
