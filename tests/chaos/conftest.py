"""What undisturbed runs end with, and that no process outlives its test."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import colonnade


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Any]:
    """The weights that a configuration gives in one process, where nothing goes wrong."""
    folder = tmp_path_factory.mktemp("undisturbed")

    @functools.cache
    def weights(text: str) -> dict[str, str]:
        out = folder / str(len(list(folder.iterdir())))
        return colonnade.run(json.loads(text), out=out).weights_sha256

    return lambda tree: weights(json.dumps(tree, sort_keys=True))


@pytest.fixture
def no_orphans(tmp_path: Path) -> Iterator[None]:
    """No process that was given this test's folder is left when it ends."""
    yield
    assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[int]:
    """Whose command line or open files name this folder."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            said = (process / "cmdline").read_bytes().decode(errors="replace")
            files = [str(file.readlink()) for file in (process / "fd").iterdir()]
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
        if any(str(folder) in text for text in [said, *files]):
            found.append(int(process.name))
    return found
