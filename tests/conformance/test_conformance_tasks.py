"""Every method learns the tasks that it declares, alike in all runtimes, and refuses the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import colonnade
from colonnade import methods
from colonnade.errors import InputError
from colonnade.runs.run import Result
from colonnade.task import KINDS

ALL = methods.names()
TRAIN, TEST = 300, 100
STRIPS = {"bank": (0, 3), "shop": (3, 6), "post": (6, 8)}  # columns of an image of 8 × 8
TASKS = {name: methods.find(name).method.learning.tasks for name in ALL}
# Many classes are those of test_conformance.py
LEARNT = [(name, kind) for name in ALL for kind in TASKS[name] if kind != "multiclass"]
REFUSED = [(name, kind) for name in ALL for kind in KINDS if kind not in TASKS[name]]
SMALL = {
    "adptvfedconv": {"pretrain_epochs": 2, "finetune_epochs": 1, "chunk": 150},
    "vfedtrans": {"unsafe_q": True, "distil_epochs": 5},  # digits are whole numbers
}


def labels_of(kind: str, images: NDArray[Any], digits: NDArray[Any]) -> NDArray[Any]:
    """Whether a digit is a small one, which it is, or how its ink weighs, in a unit of its own."""
    if kind == "binary":
        return np.where(digits < 5, "small", "large")
    if kind == "multiclass":
        return np.asarray(digits, dtype=np.int64)
    weights = np.linspace(-1.0, 1.0, 64)
    return 4000.0 + 25.0 * (images.reshape(len(images), 64) @ weights) + 0.5


def rows_of(method: str, kind: str, span: slice) -> dict[str, Any]:
    """Every party's part of the images, as a table or as an image; labels where they belong."""
    found = load_digits()
    images, y = found.images[span], labels_of(kind, found.images, found.target)[span]
    declared = methods.find(method).method
    parts: dict[str, Any] = {}
    for name, (left, right) in STRIPS.items():
        part = images[:, :, left:right]
        x = (part * 15).astype(np.uint8)[:, None] if declared.network.images else part
        x = x if declared.network.images else x.reshape(len(x), -1)
        parts[name] = (x, y) if declared.rows.own_labels or name == "bank" else x
    return parts


def settings(method: str, kind: str, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": method,
        "name": "toy",
        "task": kind,
        "seed": 3,
        "epochs": 3,
        "batch_size": 20,
        method: SMALL.get(method, {}),
    }
    if methods.find(method).method.network.images:
        strips = [[0, left, 8, right - left] for left, right in STRIPS.values()]
        base["partition"] = {"kind": "rectangles", "rectangles": strips}
        base["model_options"] = {"width": 0.2, "fc": [64], "dropout": 0.1}
    return base | changes


def train(folder: Path, method: str, kind: str, runtime: str = "local", **changes: Any) -> Result:
    return colonnade.run(
        settings(method, kind, **changes),
        parties=rows_of(method, kind, slice(0, TRAIN)),
        test=rows_of(method, kind, slice(TRAIN, TRAIN + TEST)),
        out=folder,
        runtime=runtime,
    )


def essence(result: Result) -> list[Any]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]


@pytest.mark.parametrize(("method", "kind"), LEARNT)
def test_a_declared_task_is_learnt_alike_in_all_runtimes(
    method: str, kind: str, tmp_path: Path
) -> None:
    plain = train(tmp_path / "plain", method, kind)
    losses = losses_of(plain)
    assert sum(each[-1] for each in losses) < sum(each[0] for each in losses)
    assert plain.content["data"]["task"]["kind"] == kind
    check_predictions(plain, method, kind)
    strict = train(tmp_path / "strict", method, kind, strict=True)
    assert strict.weights_sha256 == plain.weights_sha256
    assert strict.metrics == plain.metrics
    found = methods.find(method).method
    if found.rows.pooled(found.options()):
        return  # one party holds everything: there is nobody to talk to
    apart = train(tmp_path / "apart", method, kind, "process")
    assert apart.weights_sha256 == plain.weights_sha256
    assert apart.metrics == plain.metrics
    assert essence(apart) == essence(plain)
    assert apart.content["data"]["task"] == plain.content["data"]["task"]
    check_predictions(apart, method, kind)


def check_predictions(result: Result, method: str, kind: str) -> None:
    """They are those of the last evaluation, and better than what one says without features."""
    digits = load_digits()
    y = labels_of(kind, digits.images, digits.target)
    truth, blind = y[TRAIN : TRAIN + TEST], y[:TRAIN]
    rows = rows_of(method, kind, slice(TRAIN, TRAIN + TEST))
    features = {name: part[0] if isinstance(part, tuple) else part for name, part in rows.items()}
    found = colonnade.load(result.path).predict(features)
    measures = result.metrics["test"]["measures"]
    alone = [name for name in found if name in measures]
    assert alone
    for name in alone:
        scores = found[name].score(truth)
        for measure, said in measures[name].items():
            if said["value"] is not None:
                assert scores[measure] == pytest.approx(said["value"], rel=1e-6, abs=1e-9), measure
    if kind == "regression":
        guess = float(np.sqrt(np.mean((truth - blind.mean()) ** 2)))
        assert measures[alone[0]]["rmse"]["value"] < guess
    else:
        assert measures[alone[0]]["accuracy"]["value"] > max(
            np.mean(truth == c) for c in set(truth)
        )


def losses_of(result: Result) -> list[list[float]]:
    """The losses of every party, epoch by epoch."""
    found: dict[str, list[float]] = {}
    for row in result.history:
        for name, numbers in row["parties"].items():
            if "loss" in numbers:
                found.setdefault(name, []).append(numbers["loss"])
    return list(found.values())


@pytest.mark.parametrize(("method", "kind"), REFUSED)
def test_another_task_is_refused_before_anything_is_trained(
    method: str, kind: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=method) as refused:
        train(tmp_path / "run", method, kind)
    assert "regression" in str(refused.value) or "numbers" in str(refused.value)
    assert not (tmp_path / "run").exists()
