"""The command that adds an extra fits the installation: a checkout, a folder, an archive."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from colonnade import version


def told(monkeypatch: pytest.MonkeyPatch, place: Path, url: object) -> list[str]:
    """The command of a package that lies elsewhere, and of which pip has noted this."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            return None if url is None else json.dumps(url)

    monkeypatch.setattr(version, "__file__", str(place / "colonnade" / "version.py"))
    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    return shlex.split(version.installing("psi"))


PIP = [sys.executable, "-m", "pip", "install"]


def test_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "a folder"
    here.mkdir()
    (here / "pyproject.toml").touch()
    assert told(monkeypatch, here, None) == [*PIP, "--editable", f"{here}[psi]"]


@pytest.mark.parametrize(
    ("url", "source"),
    [
        (None, "colonnade[psi]"),
        ({"url": "file:///src/my%20folder", "dir_info": {}}, "/src/my folder[psi]"),
        (
            {"url": "https://example.org/colonnade.whl", "archive_info": {}},
            "colonnade[psi] @ https://example.org/colonnade.whl",
        ),
    ],
)
def test_elsewhere(
    url: object, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(monkeypatch, tmp_path, url) == [*PIP, source]


def test_the_extras_that_errors_name_are_there() -> None:
    root = Path(version.__file__).parents[1]
    declared = (root / "pyproject.toml").read_text()
    texts = "".join(path.read_text() for path in (root / "colonnade").rglob("*.py"))
    for extra in ("psi", "he", "dp", "data", "nvflare", "xgboost"):
        quoted = (f'installing("{extra}")', f"installing('{extra}')")
        assert any(text in texts for text in quoted) and f"\n{extra} = [" in declared
