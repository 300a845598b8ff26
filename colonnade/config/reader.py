"""Makes a Config from a file or a dict; all mistakes are reported at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from colonnade import methods, models, toml
from colonnade.align import KINDS, Alignment
from colonnade.config import checks
from colonnade.config.settings import Checkpoint, Config, Data, Deciding, Run, plain
from colonnade.data.own import OwnFile
from colonnade.errors import ConfigError, InputError, MethodError, unknown
from colonnade.partition import Partition
from colonnade.plugin import Rule, approved
from colonnade.privacy.settings import Protect
from colonnade.role.method import Circumstances
from colonnade.role.recipe import Recipe

TABLES = {
    "data": Data,
    "checkpoint": Checkpoint,
    "partition": Partition,
    "align": Alignment,
    "decision": Deciding,
    "protect": Protect,
}


def load(
    source: str | Path | Mapping[str, Any] | Config,
    overrides: Sequence[str] = (),
    *,
    folder: Path | None = None,
    rule: Rule = approved,
) -> Config:
    """A configuration from a file, a dict or a Config; `overrides` are "key=value" texts.

    folder  where a dict's own methods and networks are; those of a file are beside it
    rule    which of these may be executed
    """
    if isinstance(source, Config):
        if not overrides:
            return source
        raise ConfigError(["overrides need a file or a dict, not a finished Config"])
    stem = ""
    if isinstance(source, Mapping):
        folder = folder or Path()
        try:
            tree = json.loads(json.dumps(source))  # a deep copy of values that TOML can express
        except (TypeError, ValueError) as error:
            raise ConfigError([f"{error}: give numbers, text, lists and dicts"]) from None
    else:
        path = Path(source)
        tree, folder, stem = toml.load(path), path.parent, path.stem
    problems: list[str] = []
    for override in overrides:
        _override(tree, override, problems)
    return _build(tree, folder, stem, problems, rule)


def _override(tree: dict[str, Any], text: str, problems: list[str]) -> None:
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        problems.append(f"--set {text}: write it as key=value, for example epochs=3")
        return
    *tables, last = key.strip().split(".")
    for name in tables:
        table = tree.setdefault(name, {})
        if not isinstance(table, dict):
            problems.append(f"--set {text}: '{name}' is a value, not a table")
            return
        tree = table
    tree[last] = toml.value_of(raw)


def _build(
    tree: dict[str, Any], folder: Path, stem: str, problems: list[str], rule: Rule
) -> Config:
    """The whole configuration, or one ConfigError with everything that is wrong with it."""
    found = _method(tree, folder, problems, rule)
    _networks(tree, folder, problems, rule)
    _check_keys(tree, found, problems)
    run, recipe = _top(tree, found, problems)
    if toml.table(tree, "align", []).pop("engine", None) is not None:
        problems.append("align.engine: there is only ristretto255 now, so remove this line")
    tables: dict[str, Any] = {
        name: toml.read(cls, toml.table(tree, name, problems), f"{name}.", problems, _homes(found))
        for name, cls in TABLES.items()
        if name in tree or cls is not Partition
    }
    options = _options(tree, found, problems)
    files = _files(tree, folder, problems)
    parties = _parties(tree, recipe or Recipe(), _homes(found), problems)
    matched = found is not None and options is not None and found.method.rows.aligned(options)
    # Of a method that matches no rows it is as other methods' tables: a comparison may need it.
    align = tables["align"] if matched and ("align" in tree or files) else None
    partition = tables.get("partition")
    if found is not None and options is not None:
        _check_method(found, options, run, tables["data"], align, problems)
    if found is not None and found.method.network.model:
        checks.check_model(found.method, {"": recipe, **parties}, problems)
    if found is not None and options is not None and tables["protect"] is not None:
        checks.check_protect(tables["protect"], found.method, options, problems)
    if run is not None:
        checks.check_run(run, problems)
    if tables["data"] is not None:
        checks.check_data(tables["data"], problems)
    if run is not None and tables["data"] is not None and tables["decision"] is not None:
        checks.check_decision(tables["decision"], run, tables["data"], problems)
    if run is not None and tables["protect"] is not None and tables["decision"] is not None:
        checks.check_answers(tables["protect"], run, tables["decision"], problems)
    if partition is not None:
        checks.check_partition(partition, toml.table(tree, "partition", []), problems)
    if recipe is not None:
        checks.check_recipe(recipe, "", problems)
    if problems:
        raise ConfigError(problems)
    assert found is not None
    # Made from a file's name, which may hold anything: only what NAME allows stays.
    made = re.sub(r"[^A-Za-z0-9_-]+", "-", stem or found.method.name).strip("-_")[:64]
    return Config(
        replace(run, name=run.name or made or "run"),
        recipe,
        tables["data"],
        tables["checkpoint"],
        found,
        options,
        partition,
        parties,
        files,
        align,
        tables["align"],
        tables["decision"],
        tables["protect"],
    )


def _method(
    tree: dict[str, Any], folder: Path, problems: list[str], rule: Rule
) -> methods.Found | None:
    if "method" not in tree:
        problems.append(f"method is missing; one of {', '.join(methods.names())}, or a .py file")
        return None
    try:
        return methods.find(str(tree["method"]), folder, rule)
    except InputError as error:
        problems.append(str(error))
        return None


def _check_keys(tree: dict[str, Any], found: methods.Found | None, problems: list[str]) -> None:
    valid = {f.name for cls in (Run, Recipe) for f in fields(cls)}
    valid |= {*TABLES, "parties", *methods.names()}
    if found is not None:
        valid.add(found.method.name)
    for key, value in tree.items():
        # Without a known method an unknown table may be valid: it may be the method's own.
        if key not in valid and not (found is None and isinstance(value, dict)):
            problems.append(unknown(key, valid, "at the top level", elsewhere=_homes(found)))


def _homes(found: methods.Found | None) -> dict[str, str]:
    """Where every key belongs; the more general place first, where there are several."""
    places: list[tuple[str, type]] = [("at the top level", Run), ("at the top level", Recipe)]
    if found is not None:
        places.append((f"below [{found.method.name}]", found.method.options))
    places += [(f"below [{name}]", cls) for name, cls in TABLES.items()]
    places.append(("below [parties.NAME]", OwnFile))
    homes: dict[str, str] = {}
    for place, cls in places:
        for key in fields(cls):
            homes.setdefault(key.name, place)
    return homes


def _top(tree: dict[str, Any], found: methods.Found | None, problems: list[str]) -> tuple[Any, Any]:
    """The run and the default recipe, which share the top level of the file."""
    given = [{k: tree[k] for k in tree if k in {f.name for f in fields(c)}} for c in (Run, Recipe)]
    run = toml.read(Run, {"method": ""} | given[0], "", problems)  # _method reports a missing one
    only = found.method.network.model if found is not None else ""
    usual = {"model": only} if only else {}
    return run, toml.read(Recipe, usual | given[1], "", problems)


def _options(tree: dict[str, Any], found: methods.Found | None, problems: list[str]) -> Any:
    """The method's own options. Tables of other methods may stay in the file for a comparison."""
    for name in methods.names():
        if name in tree and (found is None or name != found.method.name):
            other = methods.find(name).method
            toml.read(other.options, toml.table(tree, name, problems), f"{name}.", problems)
    if found is None:
        return None
    name = found.method.name
    table = toml.table(tree, name, problems)
    return toml.read(found.method.options, table, f"{name}.", problems, _homes(found))


def _check_method(
    found: methods.Found,
    options: Any,
    run: Run | None,
    data: Data | None,
    align: Alignment | None,
    problems: list[str],
) -> None:
    """Check what the method requires of the run and its data."""
    if run is not None:
        first = () if align is None else KINDS
        checks.check_record(run, found, {kind.name for kind in first}, problems)
    if run is not None and data is not None:
        checks.check_stopping(run, data, found.method, problems)
    if data is not None:
        kind = None if run is None or run.task == "auto" else run.task
        try:
            if kind is not None:
                found.method.check_task(kind)
            found.method.check(Circumstances(options, validation=data.validation, task=kind))
        except ConfigError as error:
            problems.extend(error.problems)
        except MethodError as error:
            problems.append(str(error))


def _files(tree: dict[str, Any], folder: Path, problems: list[str]) -> dict[str, OwnFile]:
    """The parties' own files, removed from their tables, which then hold only a recipe."""
    keys = {f.name for f in fields(OwnFile)}
    tables = {n: t for n, t in toml.table(tree, "parties", []).items() if isinstance(t, dict)}
    given = {name: {k: table.pop(k) for k in keys & table.keys()} for name, table in tables.items()}
    if not any(given.values()):
        return {}
    if missing := [name for name, own in given.items() if "data" not in own]:
        problems.append(
            f"[parties.{missing[0]}] has no `data`: with own files, every party names its own"
        )
    if "name" in toml.table(tree, "data", []) or "partition" in tree:
        problems.append(
            "[data] name and [partition] divide a data set, but the parties bring their own files: "
            "omit one or the other"
        )
    found = {
        name: toml.read(OwnFile, own, f"parties.{name}.", problems)
        for name, own in given.items()
        if "data" in own
    }
    return {
        name: replace(file, data=str(file.path(folder).resolve()))
        for name, file in found.items()
        if file is not None
    }


def _parties(
    tree: dict[str, Any], default: Recipe, homes: Mapping[str, str], problems: list[str]
) -> dict[str, Recipe]:
    parties: dict[str, Recipe] = {}
    recipes = {f.name for f in fields(Recipe)}
    tables = toml.table(tree, "parties", problems)
    problems += checks.same_but_for_case(tables)
    for name, table in tables.items():
        problems += checks.check_name(name, "party name")
        if not isinstance(table, dict):
            problems.append(f"parties.{name} = {table!r}: must be a table, [parties.{name}]")
            continue
        where = f"parties.{name}."
        if given := [key for key in table if key not in recipes]:
            keys = recipes | {f.name for f in fields(OwnFile)}
            problems += [
                unknown(key, keys, f"in [parties.{name}]", elsewhere=homes) for key in given
            ]
            continue
        own = toml.read(Recipe, plain(default) | table, where, problems)
        if own is not None:
            inherited: list[str] = []  # reported once, where it is written
            checks.check_recipe(default, where, inherited)
            found: list[str] = []
            checks.check_recipe(own, where, found)
            problems += [problem for problem in found if problem not in inherited]
            parties[name] = own
    return parties


def _networks(tree: dict[str, Any], folder: Path, problems: list[str], rule: Rule) -> None:
    """Ask whether every network's file may be executed; its path is relative to the config."""
    asked: set[Path] = set()
    for table in (tree, *toml.table(tree, "parties", []).values()):
        model = table.get("model") if isinstance(table, dict) else None
        if isinstance(model, str) and models.is_own(model):
            file, _, attribute = model.rpartition(":")
            path = (folder / file).resolve()
            table["model"] = f"{path}:{attribute}"
            try:
                if path not in asked:
                    models.admit_network(table["model"], rule)
            except ConfigError as error:
                problems += error.problems
            asked.add(path)
