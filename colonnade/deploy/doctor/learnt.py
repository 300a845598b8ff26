"""The doctor on what is learnt: the task, the measure that decides, the decision, and how rare each
class is. Only whoever holds the labels is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from colonnade.config.settings import Deciding
from colonnade.deploy.doctor.check import Check
from colonnade.report import measured, units
from colonnade.task import Task

FEW = 10  # training rows of a class: with fewer, hardly anything can be learnt of it
SHOWN = 10  # classes


def learnt(task: Task, labels: Sequence[Tensor], wish: Deciding) -> Iterator[Check]:
    """What is to be learnt of these training labels, one tensor for each party that has some."""
    judged = f"judged by {measured.column(task.decides_by)}"
    if task.kind == "regression":
        said = f"numbers of {task.mean:,.6g} ± {task.spread:,.6g}, {judged}"
        yield Check("task", "ok", said)
        return
    counts = torch.bincount(torch.cat(list(labels)), minlength=len(task.classes)).tolist()
    rows = max(1, sum(counts))
    order = sorted(range(len(counts)), key=lambda code: -counts[code])
    shares = [
        f"{_name(task, code)} {counts[code]:,} ({units.percent(counts[code] / rows, 1)})"
        for code in order[:SHOWN]
    ]
    more = f", and {len(order) - SHOWN:,} more" if len(order) > SHOWN else ""
    kind = "two classes" if task.kind == "binary" else f"{len(task.classes):,} classes"
    yield Check("task", "ok", f"{kind}, {judged}; {_decided(task, wish)}")
    yield Check("classes", "ok", f"of the training rows: {', '.join(shares)}{more}")
    rare = [code for code in reversed(order) if counts[code] < FEW]
    if rare:
        named = ", ".join(f"{_name(task, code)} has {counts[code]:,}" for code in rare[:3])
        named += f", and {len(rare) - 3:,} more" if len(rare) > 3 else ""
        move = "label more rows of such a class, join it with another one, or leave its rows out"
        said = f"fewer than {FEW} training rows: {named}. Hardly anything can be learnt of so few"
        yield Check("classes", "warning", said, move)


def _name(task: Task, code: int) -> str:
    return f"'{units.shorten(units.plain(task.classes[code]), 40)}'"


def _decided(task: Task, wish: Deciding) -> str:
    """How a row's class is chosen."""
    positive = _name(task, task.positive)
    said = "the most probable class is predicted"
    if wish.threshold is not None:
        said = f"{positive} is predicted from a probability of {wish.threshold:g} on"
    elif wish.rate is not None:
        said = f"{positive} is predicted for {units.percent(wish.rate, 1)} of the validation rows"
    elif wish.cost is not None:
        said = f"{positive} is predicted where that costs least on the validation rows"
    return said + (f", after {wish.calibrate} calibration" if wish.calibrate != "none" else "")
