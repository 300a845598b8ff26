"""Three real tables in two halves, in five shuffled folds, against models of the joined table.

    python benchmarks/tables/folds.py caravan --seeds 5 --out benchmarks/tables/results/caravan.json
    python benchmarks/tables/folds.py diamonds --out benchmarks/tables/results/diamonds.json
    python benchmarks/tables/folds.py bikeshare --out benchmarks/tables/results/bikeshare.json

The weak half holds the labels. Every number is of test rows: early stopping and thresholds look
at validation rows alone, a part of the training rows. `local` and `gradient boosting`
are told beside the federated model, so that a gain is not the merit of a weak floor.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score, root_mean_squared_error
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import colonnade
from colonnade import data
from colonnade.results.environment import commit
from colonnade.task.intervals import over_seeds

FOLDS, RATE = 5, 0.1
Values = dict[str, float]


@dataclass(frozen=True)
class Half:
    """What one party holds."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """A table, who has which columns, and how the federated model trains."""

    regression: bool
    holder: Half
    partner: Half
    settings: Mapping[str, Any]

    @property
    def measure(self) -> str:
        return "rmse" if self.regression else "auc"


def problem(name: str, columns: list[str]) -> Problem:
    """The halves as the data's own documentation names them."""
    stops = {"data": {"validation": 0.15}, "patience": 5, "optimizer": "adamw"}
    if name == "caravan":
        mine = tuple(column for column in columns if column.startswith("M"))
        theirs = tuple(column for column in columns if column not in mine)
        return Problem(False, Half("people", mine), Half("insurer", theirs), stops | {"epochs": 30})
    if name == "diamonds":
        mine = ("depth", "table", "x", "y", "z")
    else:
        mine = ("weathersit", "temp", "atemp", "hum", "windspeed")
    theirs = tuple(column for column in columns if column not in mine)
    names = ("measures", "grading") if name == "diamonds" else ("weather", "calendar")
    halves = Half(names[0], mine), Half(names[1], theirs)
    return Problem(True, *halves, stops | {"epochs": 20 if name == "diamonds" else 60})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", choices=("caravan", "diamonds", "bikeshare"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    frame, y = table(arguments.data)
    what = problem(arguments.data, list(frame.columns))
    began = time.perf_counter()
    folds = [
        fold(what, frame, y, train, test, FOLDS * seed + number, arguments.set)
        for seed in range(arguments.seeds)
        for number, (train, test) in enumerate(divided(what, y, seed))
    ]
    content = {
        "data": arguments.data,
        "settings": dict(what.settings) | {"overrides": arguments.set},
        "folds": FOLDS,
        "seeds": arguments.seeds,
        "summary": summary(folds),
        "each": folds,
        "seconds": time.perf_counter() - began,
        "commit": commit(),
    }
    show(content, what)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


def table(name: str) -> tuple[pd.DataFrame, NDArray[Any]]:
    """All rows, with their categories as text; labels as classes' numbers or as numbers."""
    loaded = data.load(name)
    parts = [loaded.train, loaded.test]
    order = np.argsort(np.concatenate([part.ids.numpy() for part in parts]))
    x = np.concatenate([part.x.numpy() for part in parts])[order]
    labels = [part.y.numpy() for part in parts if part.y is not None]
    columns: dict[str, Any] = {}
    for place, column in enumerate(loaded.columns):
        values: Any = x[:, place].astype(np.float64)
        if column.categories:
            values = np.array(column.categories, dtype=object)[values.astype(int)]
        columns[column.name] = values
    return pd.DataFrame(columns), np.concatenate(labels)[order]


def divided(what: Problem, y: NDArray[Any], seed: int) -> Iterator[tuple[Any, Any]]:
    way = KFold if what.regression else StratifiedKFold
    yield from way(FOLDS, shuffle=True, random_state=seed).split(np.zeros(len(y)), y)


def fold(
    what: Problem,
    frame: pd.DataFrame,
    y: NDArray[Any],
    train: NDArray[Any],
    test: NDArray[Any],
    seed: int,
    overrides: list[str],
) -> Values:
    """Every model of one fold, on its test rows."""
    rows = Rows(what, frame, y, train, test)
    found = {
        "linear, joined": rows.by_sklearn(linear(what.regression), "both"),
        "linear, alone": rows.by_sklearn(linear(what.regression), "holder"),
        "gradient boosting, joined": rows.by_sklearn(boosted(what.regression), "both"),
        "gradient boosting, alone": rows.by_sklearn(boosted(what.regression), "holder"),
    }
    base = {**what.settings, "seed": seed, "absence": False}
    for method in ("splitnn", "local"):
        found[method] = rows.federated(base | {"method": method}, overrides)[what.measure]
    if not what.regression:
        plain, weighted = (
            rows.federated(base | {"method": "splitnn", "class_weight": weight}, overrides)
            for weight in ("none", "balanced")
        )
        found |= {"recall at 0.5": plain["recall"], "the same, balanced": weighted["recall"]}
        flagged = rows.federated(
            base | {"method": "splitnn", "decision": {"rate": RATE}}, overrides
        )
        found |= {"flagged of a tenth": flagged["flagged"], "recall of these": flagged["recall"]}
    return found


@dataclass(frozen=True)
class Rows:
    """Training and test rows of one fold."""

    what: Problem
    frame: pd.DataFrame
    y: NDArray[Any]
    train: NDArray[Any]
    test: NDArray[Any]

    def by_sklearn(self, model: Any, whose: str) -> float:
        columns = list(self.what.holder.columns)
        columns += self.what.partner.columns if whose == "both" else ()
        model.fit(self.frame.loc[self.train, columns], self.y[self.train])
        x, truth = self.frame.loc[self.test, columns], self.y[self.test]
        if self.what.regression:
            return float(root_mean_squared_error(truth, model.predict(x)))
        return float(roc_auc_score(truth, model.predict_proba(x)[:, 1]))

    def federated(self, settings: Mapping[str, Any], overrides: list[str]) -> Values:
        """The measures of the label holder's prediction, and the share that it flags."""
        holder, partner = self.what.holder, self.what.partner

        def held(index: NDArray[Any]) -> dict[str, Any]:
            mine = self.frame.iloc[index][list(holder.columns)]
            theirs = self.frame.iloc[index][list(partner.columns)]
            return {holder.name: (mine, self.y[index]), partner.name: theirs}

        if self.what.regression:
            settings = {**settings, "task": "regression"}
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            result = colonnade.run(
                settings,
                overrides=overrides,
                parties=held(self.train),
                test=held(self.test),
                out=out,
            )
            told = result.content["metrics"]["test"]["measures"][holder.name]
            found = {name: value["value"] for name, value in told.items()}
            if "decision" in settings:
                rows = dict(held(self.test).items())
                rows[holder.name] = rows[holder.name][0]
                decided = colonnade.load(out).predict(rows)[holder.name].decisions
                found["flagged"] = float(np.mean([name == "1" for name in decided]))
        return found


def linear(regression: bool) -> Any:
    text = make_column_selector(dtype_include=object)
    prepared = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), text), remainder=StandardScaler()
    )
    return make_pipeline(prepared, Ridge() if regression else LogisticRegression(max_iter=2000))


def boosted(regression: bool) -> Any:
    text = make_column_selector(dtype_include=object)
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    kind: Callable[..., Any] = (
        HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    )
    prepared = make_column_transformer((ordinal, text), remainder="passthrough")
    return make_pipeline(prepared, kind(random_state=0))


def summary(folds: list[Values]) -> dict[str, Any]:
    """The mean of every number, and of the difference to the linear model on the joined table."""
    found: dict[str, Any] = {}
    for name in folds[0]:
        values = np.array([fold[name] for fold in folds])
        found[name] = {"mean": float(values.mean()), "lowest": float(values.min())}
        found[name]["highest"] = float(values.max())
    gaps = [fold["splitnn"] - fold["linear, joined"] for fold in folds]
    found["splitnn minus linear, joined"] = over_seeds(gaps).told()
    return found


def show(content: Mapping[str, Any], what: Problem) -> None:
    shown = Table(title=f"{content['data']}, {content['seeds']} × {FOLDS} folds, {what.measure}")
    for title in ("", "mean", "lowest", "highest"):
        shown.add_column(title)
    for name, found in content["summary"].items():
        told = [found.get(key) for key in ("mean", "lowest", "highest")]
        if "mean" not in found:
            told = [found["value"], found["low"], found["high"]]
        shown.add_row(name, *("" if value is None else f"{value:.4f}" for value in told))
    Console().print(shown)
    Console().print("of the difference: its mean over folds with a 95 % interval")


if __name__ == "__main__":
    raise SystemExit(main())
