"""From the labels of a run to its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from colonnade.config import Config
from colonnade.errors import ConfigError, unknown
from colonnade.task import Task, calibration, decision, measures


def task_for(config: Config, classes: Sequence[str], labels: Tensor | None = None) -> Task:
    """What the run learns.

    classes  that the labels show, or all parties have agreed on; none: the labels are numbers
    labels   of training rows, where somebody has them
    """
    run, classes = config.run, tuple(classes)
    kind = Task.of(classes).kind if classes else "regression"
    problems = _misfits(config, kind)
    if not classes:
        if problems:
            raise ConfigError(problems)
        mean, spread = config.data.mean, config.data.spread
        if mean is not None and spread is not None:  # agreed on: nothing is told of the labels
            return Task(kind, metric=run.metric, mean=mean, spread=spread)
        return Task(kind, metric=run.metric).fitted(labels)
    positive, weight = min(1, len(classes) - 1), run.class_weight
    weights: Literal["none", "balanced"] | tuple[float, ...]
    if (chosen := str(run.positive)) in classes:
        positive = classes.index(chosen)
    elif chosen:
        problems.append(unknown(chosen, classes, "as positive", "class"))
    if not isinstance(weight, Mapping):
        weights = weight
    else:
        problems += [
            unknown(name, classes, "in class_weight", "class")
            for name in weight
            if name not in classes
        ]
        weights = tuple(weight.get(name, 1.0) for name in classes)
    if problems:
        raise ConfigError(problems)
    return Task(kind, classes, run.metric, positive, class_weight=weights)


def _misfits(config: Config, kind: str) -> list[str]:
    """What of the settings has no meaning for this kind of task."""
    metric, wish = config.run.metric, config.decision
    found = [measures.problem(metric, kind)] if metric else []
    found += [f"[decision] {why}" for way in wish.ways if (why := decision.problem(kind, way))]
    if wish.calibrate != "none" and (why := calibration.problem(wish.calibrate, kind)):
        found.append(f"[decision] {why}")
    return [problem for problem in found if problem]


def heard(config: Config, told: Mapping[str, Any]) -> Task:
    """The task as the label holder tells it, see `Task.told`; a DataError if that is none.

    Where the hub does not know it, it tells nothing, and only those who have labels have a task.
    """
    if not told:
        return Task.of(())
    task = Task.from_told(told)
    if task.kind == "regression":
        return replace(task, metric=config.run.metric)
    return task_for(config, task.classes)
