"""Every measure against scikit-learn on the same predictions; what rows cannot say is None."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as theirs

from colonnade.task.measures import (
    BINARY,
    MEASURES,
    MULTICLASS,
    REGRESSION,
    Scored,
    better,
    cuts,
    measure,
    measures,
    names_for,
    problem,
    scored,
)

NUMBERS = st.floats(-1e3, 1e3, allow_nan=False).map(lambda number: round(number, 3))


@st.composite
def classified(draw: st.DrawFn, classes: int, *, everyone: bool = False) -> dict[str, Any]:
    """Truth, probabilities with many ties or few, and weights or none, of 1 to 40 rows."""
    rows = draw(st.integers(classes if everyone else 1, 40))
    truth = draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1)))
    if everyone:
        truth[:classes] = np.arange(classes)
    finest = draw(st.sampled_from([3, 1000]))
    raw = draw(arrays(np.int64, (rows, classes), elements=st.integers(0, finest)))
    scores = (raw + 0.01) / (raw + 0.01).sum(1, keepdims=True)
    heavy = arrays(np.int64, rows, elements=st.integers(1, 50)).map(lambda tenths: tenths / 10)
    return {"truth": truth, "scores": scores, "weights": draw(st.none() | heavy)}


@st.composite
def numbered(draw: st.DrawFn, least: int = 2) -> dict[str, Any]:
    rows = draw(st.integers(least, 40))
    truth, scores = (draw(arrays(np.float64, rows, elements=NUMBERS)) for _ in range(2))
    heavy = arrays(np.int64, rows, elements=st.integers(1, 50)).map(lambda tenths: tenths / 10)
    return {"truth": truth, "scores": scores, "weights": draw(st.none() | heavy)}


def close(value: float | None, expected: float) -> None:
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(classified(2, everyone=True), st.integers(0, 1), st.none() | st.floats(0, 1))
def test_two_classes_have_the_values_of_scikit_learn(
    drawn: dict[str, Any], positive: int, threshold: float | None
) -> None:
    found = measures(scored(BINARY, **drawn, positive=positive, threshold=threshold))
    truth, scores, of = drawn["truth"], drawn["scores"], {"sample_weight": drawn["weights"]}
    hit, chance = truth == positive, scores[:, positive]
    flagged = scores.argmax(1) == positive if threshold is None else chance >= threshold
    close(found["auc"], theirs.roc_auc_score(hit, chance, **of))
    close(found["average_precision"], theirs.average_precision_score(hit, chance, **of))
    close(found["log_loss"], theirs.log_loss(truth, scores, **of))
    close(found["brier"], theirs.brier_score_loss(hit, chance, **of))
    close(found["accuracy"], theirs.accuracy_score(hit, flagged, **of))
    close(found["balanced_accuracy"], theirs.balanced_accuracy_score(hit, flagged, **of))
    close(found["f1"], theirs.f1_score(hit, flagged, **of))
    close(found["recall"], theirs.recall_score(hit, flagged, **of))
    if flagged.any():
        close(found["precision"], theirs.precision_score(hit, flagged, **of))
    else:
        assert found["precision"] is None


@settings(deadline=None, max_examples=60)
@given(classified(4, everyone=True))
def test_many_classes_have_the_values_of_scikit_learn(drawn: dict[str, Any]) -> None:
    found = measures(scored(MULTICLASS, **drawn))
    truth, scores, of = drawn["truth"], drawn["scores"], {"sample_weight": drawn["weights"]}
    decided, each = scores.argmax(1), np.eye(4)[truth]
    for suffix, average in (("", "macro"), ("_weighted", "weighted")):
        several = {**of, "average": average}
        auc = theirs.roc_auc_score(truth, scores, multi_class="ovr", **several)
        close(found[f"auc{suffix}"], auc)
        precision = theirs.average_precision_score(each, scores, **several)
        close(found[f"average_precision{suffix}"], precision)
        for name in ("f1", "precision", "recall"):
            score = getattr(theirs, f"{name}_score")
            close(found[f"{name}{suffix}"], score(truth, decided, **several, zero_division=0))
    close(found["log_loss"], theirs.log_loss(truth, scores, **of))
    close(found["accuracy"], theirs.accuracy_score(truth, decided, **of))
    close(found["balanced_accuracy"], theirs.balanced_accuracy_score(truth, decided, **of))
    squares = [theirs.mean_squared_error(each[:, k], scores[:, k], **of) for k in range(4)]
    close(found["brier"], sum(squares))


@settings(deadline=None, max_examples=60)
@given(numbered())
def test_numbers_have_the_values_of_scikit_learn(drawn: dict[str, Any]) -> None:
    found = measures(scored(REGRESSION, **drawn))
    truth, scores, of = drawn["truth"], drawn["scores"], {"sample_weight": drawn["weights"]}
    close(found["rmse"], theirs.root_mean_squared_error(truth, scores, **of))
    close(found["mae"], theirs.mean_absolute_error(truth, scores, **of))
    if np.ptp(truth):
        close(found["r2"], theirs.r2_score(truth, scores, **of))
    else:
        assert found["r2"] is None


@settings(deadline=None, max_examples=60)
@given(classified(3), st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_a_whole_weight_is_so_many_rows(drawn: dict[str, Any], times: list[int]) -> None:
    many = np.array(times[: len(drawn["truth"])])
    truth, scores = drawn["truth"], drawn["scores"]
    weighed = scored(MULTICLASS, truth, scores, weights=many)
    repeated = scored(MULTICLASS, np.repeat(truth, many), np.repeat(scores, many, axis=0))
    for name in set(names_for(MULTICLASS)) - {"calibration_error"}:  # its bins count rows
        expected = measure(name, repeated)
        assert measure(name, weighed) == (expected and pytest.approx(expected))


@settings(deadline=None, max_examples=60)
@given(classified(2), st.integers(1, 9))
def test_recall_at_a_rate_is_the_mean_over_all_orders_of_equal_scores(
    drawn: dict[str, Any], tenths: int
) -> None:
    truth, scores = drawn["truth"], drawn["scores"]
    found = measure("recall_at_rate", scored(BINARY, truth, scores, rate=tenths / 10))
    hit, chance = truth == 1, scores[:, 1]
    if not hit.any():
        assert found is None
        return
    wanted = tenths / 10 * len(hit)
    expected = 0.0
    for score, positive in zip(chance, hit, strict=True):
        above, beside = (chance > score).sum(), (chance == score).sum()
        expected += positive * min(max((wanted - above) / beside, 0.0), 1.0)
    close(found, expected / hit.sum())


@settings(deadline=None, max_examples=60)
@given(classified(2))
def test_the_calibration_error_is_the_weighted_gap_of_its_bins(drawn: dict[str, Any]) -> None:
    rows = scored(BINARY, **drawn)
    order = np.argsort(rows.chances, kind="stable")
    expected, start = 0.0, 0
    for end in cuts(rows.chances[order], 15):
        part = order[start:end]
        gap = rows.weights[part] * (rows.chances[part] - (rows.truth[part] == 1))
        expected += abs(gap.sum()) / rows.weights.sum()
        start = end
    close(measure("calibration_error", rows), expected)


def test_the_calibration_error_has_fifteen_bins_of_equal_size() -> None:
    generator = np.random.default_rng(1)
    chance = np.sort(generator.random(1500))
    truth = (generator.random(1500) < chance).astype(np.int64)
    gaps = np.split(chance - truth, 15)
    rows = scored(BINARY, truth, np.stack([1 - chance, chance], axis=1))
    close(measure("calibration_error", rows), float(np.mean([abs(gap.mean()) for gap in gaps])))


def test_the_calibration_error_of_known_rows() -> None:
    """A hundred rows say 20 %, of which 30 come true; a hundred say 90 %, of which 85 do."""
    chance = np.repeat([0.2, 0.9], 100)
    truth = np.repeat([1, 0, 1, 0], [30, 70, 85, 15])
    rows = scored(BINARY, truth, np.stack([1 - chance, chance], axis=1))
    close(measure("calibration_error", rows), (0.1 + 0.05) / 2)
    three = np.stack([0.5 * (1 - chance), 0.5 * (1 - chance), chance], axis=1)
    confident = scored(MULTICLASS, np.where(truth == 1, 2, 0), three[:, :])
    # 20 % for the third class means 40 % for the first, which is the most probable one; it has 70.
    close(measure("calibration_error", confident), (0.3 + 0.05) / 2)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 60), max_size=300), st.integers(1, 20))
def test_groups_keep_equal_values_together_and_at_least_ten_rows(
    values: list[int], most: int
) -> None:
    ordered = np.sort(np.array(values, dtype=np.float64))
    ends = cuts(ordered, most)
    sizes = np.diff(ends, prepend=0)
    assert ends[-1] == len(ordered)
    assert len(ends) <= most
    assert len(ends) == 1 or sizes.min() >= 10
    assert all(ordered[end - 1] < ordered[end] for end in ends[:-1])


@settings(deadline=None, max_examples=60)
@given(st.integers(150, 5000))
def test_different_values_fall_into_groups_of_equal_size(rows: int) -> None:
    sizes = np.diff(cuts(np.arange(rows, dtype=np.float64), 15), prepend=0)
    assert len(sizes) == 15
    assert sizes.max() - sizes.min() <= 1


UNDEFINED = {
    "one class": ([1, 1, 1], [[0.2, 0.8], [0.4, 0.6], [0.7, 0.3]], {"auc", "auc_weighted"}),
    "one row": ([0], [[0.2, 0.8]], {"auc", "average_precision", "recall", "recall_at_rate"}),
    "constant scores": ([0, 1, 1], [[0.5, 0.5]] * 3, {"precision", "f1"}),
}


@pytest.mark.parametrize("case", UNDEFINED)
def test_what_these_rows_do_not_define_is_none(case: str) -> None:
    truth, scores, undefined = UNDEFINED[case]
    found = measures(scored(BINARY, truth, scores))
    missing = {name for name, value in found.items() if value is None}
    if case == "constant scores":  # nobody is flagged: no precision, but an F1 of 0
        assert missing == {"precision"}
        assert found["f1"] == found["recall"] == 0
        assert found["auc"] == 0.5
    else:
        assert undefined & set(found) <= missing
        assert found["accuracy"] is not None


def test_a_class_without_rows_does_not_count() -> None:
    truth, scores = np.array([0, 1, 0, 1]), np.array([[5, 3, 2], [3, 4, 3], [6, 2, 2], [5, 4, 1]])
    found = measures(scored(MULTICLASS, truth, scores / 10))
    assert found["auc"] == np.mean([7 / 8, 1.0])
    assert found["balanced_accuracy"] == 0.75


@pytest.mark.parametrize("kind", [BINARY, MULTICLASS, REGRESSION])
def test_no_rows_and_diverged_scores_have_no_measure(kind: str) -> None:
    shape = () if kind == REGRESSION else (3,)
    empty = scored(kind, np.empty(0), np.empty((0, *shape)))
    weightless = scored(kind, [0], np.full((1, *shape), 0.3), weights=[0.0])
    diverged = scored(kind, [0, 1], np.full((2, *shape), math.nan))
    for rows in (empty, weightless, diverged):
        assert set(measures(rows).values()) == {None}
        assert list(measures(rows)) == list(names_for(kind))


@settings(deadline=None, max_examples=60)
@given(classified(3), st.sampled_from([BINARY, MULTICLASS]))
def test_every_value_is_a_finite_number_or_none(drawn: dict[str, Any], kind: str) -> None:
    if kind == BINARY:
        drawn = {**drawn, "truth": drawn["truth"] % 2, "scores": drawn["scores"][:, :2]}
    for name, value in measures(scored(kind, **drawn)).items():
        assert value is None or (math.isfinite(value) and value >= 0), name
        assert value is None or value <= 1 or name in ("log_loss", "brier")


def test_tensors_in_single_precision_are_measured_like_arrays() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(200, 2, generator=generator, requires_grad=True)
    truth = torch.randint(0, 2, (200,), generator=generator)
    found = measures(scored(BINARY, truth, logits.softmax(1)))
    chances = logits.detach().double().softmax(1)
    assert found == pytest.approx(measures(scored(BINARY, truth.numpy(), chances.numpy())), 1e-5)
    expected = torch.nn.functional.cross_entropy(logits.detach(), truth)
    assert found["log_loss"] == pytest.approx(float(expected), 1e-5)


def test_a_decision_at_the_threshold_is_for_the_positive_class() -> None:
    scores = [[0.7, 0.3], [0.71, 0.29], [0.1, 0.9]]
    for positive, decided in ((1, [1, 0, 1]), (0, [0, 0, 1])):
        rows = scored(BINARY, [1, 1, 1], scores, positive=positive, threshold=0.3)
        assert list(rows.decided) == decided


def test_names_belong_to_tasks() -> None:
    assert set(names_for(BINARY)) & set(names_for(REGRESSION)) == set()
    assert "recall_at_rate" not in names_for(MULTICLASS)
    assert "auc_weighted" not in names_for(BINARY)
    assert {name for kind in (BINARY, MULTICLASS, REGRESSION) for name in names_for(kind)} == set(
        MEASURES
    )


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("auc", BINARY, ""),
        ("rmse", "", ""),
        ("acuracy", MULTICLASS, "no metric 'acuracy' for many classes: did you mean 'accuracy'?"),
        ("roc_auc", "", "no metric 'roc_auc': did you mean 'auc'?"),
        ("acc", "", "no metric 'acc': did you mean 'accuracy'?"),
        ("ece", BINARY, "no metric 'ece' for two classes: did you mean 'calibration_error'?"),
        ("mse", REGRESSION, "no metric 'mse' for regression: did you mean 'rmse'?"),
        (
            "auc",
            REGRESSION,
            "metric 'auc' is for two classes and many classes, and this task is regression: one of "
            "rmse, mae, r2",
        ),
        (
            "f1_weighted",
            BINARY,
            "metric 'f1_weighted' is for many classes, and this task is two classes: did you mean "
            "'f1'?",
        ),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest_right_one(name: str, kind: str, said: str) -> None:
    assert problem(name, kind) == said


def test_better_knows_the_direction_and_never_prefers_nothing() -> None:
    assert better("auc", 0.8, 0.7) and not better("auc", 0.7, 0.7)
    assert better("rmse", 0.7, 0.8) and not better("rmse", 0.8, 0.7)
    assert not better("auc", 0.75, 0.7, by=0.1)
    assert better("auc", 0.1, None) and better("auc", 0.1, math.nan)
    assert not better("auc", None, 0.1) and not better("auc", math.nan, None)


def test_a_measure_asks_only_for_its_own_rows() -> None:
    rows: Scored = scored(BINARY, [0, 1], [[0.6, 0.4], [0.3, 0.7]])
    assert measures(rows, ["auc"]) == {"auc": 1.0}


MEASURED = """
import sys
from colonnade.task import intervals, measures
for kind, truth, scores in (
    ("binary", [0, 1] * 10, [[0.5, 0.5], [0.2, 0.8]] * 10),
    ("regression", [1.0, 2.0] * 10, [1.5, 2.5] * 10),
):
    assert None not in intervals.intervals(measures.scored(kind, truth, scores)).values()
sys.exit([name for name in sys.modules if name in ("sklearn", "scipy")] or 0)
"""


def test_measuring_does_not_wait_for_scikit_learn() -> None:
    """A party in a process of its own would, at the end of every run."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
