"""Rules about the source that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import colonnade

SOURCE = Path(colonnade.__file__).parent


def own_imports(function: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.walk(function):
        named: list[str] = []
        if isinstance(node, ast.ImportFrom):
            named = ["colonnade" if node.level else node.module or ""]
        elif isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        if any(name.split(".")[0] == "colonnade" for name in named):
            assert isinstance(node, ast.stmt)
            yield node


def test_functions_do_not_import_our_own_modules() -> None:
    """Imports stand at the top, where the layers are checked; commands and the lazy `__init__`s
    go through importlib."""
    found = [
        f"{path.relative_to(SOURCE)}:{statement.lineno}: {ast.unparse(statement)}"
        for path in sorted(SOURCE.rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in own_imports(function)
    ]
    assert found == []
