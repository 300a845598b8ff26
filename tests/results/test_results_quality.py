"""Measures, curves and decisions in a result: of a run's own predictions, chosen on its own
validation rows, and the same in every runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss, precision_score, recall_score, roc_auc_score

import colonnade
from colonnade.errors import ConfigError
from colonnade.results.quality import Ruling
from colonnade.task.measures import names_for

X, Y = load_breast_cancer(return_X_y=True)
PARTIES = {"clinic": (X[:, :10], Y), "laboratory": X[:, 10:]}
TREE: dict[str, Any] = {
    "method": "splitnn",
    "epochs": 3,
    "batch_size": 32,
    "data": {"validation": 0.3},
}


def run(folder: Path, **changes: Any) -> colonnade.Result:
    return colonnade.run(TREE | changes, parties=PARTIES, out=folder)


def saved(folder: Path, party: str) -> dict[str, Any]:
    found: dict[str, Any] = colonnade.load(folder).saved(party)
    return found


def test_every_measure_is_that_of_the_runs_own_predictions(tmp_path: Path) -> None:
    result = run(tmp_path / "run", data={"validation": 0.3, "test": 0.3})
    test = result.metrics["test"]
    assert (test["metric"], result.metric) == ("auc", "auc")
    assert tuple(test["measures"]["clinic"]) == names_for("binary")
    assert set(test["curves"]["clinic"]) == {"roc", "precision_recall", "calibration"}
    assert result.value == test["value"] == result.measures["auc"]
    assert result.measures["accuracy"] == result.accuracy
    for one in test["measures"]["clinic"].values():
        assert one["low"] <= one["high"]
    rows = sum(map(sum, test["confusion"]))
    flagged = sum(row[1] for row in test["confusion"])
    (_, _), (missed, hit) = test["confusion"]
    assert rows == result.content["data"]["test_rows"]
    assert result.measures["recall"] == pytest.approx(hit / (hit + missed))
    assert result.measures["precision"] == pytest.approx(hit / flagged)


def test_measures_equal_scikit_learns_on_what_the_run_predicts(tmp_path: Path) -> None:
    cut = 400
    parties = {"clinic": (X[:cut, :10], Y[:cut]), "laboratory": X[:cut, 10:]}
    test = {"clinic": (X[cut:, :10], Y[cut:]), "laboratory": X[cut:, 10:]}
    tree = TREE | {"decision": {"threshold": 0.3}}
    result = colonnade.run(tree, parties=parties, test=test, out=tmp_path / "run")
    rows = {"clinic": X[cut:, :10], "laboratory": X[cut:, 10:]}
    chances = colonnade.load(result.path).predict(rows)["clinic"].probabilities.double().numpy()
    chances /= chances.sum(1, keepdims=True)  # single precision
    truth, flagged = Y[cut:], chances[:, 1] >= 0.3
    assert result.measures["auc"] == pytest.approx(roc_auc_score(truth, chances[:, 1]))
    assert result.measures["log_loss"] == pytest.approx(log_loss(truth, chances), rel=1e-5)
    assert result.measures["precision"] == pytest.approx(precision_score(truth, flagged))
    assert result.measures["recall"] == pytest.approx(recall_score(truth, flagged))


def test_the_threshold_is_chosen_on_validation_rows_and_lies_beside_the_weights(
    tmp_path: Path,
) -> None:
    result = run(tmp_path / "run", decision={"rate": 0.25, "calibrate": "platt"})
    decision = result.content["decision"]
    assert (decision["chosen_by"], decision["positive"]) == ("rate", 1)
    assert decision["calibration"]["way"] == "platt"
    assert saved(result.path, "clinic")["decision"] == decision
    assert "decision" not in saved(result.path, "laboratory")
    validation = result.metrics["validation"]["confusion"]
    rows, flagged = sum(map(sum, validation)), sum(row[1] for row in validation)
    assert abs(flagged / rows - 0.25) <= 0.5 / rows + 1e-9
    assert Ruling.from_told(decision).told() == decision
    usual = run(tmp_path / "usual")
    assert usual.weights_sha256 == result.weights_sha256 and "decision" not in usual.content
    assert usual.measures["auc"] == pytest.approx(result.measures["auc"])
    assert usual.measures["recall"] != result.measures["recall"]


def test_of_costs_the_dearer_mistake_becomes_rarer(tmp_path: Path) -> None:
    found = []
    for name, missed in (("cheap", 1 / 50), ("dear", 50)):
        cost = {"false_positive": 1, "false_negative": missed}
        result = run(tmp_path / name, decision={"cost": cost})
        found.append(result.content["decision"]["threshold"])
        assert result.content["decision"]["chosen_by"] == "cost"
    assert found[0] > found[1]


def test_each_party_that_predicts_has_its_own_measures(tmp_path: Path) -> None:
    tree = {
        "method": "easter",
        "epochs": 1,
        "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
    }
    result = colonnade.run(tree, out=tmp_path / "run")
    test = result.metrics["test"]
    assert test["metric"] == "accuracy" and test["value"] == pytest.approx(test["accuracy"])
    assert list(test["measures"]) == list(test["per_party"]) == result.content["parties"]
    for name, measures in test["measures"].items():
        assert measures["accuracy"]["value"] == pytest.approx(test["per_party"][name])
    assert list(test["curves"]) == ["party1"]


@pytest.mark.parametrize(
    ("decision", "said"),
    [({"threshold": 0.5}, "this task has more"), ({"rate": 0.1}, "this task has more")],
)
def test_a_threshold_is_for_two_classes(
    decision: dict[str, Any], said: str, tmp_path: Path
) -> None:
    data = {"name": "digits", "train_rows": 200, "test_rows": 60, "validation": 0.2}
    tree = {"method": "splitnn", "data": data, "decision": decision}
    with pytest.raises(ConfigError, match=said):
        colonnade.run(tree, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_many_classes_are_calibrated(tmp_path: Path) -> None:
    data = {"name": "digits", "train_rows": 300, "test_rows": 100, "validation": 0.3}
    tree = {"method": "splitnn", "epochs": 2, "data": data}
    plain = colonnade.run(tree, out=tmp_path / "plain")
    made = colonnade.run(tree | {"decision": {"calibrate": "platt"}}, out=tmp_path / "made")
    assert made.accuracy == plain.accuracy  # a temperature keeps the most probable class
    validation = [r.metrics["validation"]["measures"]["party1"] for r in (plain, made)]
    assert validation[1]["log_loss"]["value"] < validation[0]["log_loss"]["value"]


@pytest.mark.slow
def test_processes_tell_the_same_as_one_process(tmp_path: Path) -> None:
    tree = TREE | {
        "data": {"name": "digits", "train_rows": 300, "test_rows": 100, "validation": 0.3},
        "decision": {"calibrate": "isotonic"},
        "absence": False,
    }
    local = colonnade.run(tree, out=tmp_path / "local")
    apart = colonnade.run(tree, out=tmp_path / "apart", runtime="process")
    assert apart.metrics == local.metrics
    assert apart.content["decision"] == local.content["decision"]
    assert saved(apart.path, "party1")["decision"] == local.content["decision"]


def test_a_run_that_was_stopped_has_no_measures_and_its_accuracy(tmp_path: Path) -> None:
    class Stop(colonnade.Observer):
        def epoch(self, party: str, row: Any) -> None:
            if row["epoch"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        colonnade.run(TREE, parties=PARTIES, out=tmp_path / "run", observer=Stop())
    found = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["test"]
    assert found["value"] is None and found["measures"] == {}
    assert 0 < found["accuracy"] <= 1


def test_a_result_is_one_line(tmp_path: Path) -> None:
    result = run(tmp_path / "run")
    assert "\n" not in repr(result) and len(repr(result)) < 200
    assert f"test auc {result.value:.4g}, 3 epochs" in str(result)
