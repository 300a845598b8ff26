"""Run folders that an older version has written: they are read, and never gone on with.

`old/` was written by commit 3f8fa98: 40 rows of two in-memory parties, one epoch. `jovefl` and
`heteronn` name options that later versions do not have; `heteronn` has no trained models.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import colonnade
from colonnade.cli.main import main
from colonnade.errors import RunError
from colonnade.report import check
from colonnade.results.result import read

OLD = Path(__file__).with_name("old")
RUNS = ["splitnn", "jovefl", "heteronn"]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy that may be written to."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


@pytest.mark.parametrize("name", RUNS)
def test_reading_checks_and_changes_nothing(name: str, old: Path) -> None:
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    result = read(old / name)
    check(result.content)
    assert result.accuracy is not None and result.content["status"] == "finished"
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", RUNS)
def test_report(name: str, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(old / name)]) == 0
    assert "<!doctype html>" in Path(capsys.readouterr().out.strip()).read_text()


def test_compare(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *(str(old / name) for name in RUNS), "--json"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)] == RUNS


@pytest.mark.parametrize("name", RUNS)
def test_ledger(name: str, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", str(old / name), "--json"]) == 0
    wire = json.loads(capsys.readouterr().out)
    told = read(old / name).wire
    assert {key: wire[key] for key in ("bytes", "messages")} == {
        key: told[key] for key in ("bytes", "messages")
    }


@pytest.mark.parametrize("name", RUNS)
def test_resume_is_refused(name: str, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(old / name / "weights", ignore_errors=True)
    assert main(["run", "--resume", str(old / name)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{old / name} was made by another version of Colonnade" in said
    assert "Train it again as a new run" in said
    with pytest.raises(RunError, match="was made by another version"):
        colonnade.run(old / name / "config.toml", resume=old / name)


def test_predict_where_the_settings_still_hold(old: Path) -> None:
    rows = np.zeros((3, 2), dtype=np.float32)
    found = colonnade.load(old / "splitnn").predict({"bank": rows, "shop": rows})
    assert len(found["bank"]) == 3


def test_predict_where_they_do_not(old: Path) -> None:
    config = old / "splitnn" / "config.toml"
    config.write_text(config.read_text().replace("dim = 4", "dim = 4\nwidened = true"))
    with pytest.raises(RunError, match="was made by another version") as refused:
        colonnade.load(old / "splitnn")
    assert "widened" in str(refused.value) and "train it again" in str(refused.value)
