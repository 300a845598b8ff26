"""A party's account of its work at the end of a run: numbers, and nothing of its rows.

In one process the accounts are made and joined at once; with a process per party each writes its
own, and whoever joins them reads the files.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from colonnade.role.party import Party


def account(party: Party, holder: str) -> dict[str, Any]:
    """What one party can say at the end: plain values, ready for JSON."""
    scores: dict[str, Any] = {}
    for split, measures in party.predictions.items():
        labels = party.splits[split].y
        assert labels is not None
        entry = scores[split] = {
            measure: {
                # The same fraction on any device.
                name: int((predicted == labels).sum()) / len(labels)
                for name, predicted in by_party.items()
            }
            for measure, by_party in measures.items()
        }
        counted = measures.get("per_party", {})
        if counted:
            whose = holder if holder in counted else next(iter(counted))
            entry["confusion"] = _confusion(labels, counted[whose], len(party.classes))
            entry["confusion_party"] = whose
    for name, number in party.figures.items():
        scores.setdefault("test", {})[name] = {party.name: number}
    return {
        "history": party.history,
        "scores": scores,
        "spent": dict(party.spent),
        "remarks": list(party.remarks),
        "weights_sha256": party.kept.sha256(),
    }


def _confusion(labels: Tensor, predicted: Tensor, classes: int) -> list[list[int]]:
    cells = torch.bincount((labels * classes + predicted).cpu(), minlength=classes * classes)
    table: list[list[int]] = cells.reshape(classes, classes).tolist()
    return table
