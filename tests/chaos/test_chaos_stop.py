"""Asked to stop, all save the same place and say so; left alone by their supervisor, all end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from child import Plan, events
from conftest import processes_of
from federations import Field, Options, toy, wait_for
from nursery import Nursery

import colonnade

Weights = Callable[[dict[str, Any]], dict[str, str]]
NAMES = ["party1", "party2", "party3"]
LONG = 120  # epochs: nobody gets to the end before it is stopped
SOON = 15.0  # three times what is promised, for slow machines


def place_of(folder: Path) -> str:
    """Where a party's last checkpoint lies."""
    names = sorted(file.stem for file in (folder / "checkpoints").glob("*-*.json"))
    return names[-1].partition("-")[2] if names else ""


def steps_of(folder: Path) -> int:
    """How many messages a party's ledger has so far."""
    book = folder / "ledger.jsonl"
    return book.read_bytes().count(b"\n") if book.exists() else 0


@pytest.mark.usefixtures("no_orphans")
def test_sigterm_to_one_party_stops_all_at_the_same_place(
    nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    """A passive one; Ctrl-C at the supervisor, below, goes to the label holder."""
    tree = toy("splitnn", epochs=LONG, checkpoint={"epochs": 0}, evaluate_every=100)
    program = nursery.program(Plan().write(tmp_path / "plan"))
    field = Field(tmp_path / "field", tree)
    field.start_all(program)
    wait_for(lambda: steps_of(field.out("party1")) > 40)
    began = time.monotonic()
    field.processes["party3"].terminate()
    assert set(field.wait(SOON).values()) == {130}
    assert time.monotonic() - began < SOON
    places = {place_of(field.out(name)) for name in NAMES}
    assert len(places) == 1 and places != {""}
    assert {field.result(name)["status"] for name in NAMES} == {"stopped"}
    assert "stopping: SIGTERM" in field.log("party3")
    field.start_all(program)
    assert set(field.wait().values()) == {0}
    assert f"attempt 2: all start from {places.pop()}" in field.log("party2")
    assert field.weights() == undisturbed(tree)


def supervised(tree: dict[str, Any], program: tuple[str, ...], folder: Path) -> Any:
    """A run of many processes in a process of its own, under way."""
    command = [*program[:-1], "supervise", json.dumps([tree, program])]
    supervisor = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: steps_of(folder / "run" / "parties" / "party1") > 40, 60)
    return supervisor


@pytest.mark.usefixtures("no_orphans")
def test_ctrl_c_at_the_supervisor(nursery: Nursery, undisturbed: Weights, tmp_path: Path) -> None:
    """All save the same place; then the run goes on from there."""
    tree = toy("splitnn", epochs=LONG, checkpoint={"epochs": 0}, evaluate_every=100)
    program = nursery.program(Plan().write(tmp_path / "plan"))
    with supervised(tree, program, tmp_path) as supervisor:
        began = time.monotonic()
        supervisor.send_signal(signal.SIGINT)
        _, errors = supervisor.communicate(timeout=2 * SOON)
        assert time.monotonic() - began < SOON
    assert "go on with: colonnade run --resume run" in errors
    places = {place_of(tmp_path / "run" / "parties" / name) for name in NAMES}
    assert len(places) == 1 and places != {""}
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "stopped"
    result = colonnade.run(tree, resume=tmp_path / "run", processes=Options(program=program))
    assert result.weights_sha256 == undisturbed(tree)


def test_kill_9_of_the_supervisor_leaves_nobody(nursery: Nursery, tmp_path: Path) -> None:
    tree = toy("splitnn", epochs=LONG, checkpoint={"epochs": 0}, evaluate_every=100)
    plan = Plan().write(tmp_path / "plan")
    with supervised(tree, nursery.program(plan), tmp_path) as supervisor:
        supervisor.kill()
    pids = [event["pid"] for event in events(plan.parent) if event["what"] == "born"]
    assert len(pids) == 3
    wait_for(lambda: not any(alive(pid) for pid in pids), 3 * 8)
    wait_for(lambda: processes_of(tmp_path) == [], 5)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
