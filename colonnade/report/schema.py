"""The shape of `result.json`, and a check that needs no library.

The schema itself is `result.schema.json` beside this file (JSON Schema, draft 2020-12). The tests
hold every method's result against all of it; reading a run only asks what `check` asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from colonnade.errors import RunError, unknown

VERSION = 1


def load_schema() -> dict[str, Any]:
    """The JSON Schema of `result.json`."""
    text = resources.files(__package__).joinpath("result.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def check(result: Mapping[str, Any]) -> None:
    """Raise RunError unless `result` has this version and exactly the schema's top-level keys."""
    name = result.get("name", "unnamed")
    if result.get("schema") != VERSION:
        raise RunError(
            f"run '{name}': its result has schema {result.get('schema')!r}, this Colonnade reads "
            f"{VERSION}. Run it again, or use the version of Colonnade that wrote it"
        )
    schema = load_schema()
    problems = [f"'{key}' is missing" for key in schema["required"] if key not in result]
    known = schema["properties"]
    problems += [unknown(key, known) for key in result if key not in known]
    if problems:
        raise RunError(
            f"run '{name}': its result was changed or cut short, so run it again. It does not fit "
            f"the schema: {'; '.join(problems)}"
        )
