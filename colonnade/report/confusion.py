"""Which classes a run mistook for which: a table of a few classes, a picture of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from colonnade.report import plots, units

TABLE_CLASSES = 20  # the confusion matrix of more classes is a picture, not a table
MISTAKES = 10

Matrix = Sequence[Sequence[int]]


def view(result: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """What the page shows of the confusion matrix; None where a run has none."""
    from markupsafe import Markup

    test = result["metrics"].get("test", {})
    matrix, known = test.get("confusion"), result["data"]["classes"]
    if not matrix:
        return None
    classes = known if len(known) == len(matrix) else [str(i) for i in range(len(matrix))]
    totals = [sum(row) for row in matrix]
    largest = totals.index(max(totals))
    found = [row[i] / totals[i] for i, row in enumerate(matrix) if totals[i]]
    picture = None
    if len(matrix) > TABLE_CLASSES:
        right = sum(row[i] for i, row in enumerate(matrix))
        label = f"Confusion matrix of {len(matrix)} classes, {right:,} of {sum(totals):,} correct"
        picture = Markup(plots.heat_map(matrix, classes, key=f"{key}-confusion", label=label))
    return {
        "party": test.get("confusion_party"),
        "several": len(test.get("per_party", {})) > 1,
        "classes": [units.shorten(c, 24) for c in classes],
        "upright": max(len(c) for c in classes) > 4,
        "largest": {"name": classes[largest], "share": totals[largest] / max(sum(totals), 1)},
        "balanced": fmean(found) if found else None,
        "mistakes": _mistakes(matrix, classes),
        "rows": [] if picture else _rows(matrix, classes),
        "svg": picture,
    }


def _mistakes(matrix: Matrix, classes: Sequence[str]) -> list[dict[str, Any]]:
    """The most frequent ones."""
    found = sorted(
        ((n, i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if i != j and n),
        key=lambda m: (-m[0], m[1], m[2]),
    )
    return [
        {
            "true": classes[i],
            "taken": classes[j],
            "count": n,
            "share": n / sum(matrix[i]),
            "of": sum(matrix[i]),
        }
        for n, i, j in found[:MISTAKES]
    ]


def _rows(matrix: Matrix, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Each true class: its counts with their shades, and the share that was recognised."""
    return [
        {
            "name": units.shorten(classes[i], 24),
            "cells": list(zip(row, plots.shade_levels(row), strict=True)),
            "recall": row[i] / sum(row) if sum(row) else None,
        }
        for i, row in enumerate(matrix)
    ]
