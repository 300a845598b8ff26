"""From the labels of a run to its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from colonnade.config import Config
from colonnade.data import Asked
from colonnade.errors import ConfigError, listed, unknown
from colonnade.privacy.settings import public_scale
from colonnade.role.method import Circumstances
from colonnade.task import Task, calibration, decision, measures
from colonnade.task.task import Kind


def asked(config: Config) -> Asked:
    """What labels are taken for: what `task` says, or numbers if all have agreed on their scale."""
    return "regression" if config.data.mean is not None else config.run.task


def task_for(config: Config, classes: Sequence[str], labels: Tensor | None = None) -> Task:
    """What the run learns; an error if its settings do not fit, or its method cannot do it.

    classes  that the labels show, or all parties have agreed on; none: the labels are numbers
    labels   of training rows, where somebody has them
    """
    run, classes, weight = config.run, tuple(classes), config.run.class_weight
    kind = _kind(config, classes)
    problems = _unfit(config, kind, classes)
    weights: Literal["none", "balanced"] | tuple[float, ...] = "none"
    if not isinstance(weight, Mapping):
        weights = weight
    elif classes:
        problems += [
            unknown(name, classes, "in class_weight", "class")
            for name in weight
            if name not in classes
        ]
        weights = tuple(weight.get(name, 1.0) for name in classes)
    problems += config.protect.of_task(kind == "regression", len(classes))
    if problems:
        raise ConfigError(problems)
    method = config.found.method
    method.check_task(kind)
    method.check(Circumstances(config.options, task=kind))
    if classes:
        named = str(run.positive) in classes
        positive = classes.index(str(run.positive)) if named else min(1, len(classes) - 1)
        return Task(kind, classes, run.metric, positive, class_weight=weights)
    mean, spread = config.data.mean, config.data.spread
    if mean is not None and spread is not None:  # agreed on: nothing is told of the labels
        return Task(kind, metric=run.metric, mean=mean, spread=spread)
    if config.protect.label_epsilon:  # all are told it
        mean, spread = public_scale(config.protect.label_range)
        return Task(kind, metric=run.metric, mean=mean, spread=spread)
    return Task(kind, metric=run.metric).fitted(labels)


def heard(config: Config, told: Mapping[str, Any]) -> Task:
    """The task as the label holder tells it, see `Task.told`; a DataError if that is none.

    Where the hub does not know it, it tells nothing, and only those who have labels have a task.
    """
    if not told:
        return Task.of(())
    task = Task.from_told(told)
    if task.kind == "regression":
        if problems := _unfit(config, task.kind, ()):
            raise ConfigError(problems)
        return replace(task, metric=config.run.metric)
    return task_for(config, task.classes)


def _kind(config: Config, classes: tuple[str, ...]) -> Kind:
    """What labels with these classes are; two may be treated like many."""
    if not classes:
        return "regression"
    return "multiclass" if config.run.task == "multiclass" else Task.of(classes).kind


def _unfit(config: Config, kind: Kind, classes: tuple[str, ...]) -> list[str]:
    """Which settings do not go with this kind of task."""
    run = config.run
    if run.task not in ("auto", kind):
        found = f"{len(classes):,} classes, {listed(classes, 5)}" if classes else "numbers"
        return [f'task = "{run.task}", but the labels are {found}: set task = "{kind}"']
    problems = _misfits(config, kind)
    if kind == "regression":
        given = {"class_weight": run.class_weight != "none", "positive": run.positive != ""}
        problems += [
            f"{key}: the labels are numbers, so there are no classes; omit it"
            for key, there in given.items()
            if there
        ]
    elif run.positive != "" and len(classes) != 2:
        problems.append(f"positive is one of two classes, and there are {len(classes):,}: omit it")
    elif run.positive != "" and str(run.positive) not in classes:
        problems.append(unknown(str(run.positive), classes, "as positive", "class"))
    return problems


def _misfits(config: Config, kind: str) -> list[str]:
    """What of the settings has no meaning for this kind of task."""
    metric, wish = config.run.metric, config.decision
    found = [measures.problem(metric, kind)] if metric else []
    found += [f"[decision] {why}" for way in wish.ways if (why := decision.problem(kind, way))]
    if wish.calibrate != "none" and (why := calibration.problem(wish.calibrate, kind)):
        found.append(f"[decision] {why}")
    return [problem for problem in found if problem]
