"""What noisy vectors have cost a record is neither lost nor paid twice: not by kill -9, not by lost
checkpoints, not by a second run, not by predictions.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from child import Plan
from federations import Field, toy
from nursery import Nursery
from points import Kill

from colonnade.journal import Journal, default_place

EPOCHS = 2


def tree(name: str) -> dict[str, Any]:
    protection = {"embedding_epsilon": 8.0}
    return toy("splitnn", 2, name=name, epochs=EPOCHS, protect=protection)


def start(field: Field, program: tuple[str, ...]) -> None:
    for name in field.names:
        field.start(name, program)


def booked(federation: str) -> list[tuple[str, str, int]]:
    """The run, the purpose, and how often of every entry that party2's journal has."""
    with closing(Journal(default_place(federation, "party2"))) as journal:
        entries = journal.entries("spent")
        return [(entry["run"], entry["purpose"], entry["times"]) for entry in entries]


def told(field: Field) -> dict[str, Any]:
    found: dict[str, Any] = field.result("party2")["privacy"]["parties"]["party2"]["embeddings"]
    return found


def different(field: Field) -> dict[tuple[Any, ...], set[str]]:
    """The vectors that party2 let out, by what they are about."""
    found: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for row in field.rows("party2"):
        if row.get("kind") == "embedding" and row.get("phase") == "train":
            found[row["epoch"], row["step"]].add(row["sha256"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True], ids=["resumed", "checkpoints lost"])
def test_a_killed_party_sends_the_same_again_and_pays_once(
    lost: bool, nursery: Nursery, tmp_path: Path
) -> None:
    name = f"killed-{lost}"
    field = Field(tmp_path / "field", tree(name))
    plan = Plan([Kill("ledger: after", "party2", 17)]).write(tmp_path / "plan")
    start(field, nursery.program(plan))
    assert field.processes["party2"].wait(60) == -9
    if lost:
        shutil.rmtree(field.out("party2") / "checkpoints")
    field.start("party2", nursery.program(plan))
    codes = field.wait(60)
    assert codes == {"party1": 0, "party2": 0}, field.log("party2")[-2000:]
    vectors = different(field)
    assert len(vectors) == 10 * EPOCHS
    assert {len(bytes_of) for bytes_of in vectors.values()} == {1}
    purposes = [purpose for _, purpose, _ in booked(name)]
    assert purposes.count("training") == EPOCHS and purposes.count("evaluation") == EPOCHS
    assert told(field)["epsilon"] == pytest.approx(8.0, rel=1e-6)


@pytest.mark.slow
def test_a_second_run_in_other_folders_adds_to_the_first(nursery: Nursery, tmp_path: Path) -> None:
    plan = Plan().write(tmp_path / "plan")
    spent = []
    for number in range(2):
        field = Field(tmp_path / f"{number}", tree("two-runs"))
        start(field, nursery.program(plan))
        assert set(field.wait(60).values()) == {0}
        assert told(field)["epsilon"] == pytest.approx(8.0, rel=1e-6)
        spent.append(told(field)["all_runs"])
        shutil.rmtree(field.folder)
    assert spent[0] == pytest.approx(8.0, rel=1e-6) and spent[1] > 11
