"""A party does not go on with a ledger that was cut: its policy's counts do not begin again.

The chain of a ledger guards its middle. The journal keeps its head at every checkpoint, so an end
that was cut, or a ledger that was emptied, is noticed when the party comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from child import Plan
from federations import Field, toy, wait_for
from nursery import Nursery
from points import Kill

Cut = Callable[[list[bytes]], list[bytes]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cut",
    [lambda lines: [], lambda lines: lines[: len(lines) // 2]],
    ids=["emptied", "half"],
)
def test_a_cut_ledger_is_refused(cut: Cut, nursery: Nursery, tmp_path: Path) -> None:
    """A party dies, and its ledger is cut before it is started again. It must not send another
    message; with the whole ledger it goes on."""
    field = Field(tmp_path / "field", toy("splitnn", name="cut"), deadline=30.0)
    kill = Plan([Kill("checkpoint: after", "party2", 4)]).write(tmp_path / "plan")
    program = nursery.program(kill)
    with closing(field):
        for name in field.names:
            field.start(name, program)
        assert field.processes["party2"].wait(30) == -9
        ledger = field.out("party2") / "ledger.jsonl"
        whole = ledger.read_bytes()
        ledger.write_bytes(b"".join(cut(whole.splitlines(keepends=True))))
        before = ledger.read_bytes()
        again = field.start("party2", program)
        wait_for(lambda: again.poll() is not None, 10)
        assert again.returncode == 1 and ledger.read_bytes() == before
        assert "ledger.jsonl was cut" in field.log("party2")
        ledger.write_bytes(whole)
        field.start("party2", program)
        assert set(field.wait(40).values()) == {0}
