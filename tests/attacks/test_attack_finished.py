"""What a member does after a run has ended does not undo the result of another.

Whoever has finished may be asked to come back, for those who have not. If one of them fails then,
the models and the result are still there.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from federations import Field, toy
from nursery import Nursery


@pytest.mark.slow
def test_a_finished_run_stays_finished(nursery: Nursery, tmp_path: Path) -> None:
    """A member loses its folder, or says so, and starts again. Its journal refuses that."""
    field = Field(tmp_path / "field", toy("splitnn", parties=2, epochs=2), deadline=30.0)
    program = (*nursery.command(), "party")
    with closing(field):
        for name in field.names:
            field.start(name, program)
        assert set(field.wait(40).values()) == {0}
        before = field.result("party1")
        shutil.rmtree(field.out("party2"))
        for name in field.names:
            field.start(name, program)
        assert field.wait(40)["party2"] == 1
        assert field.result("party1") == before and before["status"] == "finished"
