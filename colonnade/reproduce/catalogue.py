"""Finds tables: benchmarks/papers/<paper>/<table>.toml is called <paper>-<table>."""

from __future__ import annotations

from pathlib import Path

from colonnade import toml
from colonnade.errors import RunError, unknown
from colonnade.reproduce import enrichment, reading
from colonnade.reproduce.exhibit import Exhibit


def folder() -> Path:
    """The papers of the source tree, or the copy that an installed package carries."""
    here = Path(__file__).resolve()
    tree = here.parents[2] / "benchmarks" / "papers"
    return tree if tree.is_dir() else here.parent / "papers"


def names() -> list[str]:
    """easter-table2, …"""
    return sorted(_files())


def find(name: str) -> Exhibit:
    """The table called `name`, or in the file `name`."""
    if name.endswith(".toml"):
        return _load(Path(name))
    files = _files()
    if name in files:
        return _load(files[name])
    raise RunError(unknown(name, files, "(a file's name ends in .toml)", "table"))


def _load(path: Path) -> Exhibit:
    tree = toml.load(path)
    return (
        enrichment.load(path, tree) if tree.get("kind") == enrichment.KIND else reading.load(path)
    )


def _files() -> dict[str, Path]:
    return {f"{path.parent.name}-{path.stem}": path for path in folder().glob("*/*.toml")}
