"""What was released within a budget, of which records, over all runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colonnade.errors import JournalError
from colonnade.journal import Journal, Names, Releases, RunJournal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def names(*numbers: int) -> Names:
    return np.array(numbers, dtype=np.uint64)


def test_the_record_that_was_released_most_often_counts(journal: Journal) -> None:
    one = Releases(journal, "1", names(1, 2, 3))
    assert one.spent() == []
    one.book("0 ab", 0.5)
    one.book("1 cd", 0.5)
    other = Releases(journal, "2", names(5, 3))
    assert other.spent() == [[0.5, 2]]  # one of its two records
    other.book("0 ab", 0.25)
    assert other.spent() == [[0.5, 2], [0.25, 1]]
    assert other.spent(by_others=True) == [[0.5, 2]]
    assert Releases(journal, "3", names(1)).spent() == [[0.5, 2]]
    assert Releases(journal, "3", names(7)).spent() == []
    again = Releases(Journal(journal.folder), "2", names(5, 3))
    assert again.spent() == other.spent() and again.holds("0 ab") and not again.holds("1 cd")


def test_the_share_of_a_release_is_what_it_was_at_first(journal: Journal) -> None:
    one = Releases(journal, "1", names(1))
    assert one.plan(lambda: 0.5) == 0.5
    one.book("0 ab", 0.5)
    assert Releases(journal, "1", names(1)).plan(lambda: 0.1) == 0.5
    assert Releases(journal, "2", names(1)).plan(lambda: 0.1) == 0.1


def test_who_has_released_does_not_begin_from_nothing(journal: Journal) -> None:
    run = RunJournal(lambda: journal, "1")
    run.check_start(None)
    run.releases(names(1)).book("0 ab", 0.5)
    run.check_start("train-00001-0000000")
    with pytest.raises(JournalError, match=r"has released 1 matrices.*checkpoints.*another --out"):
        run.check_start(None)
    RunJournal(lambda: journal, "2").check_start(None)
