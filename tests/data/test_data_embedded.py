"""The sets that come with Colonnade or scikit-learn."""

from __future__ import annotations

import lzma
import time
from pathlib import Path

import pytest
import torch

from colonnade import data
from colonnade.data.sources.sample import FILE, unpack
from colonnade.errors import DataCorrupt, DataError


def test_sample_is_balanced_small_and_quick() -> None:
    began = time.perf_counter()
    sample = data.load("mnist-sample")
    assert time.perf_counter() - began < 1
    assert torch.bincount(sample.train.y).tolist() == [800] * 10
    assert torch.bincount(sample.test.y).tolist() == [200] * 10
    assert sample.train.x.shape == (8000, 1, 28, 28)
    assert sample.train.x.dtype == torch.uint8
    assert FILE.stat().st_size <= 2_000_000
    assert int(sample.train.ids.max()) < 60_000 <= int(sample.test.ids.min())
    assert len(sample.train.ids.unique()) == 8000


def test_sample_is_not_sorted_by_class() -> None:
    labels = data.load("mnist-sample").train.y
    assert len(labels[:100].unique()) == 10


@pytest.mark.parametrize("damage", ["cut", "short", "empty"])
def test_damaged_sample(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "mnist.xz"
    content = FILE.read_bytes()
    path.write_bytes(
        {"cut": content[:1000], "short": lzma.compress(bytes(100)), "empty": b""}[damage]
    )
    with pytest.raises(DataCorrupt, match=r"mnist\.xz"):
        unpack(path)


def test_digits_are_images() -> None:
    digits = data.load("digits")
    assert digits.train.x.shape[1:] == (1, 8, 8)
    assert digits.train.x.dtype == torch.uint8
    assert digits.train.x.max() == 255
    assert len(digits.train) + len(digits.test) == 1797
    assert len(digits.classes) == 10


def test_breast_cancer() -> None:
    dataset = data.load("breast-cancer")
    assert len(dataset.train) + len(dataset.test) == 569
    assert len(dataset.columns) == 30
    both = torch.cat([dataset.train.y, dataset.test.y])
    assert torch.bincount(both).tolist() == [212, 357]


def test_division_follows_seed_and_share() -> None:
    first, again = data.load("breast-cancer"), data.load("breast-cancer", seed=0)
    other = data.load("breast-cancer", seed=1)
    assert torch.equal(first.test.ids, again.test.ids)
    assert not torch.equal(first.test.ids, other.test.ids)
    half = data.load("breast-cancer", test=0.5)
    assert torch.bincount(half.test.y).tolist() == [106, 178]
    assert not set(first.train.ids.tolist()) & set(first.test.ids.tolist())


@pytest.mark.parametrize(
    ("test", "seed"), [(0.0, 0), (1.0, 0), (-0.1, 0), (float("nan"), 0), (0.2, -1)]
)
def test_impossible_division(test: float, seed: int) -> None:
    with pytest.raises(DataError, match="Give"):
        data.load("breast-cancer", test=test, seed=seed)


def test_stratified_keeps_rare_classes_on_both_sides() -> None:
    y = torch.tensor([0] * 50 + [1] * 2)
    train, held = data.stratified(y, ("many", "few"), 0.2, 0)
    assert torch.bincount(y[held]).tolist() == [10, 1]
    assert torch.equal(torch.cat([train, held]).sort().values, torch.arange(52))
    with pytest.raises(DataError, match="class 'few' of 'bank' has too few rows"):
        data.stratified(y[:51], ("many", "few"), 0.2, 0, "'bank'")


def test_rows_only_for_large_sets() -> None:
    with pytest.raises(DataError, match="'digits' is always read whole"):
        data.load("digits", rows=10)
