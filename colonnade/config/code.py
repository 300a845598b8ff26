"""Python files outside the package that a run file or a federation file names.

[code]                            in a federation file, or `code` in a run's manifest
"my_method.py" = "ef56…"          which bytes all parties mean
[trust]                           in a party's own policy file
sha256 = ["ef56…"]                what it approves, besides `colonnade trust`
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade import toml
from colonnade.errors import ConfigError, unknown

SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Named:
    """A Python file that a file of settings names, and as what."""

    what: str  # method or model
    name: str  # as it stands there: "my_method.py", "net.py:build"
    path: Path


def pins(tree: Mapping[str, Any], problems: list[str]) -> dict[str, str]:
    """The digest of every file by its name, as a federation file gives them in [code]."""
    found = {}
    for name, digest in toml.table(tree, "code", problems).items():
        if not isinstance(digest, str) or not SHA256.fullmatch(digest):
            problems.append(
                f"code.{name} = {digest!r}: give the sha256, 64 hex digits, as `colonnade trust "
                f"{shlex.quote(name)}` shows it"
            )
            continue
        found[name] = digest
    return found


def trusted_by(policy: Path | None) -> frozenset[str]:
    """The digests of code that a party's own policy file approves."""
    if policy is None or not policy.exists():  # which is said where the policy is read
        return frozenset()
    problems: list[str] = []
    table = toml.table(toml.load(policy), "trust", problems)
    problems += [unknown(key, ["sha256"], "in [trust]") for key in table if key != "sha256"]
    given = table.get("sha256", [])
    if not isinstance(given, list) or not all(
        isinstance(one, str) and SHA256.fullmatch(one) for one in given
    ):
        problems.append("trust.sha256: give a list of digests of 64 hex digits each")
    if problems:
        raise ConfigError([f"{policy}: {problem}" for problem in problems])
    return frozenset(given)


def named_by(path: Path) -> Iterator[Named]:
    """The files with code that a run file or a federation file names, each once; none is read."""
    tree = toml.load(path)
    run = toml.table(tree, "run", []) if "method" not in tree else tree
    method = run.get("method")
    if isinstance(method, str) and method.endswith(".py"):
        yield Named("method", method, path.parent / method)
    seen = set()
    for table in (run, *toml.table(run, "parties", []).values()):
        model = table.get("model") if isinstance(table, dict) else None
        if isinstance(model, str) and ".py:" in model and model not in seen:
            seen.add(model)
            yield Named("model", model, path.parent / model.rpartition(":")[0])
