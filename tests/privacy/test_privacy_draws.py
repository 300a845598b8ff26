"""Answers and noise of single records: their rates, their secrets, and no chance is too large."""

from __future__ import annotations

import decimal
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from colonnade.privacy.candidates import chosen, information, whole
from colonnade.privacy.draws import WORD, Keystream, answered, laplace, threshold

ROWS = 100_000
SECRET = bytes(range(32))


def stream(rows: int = ROWS, secret: bytes = SECRET) -> Keystream:
    return Keystream(secret, np.arange(rows, dtype=np.uint64), np.zeros(rows, dtype=np.int64))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0, 12.0])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_answers_come_at_their_rates(epsilon: float, classes: int) -> None:
    truth = np.arange(ROWS) % classes
    answers = answered(stream(), epsilon, truth, whole(ROWS, classes))
    kept = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    counts = np.bincount((answers - truth) % classes, minlength=classes)
    due = ROWS * np.array([kept] + [(1 - kept) / (classes - 1)] * (classes - 1))
    assert stats.chisquare(counts, due).pvalue > 1e-4


def test_answers_stay_among_their_candidates() -> None:
    candidates = np.zeros((ROWS, 6), dtype=bool)
    candidates[:, [0, 2, 5]] = True
    candidates[::2, 2] = False
    truth = np.random.default_rng(0).integers(0, 6, ROWS)
    answers = answered(stream(), 1.5, truth, candidates)
    assert candidates[np.arange(ROWS), answers].all()
    for k, some in ((2, [0, 5]), (3, [0, 2, 5])):
        mine = candidates.sum(1) == k
        for label in range(6):
            found = np.bincount(answers[mine & (truth == label)], minlength=6)[some]
            kept = math.exp(1.5) / (math.exp(1.5) + k - 1)
            other = (1 - kept) / (k - 1)
            chances = [
                (kept if one == label else other) if label in some else 1 / k for one in some
            ]
            assert stats.chisquare(found, found.sum() * np.array(chances)).pvalue > 1e-4


@pytest.mark.parametrize("epsilon", [1e-3, 0.7, 4.0, 30.0, 200.0])
def test_no_answer_is_likelier_than_epsilon_allows(epsilon: float) -> None:
    """In exact arithmetic: P(ỹ | y) / P(ỹ | y') ≤ e^ε for every pair, also without y among them."""
    with decimal.localcontext(prec=80):
        most = decimal.Decimal(epsilon).exp()
        for classes in (2, 3, 10, 1000):
            kept = decimal.Decimal(threshold(epsilon, classes)) / WORD
            other = (1 - kept) / (classes - 1)
            outside = decimal.Decimal(1) / classes  # where the true class is no candidate
            for one, two in itertools.permutations((kept, other, outside), 2):
                assert one / two <= most


def test_the_same_record_has_the_same_answer_and_another_secret_another() -> None:
    truth, all_ten = np.arange(1000) % 10, whole(1000, 10)
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
    generator = np.random.default_rng(1)
    prior = -np.sort(-generator.dirichlet(np.ones(5), 20), axis=1)
    found = information(prior, 1.2)
    for row, k in itertools.product(range(20), range(1, 6)):
        grown = math.exp(1.2)
        joint = np.zeros((5, k))
        for label, answer in itertools.product(range(5), range(k)):
            likely = (grown if label == answer else 1.0) / (grown + k - 1)
            joint[label, answer] = prior[row, label] * (likely if label < k else 1 / k)
        apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
        due = float((joint * np.log(np.where(joint > 0, joint / apart, 1.0))).sum())
        assert found[row, k - 1] == pytest.approx(due, abs=1e-12)


def test_candidates_follow_the_prior() -> None:
    prior = np.array([[0.1] * 10, [0.62, 0.3] + [0.01] * 8])
    found = chosen(prior, 2.0)
    assert found[0].all()  # nothing is known: all are answered alike
    assert found[1, :2].all() and found[1].sum() < 10
