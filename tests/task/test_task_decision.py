"""Thresholds: fixed, by rate and by cost, against all that could have been chosen."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import InputError
from colonnade.task.decision import Decision, by_cost, by_rate, fixed, problem
from colonnade.task.measures import BINARY, MULTICLASS, REGRESSION, Floats

CHANCES = st.lists(st.integers(0, 20).map(lambda number: number / 20), min_size=1, max_size=40)
COSTS = st.integers(1, 50)


def pairs(chances: list[float] | Floats, positive: int = 1) -> Floats:
    other = 1 - np.asarray(chances, dtype=np.float64)
    return np.stack([other, 1 - other][:: 1 if positive else -1], axis=1)


@settings(deadline=None, max_examples=60)
@given(CHANCES, st.floats(0.01, 0.99), st.integers(0, 1))
def test_by_rate_flags_the_nearest_share_there_is(
    chances: list[float], rate: float, positive: int
) -> None:
    scores = pairs(chances, positive)
    decision = by_rate(scores, rate, positive)
    flagged = float(np.mean(decision.decide(scores) == positive))
    kept = scores[:, positive]
    possible = [float(np.mean(kept >= score)) for score in [*np.unique(kept), 2.0]]
    assert abs(flagged - rate) == pytest.approx(min(abs(share - rate) for share in possible))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 200), st.floats(0.01, 0.99), st.integers(0, 2**32 - 1))
def test_by_rate_flags_the_rate_where_scores_differ(rows: int, rate: float, seed: int) -> None:
    scores = pairs(np.random.default_rng(seed).permutation(rows) / rows)
    flagged = by_rate(scores, rate).decide(scores).mean()
    assert abs(flagged - rate) <= 0.5 / rows + 1e-12


def test_by_rate_carries_over_to_other_rows() -> None:
    generator = np.random.default_rng(1)
    decision = by_rate(pairs(generator.beta(1, 9, 2000)), 0.1)
    assert 0.08 <= decision.decide(pairs(generator.beta(1, 9, 5000))).mean() <= 0.12


def test_by_rate_counts_weights() -> None:
    scores = pairs([0.9, 0.8, 0.7, 0.6])
    assert list(by_rate(scores, 0.5).decide(scores)) == [1, 1, 0, 0]
    heavy = by_rate(scores, 0.5, weights=[3.0, 1.0, 1.0, 1.0])
    assert list(heavy.decide(scores)) == [1, 0, 0, 0]


@settings(deadline=None, max_examples=60)
@given(CHANCES, COSTS, COSTS, st.integers(0, 1), st.integers(0, 2**32 - 1))
def test_by_cost_finds_the_least_cost_of_all_thresholds(
    chances: list[float], false_positive: int, false_negative: int, positive: int, seed: int
) -> None:
    scores = pairs(chances, positive)
    truth = np.random.default_rng(seed).integers(0, 2, len(scores))

    def cost(flagged: np.ndarray) -> int:
        wrong = (flagged & (truth != positive)).sum() * false_positive
        return int(wrong + (~flagged & (truth == positive)).sum() * false_negative)

    decision = by_cost(
        truth,
        scores,
        false_positive=false_positive,
        false_negative=false_negative,
        positive=positive,
    )
    kept = scores[:, positive]
    least = min(cost(kept >= score) for score in [*np.unique(kept), 2.0])
    assert cost(decision.decide(scores) == positive) == least


def test_by_cost_is_near_the_best_threshold_of_true_probabilities() -> None:
    generator = np.random.default_rng(1)
    chance = generator.random(20_000)
    truth = generator.random(20_000) < chance
    decision = by_cost(truth, pairs(chance), false_positive=1, false_negative=9)
    assert decision.threshold == pytest.approx(0.1, abs=0.05)


def test_of_equally_good_thresholds_the_one_of_true_probabilities_is_taken() -> None:
    """One wrong decision at 0.075 or 0.575; the middle of a gap stands for the whole of it."""
    scores = pairs([0.05, 0.1, 0.55, 0.6])
    decision = by_cost([0, 1, 0, 1], scores, false_positive=1, false_negative=1)
    assert decision == Decision(pytest.approx(0.575), "cost", 1)


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_constant_scores_flag_all_or_nobody(chance: float) -> None:
    scores = pairs([chance] * 10)
    assert by_rate(scores, 0.1).decide(scores).sum() == 0
    assert by_rate(scores, 0.9).decide(scores).sum() == 10


def test_all_rows_of_one_class_flag_all_or_nobody() -> None:
    scores = pairs([0.2, 0.7, 1.0])
    costs = {"false_positive": 1.0, "false_negative": 1.0}
    assert list(by_cost([0, 0, 0], scores, **costs).decide(scores)) == [0, 0, 0]
    assert list(by_cost([1, 1, 1], scores, **costs).decide(scores)) == [1, 1, 1]


def test_a_fixed_threshold_and_the_most_probable_class() -> None:
    scores = pairs([0.3, 0.31, 0.5, 0.8])
    assert list(fixed(0.31).decide(scores)) == [0, 1, 1, 1]
    assert list(fixed(0.31, positive=0).decide(scores)) == [0, 0, 0, 1]
    assert list(Decision().decide(scores)) == [0, 0, 0, 1]
    assert list(Decision().decide([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])) == [2, 0]


@pytest.mark.parametrize("decision", [Decision(), fixed(0.2), Decision(1 + 2**-52, "rate", 0)])
def test_a_decision_survives_json(decision: Decision) -> None:
    assert Decision.from_told(json.loads(json.dumps(decision.told()))) == decision


def test_without_usable_validation_rows_no_threshold_is_chosen() -> None:
    with pytest.raises(InputError, match="chosen on validation rows, and there are none"):
        by_rate(np.empty((0, 2)), 0.1)
    with pytest.raises(InputError, match="the training has diverged"):
        by_cost([0, 1], pairs([math.nan, 0.1]), false_positive=1, false_negative=1)


def test_only_two_classes_are_decided_by_a_threshold() -> None:
    assert problem(BINARY, "rate") == ""
    assert "this task is regression: remove cost" in problem(REGRESSION, "cost")
    assert "most probable one is predicted: remove rate" in problem(MULTICLASS, "rate")
    assert "weigh the classes in training with class_weight" in problem(MULTICLASS, "cost")


def test_rows_of_weight_0_do_not_count() -> None:
    scores, truth = pairs([0.99, 0.1, 0.2, 0.8, 0.9]), [0, 0, 0, 1, 1]
    costs = {"false_positive": 1.0, "false_negative": 1.0}
    weights = [0.0, 1.0, 1.0, 1.0, 1.0]
    assert by_cost(truth, scores, **costs, weights=weights) == by_cost(
        truth[1:], scores[1:], **costs
    )
    assert by_rate(scores, 0.5, weights=weights) == by_rate(scores[1:], 0.5)
