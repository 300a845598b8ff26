"""What cannot go well ends with a word about it, at every party, and never with a wait."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from child import Plan
from federations import Field, Options, toy
from nursery import Nursery
from test_chaos_stop import place_of

import colonnade
from colonnade.errors import RunError
from colonnade.wire import Kind, Ledger, Message
from colonnade.wire.ledger import describe
from colonnade.wire.reconcile import reconcile

Weights = Callable[[dict[str, Any]], dict[str, str]]
CHATTER = str(Path(__file__).parent / "chatter.py")

pytestmark = pytest.mark.usefixtures("no_orphans")


@pytest.fixture
def plain(nursery: Nursery, tmp_path: Path) -> tuple[str, ...]:
    """The command of a party in which nothing is spoilt."""
    return nursery.program(Plan().write(tmp_path / "plain"))


def test_nobody_else_starts(plain: tuple[str, ...], tmp_path: Path) -> None:
    """The label holder misses the first of the others; the others miss the label holder."""
    missed = {"party1": "party2", "party3": "party1"}
    fields = {name: Field(tmp_path / name, toy("splitnn"), deadline=2.0) for name in missed}
    began = time.monotonic()
    for name, field in fields.items():
        field.start(name, plain, "--events")
    for name, field in fields.items():
        assert field.wait(21) == {name: 1}
        said = f"PeerLost: '{name}' waited for 'a connection' from '{missed[name]}'"
        assert said in field.shown(name)
    assert time.monotonic() - began < 21  # seven seconds, and slow machines


def test_a_port_that_is_taken(plain: tuple[str, ...], tmp_path: Path) -> None:
    field = Field(tmp_path / "field", toy("splitnn"))
    with field.changed() as content:
        host, _, port = content["parties"]["party1"]["address"].rpartition(":")
    with socket.create_server((host, int(port))):
        field.start("party1", plain, "--events")
        assert field.wait(20) == {"party1": 2}
    assert f"cannot listen at {host}:{port}" in field.shown("party1")


def test_a_method_that_locks_up_is_named_at_all_parties(nursery: Nursery, tmp_path: Path) -> None:
    """Also where the label holder's own role has ended, and only the others wait."""
    waits = {
        "all": ["party1 waits for 'answer' from party2", "party3 waits for 'answer' from party1"],
        "passives": ["party3 waits for 'answer' from party2"],
    }
    plan = Plan(patched={"runtime.watch.STUCK_SECONDS": 1.0}).write(tmp_path / "plan")
    fields = {}
    for stuck in waits:
        tree = toy(CHATTER, evaluate_every=0, chatter={"stuck": stuck})
        fields[stuck] = Field(tmp_path / stuck, tree)
        fields[stuck].start_all(nursery.program(plan))
    for stuck, field in fields.items():
        assert field.wait(30) == {"party1": 1, "party2": 1, "party3": 1}
        for name in field.names:
            assert "Deadlock" in field.log(name)
            assert all(wait in field.result(name)["error"] for wait in waits[stuck])


def test_a_policy_stops_its_party_before_anything_leaves(
    plain: tuple[str, ...], tmp_path: Path
) -> None:
    field = Field(tmp_path / "field", toy("splitnn"))
    policy = tmp_path / "policy.toml"
    policy.write_text('[allow.embedding]\nto = ["party3"]\n')
    field.start("party1", plain, "--events")
    field.start("party2", plain, "--events", "--policy", str(policy))
    field.start("party3", plain, "--events")
    assert field.wait(20) == {"party1": 1, "party2": 1, "party3": 1}
    why = "'party2' does not send 'embedding' to 'party1'"
    assert f"Denied: {why}" in field.shown("party2")
    for other in ("party1", "party3"):
        assert f"'party2' has stopped: Denied: {why}" in field.result(other)["error"]
    (row,) = [row for row in field.rows("party2") if row.get("sender") == "party2"]
    assert why in row["denied"]
    assert not [row for row in field.rows("party1") if row["sender"] == "party2"]


def full_disk(
    folder: Path, tree: dict[str, Any], largest: int, nursery: Nursery, plain: tuple[str, ...]
) -> tuple[Field, str]:
    """party2 can write no file larger than this; later it can, and the run goes on.

    Returns what party2 said, and where its last checkpoint lay.
    """
    field = Field(folder / "field", tree)
    full = nursery.program(Plan(largest_file={"party2": largest}).write(folder / "full"))
    field.start_all(full)
    assert field.wait(30) == {"party1": 1, "party2": 2, "party3": 1}
    assert "'party2' has stopped: RunError" in field.result("party1")["error"]
    said, place = field.shown("party2"), place_of(field.out("party2"))
    field.start_all(plain)
    assert set(field.wait().values()) == {0}
    assert f"attempt 2: all start from {place or 'the beginning'}" in field.log("party2")
    field.rows("party2")
    return field, said


def test_a_disk_that_is_too_full_for_the_ledger(
    nursery: Nursery, plain: tuple[str, ...], undisturbed: Weights, tmp_path: Path
) -> None:
    tree = toy("splitnn", epochs=12, checkpoint={"epochs": 1})
    field, said = full_disk(tmp_path, tree, 40_000, nursery, plain)
    assert "ledger.jsonl cannot be written: File too large" in said
    assert field.weights() == undisturbed(tree)


def test_a_row_of_which_only_a_part_fits_is_not_taken_for_written(tmp_path: Path) -> None:
    """Else its message leaves, and nobody can tell afterwards that it did."""
    kind = Kind("note", (), reveals="nothing")
    message = Message("bank", "shop", kind, 1.0, 0, "train", 0, 0, 1, 0.0)
    book = Ledger(tmp_path / "ledger.jsonl", through=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(RunError, match="cannot be written"):
            book.write(message, describe(message), 9, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        book.close()
        book.close()


def test_a_disk_that_is_too_full_for_a_checkpoint(
    nursery: Nursery, plain: tuple[str, ...], undisturbed: Weights, tmp_path: Path
) -> None:
    tree = toy("splitnn")
    field, said = full_disk(tmp_path, tree, 8_000, nursery, plain)
    assert "cannot be written" in said and "the one before is intact" in said
    assert field.weights() == undisturbed(tree)
    for other in ("party1", "party3"):
        assert reconcile(field.out("party2"), field.out(other)).faults == []


def test_a_long_history_comes_through(nursery: Nursery, tmp_path: Path) -> None:
    """An account that does not fit one frame."""
    tree = toy(CHATTER, epochs=1, evaluate_every=0, chatter={"diary": 500})
    tree["checkpoint"] = {"epochs": 0}
    plan = Plan().write(tmp_path / "plan")
    result = colonnade.run(
        tree,
        out=tmp_path / "run",
        runtime="process",
        processes=Options(restarts=0, program=nursery.program(plan)),
    )
    account = tmp_path / "run" / "parties" / "party2" / "account.json"
    assert account.stat().st_size > 1 << 20
    assert len(result.history) == 501
