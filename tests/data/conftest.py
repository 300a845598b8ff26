"""Sets are loaded once for all tests, into a cache that is gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from colonnade import data


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("COLONNADE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def needs() -> Callable[[str], data.Dataset]:
    """`needs("mnist")` is that set, or skips the test where nobody says where the sets are."""
    loaded: dict[str, data.Dataset] = {}

    def load(name: str) -> data.Dataset:
        if "COLONNADE_DATA" not in os.environ:
            pytest.skip(f"needs the data set '{name}': set COLONNADE_DATA to its folder")
        if name not in loaded:
            loaded[name] = data.load(name)
        return loaded[name]

    return load


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder and an empty cache: only what the test writes is there."""
    monkeypatch.delenv("COLONNADE_DATA", raising=False)
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "root"
    root.mkdir()
    return root
