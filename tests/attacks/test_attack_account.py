"""An account speaks for its sender: the label holder's numbers are its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery

import colonnade
from colonnade.deploy.supervisor import Options
from colonnade.errors import RoleFailed

LIAR = Path(__file__).with_name("liar.py")
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


def trained(nursery: Nursery, folder: Path, **lies: list[str]) -> dict[str, Any]:
    """The label holder's own result, whatever the others lied about."""
    program = (*nursery.program(Path("x"))[:-2], str(LIAR), json.dumps(lies))
    options = Options(restarts=0, program=program)
    colonnade.run(TREE, out=folder / "run", runtime="process", processes=options)
    path = folder / "run" / "parties" / "party1" / "result.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def honest(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(nursery, tmp_path_factory.mktemp("honest"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("tell_nothing", "'history' is missing"),
        ("claim_accuracy", "it holds no labels"),
        ("judge_in_the_holders_name", "of 'party1'"),
        ("rewrite_history", "of 'party1'"),
    ],
)
@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_an_account_that_speaks_for_others_is_refused_and_its_sender_named(
    lie: str, why: str, nursery: Nursery, tmp_path: Path
) -> None:
    """A member tells of numbers that are not its own to tell; the run must refuse its account with
    a typed error that names it, and no result may hold its claims."""
    try:
        trained(nursery, tmp_path, party3=[lie])
    except RoleFailed as refusal:
        said = str(refusal)
        assert "CodecError" in said or "'party3'" in said
        assert "'party3' sent an account" in said and why in said
        assert "Traceback" not in said
        return
    raise AssertionError("the forged account was taken")


@pytest.mark.slow
@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_what_a_member_says_of_itself_changes_nobody_elses_numbers(
    honest: dict[str, Any], nursery: Nursery, tmp_path: Path
) -> None:
    """A member claims a slow clock and warns in everybody's name; the holder's accuracy, confusion,
    losses and times stay its own, and every sentence of the member's bears its name."""
    found = trained(nursery, tmp_path, party3=["slow_clock", "warn_in_the_runs_name"])
    assert found["metrics"] == honest["metrics"]
    for mine, before in zip(found["history"], honest["history"], strict=True):
        assert mine["parties"]["party1"] == before["parties"]["party1"]
        assert mine["seconds"] < 100
    assert max(found["timing"]["seconds_per_epoch"]) < 100
    assert found["timing"]["by_phase"]["train"] < 100
    said = [line for line in found["warnings"] if "wrong" in line or "stop it" in line]
    assert len(said) == 2 and all(line.startswith("'party3' says: ") for line in said)
