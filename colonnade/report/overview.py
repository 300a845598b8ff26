"""One run in one line: the numbers that tables, JSON and report share, before any rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from colonnade.report import units
from colonnade.role.recipe import RATES
from colonnade.task.measures import MEASURES


@dataclass(frozen=True)
class Overview:
    """What one run achieved and what it cost."""

    name: str
    method: str
    status: str  # finished | stopped | failed
    seed: int
    parties: int
    epochs: int
    metric: str  # the measure that decides, of the first run
    value: float | None  # of that measure, on the test rows
    difference: float | None  # of it, against the first run; None for the first
    accuracy: float | None  # on the test rows, a fraction
    difference_points: float | None  # of accuracy, against the first run; None for the first
    seconds_per_epoch: float | None  # the median, which a slow first epoch does not move
    seconds_total: float
    bytes: int  # all phases
    messages: int  # training only
    rounds: int  # training only


def overviews(results: Sequence[Mapping[str, Any]]) -> list[Overview]:
    """One line per run, in the order given; differences are against the first."""
    metric = deciding(results[0]) if results else ""
    return [_overview(r, results[0] if i else None, metric) for i, r in enumerate(results)]


def deciding(result: Mapping[str, Any], split: str = "test") -> str:
    """The name of the measure that decides; older runs have accuracy alone."""
    return str(result["metrics"].get(split, {}).get("metric", "accuracy"))


def value(result: Mapping[str, Any], metric: str, split: str = "test") -> float | None:
    """A measure on a split, the mean over the parties that predict; None where it is not known."""
    found = result["metrics"].get(split, {})
    if metric == "accuracy":
        return accuracy(result, split)
    by_party = found.get("measures", {}).values()
    values = [number(measures.get(metric, {}).get("value")) for measures in by_party]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def majority(result: Mapping[str, Any], split: str = "test") -> tuple[str, float] | None:
    """The class that most rows have, and its share: what always saying it would be worth."""
    matrix, classes = result["metrics"].get(split, {}).get("confusion"), result["data"]["classes"]
    if not matrix or len(matrix) != len(classes):
        return None
    totals = [sum(row) for row in matrix]
    largest = totals.index(max(totals))
    return (str(classes[largest]), totals[largest] / sum(totals)) if sum(totals) else None


def constant(
    result: Mapping[str, Any], share: float | None, split: str = "test", points: float = 0.005
) -> str:
    """Said of an accuracy that needs no model, to half a point; empty of one that is better."""
    known = majority(result, split)
    if known is None or share is None or share > known[1] + points:
        return ""
    as_good = "right as often as" if share >= known[1] - points else "right less often than"
    return f"{as_good} always saying '{units.plain(known[0])}'"


def accuracy(result: Mapping[str, Any], split: str = "test") -> float | None:
    """The run's accuracy on a split; None where it was not measured."""
    return number(result["metrics"].get(split, {}).get("accuracy"))


def per_party_accuracy(result: Mapping[str, Any], split: str = "test") -> dict[str, float]:
    """The accuracy of every party that predicts, in the run's order of parties."""
    return by_party(result, "per_party", split)


def by_party(result: Mapping[str, Any], measure: str, split: str = "test") -> dict[str, float]:
    """What was measured of each party, in the run's order of parties."""
    found = result["metrics"].get(split, {}).get(measure, {})
    known = [*result["parties"], *(p for p in found if p not in result["parties"])]
    return {p: v for p in known if (v := number(found.get(p))) is not None}


@dataclass(frozen=True)
class Left:
    """What is left of a run while one of its parties is absent."""

    value: float | None  # of the measure that decides
    difference: float | None
    accuracy: float | None
    points: float | None
    constant: str  # said of an accuracy that needs no model


def without(result: Mapping[str, Any], split: str = "test") -> dict[str, Left]:
    """By absent party: what is left, and the differences."""
    found, metric = result["metrics"].get(split, {}), deciding(result, split)
    shares = found.get("absent", {})
    values = shares if metric == "accuracy" else found.get("absent_value", {})
    whole, total = value(result, metric, split), accuracy(result, split)
    left: dict[str, Left] = {}
    for party in result["parties"]:
        mine, share = number(values.get(party)), number(shares.get(party))
        difference, points = _less(mine, whole), _less(share, total)
        if difference is not None or points is not None:
            points = None if points is None else 100 * points
            left[party] = Left(mine, difference, share, points, constant(result, share, split))
    return left


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def epochs(result: Mapping[str, Any]) -> int:
    """How many epochs of the phase train the run completed; without that phase, of all phases."""
    return len(result["timing"]["seconds_per_epoch"])


def phases(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By phase, in the order of time: its epochs, its seconds, every party's losses at its end.

    A loss is whatever was logged and is no share: a phase may call its own by another name.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in result["history"]:
        row = found.setdefault(entry["phase"], {"epochs": 0, "seconds": 0.0})
        row["epochs"] += 1
        row["seconds"] += entry["seconds"]
        row["losses"] = {
            party: {name: number(value) for name, value in measured.items() if _is_loss(name)}
            for party, measured in entry["parties"].items()
        }
    return found


def _is_loss(name: str) -> bool:
    measured = name.partition("_")[2] in MEASURES  # "test_auc"
    return not measured and not name.endswith("_accuracy") and name != "label_leak"


def curve(
    result: Mapping[str, Any], metric: str, party: str | None = None, phase: str | None = None
) -> tuple[list[int], list[float]]:
    """(epochs, values) of one party, or of the mean over the parties that measured it.

    phase  omits the other phases
    """
    found = []
    for position, entry in enumerate(result["history"], start=1):
        parties = [party] if party is not None else list(entry["parties"])
        values = [number(entry["parties"].get(p, {}).get(metric)) for p in parties]
        measured = [v for v in values if v is not None]
        if measured and phase in (None, entry["phase"]):
            found.append((position, entry, fmean(measured)))
    # every phase counts from 1: in several of them the position in the history is the only order
    one = len({entry["phase"] for _, entry, _ in found}) == 1
    x = [entry["epoch"] if one else position for position, entry, _ in found]
    return x, [value for _, _, value in found]


def recipe(result: Mapping[str, Any], party: str) -> dict[str, str]:
    """What a party trained with: its network, and its optimiser with the learning rate."""
    config = result["config"]
    own = {**config, **config.get("parties", {}).get(party, {})}
    optimizer = own.get("optimizer", "")
    rate = own.get("lr") or RATES.get(optimizer)
    if optimizer == "sgd" and own.get("momentum"):
        optimizer = f"sgd, momentum {own['momentum']:g}"
    return {
        "network": str(own.get("model", "")),
        "optimizer": f"{optimizer}, lr {rate:g}" if rate and optimizer else str(optimizer),
    }


def label_leak(result: Mapping[str, Any]) -> float | None:
    """The share of labels that the gradients sent to other parties gave away, at the last epoch."""
    _, shares = curve(result, "label_leak")
    return shares[-1] if shares else None


def spent(result: Mapping[str, Any]) -> dict[str, tuple[float, float | None]]:
    """By purpose: seconds of all parties together, and their share of the time of all epochs."""
    purposes: dict[str, float] = {}
    for party in result["timing"].get("spent", {}).values():
        for purpose, seconds in party.items():
            purposes[purpose] = purposes.get(purpose, 0.0) + seconds
    total = sum(entry["seconds"] for entry in result["history"])
    return {name: (s, s / total if total else None) for name, s in purposes.items()}


def differences(result: Mapping[str, Any], first: Mapping[str, Any], most: int = 4) -> list[str]:
    """The settings in which a run of the same method differs from the first, as key = value."""
    if result is first or result["method"] != first["method"]:
        return []
    mine, theirs = _flat(result["config"]), _flat(first["config"])
    changed = [
        f"{key} = {mine.get(key, 'default')}"
        for key in dict.fromkeys([*mine, *theirs])
        if mine.get(key) != theirs.get(key) and key != "name"
    ]
    return changed if len(changed) <= most else [*changed[:most], f"{len(changed) - most} more"]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _overview(result: Mapping[str, Any], first: Mapping[str, Any] | None, metric: str) -> Overview:
    wire, timing = result["wire"], result["timing"]
    mine, share = value(result, metric), accuracy(result)
    points = None if first is None else _less(share, accuracy(first))
    seconds = timing["seconds_per_epoch"]
    return Overview(
        name=result["name"],
        method=result["method"],
        status=result["status"],
        seed=result["seed"],
        parties=len(result["parties"]),
        epochs=epochs(result),
        metric=metric,
        value=mine,
        difference=None if first is None else _less(mine, value(first, metric)),
        accuracy=share,
        difference_points=None if points is None else 100 * points,
        seconds_per_epoch=median(seconds) if seconds else None,
        seconds_total=timing["seconds_total"],
        bytes=wire["bytes"],
        messages=wire["by_phase"].get("train", {}).get("messages", 0),
        rounds=wire["rounds"],
    )
