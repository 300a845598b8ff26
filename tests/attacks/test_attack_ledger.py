"""A ledger is what its owner signed for when it was written: nobody deletes, moves or adds a row
afterwards without being found out, whatever the notes beside it say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery

import colonnade
from colonnade.deploy.supervisor import Options
from colonnade.wire import Ledger, ledger
from colonnade.wire.reconcile import reconcile

TREE = {
    "method": "splitnn",
    "seed": 3,
    "epochs": 2,
    "batch_size": 20,
    "model_options": {"hidden": [16]},
    "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
    "partition": {"kind": "columns", "parties": 3},
    "checkpoint": {"steps": 3},
    "absence": False,
    "splitnn": {"dim": 8},
}
Row = dict[str, Any]


@pytest.fixture(scope="module")
def made(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parties' folders of one honest run, that no test changes."""
    folder = tmp_path_factory.mktemp("made")
    options = Options(restarts=0, program=(*nursery.command(), "party"))
    colonnade.run(TREE, out=folder / "run", runtime="process", processes=options)
    return folder / "run" / "parties"


@pytest.fixture
def parties(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "parties")
    return tmp_path / "parties"


def rewrite(folder: Path, change: Callable[[list[Row]], list[Row]], **result: Any) -> None:
    """What an owner can do: change rows, chain them again, and change its result to fit."""
    path = folder / "ledger.jsonl"
    rows = change(list(ledger.read(path)))
    path.unlink()
    book = Ledger(path)
    for row in rows:
        book.copy(row)
    book.close()
    content = json.loads((folder / "result.json").read_text())
    content["wire"]["head"] = book.head
    (folder / "result.json").write_text(json.dumps(content | result))


def without_received(rows: list[Row]) -> list[Row]:
    """All but the first of what came."""
    came = [row for row in rows if row.get("receiver") == "party2"]
    return [row for row in rows if row not in came[1:]]


def note_another_attempt(folder: Path) -> None:
    """As if everybody had begun again, and the missing messages had died with a process."""
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(manifest | {"attempt": 2}))
    book = Ledger(folder / "ledger.jsonl", attempt=2)
    book.note("all began again")
    book.close()
    rewrite(folder, lambda rows: rows)


@pytest.mark.slow
def test_the_ledgers_of_an_honest_run_agree(made: Path) -> None:
    found = reconcile(made / "party1", made / "party2")
    assert found.faults == [] and found.unreceived == [] and found.matched > 20


@pytest.mark.slow
@pytest.mark.xfail(strict=True, raises=AssertionError)
@pytest.mark.parametrize("lie", ["attempt", "stopped", "no result"])
def test_received_rows_are_not_denied(lie: str, parties: Path) -> None:
    """A receiver deletes its received rows, chains the rest again, and makes the files beside it
    say that they died with a process."""
    liar = parties / "party2"
    rewrite(liar, without_received, **({"status": "stopped"} if lie == "stopped" else {}))
    if lie == "attempt":
        note_another_attempt(liar)
    elif lie == "no result":
        (liar / "result.json").unlink()
    found = reconcile(parties / "party1", liar)
    assert len(found.unreceived) > 10
    assert any("'party2'" in fault for fault in found.faults)


@pytest.mark.slow
@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_rows_are_not_moved(parties: Path) -> None:
    """The same rows in another order would be another history."""

    def swap(rows: list[Row]) -> list[Row]:
        rows[3], rows[5] = rows[5], rows[3]
        return rows

    rewrite(parties / "party2", swap)
    faults = reconcile(parties / "party1", parties / "party2").faults
    assert any("'party2'" in fault for fault in faults)
