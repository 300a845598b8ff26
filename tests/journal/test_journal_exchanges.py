"""Exchanges without noise are counted by record, over all runs and all attempts of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colonnade.journal import Exchanges, Journal, Names


def names(*numbers: int) -> Names:
    return np.array(numbers, dtype=np.uint64)


def test_the_record_that_took_part_most_often_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    one = Exchanges(journal, "1", names(1, 2, 3))
    assert one.most() == 0
    one.book()
    one.book()  # again, in the same run: the task party may have brought other columns
    other = Exchanges(journal, "2", names(5, 3))
    assert one.most() == other.most() == 2 and Exchanges(journal, "2", names(5)).most() == 0
    other.book()
    journal.close()
    again = Journal(tmp_path / "journal")
    assert Exchanges(again, "3", names(3)).most() == 3
    assert list(again.records()) == [1, 2, 3, 5]


def test_a_simulation_does_again_what_a_crash_has_undone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", simulated=True)
    one = Exchanges(journal, "", names(1, 2))
    one.book()
    assert one.most() == 0 and Exchanges(journal, "other", names(1)).most() == 1
