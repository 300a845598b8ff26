"""Python files of the user's own: a method, a network."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from colonnade.errors import InputError


def load_module(path: Path, what: str, error: type[InputError]) -> ModuleType:
    """The module in a file; whatever goes wrong is an `error` that names the file and the line."""
    if not path.is_file():
        raise error(f"{what} = '{path}': there is no such file")
    name = "colonnade_own_" + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise error(f"{what} = '{path}': not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        del sys.modules[name]
        frames = traceback.extract_tb(problem.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f" (line {lines[-1]})" if lines else ""
        raise error(f"{what} = '{path}': {type(problem).__name__}: {problem}{where}") from problem
    return module
