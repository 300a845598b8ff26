"""How columns, cells and settings are named to a person."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.data.types import Column


def about_labels(name: str, labels: list[str] | None) -> str:
    if labels is None:
        return "no labels"
    classes = sorted(set(labels))
    return f"labels in '{name}', {len(classes)} classes: {listed(classes, 5)}"


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


def listed(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more


def short(cell: str) -> str:
    text = cell.strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")


def setting(name: str) -> str:
    return f'leave_out = ["{name}"]'


def leave_out(name: str) -> str:
    return f"Omit it: {setting(name)}"


def character(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else repr(delimiter)
