"""No record leaves more often than its policy allows: counted per record, whatever else the party
holds, and for good: in every run of this party together.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from covert import EMBEDDING, play

from colonnade.role.party import Party
from colonnade.wire import Peer


def honest(me: Party, to: Peer) -> None:
    """Send every training row once per epoch, as split learning does."""
    for _ in me.epochs():
        for batch in me.batches():
            to.send(EMBEDDING, batch.x[:, :4])


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_rows_that_are_held_and_do_not_train_give_no_further_releases(tmp_path: Path) -> None:
    """30 rows train, 30 are only held: 3 releases were once 6 for each of the 30."""
    left, why = play(tmp_path, honest, epochs=6, more={"test": 30}, releases=3)
    assert len(left) == 3 * 3
    assert "3 releases" in why and "30 of its records" in why


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_a_second_run_has_no_fresh_budget(tmp_path: Path) -> None:
    """Another run, in a new folder, with a new ledger, on the same records."""
    left, _ = play(tmp_path, honest, epochs=2, run="a1", releases=3)
    assert len(left) == 2 * 3
    left, why = play(tmp_path, honest, epochs=2, run="b2", releases=3)
    assert len(left) == 3 and "releases" in why
