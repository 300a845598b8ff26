"""VFedTrans' task party asks again: in another run, after a crash, with another q or other columns
of its own. A partner's journal counts its exchanges by row, and what epsilon has left."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from child import Plan
from federations import Field, toy
from nursery import Nursery
from points import Kill

OPTIONS = {"q": 1, "shared": 1.0, "hidden": 8, "distil_epochs": 1}


def tree(name: str, **options: Any) -> dict[str, Any]:
    """Measured numbers of cells, whose values seldom repeat, in two halves."""
    return toy(
        "vfedtrans",
        2,
        name=name,
        epochs=1,
        data={"name": "breast-cancer", "train_rows": 200, "test_rows": 60},
        vfedtrans=OPTIONS | options,
    )


def ended(field: Field, program: tuple[str, ...]) -> set[int]:
    for name in field.names:
        field.start(name, program)
    return set(field.wait(60).values())


def sent(field: Field, kind: str = "masked_matrix") -> set[str]:
    """Messages of this Kind that the partner has let out, by their digests."""
    rows = field.rows("party2") if (field.out("party2") / "ledger.jsonl").exists() else []
    return {row["sha256"] for row in rows if row.get("kind") == kind}


def spent(field: Field) -> float:
    found: float = field.result("party2")["metrics"]["test"]["epsilon"]["party2"]
    return found


@pytest.mark.slow
def test_a_second_exchange_of_the_same_rows(nursery: Nursery, tmp_path: Path) -> None:
    """The partner refuses it, whatever folders are removed; with exchanges = 2 it lets one more
    through, and then none. No epsilon holds for these rows any more."""
    program = nursery.program(Plan().write(tmp_path / "plan"))
    field = Field(tmp_path / "1", tree("again"))
    assert ended(field, program) == {0} and sent(field)
    shutil.rmtree(tmp_path / "1")
    for number, options in enumerate(
        ({}, {"exchanges": 2}, {"exchanges": 2}, {"epsilon": 1.0}), start=2
    ):
        field = Field(tmp_path / f"{number}", tree("again", **options))
        codes = ended(field, program)
        assert codes == {0} if number == 3 else 0 not in codes
        assert bool(sent(field)) == (number == 3)
        if number == 2:
            assert "took part in 1 exchanges without noise" in field.log("party2")
        if number == 4:
            assert "took part in 2 exchanges without noise" in field.log("party2")
        if number == 5:
            assert "no epsilon holds for them any more" in field.log("party2")


@pytest.mark.slow
def test_a_task_party_that_comes_back_before_the_first_checkpoint(
    nursery: Nursery, tmp_path: Path
) -> None:
    """It has the vectors, forgets everything, and joins again: the partner does not exchange its
    rows beside other columns."""
    field = Field(tmp_path / "field", tree("back"))
    plan = Plan([Kill("ledger: after", "server", 8)]).write(tmp_path / "plan")
    for name in field.names:
        field.start(name, nursery.program(plan))
    assert field.processes["server"].wait(40) == -9
    assert sent(field)
    field.start("server", nursery.program(plan))
    codes = field.wait(60)
    assert 0 not in set(codes.values()) and len(sent(field)) == 1
    assert "does not exchange these rows again" in field.log("party2")


@pytest.mark.slow
def test_what_epsilon_allows_is_spent_once(nursery: Nursery, tmp_path: Path) -> None:
    """The first run takes all of it; a second one sends nothing, nor with another q; with a larger
    epsilon it has the rest."""
    program = nursery.program(Plan().write(tmp_path / "plan"))
    field = Field(tmp_path / "1", tree("budget", epsilon=2.0))
    assert ended(field, program) == {0}
    assert spent(field) == pytest.approx(2.0, rel=1e-3)
    shutil.rmtree(tmp_path / "1")
    for number, q in enumerate((1, 3), start=2):
        field = Field(tmp_path / f"{number}", tree("budget", epsilon=2.0, q=q))
        assert 0 not in ended(field, program)
        assert not sent(field) and "the privacy budget is spent" in field.log("party2")
    field = Field(tmp_path / "4", tree("budget", epsilon=3.0))
    assert ended(field, program) == {0}
    assert spent(field) == pytest.approx(3.0, rel=1e-3)


@pytest.mark.slow
def test_noise_that_a_kill_repeats_is_the_same_and_is_counted_once(
    nursery: Nursery, tmp_path: Path
) -> None:
    field = Field(tmp_path / "field", tree("killed", epsilon=2.0))
    plan = Plan([Kill("ledger: after", "server", 8)]).write(tmp_path / "plan")
    for name in field.names:
        field.start(name, nursery.program(plan))
    assert field.processes["server"].wait(40) == -9
    assert sent(field)
    field.start("server", nursery.program(plan))
    assert set(field.wait(60).values()) == {0}
    assert spent(field) == pytest.approx(2.0, rel=1e-3)
