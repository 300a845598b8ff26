"""The audit file: every message and control step is an event of the documented fields."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from colonnade.cli.main import main
from colonnade.wire import Kind, Ledger, Message, ledger, seals
from colonnade.wire.seals import Flow, Seal, Statement

KIND = Kind("embedding", ("batch", "dim"), reveals="features")
RUN = "00000000000000ab"
FIELDS = Path(__file__).parents[2] / "docs" / "reference" / "audit.md"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of shop: two attempts, a denial, a note, and two seals of each party."""
    folder = tmp_path / "shop"
    folder.mkdir()
    book = Ledger(folder / "ledger.jsonl")
    keys = {name: Ed25519PrivateKey.generate() for name in ("bank", "shop")}

    def message(number: int) -> Message:
        return Message("shop", "bank", KIND, 0, number, "train", 0, number, 1, 0.0)

    def write(number: int) -> None:
        book.write(message(number), ledger.describe(message(number)), 9, "ab" * 32)

    def seal(by: str, to: str, at: Any, place: str, time: str) -> None:
        flow = Flow(book.attempt, 0, "", 0, "")
        said = Statement(RUN, by, to, book.attempt, at, place, time, book.count, book.head, (flow,))
        key = keys[by].public_key().public_bytes_raw().hex()
        made = Seal(said, key, keys[by].sign(said.text()).hex())
        seals.append(seals.beside(folder / "ledger.jsonl"), [made])

    write(0)
    write(1)
    seal("shop", "bank", "checkpoint", "train-00001-0000000", "2026-01-01T00:00:01Z")
    seal("bank", "shop", "answer", "train-00001-0000000", "2026-01-01T00:00:02Z")
    book.attempt = 2
    write(0)
    book.deny(message(1), ledger.describe(message(1)), "its policy")
    book.note("'bank' was away at the end")
    seal("shop", "bank", "end", "", "2026-01-01T00:00:09Z")
    seal("bank", "shop", "answer", "", "2026-01-01T00:00:10Z")
    book.close()
    (folder / "run.json").write_text(json.dumps({"run": RUN, "party": "shop"}))
    (folder / "result.json").write_text(
        json.dumps({"status": "finished", "error": "", "wire": {"head": book.head}})
    )
    return folder


def exported(run: Path, file: Path) -> list[dict[str, Any]]:
    assert main(["ledger", str(run), "--export", str(file)]) == 0
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_step_is_an_event(run: Path, tmp_path: Path) -> None:
    found = exported(run, tmp_path / "audit.jsonl")
    first, second = "2026-01-01T00:00:01Z", "2026-01-01T00:00:09Z"
    assert [(one["event"], one["time"]) for one in found] == [
        ("attempt", None),
        ("message", first),
        ("message", first),
        ("checkpoint", first),
        ("seal", first),
        ("seal", "2026-01-01T00:00:02Z"),
        ("attempt", first),
        ("message", second),
        ("denied", second),
        ("note", second),
        ("seal", second),
        ("seal", "2026-01-01T00:00:10Z"),
        ("end", None),
    ]
    assert {one["schema"] for one in found} == {"colonnade-audit-1"}
    assert {(one["run"], one["party"]) for one in found} == {(RUN, "shop")}
    messages = [one for one in found if one["event"] == "message"]
    assert [one["since"] for one in messages] == [None, None, first]
    assert {one["direction"] for one in messages} == {"sent"}
    assert all(one["holds"] for one in found if one["event"] == "seal")
    assert [one["why"] for one in found if one["event"] == "denied"] == ["its policy"]


def test_all_fields_are_documented(run: Path, tmp_path: Path) -> None:
    """docs/reference/audit.md names every event and every field, and nothing else."""
    text = FIELDS.read_text()
    found = exported(run, tmp_path / "audit.jsonl")
    events: dict[str, set[str]] = {}
    for one in found:
        events.setdefault(one["event"], set()).update(one)
    told = {
        name: set(re.findall("`([a-z0-9_]+)`", fields))
        for name, fields in re.findall(r"^\| `([a-z]+)` \|[^|]*\|([^|]*)\|$", text, re.M)
    }
    everywhere = {"schema", "event", "time", "run", "party", "task"}
    for name, fields in events.items():
        assert fields - everywhere == told[name], name
    assert set(told) == {*events, "stop"}


def test_a_ledger_that_was_changed_gives_no_audit_file(run: Path, tmp_path: Path) -> None:
    path = run / "ledger.jsonl"
    path.write_text(path.read_text().replace('"step":1', '"step":7', 1))
    file = tmp_path / "audit.jsonl"
    assert main(["ledger", str(run), "--export", str(file)]) == 2
    assert [one.name for one in tmp_path.iterdir()] == ["shop"]


def test_what_cannot_be_exported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", str(tmp_path), "--export", str(tmp_path / "x")]) == 2
    assert "has no ledger" in capsys.readouterr().err
    assert main(["ledger", str(run), "--export", str(tmp_path / "no" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    both = ["--reconcile", str(run), str(run), "--export", "x"]
    assert main(["ledger", *both]) == 2
    assert "--export is of one RUN" in capsys.readouterr().err
    shutil.rmtree(run)
