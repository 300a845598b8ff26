"""The methods: one file each, found by name, by file, or by entry point."""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from colonnade.errors import MethodError, unknown
from colonnade.plugin import Rule, admit, approved, load_module
from colonnade.role.method import Method

BUILT_IN = (
    "local",
    "centralised",
    "splitnn",
    "aggvfl",
    "cvfl",
    "easter",
    "adptvfedconv",
    "splitconv",
    "jovefl",
    "fedemb",
    "heteronn",
    "vfedtrans",
)
HIDDEN = ("alignment",)  # what a command runs, and nobody names
ENTRY_POINTS = "colonnade.methods"

__all__ = ["BUILT_IN", "ENTRY_POINTS", "HIDDEN", "Found", "find", "names"]


@dataclass(frozen=True)
class Found:
    """A method and the file it stands in; the file's digest is part of the config hash."""

    method: Method
    path: Path
    sha256: str


def names() -> list[str]:
    """Every method that can be named without a file."""
    return [*BUILT_IN, *sorted(entry.name for entry in entry_points(group=ENTRY_POINTS))]


def find(name: str, folder: Path | None = None, rule: Rule = approved) -> Found:
    """The method called `name`, or in the file `name` (relative to `folder`).

    rule  says whether a file may be executed
    """
    if name.endswith(".py"):
        path = Path(folder or ".") / name
        source = admit(path, "method", MethodError, rule)
        method = _method(load_module(path, "method", MethodError), name, path)
        return Found(_by_its_own_name(method, name), path, source.sha256)
    if name in (*BUILT_IN, *HIDDEN):
        return _found(importlib.import_module(f"colonnade.methods.{name}"), name)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            try:
                found = _found(importlib.import_module(entry.module), name)
                _by_its_own_name(found.method, name)
                return found
            except ImportError as error:
                raise MethodError(f"method '{name}' ({entry.value}): {error}") from error
    raise MethodError(unknown(name, names(), "(a file's name ends in .py)", "method"))


def _found(module: ModuleType, name: str) -> Found:
    path = Path(module.__file__ or "")
    return Found(_method(module, name, path), path, hashlib.sha256(path.read_bytes()).hexdigest())


def _method(module: ModuleType, name: str, path: Path) -> Method:
    method = getattr(module, "METHOD", None)
    if not isinstance(method, Method):
        raise MethodError(f"method = '{name}': {path.name} has no METHOD = Method(…)")
    return method


def _by_its_own_name(method: Method, name: str) -> Method:
    """Logs, reports and the doctor go by the name: nobody may pass for what everybody knows."""
    if method.name.casefold() in (*BUILT_IN, *HIDDEN):
        raise MethodError(
            f"method = '{name}': it calls itself '{method.name}', which is a method of Colonnade: "
            "give its METHOD another name"
        )
    return method
