"""Two ledgers of one run: equal where both are honest, and every change at one of them is found."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery

from colonnade.cli.main import main
from colonnade.errors import RunError
from colonnade.wire import Kind, Ledger, Message, ledger
from colonnade.wire.reconcile import reconcile

CONFIG = """
method = "splitnn"
epochs = 1
batch_size = 32
[data]
name = "digits"
train_rows = 120
test_rows = 40
[partition]
kind = "strips"
parties = 3
[splitnn]
dim = 8
[parties.bank]
[parties.shop]
[parties.post]
"""
EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="features")
Row = dict[str, Any]


@pytest.fixture(scope="module")
def made(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parties' folders of one real run, three processes, that no test changes."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "three.toml").write_text(CONFIG)
    command = ["run", "three.toml", "--runtime", "process", "--out", "three", "--quiet"]
    subprocess.run([*nursery.command(), *command], cwd=folder, check=True, timeout=120)
    return folder / "three" / "parties"


@pytest.fixture
def parties(made: Path, tmp_path: Path) -> Path:
    """A copy to be tampered with, without seals: what they add is in tests/attacks."""
    for name in ("bank", "shop", "post"):
        shutil.copytree(made / name, tmp_path / name)
        (tmp_path / name / "ledger-seals.jsonl").unlink()
    return tmp_path


def rewrite(folder: Path, change: Callable[[list[Row]], None], **result: Any) -> None:
    """What an owner can do: change rows, chain them anew, and change its result too."""
    path = folder / "ledger.jsonl"
    rows = list(ledger.read(path))
    change(rows)
    path.unlink()
    book = Ledger(path)
    for row in rows:
        book.copy(row)
    book.close()
    content = json.loads((folder / "result.json").read_text())
    content["wire"]["head"] = book.head
    (folder / "result.json").write_text(json.dumps(content | result))


def add_row(path: Path, sender: str, receiver: str, sequence: int = 0) -> None:
    book = Ledger(path)
    message = Message(sender, receiver, EMBEDDING, 0, sequence, "train", 0, sequence, 1, 0.0)
    book.write(message, ledger.describe(message), 9, "ab" * 32)
    book.close()


def nth(rows: list[Row], number: int, **fields: Any) -> Row:
    return [row for row in rows if all(row[k] == v for k, v in fields.items())][number]


def test_the_ledgers_of_a_real_run_agree(made: Path) -> None:
    found = reconcile(made / "bank", made / "shop")
    rows = list(ledger.read(made / "shop" / "ledger.jsonl"))
    assert found.owners == ("bank", "shop") and found.faults == []
    assert found.matched == len(rows) > 0
    assert found.bytes == sum(row["bytes"] for row in rows)
    assert not found.unreceived and not found.unsent and not found.different
    assert reconcile(made / "shop", made / "bank").matched == found.matched
    files = reconcile(made / "bank" / "ledger.jsonl", made / "post" / "ledger.jsonl")
    assert files.owners == ("bank", "post") and files.matched == found.matched
    assert reconcile(made / "shop", made / "post").matched == 0  # splitnn: through the hub alone


def test_a_copy_of_any_name(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "from-shop.jsonl"
    shutil.copyfile(made / "shop" / "ledger.jsonl", copy)
    assert reconcile(made / "bank", copy).owners == ("bank", "shop")


def test_a_changed_row_breaks_its_chain(parties: Path) -> None:
    path = parties / "shop" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"epoch":0', '"epoch":1', 1))
    found = reconcile(parties / "bank", parties / "shop")
    assert found.matched == 0
    assert len(found.faults) == 1 and "the chain breaks at row 1" in found.faults[0]


def test_a_shortened_ledger_of_a_finished_run(parties: Path) -> None:
    path = parties / "shop" / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert (
        "not the one the run ended with" in reconcile(parties / "bank", parties / "shop").faults[0]
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("sha256", "0" * 64), ("bytes", 7), ("shape", [1, 8]), ("dtype", "float64"), ("step", 99)],
)
def test_a_row_that_was_changed_and_chained_anew(parties: Path, field: str, value: object) -> None:
    def change(rows: list[Row]) -> None:
        nth(rows, 0, sender="shop")[field] = value

    rewrite(parties / "shop", change)
    found = reconcile(parties / "bank", parties / "shop")
    ((mine, its),) = found.different
    assert (mine["sender"], its["sender"]) == ("shop", "shop")
    assert its[field] == value != mine[field]
    assert found.faults == ["the two ledgers disagree about a message"]
    ((its, mine),) = reconcile(parties / "shop", parties / "bank").different
    assert its[field] == value


def loosen(folder: Path, **more: Any) -> None:
    """As the run of a method whose parties come and go."""
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(manifest | {"elastic": True, **more}))


@pytest.mark.parametrize("field", [{"away": "shop"}, {}], ids=["now", "older ledgers"])
def test_where_parties_come_and_go_what_was_lost_at_the_end_is_excused(
    field: dict[str, str], parties: Path
) -> None:
    def lose(count: int) -> Callable[[list[Row]], None]:
        def change(rows: list[Row]) -> None:
            theirs = [row for row in rows if row["sender"] == "bank"]
            del rows[rows.index(theirs[-count]) :]

        return change

    for name in ("bank", "shop"):
        loosen(parties / name)
    assert reconcile(parties / "bank", parties / "shop").faults == []
    rewrite(parties / "shop", lose(2))
    found = reconcile(parties / "bank", parties / "shop")
    assert "never received" in found.faults[0]  # both have ended, and nobody was away
    bank = parties / "bank"
    book = Ledger(bank / "ledger.jsonl")
    book.note("'shop' was away at the end", **field)
    book.close()
    rewrite(bank, lambda rows: None)
    found = reconcile(bank, parties / "shop")
    assert [row["sender"] for row in found.unreceived] == ["bank"] * len(found.unreceived)
    assert [fault for fault in found.faults if "never received" in fault] == []
    assert "never received" not in str(reconcile(bank, parties / "post").faults)


def test_where_parties_come_and_go_nothing_vanishes_in_the_middle(parties: Path) -> None:
    """Not even in an attempt that was not the last: what came later has come."""
    for name in ("bank", "shop"):
        loosen(parties / name, attempt=2)
    rewrite(parties / "shop", lambda rows: rows.remove(nth(rows, 1, sender="bank")))
    found = reconcile(parties / "bank", parties / "shop")
    assert len(found.unreceived) == 1 and "never received" in found.faults[0]


def test_a_message_that_its_sender_denies(parties: Path) -> None:
    rewrite(parties / "shop", lambda rows: rows.remove(nth(rows, 1, sender="shop")))
    found = reconcile(parties / "bank", parties / "shop")
    (row,) = found.unsent
    assert (row["sender"], row["receiver"], row["sequence"]) == ("shop", "bank", 1)
    assert found.faults == ["messages were received that their sender's ledger does not have"]


def drop_received(rows: list[Row]) -> None:
    rows.remove(nth(rows, -1, receiver="shop"))


def test_a_message_that_its_receiver_denies(parties: Path) -> None:
    rewrite(parties / "shop", drop_received)
    found = reconcile(parties / "bank", parties / "shop")
    assert [row["kind"] for row in found.unreceived] == ["gradient"]
    assert found.faults == ["messages of a finished run were sent and never received"]


def test_what_a_process_that_died_did_not_write_down(parties: Path) -> None:
    rewrite(parties / "shop", drop_received, status="stopped")
    found = reconcile(parties / "bank", parties / "shop")
    assert len(found.unreceived) == 1 and found.faults == []


def test_what_was_done_again_in_a_later_attempt(parties: Path) -> None:
    def later(rows: list[Row]) -> None:
        again = [row | {"attempt": 2} for row in rows]
        rows += again

    rewrite(parties / "bank", later)

    def lost(rows: list[Row]) -> None:
        later(rows)
        rows.remove(nth(rows, -1, receiver="shop", attempt=1))

    rewrite(parties / "shop", lost)
    found = reconcile(parties / "bank", parties / "shop")
    assert [row["attempt"] for row in found.unreceived] == [1] and found.faults == []


def test_rows_that_nobody_else_would_write(parties: Path) -> None:
    def twice(rows: list[Row]) -> None:
        rows.append(nth(rows, 0, sender="shop"))

    rewrite(parties / "shop", twice)
    assert "are one message" in reconcile(parties / "bank", parties / "shop").faults[0]
    rewrite(parties / "post", lambda rows: rows[0].update(sequence="0"))
    assert "did not write row 0" in reconcile(parties / "bank", parties / "post").faults[0]
    rewrite(parties / "bank", lambda rows: rows[2].pop("kind"))
    assert "did not write row 2" in reconcile(parties / "bank", parties / "post").faults[0]


def test_what_cannot_be_compared(parties: Path, made: Path) -> None:
    with pytest.raises(RunError, match="both of 'bank'"):
        reconcile(parties / "bank", made / "bank")
    with pytest.raises(RunError, match="all parties together: give two of those in"):
        reconcile(made.parent, made / "bank")
    with pytest.raises(RunError, match="has no ledger"):
        reconcile(parties, made / "bank")
    joint = parties / "joint.jsonl"
    shutil.copyfile(made.parent / "ledger.jsonl", joint)
    add_row(joint, "shop", "post")
    with pytest.raises(RunError, match="no single party owns it"):
        reconcile(joint, made / "bank")
    manifest = json.loads((parties / "shop" / "run.json").read_text())
    (parties / "shop" / "run.json").write_text(json.dumps(manifest | {"run": "ab"}))
    with pytest.raises(RunError, match="is of run ab"):
        reconcile(parties / "shop", parties / "bank")


# ---- two parties: both are an end of every message -----------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """bank and shop; shop has sent one message that bank never had."""
    for owner, count in (("bank", 2), ("shop", 3)):
        (tmp_path / owner).mkdir()
        path = tmp_path / owner / "ledger.jsonl"
        book = Ledger(path)
        book.note("a note is no message")
        book.close()
        for number in range(count):
            add_row(path, "shop", "bank", number)
    return tmp_path


def say_whose(folder: Path, owner: str, status: str = "stopped") -> None:
    result = {"status": status, "parties": ["bank", "shop"], "config": {}, "wire": {}}
    (folder / "result.json").write_text(json.dumps(result | {"weights_sha256": {owner: ""}}))


def test_of_two_parties_one_must_say_who_it_is(two: Path) -> None:
    with pytest.raises(RunError, match="the rows of two parties do not show who owns which"):
        reconcile(two / "bank", two / "shop")
    say_whose(two / "shop", "shop")
    found = reconcile(two / "bank", two / "shop")
    assert found.owners == ("bank", "shop") and found.matched == 2
    assert [row["sequence"] for row in found.unreceived] == [2] and found.faults == []
    (two / "shop" / "result.json").unlink()
    (two / "bank" / "run.json").write_text(json.dumps({"party": "bank"}))
    assert len(reconcile(two / "bank", two / "shop").unreceived) == 1


def test_the_label_holder_keeps_everybodys_account(two: Path) -> None:
    say_whose(two / "bank", "bank")
    content = json.loads((two / "bank" / "result.json").read_text())
    content["weights_sha256"]["shop"] = ""
    (two / "bank" / "result.json").write_text(json.dumps(content))
    assert reconcile(two / "bank", two / "shop").owners == ("bank", "shop")


def test_what_was_denied_was_not_sent_and_says_whose_it_is(two: Path) -> None:
    book = Ledger(two / "shop" / "ledger.jsonl")
    message = Message("shop", "bank", EMBEDDING, 0, 3, "train", 0, 3, 1, 0.0)
    book.deny(message, ledger.describe(message), "its policy")
    book.close()
    found = reconcile(two / "bank", two / "shop")
    assert found.owners == ("bank", "shop") and len(found.unreceived) == 1


# ---- the command ---------------------------------------------------------------------------------


def test_the_command(made: Path, parties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "--reconcile", str(made / "bank"), str(made / "shop")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("bank and shop\n  matched") and "the two ledgers agree\n" in text

    rewrite(parties / "shop", drop_received)
    rewrite(parties / "shop", lambda rows: rows.remove(nth(rows, 0, sender="shop")))
    rewrite(parties / "shop", lambda rows: nth(rows, 0, sender="shop").update(bytes=1))
    arguments = ["ledger", "--reconcile", str(parties / "bank"), str(parties / "shop")]
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "sent, not received   1\n    bank → shop, gradient" in text
    assert "never sent           1\n    shop → bank, embedding 0 of attempt 1" in text
    assert "at bank, 1 at shop" in text and text.count("fault: ") == 3

    assert main([*arguments, "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["owners"] == ["bank", "shop"] and not content["agree"]
    assert content["different"][0]["shop"]["bytes"] == 1
    assert [len(content[what]) for what in ("unreceived", "unsent", "faults")] == [1, 1, 3]


def test_a_run_or_two_ledgers(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger"]) == 2
    assert "give either a RUN, or --reconcile A B" in capsys.readouterr().err
    assert main(["ledger", str(made / "bank"), "--reconcile", "a", "b"]) == 2
    assert main(["ledger", "--reconcile", "a", "b"]) == 2
    assert main(["ledger", str(made / "bank")]) == 0
