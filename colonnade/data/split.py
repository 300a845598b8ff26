"""Training and test rows: the official division, or a seeded one that keeps the classes' shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.data.types import Column, Dataset, numbered
from colonnade.errors import DataError


def official(
    name: str,
    train: tuple[NDArray[Any], NDArray[Any]],
    test: tuple[NDArray[Any], NDArray[Any]],
    classes: tuple[str, ...],
    columns: tuple[Column, ...] = (),
) -> Dataset:
    """A set with its published test part, whose ids continue after those of the training part."""
    parts = [(as_tensor(x), as_tensor(y).long()) for x, y in (train, test)]
    return Dataset(
        name, numbered(*parts[0]), numbered(*parts[1], start=len(parts[0][0])), classes, columns
    )


def undivided(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any],
    classes: tuple[str, ...],
    columns: tuple[Column, ...] = (),
) -> Dataset:
    """A set without a published test part, before `divide`; without classes labels are numbers."""
    labels = as_tensor(y)
    rows = numbered(as_tensor(x), labels.long() if classes else labels.double())
    return Dataset(name, rows, rows.rows(torch.arange(0)), classes, columns)


def as_tensor(array: NDArray[Any]) -> Tensor:
    # A copy where NumPy only borrows the bytes of a file: torch needs writable memory.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def check_division(test: float, seed: int) -> None:
    if not 0 < test < 1:
        raise DataError(
            f"test={test} is not a share of the rows. Give one between 0 and 1, like 0.2."
        )
    if seed < 0:
        raise DataError(f"seed={seed} is negative. Give 0 or more.")


def divide(dataset: Dataset, test: float, seed: int) -> Dataset:
    """Give `test` of the rows of every class, drawn with `seed`, to the test part."""
    rows = dataset.train
    if rows.y is None:
        raise DataError(f"'{dataset.name}' has no labels to divide by. Give each row its class.")
    train, held = stratified(rows.y, dataset.classes, test, seed, f"'{dataset.name}'")
    return replace(dataset, train=rows.rows(train), test=rows.rows(held))


def stratified(
    y: Tensor, classes: tuple[str, ...], test: float, seed: int, who: str = "the data"
) -> tuple[Tensor, Tensor]:
    """The rows to train on and those to test on: of every class the share `test`, at least one.

    Of numbers, without classes: the rows in the order of their labels are cut into as many
    stretches as there are to be test rows, and each gives one.
    """
    check_division(test, seed)
    generator = np.random.default_rng(seed)
    is_test = np.zeros(len(y), dtype=bool)
    if not classes:
        if len(y) < 2:
            raise DataError(f"{who} has {len(y)} rows, too few for training and test. Add rows.")
        count = min(max(round(len(y) * test), 1), len(y) - 1)
        for stretch in np.array_split(np.argsort(y.numpy(), kind="stable"), count):
            is_test[generator.choice(stretch)] = True
    for label, title in enumerate(classes):
        members = np.flatnonzero(y.numpy() == label)
        if len(members) < 2:
            raise DataError(
                f"class '{title}' of {who} has too few rows ({len(members)}) to appear in both "
                "the training and the test part. Add rows of it, or omit the class."
            )
        count = min(max(round(len(members) * test), 1), len(members) - 1)
        is_test[generator.permutation(members)[:count]] = True
    return torch.from_numpy(np.flatnonzero(~is_test)), torch.from_numpy(np.flatnonzero(is_test))


def strata(y: Tensor, most: int = 10) -> Tensor:
    """Labels as something to divide rows by: classes as they are; of numbers which tenth they are
    in, equal ones in the same."""
    if not y.is_floating_point():
        return y
    edges = np.unique(np.quantile(y.numpy(), np.linspace(0, 1, most + 1)[1:-1]))
    return torch.from_numpy(np.searchsorted(edges, y.numpy(), side="right").astype(np.int64))
