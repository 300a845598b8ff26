"""Sample weights: how much each row counts in training, beside its label."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from colonnade.data.labels import Called
from colonnade.data.values import array_of, is_absent, short
from colonnade.errors import DataError


def weights_from(weights: object, rows: int, called: Called | None = None) -> Tensor:
    """Weights as float64, one per row, all finite, none negative, not all zero."""
    called = called or Called(of="weight")
    array = array_of(weights, "weights")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (rows,):
        raise DataError(f"weights of shape {array.shape} for {rows:,} rows. Give one per row.")
    if array.dtype.kind not in "biuf":
        values = array.tolist()
        for row, value in enumerate(values):
            if not is_absent(value) and not isinstance(value, int | float | np.number):
                raise DataError(f"{called.one(row)} is {short(value)}, not a number. Correct it.")
        array = np.array([float("nan") if is_absent(value) else value for value in values])
    found = torch.from_numpy(array.astype(np.float64))
    for wrong, what in (
        (found.isnan(), "missing. Give every row one: 1 counts like the others, 0 not at all."),
        (found.isinf(), "infinite. Correct it."),
        (found < 0, "negative. Correct it: 0 is a row that does not count."),
    ):
        if bool(wrong.any()):
            more = f", as in {int(wrong.sum()):,} rows" if int(wrong.sum()) > 1 else ""
            said, _, move = what.partition(". ")
            raise DataError(f"{called.one(int(wrong.nonzero()[0]))} is {said}{more}. {move}")
    check_weights(found, called)
    return found


def check_weights(weights: Tensor | None, called: Called | None = None) -> None:
    """Refuse weights of which none counts."""
    if weights is not None and len(weights) and not bool(weights.sum() > 0):
        named = (called or Called(of="weight")).all
        raise DataError(
            f"{named} of all {len(weights):,} rows are 0: no row counts. Give some rows more, or "
            "omit the weights."
        )
