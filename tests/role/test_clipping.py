"""Gradients whose norm is limited, and what a training that diverges advises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import colonnade
from colonnade.errors import Diverged
from colonnade.role.recipe import Recipe, make_optimizer
from colonnade.runs.run import Result


def steps(recipe: Recipe, clip: float = 0.0) -> list[torch.Tensor]:
    """Weights after a few steps with large gradients, clipped by hand if asked for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    parameters = list(model.parameters())
    optimizer = make_optimizer(recipe, parameters)
    for scale in (1.0, 100.0, 0.001, 10.0):
        optimizer.zero_grad()
        (scale * model(torch.randn(16, 4))).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad"])
def test_a_clipped_step_is_that_of_a_loop_by_hand(optimizer: Any) -> None:
    hand = steps(Recipe(optimizer=optimizer), clip=0.5)
    ours = steps(Recipe(optimizer=optimizer, clip_norm=0.5))
    plain = steps(Recipe(optimizer=optimizer))
    assert all(torch.equal(one, other) for one, other in zip(hand, ours, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(plain, ours, strict=True))


def test_a_norm_that_is_never_reached_changes_no_bit() -> None:
    plain, wide = steps(Recipe()), steps(Recipe(clip_norm=1e9))
    assert all(torch.equal(one, other) for one, other in zip(plain, wide, strict=True))


def train(folder: Path, **changes: Any) -> Result:
    x, y = load_breast_cancer(return_X_y=True)
    tree = {"method": "splitnn", "epochs": 3, "absence": False, "lr": 20.0}
    return colonnade.run(
        tree | changes, parties={"clinic": (x[:, :10], y), "laboratory": x[:, 10:]}, out=folder
    )


def test_a_training_that_diverges_says_what_helps_and_it_does(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"[Tt]ry a smaller lr than 20 or clip_norm = 1"):
        train(tmp_path / "diverged")
    assert train(tmp_path / "clipped", clip_norm=1).content["status"] == "finished"
    assert train(tmp_path / "slower", lr=0.05).content["status"] == "finished"


def test_a_party_alone_is_told_the_same(tmp_path: Path) -> None:
    result = train(tmp_path / "alone", method="local", lr=1e6)
    assert any("try a smaller lr, or clip_norm = 1" in text for text in result.content["warnings"])
