"""One flat TOML file describes a run; all its mistakes are reported at once.

method = "splitnn"            top level: what all parties share, and their default recipe
[data] [partition] [checkpoint]
[splitnn]                     the method's own options, in a table of its name
[parties.bank]                what one party does differently
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from colonnade import data as datasets
from colonnade import methods, models
from colonnade.align import KINDS, Alignment
from colonnade.data.own import OwnFile
from colonnade.errors import ConfigError, InputError, MethodError
from colonnade.partition import Partition
from colonnade.role.method import Circumstances, Method
from colonnade.role.recipe import Recipe
from colonnade.wire import Kind

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
OTHERWISE = {"learning_rate": "lr", "network": "model", "dataset": "data"}  # elsewhere so called
NAME_RULE = "use letters, digits, '-' and '_', at most 64, beginning with a letter or digit"


FITS = {  # which options of a partition mean something for which kind
    "grid": ("tiles",),
    "parties": ("tiles", "strips", "columns", "rows", "hybrid", "rectangles", "whole"),
    "axis": ("strips",),
    "rectangles": ("rectangles", "hybrid"),
    "sizes": ("columns", "hybrid"),
    "groups": ("columns", "hybrid"),
    "shuffle": ("columns", "hybrid"),
    "alpha": ("rows", "hybrid"),
    "row_overlap": ("rows", "hybrid"),
    "column_overlap": ("columns", "hybrid"),
}


@dataclass(frozen=True)
class Data:
    """[data]: which rows."""

    name: str = "mnist-sample"
    test: float = 0.2  # share of test rows, where the set has no official division
    official: bool = True  # keep that division; false: divide all rows anew, by `test`
    validation: float = 0.0  # share of training rows held out for choices
    train_rows: int = 0  # 0: all; else a seeded sample
    test_rows: int = 0
    standardise: bool = True  # by each party, with its own statistics
    flip: bool = False  # mirror half of the training images, the same ones at every party
    shift: int = 0  # move every training image by up to so many pixels, alike at every party
    upside_down: bool = False  # turn half of the training images, the same ones at every party
    classes: tuple[str, ...] = ()  # of a federation in which every party brings its own labels


@dataclass(frozen=True)
class Checkpoint:
    """[checkpoint]: how often each party saves itself; 0 is never."""

    epochs: int = 1
    steps: int = 0


@dataclass(frozen=True)
class Run:
    """The top level of the file, the default recipe aside."""

    method: str
    name: str = ""  # of the run's folder; empty: the file's name, or the method's
    seed: int = 0
    epochs: int = 5
    batch_size: int = 128
    evaluate_every: int = 1  # epochs; also after the last one; 0: never
    threads: int = 1  # per party; part of the config because sums depend on it
    device: Literal["cpu", "cuda"] = "cpu"
    strict: bool = False  # every message through the codec, as over a network
    record: tuple[str, ...] = ()  # Kinds whose payloads are kept (simulation only)
    label_holder: str = ""  # empty: the first party
    label_only: bool = False  # the label holder is a further party, without features
    absence: bool = True  # then measure the accuracy without each passive party (one process)


@dataclass(frozen=True)
class Config:
    """A whole configuration, checked."""

    run: Run
    recipe: Recipe
    data: Data
    checkpoint: Checkpoint
    found: methods.Found
    options: Any  # the method's own dataclass
    partition: Partition | None = None  # None: tiles for images, columns for tables
    parties: Mapping[str, Recipe] = field(default_factory=dict)
    files: Mapping[str, OwnFile] = field(default_factory=dict)  # the parties' own
    align: Alignment | None = None  # first find the rows that all parties have
    asked: Alignment = field(default_factory=Alignment)  # [align], also if the method matches none

    @property
    def kinds(self) -> dict[str, Kind]:
        """All that may cross, by name."""
        first = KINDS if self.align is not None else ()
        return {kind.name: kind for kind in (*first, *self.found.method.kinds)}

    def resolved(self) -> dict[str, Any]:
        """Everything, defaults included, in the form of the file."""
        tables: dict[str, Any] = {
            **_plain(self.run),
            # A file's place is no setting: the run folder holds a copy beside this config.
            "method": self.found.path.name if self.run.method.endswith(".py") else self.run.method,
            **_portable(self.recipe),
            "data": _plain(self.data),
            "checkpoint": _plain(self.checkpoint),
        }
        if self.partition is not None:
            kind = self.partition.kind
            tables["partition"] = {
                key: value
                for key, value in _plain(self.partition).items()
                if kind in FITS.get(key, (kind,)) and value not in ([], {})
            }
        tables[self.found.method.name] = _plain(self.options)
        if self.align is not None:
            tables["align"] = _plain(self.align)
        if self.parties:
            tables["parties"] = {name: _portable(recipe) for name, recipe in self.parties.items()}
        if self.files:
            del tables["data"]["name"]
        for name, file in self.files.items():
            given = {
                k: v for k, v in _plain(file).items() if v != [] and (k, v) != ("delimiter", "")
            }
            tables["parties"][name] |= given
        return tables

    def to_align(self) -> Config:
        """The same parties, to find their common rows and no more, whatever the method is."""
        found = methods.find("alignment")
        kept = [name for name in self.run.record if name in {kind.name for kind in KINDS}]
        run = dataclasses.replace(
            self.run, method="alignment", name=f"{self.run.name[:58]}-align", record=tuple(kept)
        )
        return dataclasses.replace(
            self,
            run=run,
            found=found,
            options=found.method.options(),
            data=dataclasses.replace(self.data, classes=()),
            align=self.asked,
        )

    def own_models(self) -> list[str]:
        """The networks that stand in files of the user's own."""
        used = [self.recipe, *self.parties.values()]
        return sorted({recipe.model for recipe in used if models.is_own(recipe.model)})

    def sha256(self) -> str:
        """Of all that decides the result: the settings and the method's file, not the name."""
        decisive = self.resolved() | {"name": "", "method_sha256": self.found.sha256}
        decisive |= {"models_sha256": [models.sha256_of(name) for name in self.own_models()]}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def others_tested(self) -> bool:
        """Whether tested rows must be the same at all parties, and those they bring are not."""
        method = self.found.method
        return method.rows.tested_together(self.options) and not method.rows.aligned(self.options)

    def held_out(self) -> float:
        """The share of a party's own rows that is kept for tests: none where none could be used."""
        unused = self.others_tested() and not self.run.evaluate_every
        return 0.0 if unused else self.data.test

    def untested(self) -> str:
        """Why parties that bring rows of their own cannot be tested; empty where they can."""
        method = self.found.method
        if not self.run.evaluate_every or not self.others_tested():
            return ""
        return (
            f"{method.name} tests what all parties know of a row together, and with these options "
            "each brings other rows"
        )

    def start_sha256(self) -> str:
        """Of all that decides what is done before the first message; empty where that is little."""
        start = self.found.method.start
        if start is None:
            return ""
        kept = {name: getattr(self.options, name) for name in start.options}
        return replace(self, options=type(self.options)(**kept)).sha256()


def load(
    source: str | Path | Mapping[str, Any] | Config,
    overrides: Sequence[str] = (),
    *,
    folder: Path | None = None,
) -> Config:
    """A configuration from a file, a dict, or as it is; `overrides` are "key=value" texts.

    folder  where a dict's own methods and networks lie; those of a file lie beside it
    """
    if isinstance(source, Config):
        if not overrides:
            return source
        raise ConfigError(["overrides need a file or a dict, not a finished Config"])
    stem = ""
    if isinstance(source, Mapping):
        folder = folder or Path()
        try:
            tree = json.loads(json.dumps(source))  # a deep copy, of what TOML can say
        except (TypeError, ValueError) as error:
            raise ConfigError([f"{error}: give numbers, text, lists and dicts"]) from None
    else:
        path = Path(source)
        tree, folder, stem = _read_file(path), path.parent, path.stem
    problems: list[str] = []
    for override in overrides:
        _override(tree, override, problems)
    return _build(tree, folder, stem, problems)


def dumps(config: Config) -> str:
    """The resolved configuration as TOML."""
    import tomli_w

    caveats = config.found.method.about.caveats(config.options)
    return "".join(f"# {line}\n" for line in caveats) + tomli_w.dumps(config.resolved())


def check_name(name: str, what: str) -> list[str]:
    """Names become folders and files, so nothing in them may point elsewhere."""
    return [] if NAME.fullmatch(name) else [f"{what} {name!r}: {NAME_RULE}"]


def same_but_for_case(names: Iterable[str]) -> list[str]:
    """Some file systems hold only one of two names that differ in case."""
    problems: list[str] = []
    lowered: dict[str, str] = {}
    for name in names:
        other = lowered.setdefault(name.lower(), name)
        if other != name:
            problems.append(f"parties '{other}' and '{name}' differ in case only: name one anew")
    return problems


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: not a text file"]) from None
    except RecursionError:
        raise ConfigError([f"{path} is nested too deeply"]) from None
    except tomllib.TOMLDecodeError as error:
        twice = re.search(r"Cannot declare \('parties', '(.+)'\) twice", str(error))
        if twice:
            raise ConfigError([f"{path}: two parties are called '{twice[1]}'"]) from None
        raise ConfigError([f"{path} is not valid TOML: {error}"]) from None


def _override(tree: dict[str, Any], text: str, problems: list[str]) -> None:
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        problems.append(f"--set {text}: write it as key=value, for example epochs=3")
        return
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw  # a bare word is a text
    *tables, last = key.strip().split(".")
    for name in tables:
        table = tree.setdefault(name, {})
        if not isinstance(table, dict):
            problems.append(f"--set {text}: '{name}' is a value, not a table")
            return
        tree = table
    tree[last] = value


def _build(tree: dict[str, Any], folder: Path, stem: str, problems: list[str]) -> Config:
    try:
        found = methods.find(str(tree.get("method", "")), folder) if "method" in tree else None
    except InputError as error:
        found = None
        problems.append(str(error))
    if "method" not in tree:
        problems.append(f"method is missing; one of {', '.join(methods.names())}, or a .py file")

    _placed(tree, folder)
    for table in _table(tree, "parties", []).values():
        if isinstance(table, dict):
            _placed(table, folder)
    run_keys = {f.name for f in dataclasses.fields(Run)}
    recipe_keys = {f.name for f in dataclasses.fields(Recipe)}
    tables = {"data", "partition", "checkpoint", "parties", "align", *methods.names()}
    if found is not None:
        tables.add(found.method.name)
    for key, value in tree.items():
        # Without its method a table may well be right: it would be the method's own.
        if found is None and isinstance(value, dict):
            continue
        if key not in run_keys | recipe_keys | tables:
            problems.append(unknown(key, run_keys | recipe_keys | tables, "at the top level"))

    run = read(Run, {k: v for k, v in tree.items() if k in run_keys}, "", problems)
    only = found.method.network.model if found is not None else ""
    usual = {"model": only} if only else {}
    given = {k: v for k, v in tree.items() if k in recipe_keys}
    recipe = read(Recipe, usual | given, "", problems)
    data = read(Data, _table(tree, "data", problems), "data.", problems)
    checkpoint = read(Checkpoint, _table(tree, "checkpoint", problems), "checkpoint.", problems)
    partition = None
    if "partition" in tree:
        partition = read(Partition, _table(tree, "partition", problems), "partition.", problems)
    for name in methods.names():  # tables of other methods stay in the file for a comparison
        if name in tree and (found is None or name != found.method.name):
            other = methods.find(name).method
            read(other.options, _table(tree, name, problems), f"{name}.", problems)
    options = None
    if found is not None:
        name = found.method.name
        options = read(found.method.options, _table(tree, name, problems), f"{name}.", problems)
    files = _files(tree, folder, problems)
    parties = _parties(tree, recipe or Recipe(), problems)
    matched = found is not None and options is not None and found.method.rows.aligned(options)
    asked = read(Alignment, _table(tree, "align", problems), "align.", problems)
    # Of a method that matches no rows it is as other methods' tables: a comparison may need it.
    align = asked if matched and ("align" in tree or files) else None
    if found is not None and only:
        _check_model(found.method, {"": recipe, **parties}, problems)
    if run is not None:
        _check_run(run, problems)
        if found is not None:
            first = () if align is None else KINDS
            _check_record(run, found, {kind.name for kind in first}, problems)
    if data is not None:
        _check_data(data, problems)
        if found is not None and options is not None:
            try:
                found.method.check(Circumstances(options, validation=data.validation))
            except ConfigError as error:
                problems.extend(error.problems)
            except MethodError as error:
                problems.append(str(error))
    if checkpoint is not None:
        _least(
            {"checkpoint.epochs": checkpoint.epochs, "checkpoint.steps": checkpoint.steps},
            0,
            problems,
        )
    if partition is not None:
        _check_partition(partition, _table(tree, "partition", []), problems)
    if recipe is not None:
        _check_recipe(recipe, "", problems)
    if problems:
        raise ConfigError(problems)
    assert found is not None
    # Made from a file's name, which may hold anything: only what NAME allows stays.
    made = re.sub(r"[^A-Za-z0-9_-]+", "-", stem or found.method.name).strip("-_")[:64]
    run = dataclasses.replace(run, name=run.name or made or "run")
    return Config(
        run, recipe, data, checkpoint, found, options, partition, parties, files, align, asked
    )


def _table(tree: Mapping[str, Any], key: str, problems: list[str]) -> dict[str, Any]:
    value = tree.get(key, {})
    if not isinstance(value, dict):
        problems.append(f"{key} = {value!r}: must be a table, [{key}]")
        return {}
    return value


def _files(tree: dict[str, Any], folder: Path, problems: list[str]) -> dict[str, OwnFile]:
    """The parties' own files, taken out of their tables, where nothing but a recipe is left."""
    keys = {f.name for f in dataclasses.fields(OwnFile)}
    tables = {n: t for n, t in _table(tree, "parties", []).items() if isinstance(t, dict)}
    given = {name: {k: table.pop(k) for k in keys & table.keys()} for name, table in tables.items()}
    if not any(given.values()):
        return {}
    if missing := [name for name, own in given.items() if "data" not in own]:
        problems.append(
            f"[parties.{missing[0]}] has no `data`: with own files, every party names its own"
        )
    if "name" in _table(tree, "data", []) or "partition" in tree:
        problems.append(
            "[data] name and [partition] divide a data set; the parties bring their own files: "
            "leave one or the other out"
        )
    found = {
        name: read(OwnFile, own, f"parties.{name}.", problems)
        for name, own in given.items()
        if "data" in own
    }
    return {
        name: dataclasses.replace(file, data=str(file.path(folder).resolve()))
        for name, file in found.items()
        if file is not None
    }


def _parties(tree: dict[str, Any], default: Recipe, problems: list[str]) -> dict[str, Recipe]:
    parties: dict[str, Recipe] = {}
    recipes = {f.name for f in dataclasses.fields(Recipe)}
    tables = _table(tree, "parties", problems)
    problems += same_but_for_case(tables)
    for name, table in tables.items():
        problems += check_name(name, "party name")
        if not isinstance(table, dict):
            problems.append(f"parties.{name} = {table!r}: must be a table, [parties.{name}]")
            continue
        where = f"parties.{name}."
        if given := [key for key in table if key not in recipes]:
            keys = recipes | {f.name for f in dataclasses.fields(OwnFile)}
            problems += [unknown(key, keys, f"in [parties.{name}]") for key in given]
            continue
        own = read(Recipe, _plain(default) | table, where, problems)
        if own is not None:
            inherited: list[str] = []  # reported once, where it stands
            _check_recipe(default, where, inherited)
            found: list[str] = []
            _check_recipe(own, where, found)
            problems += [problem for problem in found if problem not in inherited]
            parties[name] = own
    return parties


def _check_run(run: Run, problems: list[str]) -> None:
    if run.name:
        problems += check_name(run.name, "name")
    _least(
        {"epochs": run.epochs, "batch_size": run.batch_size, "threads": run.threads}, 1, problems
    )
    _least({"seed": run.seed, "evaluate_every": run.evaluate_every}, 0, problems)
    if run.threads > 1024:
        problems.append(f"threads = {run.threads}: at most 1024")


def _check_record(run: Run, found: methods.Found, more: set[str], problems: list[str]) -> None:
    kinds = {kind.name for kind in found.method.kinds} | more
    for name in run.record:
        if name not in kinds:
            problems.append(unknown(name, kinds, f"in record, for {found.method.name}", "Kind"))


def _check_data(data: Data, problems: list[str]) -> None:
    if data.name not in (*datasets.names(), datasets.IN_MEMORY):
        problems.append(unknown(data.name, datasets.names(), "as data.name", "data set"))
    for key in ("test", "validation"):
        share = getattr(data, key)
        if not 0 <= share < 1 or (key == "test" and share == 0):
            problems.append(f"data.{key} = {share}: a share of the rows between 0 and 1")
    _least(
        {f"data.{k}": getattr(data, k) for k in ("train_rows", "test_rows", "shift")}, 0, problems
    )
    if len(data.classes) == 1:
        problems.append(f"data.classes = {list(data.classes)}: at least two")
    if twice := {name for name in data.classes if data.classes.count(name) > 1}:
        problems.append(f"data.classes names {', '.join(map(repr, sorted(twice)))} more than once")


def _check_partition(partition: Partition, given: Mapping[str, Any], problems: list[str]) -> None:
    for key in given:
        fits = FITS.get(key, (partition.kind,))
        if partition.kind not in fits:
            problems.append(
                f'partition.{key} means nothing for kind = "{partition.kind}"; '
                f"it belongs to {', '.join(fits)}"
            )
    for name in partition.groups:
        problems += check_name(name, "partition.groups name")


def _check_recipe(recipe: Recipe, where: str, problems: list[str]) -> None:
    if models.is_own(recipe.model):
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
    for key, low, high in (("lr", 0.0, None), ("momentum", 0.0, 1.0), ("weight_decay", 0.0, None)):
        value = getattr(recipe, key)
        if value is not None and (value < low or (high is not None and value >= high)):
            upper = "" if high is None else f" and below {high:g}"
            problems.append(f"{where}{key} = {value}: at least {low:g}{upper}")
    if recipe.lr == 0:
        problems.append(f"{where}lr = 0: nothing would be learnt; leave it out for the default")
    if recipe.warmup < 0:
        problems.append(f"{where}warmup = {recipe.warmup}: at least 0 epochs")
    if recipe.nesterov and recipe.momentum == 0:
        problems.append(f"{where}nesterov = true needs a momentum above 0")


def _check_model(method: Method, recipes: Mapping[str, Any], problems: list[str]) -> None:
    only = method.network.model
    for name, recipe in recipes.items():
        if recipe is not None and recipe.model != only:
            where = f"parties.{name}." if name else ""
            problems.append(
                f"{where}model = '{recipe.model}': {method.name} works with {only} alone, "
                "which is its default; model_options change its size"
            )


def _least(values: Mapping[str, int], least: int, problems: list[str]) -> None:
    problems += [f"{k} = {v}: at least {least}" for k, v in values.items() if v < least]


def unknown(name: str, valid: Any, where: str, what: str = "key") -> str:
    """'no key epoch at the top level; did you mean epochs?'"""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if OTHERWISE.get(name) in names:
        near = [OTHERWISE[name]]
    several = any("," in each for each in names)  # names of a paper's rows
    listed = "; ".join(names) if several else ", ".join(names)
    hint = f"did you mean '{near[0]}'?" if near else f"one of {listed or 'none'}"
    return f"no {what} '{name}' {where}: {hint}"


def read(cls: type, table: Mapping[str, Any], where: str, problems: list[str]) -> Any:
    """An instance of a frozen dataclass from a table; what is wrong with it goes to `problems`.

    Values of the wrong type are left at their defaults, so that the others are checked as well.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            problems.append(unknown(key, fields, f"in [{where.rstrip('.')}]"))
            continue
        try:
            values[key] = convert(value, hints[key])
        except TypeError as error:
            problems.append(f"{where}{key} = {value!r}: must be {error}")
    required = [
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in table and cls is not Run:  # a missing method is reported elsewhere
            problems.append(f"{where}{name} is missing: it must be {expected(hints[name])}")
        if name not in values:
            if cls is not Run:
                return None
            values[name] = ""
    try:
        return cls(**values)
    except ValueError as error:  # a method's options may check themselves
        problems.append(f"{where}{error}")
        return None


def convert(value: Any, hint: Any) -> Any:
    """`value` as the type `hint`, or a TypeError that says what it must be."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        if value in arguments and not isinstance(value, bool):
            return value
    elif origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        for choice in arguments:
            if choice is not type(None):
                return convert(value, choice)
    elif origin is tuple:
        if isinstance(value, list | tuple):
            if len(arguments) == 2 and arguments[1] is ...:
                return tuple(_each(value, arguments[0], hint))
            if len(value) == len(arguments):
                pairs = zip(value, arguments, strict=True)
                return tuple(x for v, a in pairs for x in _each([v], a, hint))
    elif origin is not None and issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            return dict(zip(value, _each(list(value.values()), arguments[1], hint), strict=True))
    elif hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and abs(value) <= sys.float_info.max:  # neither infinite nor NaN
            return float(value)
    elif hint is int and isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise TypeError(f"{expected(hint)} of at most 64 bits")  # as TOML says
    elif isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise TypeError(expected(hint))


def _each(values: Sequence[Any], hint: Any, whole: Any) -> list[Any]:
    try:
        return [convert(value, hint) for value in values]
    except TypeError:
        raise TypeError(expected(whole)) from None


def expected(hint: Any) -> str:
    """A type, for a person."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(expected(a) for a in arguments if a is not type(None))
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return f"a list, each {expected(arguments[0])}"
        return "[" + ", ".join(expected(a) for a in arguments) + "]"
    if origin is not None:
        return f"a table, each {expected(arguments[1])}"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def _portable(recipe: Recipe) -> dict[str, Any]:
    """A recipe whose own network is named without its folder: the run keeps a copy."""
    plain = _plain(recipe)
    if models.is_own(recipe.model):
        file, _, attribute = recipe.model.rpartition(":")
        plain["model"] = f"{Path(file).name}:{attribute}"
    return plain


def _placed(table: dict[str, Any], folder: Path) -> None:
    """A network's file is looked for beside the config."""
    model = table.get("model")
    if isinstance(model, str) and models.is_own(model):
        file, _, attribute = model.rpartition(":")
        table["model"] = f"{(folder / file).resolve()}:{attribute}"


def _plain(value: Any) -> dict[str, Any]:
    """A dataclass as a table; TOML has no None, so what is None is left out."""
    plain: dict[str, Any] = {
        f.name: _simple(getattr(value, f.name)) for f in dataclasses.fields(value)
    }
    return {key: item for key, item in plain.items() if item is not None}


def _simple(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_simple(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _simple(v) for k, v in value.items()}
    return value
