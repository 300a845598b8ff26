"""The steps that a party has begun, and with whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from colonnade.errors import Untrusted
from colonnade.journal import Journal, Steps, steps

ALL, WITHOUT = (), ("telco",)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def entries(journal: Journal) -> int:
    return len(list(journal.entries("steps")))


def test_one_entry_books_the_rest_of_an_epoch(journal: Journal) -> None:
    taken = Steps(journal, "3f")
    assert taken.fresh is None
    for step in range(300):
        taken.begin("train", (0, step), ALL, False)
    assert entries(journal) == 2 and taken.fresh == ("train", 0, 300)
    taken.begin("train", (1, 0), ALL, False)
    assert entries(journal) == 3
    taken.begin("train", (1, 10), ALL, True)  # an evaluation closes the epoch
    assert taken.fresh == ("train", 2, 0)


def test_the_same_step_with_others_is_refused_and_a_new_one_is_not(journal: Journal) -> None:
    taken = Steps(journal, "3f")
    for step in range(10):
        taken.begin("train", (0, step), ALL, False)
    for step in (0, 4, 9):
        with pytest.raises(Untrusted, match=rf"step {step + 1} of epoch 1.*with everybody.*telco"):
            taken.begin("train", (0, step), WITHOUT, False)
    taken.begin("train", (0, 3), ALL, False)  # gone back, with the same
    taken.begin("train", (0, 10), WITHOUT, False)
    taken.begin("train", (0, 11), WITHOUT, False)
    with pytest.raises(Untrusted, match="without 'telco', and is to be done again with everybody"):
        taken.begin("train", (0, 11), ALL, False)
    with pytest.raises(Untrusted, match="with everybody, and is to be done again without"):
        taken.begin("train", (0, 9), WITHOUT, False)


def test_a_new_process_believes_the_ledger_while_the_machine_is_up(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else every step that was booked counts as begun."""
    first = Steps(journal, "3f")
    for step in range(7):
        first.begin("train", (2, step), ALL, False)
    again = Steps(journal, "3f", reached=(2, 7))
    assert again.fresh == ("train", 2, 7)
    assert Steps(journal, "3f").fresh == ("train", 2, 256)
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(steps, "BOOT", tmp_path / "boot")
    rebooted = Steps(journal, "3f", reached=(2, 7))
    assert rebooted.fresh == ("train", 2, 256)
    with pytest.raises(Untrusted):
        rebooted.begin("train", (2, 8), WITHOUT, False)
    rebooted.begin("train", (2, 8), ALL, False)
    rebooted.begin("train", (2, 256), WITHOUT, False)
    assert Steps(journal, "40").fresh is None  # of another run


def test_phases_are_counted_apart(journal: Journal) -> None:
    taken = Steps(journal, "3f")
    taken.begin("upload", (0, 0), ALL, False)
    taken.begin("train", (0, 0), WITHOUT, False)
    assert taken.fresh == ("train", 0, 1)
    with pytest.raises(Untrusted, match="'upload'"):
        taken.begin("upload", (0, 0), WITHOUT, False)


def test_two_losses_since_a_checkpoint(journal: Journal) -> None:
    """The rows of the first step after the first loss must not come again after the second."""
    taken = Steps(journal, "3f")
    for step in range(5):
        taken.begin("train", (0, step), ALL, False)
    taken.check_apart("train", (0, 3), (1, 0), WITHOUT)
    taken.begin("train", (1, 0), WITHOUT, False)
    taken.check_apart("train", (0, 3), (1, 0), WITHOUT)  # back again with the same
    taken.check_apart("train", (0, 3), (1, 1), ("shop", "telco"))  # other rows of that epoch
    taken.check_apart("train", (1, 0), (2, 0), ("shop", "telco"))  # other weights
    with pytest.raises(Untrusted, match=r"without 'telco'.*without 'shop', 'telco'.*more often"):
        taken.check_apart("train", (0, 3), (2, 0), ("shop", "telco"))
