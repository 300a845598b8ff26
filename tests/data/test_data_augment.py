"""Flips and shifts: right for each image, and the same samples at every party."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import colonnade
from colonnade.data import Moves
from colonnade.errors import ConfigError


def moves(flip: list[bool], down: list[int], right: list[int]) -> Moves:
    return Moves(torch.tensor(flip), torch.tensor(down), torch.tensor(right))


def test_each_image_moves_by_its_own_amount() -> None:
    image = torch.arange(12.0).reshape(1, 1, 3, 4)
    images = image.repeat(4, 2, 1, 1)
    moved = moves([False, True, False, True], [0, 0, 1, -2], [0, 0, -1, 1]).apply(images)
    assert torch.equal(moved[0], images[0])
    assert torch.equal(moved[1], images[1].flip(-1))
    assert moved[2, 0].tolist() == [[1, 2, 3, 3], [1, 2, 3, 3], [5, 6, 7, 7]]
    # Mirrored, then two up and one to the right; the edge is repeated.
    assert moved[3, 1].tolist() == [[11, 11, 10, 9]] * 3


def test_a_seed_draws_flips_for_half_and_every_shift() -> None:
    drawn = Moves.draw(4000, True, 2, torch.Generator().manual_seed(1))
    again = Moves.draw(4000, True, 2, torch.Generator().manual_seed(1))
    assert 0.45 < drawn.flips.double().mean() < 0.55
    assert set(drawn.down.tolist()) == set(drawn.right.tolist()) == {-2, -1, 0, 1, 2}
    assert torch.equal(drawn.down, again.down) and not torch.equal(drawn.down, drawn.right)


SETTINGS = {
    "method": "splitnn",
    "epochs": 1,
    "data": {"name": "mnist-sample", "train_rows": 256, "test_rows": 100, "shift": 2, "flip": True},
    "partition": {"kind": "tiles"},
}


def test_moves_change_the_training_and_only_a_seed_decides_them(tmp_path: Path) -> None:
    first, second = (colonnade.run(SETTINGS, out=tmp_path / name) for name in ("a", "b"))
    still = colonnade.run(
        SETTINGS, overrides=["data.shift=0", "data.flip=false"], out=tmp_path / "c"
    )
    assert first.weights_sha256 == second.weights_sha256 != still.weights_sha256


def test_tables_are_not_moved(tmp_path: Path) -> None:
    table = {"method": "splitnn", "data": {"name": "breast-cancer", "flip": True}}
    with pytest.raises(ConfigError, match="these rows are tables"):
        colonnade.run(table, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="shift"):
        colonnade.run(SETTINGS, overrides=["data.shift=-1"], out=tmp_path / "run")


def test_bfloat16_keeps_float32_weights_and_messages(tmp_path: Path) -> None:
    plain = colonnade.run(SETTINGS | {"model": "cnn"}, out=tmp_path / "a")
    half = colonnade.run(SETTINGS | {"model": "cnn", "precision": "bfloat16"}, out=tmp_path / "b")
    assert half.wire["bytes"] == plain.wire["bytes"]
    assert half.weights_sha256 != plain.weights_sha256
    losses = [r.history[-1]["parties"]["party1"]["loss"] for r in (plain, half)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert colonnade.load(half.path).predict()["party1"].probabilities.dtype == torch.float32
