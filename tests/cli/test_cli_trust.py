"""`colonnade trust`: what it shows, what it asks, what it keeps; and what is found by parsing."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest

from colonnade import plugin
from colonnade.cli.main import main
from colonnade.errors import InputError

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_it_shows_what_the_file_declares_and_keeps_its_digest(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = plugin.read(EXAMPLE, "file", InputError)
    assert main(["trust", str(EXAMPLE), "--yes"]) == 0
    said = capsys.readouterr().out
    for part in (source.sha256, "'sumscores'", "scores, gradient", "torch", "[code]"):
        assert part in said
    assert plugin.approvals() == {source.sha256} and plugin.approved(source) == ""
    (store,) = home.rglob("*.jsonl")
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    assert main(["trust", str(EXAMPLE), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["sha256"] == source.sha256
    assert len(store.read_text().splitlines()) == 1


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 1), ("no\n", 1), ("", 1)])
def test_it_asks(answer: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(["trust", str(EXAMPLE)]) == code
    assert bool(plugin.approvals()) == (code == 0)


def test_without_a_terminal_it_wants_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["trust", str(EXAMPLE)]) == 2
    assert "--yes" in capsys.readouterr().err and not plugin.approvals()


def test_an_approval_covers_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "helper.py").write_text("x = 1\n")
    for line in ("import helper", "from helper import x", "from . import helper"):
        (tmp_path / "mine.py").write_text(f"def build(shape, out):\n    {line}\n")
        assert main(["trust", str(tmp_path / "mine.py"), "--yes"]) == 2
        assert "one file" in " ".join(capsys.readouterr().err.split())
    assert not plugin.approvals()


def test_what_an_editor_does_not_show_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("# safe \u202e import os\nKIND = Kind('a\x1b[2J')\n")
    assert main(["trust", str(tmp_path / "mine.py"), "--yes"]) == 0
    said = capsys.readouterr().out
    assert "2 invisible" in said and "\x1b" not in said and "a?[2J" in said


@pytest.mark.parametrize("content", [b"def broken(:", b"\xff\xfe", b"x = 1\0"])
def test_what_is_no_python(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_bytes(content)
    assert main(["trust", str(tmp_path / "mine.py"), "--yes"]) == 2
    assert "not a Python file" in capsys.readouterr().err
    assert main(["trust", str(tmp_path / "none.py"), "--yes"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_damaged_store_approves_nothing_more(home: Path) -> None:
    source = plugin.read(EXAMPLE, "file", InputError)
    plugin.approve(source)
    (store,) = home.rglob("*.jsonl")
    store.write_text(store.read_text()[:30] + "\n[1]\n")
    assert plugin.approvals() == set() and "colonnade trust" in plugin.approved(source)
