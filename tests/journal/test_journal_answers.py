"""One answer for each row and for good: whoever asks, and however often."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colonnade.errors import JournalError
from colonnade.journal import Answers, Journal

NAMES = np.array([7, 3, 2**63 + 5, 3], dtype=np.uint64)
NUMBERS = np.array([0, 0, 0, 1])


def test_what_was_answered_is_found_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    first = Answers(journal, "1", ("no", "yes", "maybe"))
    assert not first.known(NAMES, NUMBERS).there.any()
    first.keep(NAMES[:2], NUMBERS[:2], np.array([2, 0]), 4.0)
    among = np.array([[True, False, True], [False, False, True]])
    first.keep(NAMES[2:], NUMBERS[2:], np.array([0, 2]), 1.5, np.array([2, 3]), among, epoch=3)
    journal.close()
    again = Answers(Journal(tmp_path / "journal"), "2", ("no", "yes", "maybe"))
    order = np.array([3, 0, 2, 1])
    found = again.known(NAMES[order], NUMBERS[order])
    assert found.answers.tolist() == [2.0, 2.0, 0.0, 0.0]
    assert found.epsilon.tolist() == [1.5, 4.0, 1.5, 4.0]
    assert [row.tolist() for row in found.members] == [[2], [], [0, 2], []]
    assert found.groups.tolist() == [3, 0, 2, 0]
    assert found.since.tolist() == [-1] * 4
    mine = Answers(again.journal, "1", ("no", "yes", "maybe")).known(NAMES, NUMBERS)
    assert mine.since.tolist() == [0, 0, 3, 3]  # in the run that has drawn them


def test_the_first_answer_counts(tmp_path: Path) -> None:
    answers = Answers(Journal(tmp_path / "journal"), "1", ("no", "yes"))
    answers.keep(NAMES[:1], NUMBERS[:1], np.array([1]), 1.0)
    answers.keep(NAMES[:1], NUMBERS[:1], np.array([0]), 8.0)
    found = answers.known(NAMES[:1], NUMBERS[:1])
    assert (found.answers.tolist(), found.epsilon.tolist()) == ([1.0], [1.0])


def test_numbers_are_kept_to_the_bit(tmp_path: Path) -> None:
    answers = Answers(Journal(tmp_path / "journal"), "1", ())
    answers.keep(NAMES, NUMBERS, np.array([0.1, -3.25, 1e9, 0.0]), 2.0)
    assert answers.known(NAMES, NUMBERS).answers.tolist() == [0.1, -3.25, 1e9, 0.0]


def test_classes_may_become_more_and_change_their_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    Answers(journal, "1", ("no", "yes")).keep(NAMES, NUMBERS, np.array([0, 1, 0, 1]), 1.0)
    found = Answers(journal, "2", ("yes", "maybe", "no")).known(NAMES, NUMBERS)
    assert found.answers.tolist() == [2.0, 0.0, 2.0, 0.0]
    assert found.groups.tolist() == [2] * 4 and not any(len(row) for row in found.members)
    with pytest.raises(JournalError, match="'yes', which no label is now"):
        Answers(journal, "3", ("no", "maybe")).known(NAMES, NUMBERS)
    with pytest.raises(JournalError, match="as classes before, and are numbers now"):
        Answers(journal, "3", ()).known(NAMES, NUMBERS)


def test_a_changed_answer_is_noticed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    answers = Answers(journal, "1", ("no", "yes"))
    answers.keep(NAMES, NUMBERS, np.array([0, 1, 0, 1]), 1.0)
    (entry,) = journal.entries("answered")
    table = tmp_path / "journal" / "rows" / str(entry["table"])
    content = bytearray(table.read_bytes())
    content[-1] ^= 1
    table.write_bytes(content)
    with pytest.raises(JournalError, match="missing or was changed"):
        answers.known(NAMES, NUMBERS)
    table.unlink()
    with pytest.raises(JournalError, match="missing or was changed"):
        answers.known(NAMES, NUMBERS)
