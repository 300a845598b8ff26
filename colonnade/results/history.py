"""The training, epoch by epoch, and its last evaluation: what all parties logged, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from colonnade.results.result import NOT_LOGGED, headline


def history(
    entries: Mapping[str, list[dict[str, Any]]], parties: list[str], judge: str = ""
) -> list[dict[str, Any]]:
    """One row per phase and epoch, with the numbers of every party that logged any.

    judge  the party that scores all, if there is one. Its numbers and seconds replace what others
           tell of the same row or party, and a phase that it took part in has only its epochs.
    """
    judged: dict[str, set[int]] = {}
    for entry in entries.get(judge, ()):
        judged.setdefault(entry["phase"], set()).add(entry["epoch"])
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    last_word = [judge] if judge in entries else []
    for name in (*entries, *last_word):
        for entry in entries[name]:
            key = (entry["phase"], entry["epoch"])
            if key[1] not in judged.get(key[0], {key[1]}):
                continue
            row = rows.setdefault(
                key, {"epoch": key[1], "phase": key[0], "seconds": 0.0, "parties": {}}
            )
            slowest = 0.0 if name == judge else row["seconds"]
            row["seconds"] = max(slowest, entry["seconds"])
            own = {k: v for k, v in entry.items() if k not in NOT_LOGGED}
            for whose, numbers in {name: own, **entry.get("others", {})}.items():
                if numbers:  # JSON has neither NaN nor infinity
                    row["parties"].setdefault(whose, {}).update(
                        {k: _finite(v) for k, v in numbers.items()}
                    )
    for row in rows.values():  # in the order of the parties, whoever logged first
        row["parties"] = {name: row["parties"][name] for name in parties if name in row["parties"]}
    return list(rows.values())


def divergence(rows: list[dict[str, Any]]) -> list[str]:
    """A loss that is not a number any more, and since when."""
    found: dict[str, str] = {}
    for row in rows:
        for name, numbers in row["parties"].items():
            if "loss" in numbers and numbers["loss"] is None and name not in found:
                found[name] = (
                    f"the loss of '{name}' is not finite since epoch {row['epoch']}: the training "
                    f"diverged; try a smaller lr, or clip_norm = 1"
                )
    return list(found.values())


def metrics(
    scores: Mapping[str, Mapping[str, Any]], holder: str, judge: str = "", metric: str = "accuracy"
) -> dict[str, Any]:
    """The last evaluation of every split that was scored; the judge of all has the last word.

    metric  the measure that decides
    """
    found: dict[str, Any] = {}
    last_word = [judge] if judge in scores else []
    for name in (*scores, *last_word):
        for split, measures in scores[name].items():
            nothing = dict.fromkeys(("accuracy", "confusion", "confusion_party"))
            entry = found.setdefault(
                split,
                {"metric": metric, "value": None, **nothing, "per_party": {}, "measures": {}},
            )
            for measure, values in measures.items():
                if measure == "confusion":
                    whose = measures["confusion_party"]
                    if entry["confusion"] is None or whose == holder:
                        entry |= {"confusion": values, "confusion_party": whose}
                elif measure == "measures":
                    entry["measures"].update(_of_parties(values))
                elif measure != "confusion_party":
                    entry.setdefault(measure, {}).update(values)
    for entry in found.values():
        shares = list(entry["per_party"].values())
        entry["accuracy"] = sum(shares) / len(shares) if shares else None
        entry["value"] = headline(entry["measures"], metric)
    return found


def _of_parties(told: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> dict[str, Any]:
    """Measures by party, as JSON can hold them."""
    return {
        party: {
            name: {end: _finite(number) for end, number in one.items()}
            for name, one in measures.items()
        }
        for party, measures in told.items()
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
