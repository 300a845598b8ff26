"""A ledger is what its owner signed for when it was written: nobody deletes, moves or adds a row
afterwards without being found out, whatever the notes beside it say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federations import Field
from nursery import Nursery

import colonnade
from colonnade.cli.main import main
from colonnade.deploy.supervisor import Options
from colonnade.errors import RunError
from colonnade.results import audit
from colonnade.wire import Ledger, ledger, seals
from colonnade.wire.reconcile import reconcile
from colonnade.wire.seals import Seal

LIAR = Path(__file__).with_name("liar.py")
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
    assert any("'party2' signed for 19 messages of 'party1'" in fault for fault in found.faults)
    assert any("the ledger of 'party2' is not the one" in fault for fault in found.faults)


def drop_one(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["row"] != 8]


def drop_own(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("sender") != "party2"]


def drop_a_kind(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("kind") != "gradient"]


def swap(rows: list[Row]) -> list[Row]:
    rows[3], rows[5] = rows[5], rows[3]
    return rows


def change(rows: list[Row]) -> list[Row]:
    rows[3]["sha256"] = "0" * 64
    return rows


def deny(rows: list[Row]) -> list[Row]:
    """Say of a message that the policy has kept it inside."""
    sent = next(row for row in rows if row.get("sender") == "party2")
    sent |= {"denied": "its policy", "bytes": 0}
    return rows


def cut_the_end(rows: list[Row]) -> list[Row]:
    return rows[:-3]


def renumber(rows: list[Row]) -> list[Row]:
    """All of it in an attempt that nobody else knows."""
    return [row | {"attempt": 2} for row in rows]


def nothing(rows: list[Row]) -> list[Row]:
    return []


CHANGES = [drop_one, drop_own, drop_a_kind, swap, change, deny, renumber, nothing]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("alone", [False, True])
def test_no_row_is_removed_moved_or_changed(
    change: Callable[[list[Row]], list[Row]], alone: bool, parties: Path
) -> None:
    """One row, all of one direction or of one Kind, the order, the content, the whole: the owner
    chains the rest again, and the seals that its peer keeps do not fit any more. To remove the own
    seals, or to send the ledger without the files beside it, helps nobody."""
    liar = parties / "party2"
    rewrite(liar, change, status="stopped")
    place = liar
    if alone:
        (liar / "ledger-seals.jsonl").unlink()
        place = liar / "ledger.jsonl"
    found = reconcile(parties / "party1", place)
    assert any("the ledger of 'party2' is not the one" in fault for fault in found.faults)
    assert main(["ledger", "--reconcile", str(parties / "party1"), str(place)]) == 1


@pytest.mark.slow
def test_rows_are_not_added_after_the_last_word(parties: Path) -> None:
    """A sender claims to have sent what nobody has received."""

    def add(rows: list[Row]) -> list[Row]:
        last = [row for row in rows if row.get("sender") == "party2"][-1]
        return [*rows, last | {"sequence": last["sequence"] + 1}]

    rewrite(parties / "party2", add, status="stopped")
    faults = reconcile(parties / "party1", parties / "party2").faults
    assert faults == ["'party2' signed its last message, and 1 came into its ledger after"]


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["sign_nothing", "write_down_nothing_received"])
def test_who_does_not_sign_is_named_at_the_first_checkpoint(
    lie: str, nursery: Nursery, tmp_path: Path
) -> None:
    """The run stops there: the label holder answers nothing that came later."""
    field = Field(tmp_path / "field", TREE)
    with field.changed() as content:
        content["patience"] = 2.0
    program = (*nursery.program(Path("x"))[:-2], str(LIAR), json.dumps({"party2": [lie]}))
    field.start_all(program)
    assert set(field.wait(30).values()) == {1}
    named = "'party2' (has not signed for|signed for 0 of the) 3 messages"
    assert re.search(named, field.log("party1"))
    sent = [row for row in field.rows("party1") if row["sender"] == "party1"]
    assert {row["step"] for row in sent} == {0, 1, 2}
    assert not list((field.out("party1") / "checkpoints").glob("*.json"))


# ---- the seals themselves ------------------------------------------------------------------------


def reseal(folder: Path, change: Callable[[list[Seal]], list[Seal]]) -> None:
    """What an owner can do with the seals that lie in its folder."""
    path = folder / "ledger-seals.jsonl"
    made = change(list(seals.read(path)))
    path.unlink()
    seals.append(path, made)


@pytest.mark.slow
def test_nobody_signs_for_another(parties: Path) -> None:
    """party1 makes a seal in which party2 confirms fewer messages: without its key, with its key
    and no signature of it, and with another key."""

    def forged(seal: Seal, key: Ed25519PrivateKey | None) -> Seal:
        if seal.statement.by != "party2":
            return seal
        said = replace(seal.statement, rows=0, head="0" * 64)
        if key is None:
            return replace(seal, statement=said)
        mine = key.public_key().public_bytes_raw().hex()
        return Seal(said, mine, key.sign(said.text()).hex())

    shutil.copytree(parties, parties / "again")
    reseal(parties / "party1", lambda made: [forged(seal, None) for seal in made])
    faults = reconcile(parties / "party1", parties / "party2").faults
    assert any("a seal of 'party2' for 'party1' does not bear its signature" in f for f in faults)

    key = Ed25519PrivateKey.generate()
    again = parties / "again"
    reseal(again / "party1", lambda made: [forged(seal, key) for seal in made])
    faults = reconcile(again / "party1", again / "party2").faults
    assert any("seals of 'party2' with different keys" in fault for fault in faults)


@pytest.mark.slow
def test_a_seal_of_another_run_proves_nothing(parties: Path) -> None:
    def older(made: list[Seal]) -> list[Seal]:
        return [
            replace(seal, statement=replace(seal.statement, run="00000000000000ab"))
            if seal.statement.by == "party2"
            else seal
            for seal in made
        ]

    reseal(parties / "party1", older)
    assert reconcile(parties / "party1", parties / "party2").faults != []


@pytest.mark.slow
def test_a_file_of_seals_that_is_none(parties: Path) -> None:
    path = parties / "party1" / "ledger-seals.jsonl"
    for line in ("{}", "[]", "3", "[" * 10_000, '{"run": 1}', "\x00"):
        path.write_text(line + "\n")
        with pytest.raises(RunError, match="line 1 is not a seal"):
            reconcile(parties / "party1", parties / "party2")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "sealed"), [(-1, False), (2, True)])
def test_what_came_after_the_last_seal_is_reported_as_what_it_is(
    number: int, sealed: bool, parties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was killed in its second epoch: what is missing behind the last seal may have died
    with a process, what is missing before it has not."""
    for name in ("party1", "party2"):
        reseal(parties / name, lambda made: made[: len(made) // 2])
        (parties / name / "result.json").unlink()
    liar = parties / "party2"
    rows = list(ledger.read(liar / "ledger.jsonl"))
    gone = [row for row in rows if row.get("receiver") == "party2"][number]
    (liar / "ledger.jsonl").unlink()
    book = Ledger(liar / "ledger.jsonl")
    for row in rows:
        if row is not gone:
            book.copy(row)
    book.close()
    code = main(["ledger", "--reconcile", str(parties / "party1"), str(liar)])
    said = capsys.readouterr().out
    assert "sent, not received   1" in said and "that are not" in said and "agree" not in said
    assert code == sealed and ("fault: '" in said) == sealed


@pytest.mark.slow
def test_what_is_not_sealed_is_not_called_so(
    parties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that was killed before its first checkpoint nobody has signed anything, and what is
    missing may have died with a process or not."""
    liar = parties / "party2"
    rewrite(liar, without_received)
    for name in ("party1", "party2"):
        (parties / name / "ledger-seals.jsonl").unlink()
        (parties / name / "result.json").unlink()
    assert main(["ledger", "--reconcile", str(parties / "party1"), str(liar)]) == 0
    said = capsys.readouterr().out
    assert "nothing: no word of the two is signed" in said and "agree" not in said


@pytest.mark.slow
@pytest.mark.parametrize("change", [drop_one, swap, change, deny, cut_the_end])
def test_a_ledger_that_is_not_the_signed_one_is_not_exported(
    change: Callable[[list[Row]], list[Row]], parties: Path, tmp_path: Path
) -> None:
    """An owner changes its ledger, chains the rest again, and gives an auditor the audit file. What
    it has signed lies beside its ledger, and says otherwise."""
    rewrite(parties / "party2", change)
    with pytest.raises(RunError, match="not the one that 'party2' signed for"):
        audit.export(parties / "party2", tmp_path / "audit.jsonl")
    assert not (tmp_path / "audit.jsonl").exists()


def test_what_a_party_has_predicted_is_exported_too(tmp_path: Path) -> None:
    """Whatever left the party is in the audit file: also what left it after its training, to which
    no policy of a training applied."""
    tree = TREE | {"epochs": 1, "checkpoint": {"epochs": 0}}
    run = colonnade.run(tree, out=tmp_path / "run").path
    trained = audit.export(run, tmp_path / "audit.jsonl")
    for _ in range(2):
        colonnade.load(run).predict()
    total = audit.export(run, tmp_path / "audit.jsonl")
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    rows = list(ledger.read(run / "ledger-predict.jsonl"))
    later = [one for one in events if one["task"] == "predict"]
    assert total == len(events) > trained and {one["task"] for one in events[:trained]} == {"train"}
    messages = [one for one in later if one["event"] == "message"]
    assert [(one["row"], one["sha256"]) for one in messages] == [
        (row["row"], row["sha256"]) for row in rows if "kind" in row
    ]
    path = run / "ledger-predict.jsonl"
    path.write_text(path.read_text().replace("party2", "party3", 1))
    (tmp_path / "audit.jsonl").unlink()
    with pytest.raises(RunError, match=r"ledger-predict.jsonl: the chain breaks at row 1"):
        audit.export(run, tmp_path / "audit.jsonl")
    assert [one.name for one in tmp_path.iterdir()] == ["run"]
