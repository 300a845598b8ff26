"""Aligning rows tells a party that lies no more than one that keeps to the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meeting import Meeting, overlapping

from colonnade.align import Alignment, ids, psi, table
from colonnade.errors import DataError, JournalError, Untrusted
from colonnade.journal import Journal, RunJournal

REPEATED = ["x1", "x2", "x2", "x3", "x3", "x3", "x4", "x4", "x4", "x4"]


def lenient(given: Any, party: str, **options: Any) -> list[str]:
    """The liar's own program does not mind that it asks about a person twice."""
    return list(given) if party == "bank" else ids.normalise(given, party, **options)


@pytest.mark.xfail(strict=True, raises=AssertionError)
@pytest.mark.parametrize("others", [1, 2])
def test_who_repeats_ids_is_refused_before_anything_is_answered(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four people the liar asks about one once, about one twice, …: were its set returned under
    both keys, the number of equal points would say which is which, whatever the minimum."""
    monkeypatch.setattr(psi, "normalise", lenient)
    asked = REPEATED + [f"bank {i}" for i in range(15)]
    held = ["x2", "x4"] + [f"clinic {i}" for i in range(25)]
    sets: dict[str, list[str]] = {"bank": asked, "clinic": held}
    if others == 2:
        sets["shop"] = held
    meeting = Meeting().hold(sets, Alignment(minimum=20))
    error = meeting.errors.get("clinic")
    assert isinstance(error, Untrusted) and "'bank'" in str(error) and "equal" in str(error)
    assert len(meeting.values("psi_points", "clinic")) == 1  # its own set, and no answer


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_a_pretended_number_of_common_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows are common, and the minimum is 20; the liar pretends that all are common, so that
    the other undoes its shuffle and shows which they are."""
    held = {
        "bank": ["x1", "x2"] + [f"bank {i}" for i in range(22)],
        "clinic": ["x1", "x2"] + [f"clinic {i}" for i in range(22)],
    }
    decode = table.decode

    def all_common(slots: Any, keys: Any) -> Any:
        return np.zeros_like(decode(slots, keys))

    def none_needed(points: Any, shared: Any) -> Any:
        return np.zeros((len(points), table.VALUE), np.uint8)

    def pad(sender: str, receiver: str, kind: str, number: int, value: Any) -> Any:
        if (sender, kind) == ("bank", "psi_common"):
            return meeting.values("psi_points", "bank")[1]  # all of the other's, under both keys
        return value

    monkeypatch.setattr(table, "decode", all_common)
    monkeypatch.setattr(psi, "_shares", none_needed)
    meeting = Meeting(pad)
    meeting.hold(held, Alignment(minimum=20))
    assert "clinic" in meeting.errors
    assert not meeting.values("psi_places", "clinic")


@pytest.mark.xfail(strict=True, raises=AssertionError)
@pytest.mark.parametrize("what", ["key", "points"])
def test_a_relay_cannot_exchange_what_it_carries(what: str) -> None:
    """A hub that carries messages between two others puts its own key, or its own points, in
    their place; the receiver finds out before it answers."""
    mine = torch.tensor(list(range(32)), dtype=torch.uint8)

    def exchange(sender: str, receiver: str, kind: str, number: int, value: Any) -> Any:
        if (sender, receiver) != ("clinic", "shop"):
            return value
        if what == "key" and kind == "psi_opening":
            return value | {"public": mine.numpy().tobytes()}
        if what == "points" and kind == "psi_points" and number == 0:
            return value[[*range(1, len(value)), 0]]
        return value

    meeting = Meeting(exchange).hold(overlapping(8, 3), Alignment(minimum=0))
    error = meeting.errors.get("shop")
    assert isinstance(error, Untrusted) and "'clinic'" in str(error)
    assert "signature" in str(error) or "announced" in str(error)
    assert not meeting.rows


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_repeated_runs_come_to_an_end(tmp_path: Path) -> None:
    """A partner asks about other people in run after run, each small enough; the journal counts
    them all, in whatever run folder they were."""
    answered = 0
    journal = Journal(tmp_path / "journal")
    for run in range(130):
        kept = RunJournal(lambda: journal, f"run {run}")
        asked = {"bank": [f"x{run}", "y"], "clinic": ["x7", "x90", "y"]}
        meeting = Meeting(journals={"clinic": kept}).hold(asked, Alignment(minimum=1))
        error = meeting.errors.get("clinic")
        if error is None:
            answered += 1
            continue
        assert isinstance(error, JournalError | DataError)
        assert not meeting.values("psi_points", "clinic")
    assert answered <= 100
