"""The loss of answers that stand in for labels, against the same in plain loops."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from colonnade.errors import ColonnadeError
from colonnade.task.response import Responses, Sightings
from colonnade.task.task import Task

CLASSES = 4


@dataclass
class Some:
    labels: Tensor
    rows: Tensor | None
    weights: Tensor | None = None


def chance(answer: int, label: int, group_of: list[int], epsilon: float) -> float:
    """P(answer = the group of this class | label), as it is defined."""
    m, grown = len(set(group_of)), math.exp(epsilon)
    return (grown if group_of[answer] == group_of[label] else 1.0) / (grown + m - 1)


def by_hand(logits: Tensor, answer: int, group_of: list[int], epsilon: float) -> float:
    exponents = [math.exp(value) for value in logits.double().tolist()]
    p = [value / sum(exponents) for value in exponents]
    return -math.log(
        sum(p[label] * chance(answer, label, group_of, epsilon) for label in range(CLASSES))
    )


def drawn(seed: int = 0, rows: int = 40) -> tuple[Tensor, list[list[int]], Tensor, Tensor]:
    """Logits, the group of every class, answers and ε."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, CLASSES, generator=generator)
    groups = torch.randint(0, 3, (rows, CLASSES), generator=generator)
    groups[:, 1] = (groups[:, 0] + 1) % 3  # two groups at least
    answers = torch.randint(0, CLASSES, (rows,), generator=generator)
    epsilon = torch.rand(rows, generator=generator).double() * 5 + 0.1
    return logits, groups.tolist(), answers, epsilon


def made(
    answers: Tensor, group_of: list[list[int]], epsilon: Tensor, known: Tensor | None = None
) -> Responses:
    """With groups; without those of one class each, the short way."""
    counts = torch.tensor([len(set(one)) for one in group_of])
    members = torch.tensor(
        [[g == one[a] for g in one] for one, a in zip(group_of, answers.tolist(), strict=True)]
    )
    single = bool((members.sum(1) == 1).all())
    given = answers if known is None else torch.where(known, answers, -1)
    return Responses(given, epsilon, counts, CLASSES, None if single else members)


SINGLE = list(range(CLASSES))


@pytest.mark.parametrize("single", [True, False])
def test_the_loss_is_the_likelihood_of_the_answers(single: bool) -> None:
    logits, group_of, answers, epsilon = drawn()
    if single:
        group_of = [SINGLE] * len(group_of)
    responses = made(answers, group_of, epsilon)
    assert (responses.members is None) == single
    rows = torch.tensor([3, 1, 7, 30, 12])
    due = [
        by_hand(logits[row], int(answers[row]), group_of[row], float(epsilon[row]))
        for row in rows.tolist()
    ]
    batch = Some(answers[rows], rows)
    assert float(responses.loss(logits[rows], batch)) == pytest.approx(sum(due) / 5, rel=1e-5)
    weights = torch.tensor([0.0, 2.0, 1.0, 0.5, 1.5])
    batch = Some(answers[rows], rows, weights)
    weighed = sum(w * one for w, one in zip(weights.tolist(), due, strict=True)) / 5
    assert float(responses.loss(logits[rows], batch)) == pytest.approx(weighed, rel=1e-5)


def test_rows_without_an_answer_count_nothing() -> None:
    logits, group_of, answers, epsilon = drawn()
    rows = torch.arange(6)
    whole = made(answers, group_of, epsilon)
    part = made(answers, group_of, epsilon, torch.arange(40) % 2 == 0)
    outputs = logits[rows].clone().requires_grad_()
    loss = part.loss(outputs, Some(answers[rows], rows))
    even = rows[::2]
    due = whole.loss(logits[even], Some(answers[even], even))
    assert float(loss.detach()) == pytest.approx(float(due))
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert not gradient[1::2].any() and gradient[::2].any(1).all()
    none = made(answers, group_of, epsilon, torch.zeros(40, dtype=torch.bool))
    outputs = logits[rows].clone().requires_grad_()
    none.loss(outputs, Some(answers[rows], rows)).backward()
    assert outputs.grad is not None and not outputs.grad.any()


@pytest.mark.parametrize("seed", range(5))
def test_the_true_distribution_has_the_least_loss(seed: int) -> None:
    """In expectation over labels and answers the loss has no slope where the model is right."""
    logits, group_of, _, epsilon = drawn(seed, rows=1)
    among, truth = group_of[0], logits[0].double().softmax(0)
    outputs = logits.clone().requires_grad_()
    expected = torch.zeros(())
    for group in set(among):
        answer = among.index(group)
        share = sum(
            float(truth[y]) * chance(answer, y, among, float(epsilon)) for y in range(CLASSES)
        )
        responses = made(torch.tensor([answer]), group_of, epsilon)
        loss = responses.loss(outputs, Some(torch.tensor([answer]), torch.tensor([0])))
        expected = expected + share * loss
    (slope,) = torch.autograd.grad(expected, outputs)
    assert slope.abs().max() < 1e-5
    biased = torch.nn.functional.cross_entropy(outputs, torch.tensor([0]))
    assert torch.autograd.grad(biased, outputs)[0].abs().max() > 1e-3


def test_shares_are_right_on_average() -> None:
    epsilon = torch.full((CLASSES,), 1.3, dtype=torch.double)
    responses = made(torch.arange(CLASSES), [SINGLE] * CLASSES, epsilon)
    lines = responses.shares(torch.arange(CLASSES))  # what each answer says
    for label in SINGLE:
        mean = sum(chance(answer, label, SINGLE, 1.3) * lines[answer] for answer in SINGLE)
        assert isinstance(mean, Tensor)
        assert mean.tolist() == pytest.approx([float(label == one) for one in SINGLE], abs=1e-6)


def test_a_task_without_answers_is_as_it_was() -> None:
    logits, group_of, answers, epsilon = drawn()
    rows = torch.arange(8)
    batch, task = Some(answers[rows], rows), Task("multiclass", tuple("abcd"))
    plain = torch.nn.functional.cross_entropy(logits[rows], answers[rows])
    assert torch.equal(task.loss(logits[rows], batch), plain)
    answered = Task("multiclass", tuple("abcd"), responses=made(answers, group_of, epsilon))
    assert answered == task and answered.told() == task.told()
    assert not torch.equal(answered.loss(logits[rows], batch), plain)
    with pytest.raises(ColonnadeError, match="training rows"):
        answered.loss(logits[rows], Some(answers[rows], None))


def test_what_is_seen_becomes_a_prior() -> None:
    seen = Sightings.none(3, 2, torch.device("cpu"))
    seen.add(torch.tensor([2, 0]), torch.tensor([[0.2, 0.8], [1.0, 0.0]]))
    seen.add(torch.tensor([2]), torch.tensor([[0.4, 0.6]]))
    assert torch.allclose(seen.prior(), torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.3, 0.7]]).double())
