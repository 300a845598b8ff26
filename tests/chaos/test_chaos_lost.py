"""A party that never comes back: the others stop, or go on without it and repeat no step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from child import Plan
from federations import Field, toy, wait_for
from nursery import Nursery
from points import Kill
from test_chaos_stop import steps_of

import colonnade

Weights = Callable[[dict[str, Any]], dict[str, str]]
EPOCHS = 5


def members_by_step(field: Field) -> dict[tuple[int, int], set[frozenset[str]]]:
    """With whom each training step was opened, as the hub's ledger has it."""
    absent: frozenset[str] = frozenset()
    found: dict[tuple[int, int], set[frozenset[str]]] = {}
    for row in field.rows(field.hub):
        if "note" in row:
            names, _, _ = row["note"].removeprefix("went on without ").partition(" from ")
            absent = frozenset(names.split(", "))
        elif row["phase"] == "train":
            present = frozenset(field.names) - absent
            assert row["sender"] in present and row["receiver"] in present
            found.setdefault((row["epoch"], row["step"]), set()).add(present)
    return found


def check_no_step_twice(field: Field) -> None:
    """No step with other members than before."""
    opened = members_by_step(field)
    assert all(len(members) == 1 for members in opened.values())
    assert len({members for sets in opened.values() for members in sets}) > 1


@pytest.mark.parametrize(("method", "parties"), [("splitnn", 3), ("easter", 4)])
def test_the_others_go_on_without_it(
    method: str, parties: int, nursery: Nursery, tmp_path: Path
) -> None:
    lost = f"party{parties}"
    tree = toy(method, parties, epochs=EPOCHS)
    field = Field(tmp_path / "field", tree, on_lost="continue", deadline=1.5)
    kill = Plan([Kill("ledger: after", lost, 25)]).write(tmp_path / "plan")
    field.start_all(nursery.program(kill))
    codes = field.wait()
    assert codes.pop(lost) == -9 and set(codes.values()) == {0}
    check_no_step_twice(field)
    assert f"the run went on without '{lost}'" in field.result("party1")["warnings"]
    for name in field.names[:-1]:
        (note,) = [row for row in field.rows(name) if "note" in row]
        assert note["note"].startswith(f"went on without {lost} from train, epoch ")
        assert note["attempt"] == 2
    assert field.result("party1")["history"][-1]["epoch"] == EPOCHS


def test_what_was_best_with_it_is_not_returned_to(nursery: Nursery, tmp_path: Path) -> None:
    """At this rate the first epochs are the best ones with everybody; the loss comes later."""
    tree = toy("splitnn", lr=0.3, schedule="constant", metric="log_loss", epochs=8, patience=8)
    tree["data"] |= {"validation": 0.3, "train_rows": 800}
    undisturbed = colonnade.run(tree, out=tmp_path / "undisturbed").content["stopping"]
    field = Field(tmp_path / "field", tree, on_lost="continue", deadline=1.5)
    kill = Plan([Kill("verdict: taken", "party3", 5)]).write(tmp_path / "plan")
    field.start_all(nursery.program(kill))
    codes = field.wait()
    assert codes.pop("party3") == -9 and set(codes.values()) == {0}
    told = field.result("party1")["stopping"]
    assert undisturbed["best_epoch"] < 5 <= told["best_epoch"]
    assert told["value"] > undisturbed["value"]


@pytest.mark.usefixtures("no_orphans")
def test_who_was_left_behind_stays_so_whoever_dies_next(nursery: Nursery, tmp_path: Path) -> None:
    """After the loss others die, the hub among them; the lost one returns, and is refused."""
    tree = toy("easter", 4, epochs=EPOCHS, checkpoint={"steps": 7})
    field = Field(tmp_path / "field", tree, on_lost="continue", deadline=2.0)
    kills = [
        Kill("ledger: after", "party3", 40),  # all go back once before anybody is lost
        Kill("received", "party4", 20),
        Kill("keys: agreed", "party2"),  # in the first attempt without it
        Kill("received", "party1", 8),
    ]
    program = nursery.program(Plan(kills).write(tmp_path / "plan"))
    field.start_all(program)
    for name in ("party3", "party2", "party1"):
        assert field.processes[name].wait(20) == -9
        field.start(name, program, "--events")
    field.start("party4", program, "--events")
    codes = field.wait()
    assert codes.pop("party4") == 1 and set(codes.values()) == {0}
    assert "the federation has gone on without it" in field.shown("party4")
    check_no_step_twice(field)
    assert "the run went on without 'party4'" in field.result("party1")["warnings"]


@pytest.mark.usefixtures("no_orphans")
def test_a_loss_while_everybody_was_stopped(nursery: Nursery, tmp_path: Path) -> None:
    """Stopped together and started again without one: what the ledgers know is not repeated."""
    tree = toy("easter", 4, epochs=EPOCHS, checkpoint={"steps": 7})
    field = Field(tmp_path / "field", tree, on_lost="continue", deadline=2.0)
    program = nursery.program(Plan().write(tmp_path / "plan"))
    field.start_all(program)
    wait_for(lambda: steps_of(field.out("party1")) > 250)
    for process in field.processes.values():
        process.kill()
    field.wait()
    for name in ("party1", "party2", "party3"):
        field.start(name, program, "--events")
    codes = field.wait()
    assert codes.pop("party4") == -9 and set(codes.values()) == {0}
    check_no_step_twice(field)


def test_where_no_mask_could_hide_the_last_one_the_run_stops(
    nursery: Nursery, tmp_path: Path
) -> None:
    field = Field(tmp_path / "field", toy("easter"), on_lost="continue", deadline=1.5)
    kill = Plan([Kill("ledger: after", "party3", 20)]).write(tmp_path / "plan")
    field.start_all(nursery.program(kill))
    assert field.wait() == {"party1": 1, "party2": 1, "party3": -9}
    assert "cannot hide the embeddings of 'party2'" in field.result("party1")["error"]
    assert "'party1' has stopped: PeerLost" in field.result("party2")["error"]


def test_stop_says_who_was_lost(nursery: Nursery, tmp_path: Path) -> None:
    field = Field(tmp_path / "field", toy("splitnn"), on_lost="stop", deadline=1.5)
    kill = Plan([Kill("ledger: after", "party3", 8)]).write(tmp_path / "plan")
    field.start_all(nursery.program(kill))
    assert field.wait(20) == {"party1": 1, "party2": 1, "party3": -9}
    assert "waited for 'embedding' from 'party3'" in field.result("party1")["error"]
    assert "'party1' has stopped: PeerLost" in field.result("party2")["error"]
