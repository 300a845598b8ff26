"""Parties that are killed at the worst moments: the run ends with the very same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from child import Plan
from federations import Options, toy
from nursery import Nursery
from points import POINTS, Kill, fired

import colonnade
from colonnade.wire import ledger
from colonnade.wire.reconcile import reconcile

Weights = Callable[[dict[str, Any]], dict[str, str]]
QUICK = {
    "runtime.session.GOODBYE_SECONDS": 2.0,  # for those who die when all is said
    "net.mesh.RETRY_SECONDS": [0.05, 0.2],
}

# Every point once, in an order in which each is reached after the one before.
KILLS = {
    "splitnn": [
        Kill("folder: begun", "party2"),
        Kill("folder: made", "party1"),
        Kill("join: told", "party3"),
        Kill("start: heard", "party3"),
        Kill("start: told", "party1"),
        Kill("start: marked", "party2"),
        Kill("go back", "party1"),
        Kill("ledger: before", "party3", 2),
        Kill("part: middle", "party1", 3),
        Kill("seal: before", "party2"),
        Kill("seal: after", "party1", 2),
        Kill("checkpoint: before", "party2"),
        Kill("checkpoint: middle", "party3"),
        Kill("saved: told", "party1"),
        Kill("commit: middle", "party2"),
        Kill("received", "party1", 4),
        Kill("role: ended", "party3"),
        Kill("finish: middle", "party1"),
        Kill("conclude: before", "party2"),
        Kill("bye: after", "party3", together=True),
    ],
    "easter": [
        Kill("keys: signed", "party1"),
        Kill("keys: signed", "party3"),
        Kill("keys: agreed", "party2"),
        Kill("ledger: after", "party2", 6),
        Kill("part: before", "party3", 9),
        Kill("checkpoint: rename", "party1"),
        Kill("checkpoint: after", "party2"),
        Kill("commit: before", "party3"),
        Kill("time", "party1", 0.05),
        Kill("finish: before", "party2"),
        Kill("finish: after", "party1"),
        Kill("done: told", "party3"),
        Kill("conclude: middle", "party1"),
        Kill("end: told", "party1"),
        Kill("conclude: after", "party3", together=True),
        Kill("bye: before", "party2", together=True),
    ],
    "easter that stops": [
        Kill("verdict: heard", "party1"),
        Kill("verdict: taken", "party2", 2),
        Kill("verdict: heard", "party3", 2),
        Kill("verdict: ended", "party1"),
        Kill("verdict: ended", "party3", together=True),
        Kill("checkpoint: middle", "party2"),
        Kill("role: ended", "party2"),
        Kill("finish: before", "party1"),
    ],
}
# A rate at which it is worse again before its last epoch
STOPS = {
    "epochs": 8,
    "patience": 2,
    "metric": "log_loss",
    "lr": 0.5,
    "schedule": "constant",
    "data": {"name": "digits", "train_rows": 200, "test_rows": 60, "validation": 0.3},
}


def tree_of(name: str) -> dict[str, Any]:
    return toy("easter", **STOPS) if name.endswith("stops") else toy(name)


@pytest.mark.parametrize("method", list(KILLS))
@pytest.mark.usefixtures("no_orphans")
def test_killed_at_every_point_one_after_the_other(
    method: str, nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    kills = KILLS[method]
    plan = Plan(kills, part_bytes=300, patched=QUICK).write(tmp_path / "plan")
    result = colonnade.run(
        tree_of(method),
        out=tmp_path / "run",
        runtime="process",
        processes=Options(restarts=len(kills), program=nursery.program(plan)),
    )
    assert [(one["point"], one["party"]) for one in fired(plan.parent)] == [
        (kill.point, kill.party) for kill in kills
    ]
    assert result.weights_sha256 == undisturbed(tree_of(method))
    told = result.content.get("stopping", {"best_epoch": 0, "of": 0})
    assert (told["best_epoch"] < told["of"] < STOPS["epochs"]) == method.endswith("stops")
    check_ledgers(tmp_path / "run" / "parties", ["party1", "party2", "party3"])


def test_every_point_is_tried() -> None:
    tried = {kill.point for kills in KILLS.values() for kill in kills}
    assert set(POINTS) <= tried


def test_more_deaths_than_allowed_end_the_run_with_a_word(nursery: Nursery, tmp_path: Path) -> None:
    kills = [Kill("ledger: before", "party2")] * 2
    plan = Plan(kills).write(tmp_path / "plan")
    options = Options(restarts=1, program=nursery.program(plan))
    with pytest.raises(
        colonnade.ColonnadeError, match=r"'party2' \(started 2 times\).*ended by SIGKILL"
    ):
        colonnade.run(toy("splitnn"), out=tmp_path / "run", runtime="process", processes=options)
    options = Options(program=nursery.program(Plan().write(tmp_path / "plan")))
    colonnade.run(toy("splitnn"), resume=tmp_path / "run", processes=options)


def check_ledgers(folder: Path, names: list[str]) -> None:
    """All chains hold, and every two parties say the same about each other."""
    for name in names:
        assert list(ledger.read(folder / name / "ledger.jsonl"))
    for one in names:
        for other in names:
            if one < other:
                assert reconcile(folder / one, folder / other).faults == []
