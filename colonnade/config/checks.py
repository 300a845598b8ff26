"""Checks of settings that are valid one by one but may contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from colonnade import data as datasets
from colonnade import methods, models
from colonnade.config.settings import FITS, Data, Deciding, Run
from colonnade.errors import ConfigError, MethodError, listed, unknown
from colonnade.partition import Partition
from colonnade.privacy.settings import Protect
from colonnade.role.method import Method
from colonnade.role.recipe import Recipe
from colonnade.task.measures import problem as wrong_metric

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
NAME_RULE = "use letters, digits, '-' and '_', at most 64, beginning with a letter or digit"


def check_name(name: str, what: str) -> list[str]:
    """Check a name that becomes a folder or file, so that it cannot point elsewhere."""
    return [] if NAME.fullmatch(name) else [f"{what} {name!r}: {NAME_RULE}"]


def same_but_for_case(names: Iterable[str]) -> list[str]:
    """Report names that differ only in case, of which some file systems can hold only one."""
    problems: list[str] = []
    lowered: dict[str, str] = {}
    for name in names:
        other = lowered.setdefault(name.lower(), name)
        if other != name:
            problems.append(
                f"parties '{other}' and '{name}' differ in case only: rename one of them"
            )
    return problems


def check_run(run: Run, problems: list[str]) -> None:
    """Check the run's name and metric, if it has any; an automatic task may turn out to be any."""
    if run.name:
        problems += check_name(run.name, "name")
    if run.metric and (said := wrong_metric(run.metric, "" if run.task == "auto" else run.task)):
        problems.append(said)


def check_record(run: Run, found: methods.Found, more: set[str], problems: list[str]) -> None:
    """Check that only declared Kinds are recorded; `more` are those of the alignment."""
    kinds = {kind.name for kind in found.method.kinds} | more
    for name in run.record:
        if name not in kinds:
            problems.append(unknown(name, kinds, f"in record, for {found.method.name}", "Kind"))


def check_stopping(run: Run, data: Data, method: Method, problems: list[str]) -> None:
    """Check that a run that is to stop by itself can."""
    if not run.patience:
        if run.min_delta:
            problems.append(
                f"min_delta = {run.min_delta:g} has no effect without patience: set patience, such "
                "as 5 epochs, or omit min_delta"
            )
        return
    where = f"patience = {run.patience}"
    if not method.learning.stops:
        able = [name for name in methods.names() if methods.find(name).method.learning.stops]
        problems.append(
            f"{where}: {method.name} cannot stop by itself. Omit patience, or take a method that "
            f"can: {', '.join(able)}. A method of your own can once its roles agree on it, see "
            "docs/guides/own-method.md"
        )
    if not data.validation:
        problems.append(
            f"{where} needs validation rows, by which the best epoch is found: set "
            "data.validation, such as 0.2"
        )
    if not run.evaluate_every:
        problems.append(
            f"{where} needs evaluations, which evaluate_every = 0 turns off: set evaluate_every = 1"
        )


def check_data(data: Data, problems: list[str]) -> None:
    """Check that the data set exists and that the classes differ."""
    if data.name not in (*datasets.names(), datasets.IN_MEMORY):
        problems.append(unknown(data.name, datasets.names(), "as data.name", "data set"))
    if len(data.classes) == 1:
        problems.append(f"data.classes = {list(data.classes)}: at least two")
    if twice := {name for name in data.classes if data.classes.count(name) > 1}:
        problems.append(f"data.classes names {listed(sorted(twice))} more than once")


def check_decision(decision: Deciding, run: Run, data: Data, problems: list[str]) -> None:
    """Check that one way leads to the threshold, and that there will be rows to choose it on."""
    if len(decision.ways) > 1:
        problems.append(
            f"[decision] gives {' and '.join(decision.ways)}: one way leads to the threshold, so "
            "keep one of them"
        )
    if decision.cost is not None:
        due = ("false_positive", "false_negative")
        problems += [
            unknown(key, due, "in decision.cost", "cost") for key in decision.cost if key not in due
        ]
        if missing := [name for name in due if name not in decision.cost]:
            problems.append(
                f"decision.cost does not say {' and '.join(missing)}: write cost = "
                "{ false_positive = 1, false_negative = 5 }, in any unit"
            )
    chosen = " and ".join(decision.chosen)
    if chosen and not data.validation:
        problems.append(
            f"{chosen}: what is chosen needs validation rows, and there are none: set validation "
            "below [data], the share of training rows that is set aside, such as validation = 0.2"
        )
    if chosen and not run.evaluate_every:
        problems.append(
            f"{chosen}: what is chosen needs predictions of validation rows, and with "
            "evaluate_every = 0 there are none: set evaluate_every = 1"
        )


def check_protect(protect: Protect, method: Method, options: Any, problems: list[str]) -> None:
    """Check that the method lets what is asked for be protected, whoever sends it."""
    why = method.learning.unprotected(options)
    problems += protect.of_labels(method.name, why, method.start is not None)
    roles = [role for role, known in method.roles.items() if known.rows]
    sent = {k.name: k for role in roles for k in method.sent_by(role, options, 2)}
    by_untold = [
        kind.name
        for role in roles
        if method.roles[role].trains is None
        for kind in method.sent_by(role, options, 2)
    ]
    own = hasattr(options, "epsilon") and hasattr(options, "delta")  # fedemb, vfedtrans
    problems += protect.problems(list(sent.values()), method.name, by_untold, own=own)
    for role in roles if protect.model_epsilon else ():
        try:
            method.trained_by(role, options, 1)
        except MethodError as error:
            problems.append(f"protect.model_epsilon: {error}")


def check_answers(protect: Protect, run: Run, decision: Deciding, problems: list[str]) -> None:
    """Check that nothing is made of labels which would go wrong with answers in their place."""
    if not protect.label_epsilon:
        return
    where = f"protect.label_epsilon = {protect.label_epsilon:g}"
    if run.class_weight != "none":
        problems.append(
            f"{where}: class_weight weighs rows by their labels, and all that is used of these is "
            "answers, which the loss could not correct for any more. Omit class_weight; "
            "decision.rate or decision.threshold flag more or fewer rows"
        )
    asked = ["cost"] if decision.cost is not None else []
    asked += ["calibrate"] if decision.calibrate != "none" else []
    if asked:
        problems.append(
            f"{where}: {' and '.join('decision.' + one for one in asked)} would fit probabilities "
            "to answers of validation rows, not to labels. Omit it; decision.rate and "
            "decision.threshold need no labels"
        )


def check_partition(partition: Partition, given: Mapping[str, Any], problems: list[str]) -> None:
    """Check that each given option applies to this kind of partition."""
    for key in given:
        fits = FITS.get(key, (partition.kind,))
        if partition.kind not in fits:
            problems.append(
                f'partition.{key} has no meaning for kind = "{partition.kind}"; '
                f"it belongs to {', '.join(fits)}"
            )
    for name in partition.groups:
        problems += check_name(name, "partition.groups name")


def check_recipe(recipe: Recipe, where: str, problems: list[str]) -> None:
    """Check that the model exists and has the given options."""
    if models.is_own(recipe.model):
        if not models.is_admitted(recipe.model):
            return  # why not is reported where it was refused
        try:
            models.find_builder(recipe.model)
        except ConfigError as error:
            problems += error.problems
    elif recipe.model not in models.names():
        problems.append(unknown(recipe.model, models.names(), f"as {where}model", "model"))
    else:
        valid = models.options(recipe.model)
        for key in recipe.model_options:
            if key not in valid:
                problems.append(unknown(key, valid, f"in {where}model_options", "option"))
    if recipe.nesterov and recipe.momentum == 0:
        problems.append(f"{where}nesterov = true needs a momentum above 0")


def check_model(method: Method, recipes: Mapping[str, Any], problems: list[str]) -> None:
    """Check that every party has the model that the method requires, if it requires one."""
    only = method.network.model
    for name, recipe in recipes.items():
        if recipe is not None and recipe.model != only:
            where = f"parties.{name}." if name else ""
            problems.append(
                f"{where}model = '{recipe.model}': {method.name} works only with {only}, "
                "which is its default; model_options change its size"
            )
