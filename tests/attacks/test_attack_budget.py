"""A privacy budget is spent once, whatever is forgotten: nothing gives it back.

FedEmb's server gains from every release of the same rows with other noise, since it can average.
The count of releases and the secret of the noise lie in the client's journal, so neither a hub that
begins from nothing, nor a lost folder, nor a second run makes a client release more than its ε.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from child import Plan
from federations import Field, toy
from nursery import Nursery
from points import Kill

from colonnade.journal import Journal, default_place

LIAR = Path(__file__).with_name("liar.py")
CLIENTS = ("party1", "party2")
ROUNDS = 2


def tree(name: str) -> dict[str, Any]:
    options = {"epsilon": 4.0, "delta": 0.0, "rounds": ROUNDS, "groups": 10, "later_epochs": 1}
    changes = {"name": name, "epochs": 1, "checkpoint": {"epochs": 1}}
    return toy("fedemb", 2, **changes, fedemb=options | {"server_epochs": 1})


def start(field: Field, program: tuple[str, ...]) -> None:
    for name in field.names:
        field.start(name, program)


def told(field: Field, name: str) -> set[str]:
    """The different noisy matrices that a client has let out."""
    if not (field.out(name) / "ledger.jsonl").exists():
        return set()
    return {
        row["sha256"]
        for row in field.rows(name)
        if row.get("sender") == name and str(row.get("kind")).startswith("noisy_")
    }


def booked(federation: str, name: str) -> list[tuple[str, float]]:
    """The run and the ε of every release that a client's journal has, oldest first."""
    with closing(Journal(default_place(federation, name))) as journal:
        return [(entry["run"], entry["epsilon"]) for entry in journal.entries("release")]


def spent(field: Field, name: str) -> float:
    found: float = field.result(name)["metrics"]["test"]["epsilon"][name]
    return found


@pytest.mark.slow
def test_a_hub_that_begins_from_nothing(nursery: Nursery, tmp_path: Path) -> None:
    """The server calls all back and says that there is no checkpoint, twice: each time the clients
    would learn and release again. They must refuse, and no matrix leaves beyond the budget."""
    field = Field(tmp_path / "field", tree("from-nothing"))
    lies = json.dumps({"server": ["begin_from_nothing"]})
    start(field, (*nursery.program(Path("x"))[:-2], str(LIAR), lies))
    codes = field.wait(40)
    for name in CLIENTS:
        assert len(told(field, name)) <= 2 * ROUNDS
        assert "has released" in field.log(name) and "checkpoint" in field.log(name)
    assert 0 not in codes.values()


@pytest.mark.slow
def test_checkpoints_that_are_lost(nursery: Nursery, tmp_path: Path) -> None:
    """One client dies after a release and its checkpoints are removed, so the honest server begins
    from nothing. Nobody may release once more; the error says what to do."""
    field = Field(tmp_path / "field", tree("lost-checkpoints"))
    plan = Plan([Kill("ledger: after", "party2", 3)]).write(tmp_path / "plan")
    start(field, nursery.program(plan))
    assert field.processes["party2"].wait(30) == -9
    assert told(field, "party2")
    shutil.rmtree(field.out("party2") / "checkpoints")
    field.start("party2", nursery.program(plan))
    codes = field.wait(40)
    assert 0 not in codes.values()
    assert "Bring its checkpoints back from a backup" in field.log("party2")
    for name in CLIENTS:
        assert len(told(field, name)) <= 2 * ROUNDS


@pytest.mark.slow
def test_a_second_run_on_the_same_rows(nursery: Nursery, tmp_path: Path) -> None:
    """The first run spends ε. All folders are removed, and a second run asks for the same: it finds
    the budget spent and sends no matrix; with a larger ε it has only the rest."""
    first = Field(tmp_path / "first", tree("second-run"))
    start(first, nursery.program(Plan().write(tmp_path / "plan")))
    assert set(first.wait(40).values()) == {0}
    assert spent(first, "party1") == pytest.approx(4.0, rel=1e-3)
    again = Field(tmp_path / "again", tree("second-run"))
    start(again, nursery.program(Plan().write(tmp_path / "plan")))
    codes = again.wait(40)
    assert 0 not in codes.values()
    assert not told(again, "party1") and not told(again, "party2")
    assert "the privacy budget is spent" in again.log("party1") + again.log("party2")
    larger = tree("second-run")
    larger["fedemb"]["epsilon"] = 5.0
    third = Field(tmp_path / "third", larger)
    start(third, nursery.program(Plan().write(tmp_path / "plan")))
    assert set(third.wait(40).values()) == {0}
    assert spent(third, "party1") == pytest.approx(5.0, rel=1e-3)


@pytest.mark.slow
def test_a_run_that_was_killed_and_removed_has_spent_what_it_told(
    nursery: Nursery, tmp_path: Path
) -> None:
    """One client dies in the first round; then all processes end, and all folders and checkpoints
    are removed. A second run has what is left, and no more: not what the first had planned."""
    first = Field(tmp_path / "first", tree("killed-and-removed"))
    plan = Plan([Kill("ledger: after", "party2", 3)]).write(tmp_path / "plan")
    start(first, nursery.program(plan))
    assert first.processes["party2"].wait(30) == -9
    before = {name: len(told(first, name)) for name in CLIENTS}
    assert before["party2"]
    first.close()
    for name in first.names:
        shutil.rmtree(first.out(name))
    again = Field(tmp_path / "again", tree("killed-and-removed"))
    start(again, nursery.program(Plan().write(tmp_path / "none")))
    assert set(again.wait(40).values()) == {0}
    for name in CLIENTS:
        assert spent(again, name) == pytest.approx(4.0, rel=1e-3)
        entries = booked("killed-and-removed", name)
        (lost, _), *_ = entries
        by_lost = [epsilon for run, epsilon in entries if run == lost]
        rest = [epsilon for run, epsilon in entries if run != lost]
        assert len(by_lost) >= before[name] and len(rest) == len(told(again, name)) == 2 * ROUNDS
        assert rest == pytest.approx([(4.0 - sum(by_lost)) / 4] * 4, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("nth", [2, 4, 6])
def test_what_a_kill_repeats_is_the_same_and_is_counted_once(
    nth: int, nursery: Nursery, tmp_path: Path
) -> None:
    field = Field(tmp_path / "field", tree(f"killed-{nth}"))
    plan = Plan([Kill("ledger: after", "party1", nth)]).write(tmp_path / "plan")
    start(field, nursery.program(plan))
    assert field.processes["party1"].wait(30) == -9
    field.start("party1", nursery.program(plan))
    assert set(field.wait(40).values()) == {0}
    for name in CLIENTS:
        assert len(told(field, name)) == 2 * ROUNDS
        assert spent(field, name) == pytest.approx(4.0, rel=1e-3)
