"""What is wrong with a folder, a config or the machine is told in a sentence, not a traceback."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from federations import toy

import colonnade
from colonnade.cli.main import main
from colonnade.errors import ColonnadeError, RunError
from colonnade.net.mesh import Keys, Mesh

SMALL = toy("splitnn", parties=2, epochs=2)


def told(what: Callable[[], Any]) -> str:
    """The typed error that it ends with; everything else is what this promise forbids."""
    try:
        what()
    except ColonnadeError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"a traceback: {error!r}") from error
    raise AssertionError("nothing was wrong")


class Stop(colonnade.Observer):
    def epoch(self, party: str, row: Any) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a simulation that was stopped in the middle."""
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(SMALL))
    with pytest.raises(KeyboardInterrupt):
        colonnade.run(path, out=tmp_path / "run", observer=Stop())
    return tmp_path / "run"


def resume(folder: Path) -> Any:
    return colonnade.run(folder / "config.toml", resume=folder)


ROWS = [
    {},
    {"attempt": 1},
    {"attempt": 1, "sender": "party1"},
    {"note": "a note of no attempt"},
    {"attempt": 1, "note": 3},
    {"attempt": "1", "note": "x"},
]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_a_ledger_without_its_fields(row: dict[str, Any], stopped: Path) -> None:
    line = json.dumps({"row": 0, **row, "previous": "0" * 64}) + "\n"
    (stopped / "ledger.jsonl").write_text(line)
    content = json.loads((stopped / "result.json").read_text())
    content["wire"]["head"] = hashlib.sha256(line.encode()).hexdigest()
    (stopped / "result.json").write_text(json.dumps(content))
    audit = str(stopped.parent / "audit.jsonl")
    for what in (
        lambda: resume(stopped),
        lambda: command("ledger", str(stopped)),
        lambda: command("ledger", str(stopped), "--export", audit),
    ):
        assert "Colonnade did not write row 0" in told(what)


def command(*words: str) -> None:
    assert main([*words, "--traceback"]) == 0


@pytest.mark.parametrize("hidden", [[2**62], [2**31, 2**31], [2**63], [2**100]])
def test_a_network_of_an_impossible_size(hidden: list[int], tmp_path: Path) -> None:
    said = told(lambda: colonnade.run(SMALL | {"model_options": {"hidden": hidden}}, out=tmp_path))
    assert "'party1'" in said and "'mlp'" in said and len(said) < 600
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lock", "ledger.jsonl"])
def test_a_folder_in_the_place_of_a_file(name: str, stopped: Path) -> None:
    (stopped / name).unlink()
    (stopped / name).mkdir()
    assert name in told(lambda: resume(stopped))


def test_a_file_in_the_place_of_the_checkpoints(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    (stopped / "checkpoints").write_text("x")
    said = told(lambda: resume(stopped))
    assert "checkpoints is a file" in said and "remove" in said
    (stopped / "checkpoints").unlink()  # as it says
    assert resume(stopped).content["status"] == "finished"


def test_no_thread_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    mesh = Mesh(
        "shop",
        Keys.of(tmp_path, "shop"),
        hub="bank",
        listen=None,
        dial={"bank": "127.0.0.1:9"},
        accept=frozenset(),
        relayed=frozenset(),
        agreed={},
        log=lambda text: None,
    )
    monkeypatch.setattr(threading.Thread, "start", start)
    said = told(mesh.start)
    assert "'shop'" in said and "ulimit -u" in said


def test_what_is_no_run_is_told_so(tmp_path: Path) -> None:
    for name in ("run.json", "config.toml"):
        (tmp_path / name).mkdir()
    with pytest.raises(RunError):
        resume(tmp_path)
