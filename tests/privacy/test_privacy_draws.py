"""Answers and noise of single records: their rates, their secrets, and no chance is too large."""

from __future__ import annotations

import decimal
import math

import numpy as np
import pytest
from scipy import stats

from colonnade.privacy.draws import WORD, Keystream, answered, laplace, threshold
from colonnade.privacy.partitions import balanced, information, single

ROWS = 100_000
SECRET = bytes(range(32))


def stream(rows: int = ROWS, secret: bytes = SECRET) -> Keystream:
    return Keystream(secret, np.arange(rows, dtype=np.uint64), np.zeros(rows, dtype=np.int64))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0, 12.0])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_answers_come_at_their_rates(epsilon: float, classes: int) -> None:
    truth = np.arange(ROWS) % classes
    answers = answered(stream(), epsilon, truth, np.full(ROWS, classes))
    kept = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    counts = np.bincount((answers - truth) % classes, minlength=classes)
    due = ROWS * np.array([kept] + [(1 - kept) / (classes - 1)] * (classes - 1))
    assert stats.chisquare(counts, due).pvalue > 1e-4


def test_records_may_have_different_numbers_of_groups() -> None:
    groups = np.random.default_rng(0).integers(1, 5, ROWS)
    truth = np.arange(ROWS) % groups
    answers = answered(stream(), 1.5, truth, groups)
    assert (answers < groups).all() and (answers[groups == 1] == 0).all()
    for m in (2, 3, 4):
        mine = groups == m
        kept = math.exp(1.5) / (math.exp(1.5) + m - 1)
        counts = np.bincount((answers[mine] - truth[mine]) % m, minlength=m)
        due = mine.sum() * np.array([kept] + [(1 - kept) / (m - 1)] * (m - 1))
        assert stats.chisquare(counts, due).pvalue > 1e-4


@pytest.mark.parametrize("epsilon", [1e-3, 0.7, 4.0, 30.0, 200.0])
def test_no_answer_is_likelier_than_epsilon_allows(epsilon: float) -> None:
    """In exact arithmetic: P(answer | y) / P(answer | y') ≤ e^ε."""
    with decimal.localcontext(prec=80):
        most = decimal.Decimal(epsilon).exp()
        for classes in (2, 3, 10, 1000):
            kept = decimal.Decimal(threshold(epsilon, classes)) / WORD
            other = (1 - kept) / (classes - 1)
            assert kept / other <= most


def test_the_same_record_has_the_same_answer_and_another_secret_another() -> None:
    truth, all_ten = np.arange(1000) % 10, np.full(1000, 10)
    one, again = (answered(stream(1000), 1.0, truth, all_ten) for _ in range(2))
    assert (one == again).all()
    other = answered(stream(1000, bytes(32)), 1.0, truth, all_ten)
    assert 0.05 < (one == other).mean() < 0.25
    names = np.zeros(1000, dtype=np.uint64)  # records of one name are told apart by numbers
    alike = Keystream(SECRET, names, np.arange(1000))
    assert len(np.unique(alike.words(alike.everybody))) == 1000


@pytest.mark.parametrize("bound", [2, 7, 1000, 3 * 2**61])
def test_numbers_below_a_bound_are_uniform(bound: int) -> None:
    some = stream()
    found = some.below(np.full(ROWS, bound), some.everybody)
    assert found.min() >= 0 and found.max() < bound
    assert stats.kstest((found + 0.5) / bound, "uniform").statistic < 0.02 if bound > 100 else True
    if bound < 100:
        assert stats.chisquare(np.bincount(found, minlength=bound)).pvalue > 1e-4


@pytest.mark.parametrize("scale", [1, 3, 50])
def test_laplace_noise_is_discrete_and_as_large_as_it_says(scale: int) -> None:
    noise = laplace(stream(), scale)
    ratio = math.exp(-1 / scale)
    edge = math.ceil(6 * scale)
    values = np.arange(-edge, edge + 1)
    due = (1 - ratio) / (1 + ratio) * ratio ** np.abs(values)
    counts = np.array([(noise == value).sum() for value in values])
    rest = [ROWS - counts.sum()], [1 - due.sum()]
    tests = stats.chisquare(np.append(counts, rest[0]), ROWS * np.append(due, rest[1]))
    assert tests.pvalue > 1e-4


def test_information_is_what_it_is_by_definition() -> None:
    shares = np.random.default_rng(1).dirichlet(np.ones(4), 20)
    grown = math.exp(1.2)
    chances = np.where(np.eye(4, dtype=bool), grown, 1.0) / (grown + 3)
    for row, found in zip(shares, information(shares, 1.2), strict=True):
        joint = row[:, None] * chances
        apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
        assert found == pytest.approx(float((joint * np.log(joint / apart)).sum()), abs=1e-12)


def ties(rows: int, classes: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 2**63, (rows, classes)).astype(np.uint64)


@pytest.mark.parametrize(("epsilon", "groups"), [(1.0, 3), (2.0, 5), (4.0, 10)])
def test_without_a_prior_classes_are_hashed(epsilon: float, groups: int) -> None:
    """Into the number of groups that says most, each class anywhere, groups of equal size."""
    found, counts = balanced(np.full((2000, 10), 0.1), epsilon, ties(2000, 10))
    assert (counts == groups).all()
    sizes = np.stack([(found == g).sum(1) for g in range(groups)], 1)
    assert sizes.min() == 10 // groups and sizes.max() == -(-10 // groups)
    together = (found[:, :1] == found[:, 1:]).mean(0)
    assert together.max() - together.min() < 0.1
    best = [
        float(information(np.array([[1 / m] * m]), epsilon)[0]) for m in (2, 5, 10)
    ]  # those of equal groups
    mine = np.stack([(found == g).sum(1) / 10 for g in range(groups)], 1)
    assert information(mine, epsilon)[0] >= max(best) - 1e-9


def test_a_likely_class_is_a_group_of_its_own() -> None:
    prior = np.array([[0.9, 0.05, 0.02, 0.01, 0.02], [0.02, 0.45, 0.43, 0.05, 0.05]])
    found, counts = balanced(prior, 2.0, ties(2, 5))
    assert (found[0] == found[0, 0]).sum() == 1 and counts[0] == 2
    assert len({found[1, 1], found[1, 2], found[1, 3]}) == 3
    assert (balanced(np.full((3, 5), 0.2), 1000.0, ties(3, 5))[1] == 5).all()
    assert single(2, 3).tolist() == [[0, 1, 2], [0, 1, 2]]
