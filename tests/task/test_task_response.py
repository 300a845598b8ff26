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


def chance(answer: int, label: int, candidates: list[int], epsilon: float) -> float:
    """P(ỹ | y), as it is defined."""
    k, grown = len(candidates), math.exp(epsilon)
    if answer not in candidates:
        return 0.0
    if label not in candidates:
        return 1 / k
    return (grown if answer == label else 1.0) / (grown + k - 1)


def by_hand(logits: Tensor, answer: int, candidates: list[int], epsilon: float) -> float:
    exponents = [math.exp(value) for value in logits.double().tolist()]
    p = [value / sum(exponents) for value in exponents]
    return -math.log(
        sum(p[label] * chance(answer, label, candidates, epsilon) for label in range(CLASSES))
    )


def drawn(seed: int = 0, rows: int = 40) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, CLASSES, generator=generator)
    candidates = torch.rand(rows, CLASSES, generator=generator) < 0.6
    candidates[~candidates.any(1), 0] = True
    answers = torch.stack(
        [torch.multinomial(c.double(), 1, generator=generator)[0] for c in candidates]
    )
    epsilon = torch.rand(rows, generator=generator).double() * 5 + 0.1
    return logits, candidates, answers, epsilon


@pytest.mark.parametrize("all_classes", [True, False])
def test_the_loss_is_the_likelihood_of_the_answers(all_classes: bool) -> None:
    logits, candidates, answers, epsilon = drawn()
    if all_classes:
        candidates = torch.ones_like(candidates)
    responses = Responses(answers, epsilon, None if all_classes else candidates, CLASSES)
    rows = torch.tensor([3, 1, 7, 30, 12])
    due = [
        by_hand(
            logits[row],
            int(answers[row]),
            candidates[row].nonzero().flatten().tolist(),
            float(epsilon[row]),
        )
        for row in rows
    ]
    batch = Some(answers[rows], rows)
    assert float(responses.loss(logits[rows], batch)) == pytest.approx(sum(due) / 5, rel=1e-5)
    weights = torch.tensor([0.0, 2.0, 1.0, 0.5, 1.5])
    batch = Some(answers[rows], rows, weights)
    weighed = sum(w * one for w, one in zip(weights.tolist(), due, strict=True)) / 5
    assert float(responses.loss(logits[rows], batch)) == pytest.approx(weighed, rel=1e-5)


def test_rows_without_an_answer_count_nothing() -> None:
    logits, _, answers, epsilon = drawn()
    rows = torch.arange(6)
    whole = Responses(answers, epsilon, None, CLASSES)
    part = Responses(torch.where(torch.arange(40) % 2 == 0, answers, -1), epsilon, None, CLASSES)
    outputs = logits[rows].clone().requires_grad_()
    loss = part.loss(outputs, Some(answers[rows], rows))
    even = rows[::2]
    due = whole.loss(logits[even], Some(answers[even], even))
    assert float(loss.detach()) == pytest.approx(float(due))
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert not gradient[1::2].any() and gradient[::2].any(1).all()
    none = Responses(torch.full((40,), -1), epsilon, None, CLASSES)
    outputs = logits[rows].clone().requires_grad_()
    none.loss(outputs, Some(answers[rows], rows)).backward()
    assert outputs.grad is not None and not outputs.grad.any()


@pytest.mark.parametrize("seed", range(5))
def test_the_true_distribution_has_the_least_loss(seed: int) -> None:
    """In expectation over labels and answers the loss has no slope where the model is right."""
    logits, candidates, _, epsilon = drawn(seed, rows=1)
    among, truth = candidates[0].nonzero().flatten().tolist(), logits[0].double().softmax(0)
    outputs = logits.clone().requires_grad_()
    expected = torch.zeros(())
    for answer in among:
        share = sum(
            float(truth[y]) * chance(answer, y, among, float(epsilon)) for y in range(CLASSES)
        )
        responses = Responses(torch.tensor([answer]), epsilon, candidates, CLASSES)
        expected = expected + share * responses.loss(
            outputs, Some(torch.tensor([answer]), torch.tensor([0]))
        )
    (slope,) = torch.autograd.grad(expected, outputs)
    assert slope.abs().max() < 1e-5
    biased = torch.nn.functional.cross_entropy(outputs, torch.tensor([among[0]]))
    assert torch.autograd.grad(biased, outputs)[0].abs().max() > 1e-3


def test_shares_are_right_on_average() -> None:
    epsilon = torch.full((CLASSES,), 1.3, dtype=torch.double)
    every = list(range(CLASSES))
    responses = Responses(torch.arange(CLASSES), epsilon, None, CLASSES)
    lines = responses.shares(torch.arange(CLASSES))  # what each answer says
    for label in every:
        mean = sum(chance(answer, label, every, 1.3) * lines[answer] for answer in every)
        assert mean.tolist() == pytest.approx([float(label == one) for one in every], abs=1e-6)


def test_a_task_without_answers_is_as_it_was() -> None:
    logits, _, answers, epsilon = drawn()
    rows = torch.arange(8)
    batch, task = Some(answers[rows], rows), Task("multiclass", tuple("abcd"))
    plain = torch.nn.functional.cross_entropy(logits[rows], answers[rows])
    assert torch.equal(task.loss(logits[rows], batch), plain)
    with_answers = Task(
        "multiclass", tuple("abcd"), responses=Responses(answers, epsilon, None, CLASSES)
    )
    assert with_answers == task and with_answers.told() == task.told()
    assert not torch.equal(with_answers.loss(logits[rows], batch), plain)
    with pytest.raises(ColonnadeError, match="training rows"):
        with_answers.loss(logits[rows], Some(answers[rows], None))


def test_what_is_seen_becomes_a_prior() -> None:
    seen = Sightings.none(3, 2, torch.device("cpu"))
    seen.add(torch.tensor([2, 0]), torch.tensor([[0.2, 0.8], [1.0, 0.0]]))
    seen.add(torch.tensor([2]), torch.tensor([[0.4, 0.6]]))
    assert torch.allclose(seen.prior(), torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.3, 0.7]]).double())
