"""How much each row counts: read as given, and refused where that means nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from colonnade.data import check_weights, weights_from
from colonnade.errors import DataError


@pytest.mark.parametrize(
    "weights", [[1, 0, 2.5], np.array([[1], [0], [2.5]]), torch.tensor([1, 0, 2.5])]
)
def test_weights(weights: object) -> None:
    found = weights_from(weights, 3)
    assert (found.dtype, found.tolist()) == (torch.float64, [1, 0, 2.5])


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1, -2, -3], "the weight in row 1 is negative, as in 2 rows. Correct it"),
        ([1, None, 2], "the weight in row 1 is missing. Give every row one"),
        ([1, 2, float("nan")], "the weight in row 2 is missing"),
        ([1, float("inf"), 2], "the weight in row 1 is infinite. Correct it"),
        (["1", 2, 3], "the weight in row 0 is '1', not a number"),
        ([0, 0, 0], "the weights of all 3 rows are 0: no row counts. Give some rows more"),
        ([1, 2], "2.* for 3 rows. Give one per row"),
    ],
)
def test_refused_weights(weights: list[object], said: str) -> None:
    with pytest.raises(DataError, match=said):
        weights_from(np.array(weights, dtype=object), 3)


def test_no_weights_at_all_are_fine() -> None:
    check_weights(None)
    check_weights(torch.empty(0))
