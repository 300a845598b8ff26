"""Which commit a result names: the repository's, or the one handed over where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from colonnade.errors import InputError
from colonnade.results import environment


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the source tree without its repository."""
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "colonnade" / "result.py"))
    monkeypatch.delenv(environment.COMMIT, raising=False)
    return tmp_path


def test_without_a_repository_nobody_knows(tree: Path) -> None:
    assert environment.commit() == ""


@pytest.mark.parametrize("named", ["3f8fa98", "3f8fa98+", "0123456789" * 4])
def test_without_a_repository_the_commit_is_handed_over(
    tree: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("COLONNADE_COMMIT", named)
    assert environment.commit() == named


@pytest.mark.parametrize("named", ["main", "3f8fa9", "3F8FA98", "3f8fa98++", "a" * 41, "3f8fa98\n"])
def test_what_is_no_commit_is_refused(
    tree: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("COLONNADE_COMMIT", named)
    with pytest.raises(InputError, match=r"COLONNADE_COMMIT .* 7 to 40"):
        environment.commit()


def test_a_repository_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (Path(environment.__file__).parents[2] / ".git").exists():
        pytest.skip("this source tree has no repository")
    monkeypatch.setenv("COLONNADE_COMMIT", "no commit")
    assert re.fullmatch(r"[0-9a-f]{7,40}\+?", environment.commit())
