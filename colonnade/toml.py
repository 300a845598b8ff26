"""TOML in, checked dataclasses out; whatever is wrong with the input is reported at once.

tree = load(path)                             one ConfigError: no such file, line 3 is not TOML, …
run = read(Run, tree, "", problems)           unknown keys, wrong types, numbers out of bounds
epochs: Annotated[int, Bounds(least=1)] = 5   what a number may be stands beside the field
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from colonnade.errors import ConfigError, FederationError, unknown

MEANINGS = {  # what the parser says, and what it means to the author of the file
    r"Cannot declare \('(?P<name>.+?)',?\) twice": "[{name}] is there twice: rename one",
    r"Cannot overwrite a value": "a key is there twice: remove one",
    r"Invalid value": "not a value: write text in quotation marks, true and false in small letters",
    r"Expected '=' after a key in a key/value pair": "a line is a [table] or key = value",
}
PLACE = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)


@dataclass(frozen=True)
class Bounds:
    """Where a number must lie; stands in the annotation of its field."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, number: float) -> bool:
        return math.isfinite(number) and (
            (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"from {_written(self.least)} to {_written(self.most)}"
        limits = {
            "at least": self.least,
            "above": self.above,
            "at most": self.most,
            "below": self.below,
        }
        return " and ".join(f"{w} {_written(n)}" for w, n in limits.items() if n is not None)


# ---- files ---------------------------------------------------------------------------------------


def load(
    path: Path,
    error: type[ConfigError] | type[FederationError] = ConfigError,
    called: str = "",
) -> dict[str, Any]:
    """The tree of a TOML file, or one `error` that names the file; `called`, if not by its path."""
    called = called or str(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise error([f"{called}: {problem.strerror or problem}"]) from None
    except UnicodeDecodeError:
        raise error([f"{called}: not a text file in UTF-8"]) from None
    except RecursionError:
        raise error([f"{called} is nested too deeply"]) from None
    except tomllib.TOMLDecodeError as problem:
        raise error([f"{called} is not valid TOML{_explained(problem)}"]) from None


def value_of(text: str) -> Any:
    """A value as TOML writes it; anything else is a text, so that a bare word needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def table(tree: Mapping[str, Any], key: str, problems: list[str]) -> dict[str, Any]:
    """The table called `key`; empty if it is absent, or a value instead."""
    value = tree.get(key, {})
    if not isinstance(value, dict):
        problems.append(f"{key} = {value!r}: must be a table, [{key}]")
        return {}
    return value


def _explained(problem: tomllib.TOMLDecodeError) -> str:
    """ ", line 3: what is wrong". Before Python 3.14 both stand in the message alone."""
    said, line = getattr(problem, "msg", ""), getattr(problem, "lineno", None)
    if not said:
        found = PLACE.fullmatch(str(problem))
        said, line = (found[1], found[2]) if found else (str(problem), None)
    for pattern, meaning in MEANINGS.items():
        if match := re.fullmatch(pattern, said):
            names = {key: text.replace("', '", ".") for key, text in match.groupdict().items()}
            said = meaning.format(**names)
            break
    return f", {f'line {line}' if line else 'at its end'}: {said}"


# ---- tables --------------------------------------------------------------------------------------


def read(
    cls: type,
    table: Mapping[str, Any],
    where: str,
    problems: list[str],
    elsewhere: Mapping[str, str] | None = None,
) -> Any:
    """An instance of a frozen dataclass, or None; what is wrong with the table goes to `problems`.

    where      stands before a key: "partition."
    elsewhere  keys of other tables, and where they belong
    A wrong value is replaced by the default, so that everything else is checked as well.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for key, given in table.items():
        if key not in fields:
            problems.append(unknown(key, fields, f"in [{where.rstrip('.')}]", elsewhere=elsewhere))
            continue
        try:
            value = convert(given, hints[key])
        except TypeError as error:
            problems.append(f"{where}{key} = {given!r}: must be {error}")
            continue
        if wrong := list(_outside(key, value, hints[key])):
            problems += [f"{where}{problem}" for problem in wrong]
            continue
        values[key] = value
    required = [
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    problems += [
        f"{where}{name} is missing: it must be {expected(hints[name])}"
        for name in required
        if name not in table
    ]
    if any(name not in values for name in required):
        return None
    try:
        return cls(**values)
    except ValueError as error:  # some classes check what no annotation can say
        if values.keys() >= table.keys() & fields.keys():  # else a default may be to blame
            problems.append(f"{where}{error}")
        return None


def check_bounds(instance: Any) -> None:
    """For `__post_init__`: a ValueError if a field is out of its bounds, also in Python code."""
    for name, hint in typing.get_type_hints(type(instance), include_extras=True).items():
        for problem in _outside(name, getattr(instance, name), hint):
            raise ValueError(problem)


def convert(value: Any, hint: Any) -> Any:
    """`value` as the type `hint`, or a TypeError that says what it must be."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        return convert(value, arguments[0])
    if origin is Literal:
        if value in arguments and not isinstance(value, bool):
            return value
    elif origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        choices = [choice for choice in arguments if choice is not type(None)]
        if len(choices) == 1:
            return convert(value, choices[0])
        for choice in choices:
            with suppress(TypeError):
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


def expected(hint: Any) -> str:
    """A type, for a person."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return expected(arguments[0])
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


def _each(values: Sequence[Any], hint: Any, whole: Any) -> list[Any]:
    try:
        return [convert(value, hint) for value in values]
    except TypeError:
        raise TypeError(expected(whole)) from None


def _outside(key: str, value: Any, hint: Any) -> Iterator[str]:
    """Every number of a converted value that is out of the bounds in its annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return
    if origin is Annotated:
        for bounds in arguments[1:]:
            number = isinstance(value, int | float)  # not a word that may stand in its place
            if isinstance(bounds, Bounds) and number and value not in bounds:
                finite = "" if math.isfinite(value) else "a finite number, "
                yield f"{key} = {value}: {finite}{bounds}"
    elif origin in (typing.Union, types.UnionType):
        for choice in arguments:
            yield from _outside(key, value, choice)
    elif origin is not None and isinstance(value, Mapping):
        for name, item in value.items():
            yield from _outside(f"{key}.{name}", item, arguments[1])


def _written(number: float) -> str:
    return f"{number:g}" if number != int(number) else str(int(number))
