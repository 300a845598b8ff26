"""Numbers instead of classes: in memory, from the catalogue, and where somebody cannot do them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from colonnade import assembly, config
from colonnade.errors import ConfigError, DataError, MethodError

X = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
Y = 300 + 50 * X[:, 0].astype(np.float64)
HALVES: dict[str, Any] = {"measures": (X[:, :3], Y), "grading": X[:, 3:]}


def loaded(**settings: Any) -> config.Config:
    return config.load({"method": "splitnn", "batch_size": 16} | settings)


def test_numbers_in_memory() -> None:
    made = assembly.from_memory(loaded(), HALVES, None)
    party = made.parties["measures"]
    train, test = (party.splits[key].y for key in ("train", "test"))
    assert train is not None and test is not None and train.dtype == torch.float64
    assert sorted([*train.tolist(), *test.tolist()]) == sorted(Y.tolist())
    assert party.task.kind == made.parties["grading"].task.kind == "regression"
    assert party.task.mean == pytest.approx(float(train.mean()))
    halves = np.median(Y)
    assert abs(int((test > halves).sum()) - len(test) / 2) <= 1  # spread over all labels


def test_test_rows_of_numbers_in_memory() -> None:
    rows = {"measures": (X[:9, :3], Y[:9]), "grading": X[:9, 3:]}
    made = assembly.from_memory(loaded(), HALVES, rows)
    assert made.parties["measures"].splits["test"].y.tolist() == Y[:9].tolist()  # type: ignore[union-attr]


def test_parties_with_labels_of_their_own_share_one_scale() -> None:
    rows = {"a": (X[:40, :3], Y[:40]), "b": (X[40:, 3:], Y[40:] + 1000)}
    made = assembly.from_memory(loaded(method="jovefl"), rows, None)
    tasks = {made.parties[name].task for name in ("a", "b")}
    ys = [made.parties[name].splits["train"].y for name in ("a", "b")]
    pooled = torch.cat([y for y in ys if y is not None])
    (task,) = tasks
    assert task.kind == "regression" and task.mean == pytest.approx(float(pooled.mean()))


def test_weights_in_memory() -> None:
    weights = np.arange(80) / 2
    labels = np.arange(80) % 2
    rows = {"bank": (X[:, :3], labels, weights), "shop": X[:, 3:]}
    made = assembly.from_memory(loaded(), rows, None)
    for split in made.parties["bank"].splits.values():
        assert split.weights is not None
        assert torch.equal(split.weights, split.ids.double() / 2)
    assert all(split.weights is None for split in made.parties["shop"].splits.values())
    pooled = assembly.from_memory(loaded(method="centralised"), rows, None).parties["all"]
    assert all(split.weights is not None for split in pooled.splits.values())
    for wrong, said in (
        ((X[:, :3], labels, -weights), "party 'bank': the weight in row 1 is negative"),
        ((X[:, :3], labels, weights * np.nan), "party 'bank': the weight in row 0 is missing"),
        ((X[:, :3], labels, weights[:9]), "party 'bank': weights of shape .* for 80 rows"),
        ((X[:, :3], None, weights), "party 'bank' has weights and no labels"),
    ):
        with pytest.raises(DataError, match=said):
            assembly.from_memory(loaded(), {"bank": wrong, "shop": (X[:, 3:], labels)}, None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "binary"}, "80 classes|not one|numbers"),
        ({"positive": 1}, "positive: the labels are numbers"),
        ({"class_weight": "balanced"}, "class_weight: the labels are numbers"),
        ({"metric": "auc"}, "metric 'auc' is for two classes"),
        (
            {"method": "easter", "easter": {"loss": "sigmoid"}},
            "easter.loss = 'sigmoid' is a loss of",
        ),
        ({"method": "fedemb"}, "'fedemb' learns from .*such as splitnn"),
    ],
)
def test_what_does_not_go_with_numbers(settings: dict[str, Any], said: str) -> None:
    rows = HALVES | {"grading": (X[:, 3:], Y)} if settings.get("method") == "fedemb" else HALVES
    with pytest.raises((ConfigError, DataError, MethodError), match=said):
        assembly.from_memory(loaded(**settings), rows, rows if "method" in settings else None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"method": "splitconv", "task": "regression"},
            "'splitconv' learns from .* such as splitn",
        ),
        (
            {"method": "easter", "task": "regression", "easter": {"loss": "sigmoid"}},
            "easter.loss = 'sigmoid' is a loss of classes",
        ),
    ],
)
def test_a_task_that_is_named_is_checked_before_any_row_is_read(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        config.load(settings)


def test_two_classes_may_be_treated_like_many() -> None:
    y = ["ab"[n % 2] for n in range(80)]
    for task, kind in (("auto", "binary"), ("multiclass", "multiclass")):
        rows = {"a": (X[:, :3], y), "b": X[:, 3:]}
        made = assembly.from_memory(loaded(task=task), rows, None)
        assert made.parties["a"].task.kind == kind


@pytest.mark.parametrize(
    ("settings", "labels", "said"),
    [
        (
            {"task": "regression"},
            ["a", "b"],
            "'a', not a number, and a regression predicts numbers",
        ),
        ({"task": "binary"}, ["a", "b", "c"], 'are of 3 classes, .*or set task = "multiclass"'),
        ({"positive": "a"}, ["a", "b", "c"], "positive is one of two classes, and there are 3"),
        ({"positive": "c"}, ["a", "b"], "no class 'c' as positive: one of a, b"),
    ],
)
def test_what_does_not_go_with_classes(
    settings: dict[str, Any], labels: list[str], said: str
) -> None:
    y = [labels[n % len(labels)] for n in range(80)]
    with pytest.raises((ConfigError, DataError), match=said):
        assembly.from_memory(loaded(**settings), {"a": (X[:, :3], y), "b": X[:, 3:]}, None)
