"""What an epoch logs of its predictions: the usual three, and the metric that decides."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn import metrics as theirs

from colonnade.task import Task

GENERATOR = torch.Generator().manual_seed(1)
TRUTH = torch.randint(0, 2, (60,), generator=GENERATOR)
OUTPUTS = torch.randn(60, 2, generator=GENERATOR)
HEAVY = torch.rand(60, generator=GENERATOR, dtype=torch.double)


@pytest.mark.parametrize("positive", [0, 1])
def test_two_classes_log_the_auc_of_the_positive_one(positive: int) -> None:
    task = Task("binary", ("no", "yes"), positive=positive)
    found = task.progress(OUTPUTS, TRUTH, whole=True)
    chance = OUTPUTS.softmax(1)[:, positive]
    assert float(found["auc"]) == pytest.approx(theirs.roc_auc_score(TRUTH.eq(positive), chance))
    assert found.keys() == {"accuracy", "auc", "loss"}
    assert task.progress(OUTPUTS, TRUTH, whole=False).keys() == {"accuracy"}


def test_a_metric_that_is_logged_anyhow_is_logged_once() -> None:
    assert Task("binary", ("no", "yes"), "accuracy").progress(
        OUTPUTS, TRUTH, whole=True
    ).keys() == {"accuracy", "loss"}
    numbers = Task("regression").progress(OUTPUTS[:, :1], TRUTH.double(), whole=True)
    assert numbers.keys() == {"rmse", "loss"}
    found = Task("regression", metric="mae", mean=3.0, spread=2.0).progress(
        OUTPUTS[:, :1], TRUTH.double(), whole=True
    )
    expected = theirs.mean_absolute_error(TRUTH, OUTPUTS[:, 0] * 2 + 3)
    assert float(found["mae"]) == pytest.approx(expected, rel=1e-6)


def test_sample_weights_count_in_every_number() -> None:
    task = Task("binary", ("no", "yes"), "average_precision")
    found = task.progress(OUTPUTS, TRUTH, HEAVY, whole=True)
    chance, of = OUTPUTS.double().softmax(1), {"sample_weight": HEAVY}
    expected = {
        "accuracy": theirs.accuracy_score(TRUTH, OUTPUTS.argmax(1), **of),
        "average_precision": theirs.average_precision_score(TRUTH, chance[:, 1], **of),
        "loss": theirs.log_loss(TRUTH, chance, **of),
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, 1e-5)
    numbers = Task("regression").progress(OUTPUTS[:, :1], TRUTH.double(), HEAVY, whole=True)
    rmse = theirs.root_mean_squared_error(TRUTH, OUTPUTS[:, 0], **of)
    assert float(numbers["rmse"]) == pytest.approx(rmse, rel=1e-5)


def test_a_metric_that_the_rows_do_not_define_is_not_logged() -> None:
    task = Task("binary", ("no", "yes"))
    one_class = task.progress(OUTPUTS, torch.ones_like(TRUTH), whole=True)
    assert one_class.keys() == {"accuracy", "loss"}
    diverged = task.progress(OUTPUTS * math.nan, TRUTH, whole=True)
    assert "auc" not in diverged
