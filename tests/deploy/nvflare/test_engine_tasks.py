"""A number is predicted through the engine: the sites are told mean and spread by the hub."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

import colonnade
from colonnade.runs.run import Result

pytest.importorskip("nvflare")


def trained(folder: Path, runtime: str) -> Result:
    x, y = load_diabetes(return_X_y=True)
    weights = np.linspace(0.5, 1.5, len(y))
    return colonnade.run(
        {"method": "easter", "task": "regression", "epochs": 2, "batch_size": 64, "name": "sugar"},
        parties={"clinic": (x[:, :4], y, weights), "lab": x[:, 4:7], "home": x[:, 7:]},
        out=folder,
        runtime=runtime,
    )


def test_numbers_are_learnt_through_the_engine_with_the_same_bits(tmp_path: Path) -> None:
    plain, engine = trained(tmp_path / "plain", "local"), trained(tmp_path / "engine", "nvflare")
    assert engine.weights_sha256 == plain.weights_sha256
    assert engine.content["data"]["task"] == plain.content["data"]["task"]
    measured = engine.metrics["test"]
    assert measured["metric"] == "rmse" and set(measured["measures"]) == {"clinic", "lab", "home"}
    assert {p: m["rmse"] for p, m in measured["measures"].items()} == {
        p: m["rmse"] for p, m in plain.metrics["test"]["measures"].items()
    }
