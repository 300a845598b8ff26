"""How columns, cells and settings are named to a person."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colonnade.data.labels import described
from colonnade.data.types import Column


def about_labels(name: str, labels: list[str] | None) -> str:
    if labels is None:
        return "no labels"
    return f"labels in '{name}', {described(labels)}"


def remarks(column: Column, values: NDArray[np.float32]) -> str:
    said = ""
    absent = values == -1 if column.categories else np.isnan(values)
    if missing := int(absent.sum()):
        become = "zeros" if column.categories else "the mean of the training rows"
        said += f", {missing:,} of {len(values):,} missing ({become})"
    present = values[~absent]
    if len(present) and bool((present == present[0]).all()):
        said += ", constant: carries no information"
    return said


def setting(name: str) -> str:
    return f'leave_out = ["{name}"]'


def leave_out(name: str) -> str:
    return f"Omit it: {setting(name)}"


def character(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else repr(delimiter)
