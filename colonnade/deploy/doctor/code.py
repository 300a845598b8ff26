"""The doctor on code that the settings name: it is shown, and executed only if it may be."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from colonnade import plugin, toml
from colonnade.config import code
from colonnade.config.code import Named
from colonnade.deploy.doctor.check import Check
from colonnade.errors import ColonnadeError, ConfigError, InputError
from colonnade.plugin import Rule
from colonnade.results import folder as folders


def of_federation(path: Path, policy: Path | None) -> tuple[list[Check], frozenset[str]]:
    """The files that a federation file names, and what this party's policy approves of them."""
    try:
        trusted = code.trusted_by(policy)
    except ConfigError as error:
        return [
            Check("policy", "problem", said, "correct it") for said in error.problems
        ], frozenset()
    try:
        named = list(code.named_by(path))
        pins = code.pins(toml.load(path), [])
    except ColonnadeError:
        return [], trusted  # whoever reads the file says what is wrong with it
    rule = plugin.pinned(pins, str(path), trusted)
    return [_look(each, rule, "problem") for each in named], trusted


def of_run(path: Path) -> list[Check]:
    """Those of a run file, which `colonnade run` executes; or of a folder that somebody sent."""
    try:
        named = list(code.named_by(path))
        rule = folders.rule_of(path.parent)
    except ColonnadeError:
        return []
    own = not (path.parent / "run.json").exists()
    return [_look(each, rule, "warning" if own else "problem") for each in named]


def _look(named: Named, rule: Rule, verdict: Literal["warning", "problem"]) -> Check:
    about = f"code {named.path.name}"
    try:
        source = plugin.read(named.path, named.what, InputError)
        found = plugin.declared(source)
        why = rule(source)
    except InputError as error:
        return Check(about, "problem", str(error), "ask for the file, and read it")
    said = f"{named.path}, sha256 {source.sha256}, {found.sentence}"
    if found.invisible:
        said += f"; it holds {found.invisible} invisible characters: beware"
    if found.beside:
        said += f"; what it imports from beside it is not covered: {', '.join(found.beside)}"
    if not why:
        return Check(about, "ok", f"{said}; approved")
    return Check(about, verdict, f"{said}; not executed, nor what depends on it looked at", why)
