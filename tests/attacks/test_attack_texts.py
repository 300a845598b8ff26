"""A text of another party stays one line of what it is part of, without any effect on a terminal.

It is escaped and cut where it enters, and what a log or a terminal shows is escaped once more.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nursery import Nursery

import colonnade
from colonnade.cli import ledger
from colonnade.cli.main import _complain
from colonnade.deploy.records import Log
from colonnade.deploy.supervisor import Options
from colonnade.errors import ColonnadeError, KindError, RoleFailed
from colonnade.net.frame import PROTOCOL, Control, Hello, Part
from colonnade.net.greeting import Unfit, fitting
from colonnade.runtime.control import Failure, Halt, Stop, StopAt, Waiting, frames, read
from colonnade.runtime.network import Network
from colonnade.runtime.post import Post
from colonnade.runtime.protocol import hear
from colonnade.wire import Kind, Ledger

LIAR = Path(__file__).with_name("liar.py")
NASTY = (
    "\x1b[2J\x1b[31mbroken\x07\x9b\r\n2026-11-19 12:00:00 finished: accuracy 0.999\n"
    "\u202edlrow [red]olleh\u2028\u200b\x00" + "x" * 100_000
)
TREE = {
    "method": "splitnn",
    "seed": 3,
    "epochs": 2,
    "batch_size": 50,
    "model_options": {"hidden": [16]},
    "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
    "partition": {"kind": "columns", "parties": 3},
    "absence": False,
    "splitnn": {"dim": 8},
}


def harmless(text: str) -> None:
    assert text.isprintable() and len(text) < 7000


# ---- where texts enter ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        Failure(NASTY, NASTY, NASTY),
        Halt(NASTY),
        Stop(NASTY),
        StopAt(3, NASTY),
        Waiting(NASTY),
    ],
    ids=lambda said: type(said).__name__,
)
def test_words_of_others(said: Any) -> None:
    (frame,) = frames("word", said)
    heard = read(type(said), json.loads(frame.content))
    for value in vars(heard).values():
        if isinstance(value, str):
            harmless(value)
    if isinstance(heard, Failure):
        assert "[red]olleh" in heard.text and "\\x1b" in heard.text  # shown, without an effect
        harmless(str(heard.as_error()))


@pytest.mark.parametrize(
    "word",
    [
        Control(NASTY),
        Control("stop", "[" + NASTY),
        Control("stop_at", json.dumps({"steps": NASTY, "why": ""})),
    ],
)
def test_words_that_are_none(word: Control) -> None:
    said: list[str] = []
    bank: Any = SimpleNamespace(hub="bank", me="shop", refuse=lambda _, text: said.append(text))
    hear(bank, "bank", word.word, word.content)
    (text,) = said
    harmless(text)


def test_first_words_of_a_stranger() -> None:
    for body in (
        Hello(PROTOCOL, NASTY[:200], b"x" * 16),
        Hello(PROTOCOL, "shop", b"x" * 16, agreed=json.dumps({NASTY: NASTY, "method": NASTY})),
    ):
        with pytest.raises(Unfit) as caught:
            fitting(body, "shop", "bank", {"method": "splitnn"})
        for reason in caught.value.reasons:
            harmless(reason)


def test_names_in_messages() -> None:
    kind = Kind("weights", None, reveals="noise")
    with pytest.raises(KindError) as caught:
        kind.check({NASTY[:60_000]: {NASTY[:60_000]: {1}}}, "shop")  # type: ignore[dict-item]
    harmless(str(caught.value))
    for name in ("sender", "receiver", "kind"):
        part = Part(7, 1, "shop", "bank", "weights", 0, "train", 0, 0, 0, 2, b"x" * 32)
        with pytest.raises(ColonnadeError) as refused:
            office().accept(part._replace(**{name: NASTY[:60_000]}), memoryview(b"\x03\x01"))
        harmless(str(refused.value))


def office() -> Any:
    kind = Kind("weights", None, reveals="noise")
    mesh: Any = SimpleNamespace()
    members = frozenset({"bank", "shop"})
    made = Post("bank", members, {"weights": kind}, Ledger(None), None, Network(mesh))
    made.begin(7, 1)
    return made


# ---- where they are shown ------------------------------------------------------------------------


def test_a_log_has_no_line_that_was_not_written_by_its_owner(tmp_path: Path) -> None:
    said: list[str] = []
    log = Log(tmp_path / "log.txt", said.append)
    log(f"'shop' has stopped: {NASTY}")
    text = (tmp_path / "log.txt").read_text()
    assert len(re.findall(r"^\d{4}-\d\d-\d\d ", text, re.MULTILINE)) == 1
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert all(letter.isprintable() or letter == "\n" for letter in said[0])


def test_a_terminal_shows_escapes_and_obeys_none(capsys: pytest.CaptureFixture[str]) -> None:
    _complain(f"RoleFailed: {NASTY}")
    shown = capsys.readouterr().err
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert "[red]olleh" in shown


def test_names_in_the_ledger_of_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A partner's ledger holds a Kind whose name ends the line and says that all is well."""
    row = {"row": 1, "sender": "a", "receiver": "b", "kind": f"x{NASTY[:300]}\nfine", "shape": [1]}
    row |= {"bytes": 1, "sequence": 0, "attempt": 1, "phase": "train", "epoch": 0, "step": 0}
    found = SimpleNamespace(
        owners=("a", "b"), matched=0, unreceived=[row], unsent=[], different=[], faults=["x\ny"],
        broken=True, bytes=0, open=0, sealed=0,
    )  # fmt: skip
    monkeypatch.setattr(ledger, "reconcile", lambda *_: found)
    ledger._reconcile(Namespace(reconcile=("a", "b"), json=False, quiet=False))
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert not {"fine", "y"} & {*lines} and any("olleh" in line for line in lines)


# ---- over processes ------------------------------------------------------------------------------


def trained(nursery: Nursery, folder: Path, **lies: list[str]) -> Any:
    program = (*nursery.program(Path("x"))[:-2], str(LIAR), json.dumps(lies))
    options = Options(restarts=0, program=program)
    return colonnade.run(TREE, out=folder / "run", runtime="process", processes=options)


@pytest.mark.slow
def test_a_forged_end_in_the_text_of_an_error(nursery: Nursery, tmp_path: Path) -> None:
    """A member fails with a text that holds a line "finished", escapes and 100 kB; the others' logs
    and errors hold none of it as a line of their own."""
    with pytest.raises(RoleFailed):
        trained(nursery, tmp_path, party3=["fail_with_a_forged_log"])
    for name in ("party1", "party2"):
        text = (tmp_path / "run" / "parties" / name / "log.txt").read_text()
        assert not re.search(r"^\d{4}-\d\d-\d\d [\d: ]*finished", text, re.MULTILINE)
        assert not re.search(r"^ *finished", text, re.MULTILINE)
        assert all(letter.isprintable() or letter == "\n" for letter in text)
        assert len(text) < 20_000
        result = json.loads((tmp_path / "run" / "parties" / name / "result.json").read_text())
        harmless(result["error"])


@pytest.mark.slow
def test_escapes_in_an_account(nursery: Nursery, tmp_path: Path) -> None:
    result = trained(nursery, tmp_path, party3=["remark_escapes"])
    told = json.loads((tmp_path / "run" / "parties" / "party1" / "result.json").read_text())
    said = [*result.content["warnings"], *told["warnings"]]
    assert sum("olleh" in line for line in said) >= 2
    for line in said:
        harmless(line)
