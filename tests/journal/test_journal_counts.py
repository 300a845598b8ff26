"""Counting by record, with keyed names instead of ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colonnade.errors import JournalError
from colonnade.journal import Journal, Names, Tally
from colonnade.journal.journal import ROWS


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def names(journal: Journal, *ids: str) -> Names:
    return journal.names(ids)


# ---- names ---------------------------------------------------------------------------------------


def test_names_say_nothing_without_the_secret(tmp_path: Path) -> None:
    one, other = Journal(tmp_path / "one"), Journal(tmp_path / "other")
    ids = ("client 4711", "client 0815")
    assert names(one, *ids).tolist() == names(one, *ids).tolist()
    assert not set(names(one, *ids)) & set(names(other, *ids))
    Tally(one, "embedding", names(one, *ids)).book("x")
    written = b"".join(f.read_bytes() for f in (tmp_path / "one").rglob("*") if f.is_file())
    assert not any(one.encode() in written for one in ids)


def test_rows_without_ids_are_named_by_what_is_in_them(journal: Journal) -> None:
    """Not by their place, else the same rows in another order would be new ones."""
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    found = journal.names_of_rows(rows)
    assert len(set(found)) == 4
    assert journal.names_of_rows(rows[::-1]).tolist() == found[::-1].tolist()
    doubled = journal.names_of_rows(np.concatenate([rows, rows[:1]]))
    assert doubled[4] == found[0]  # counted together: never too little
    assert not set(journal.names_of_rows(rows.astype(np.float64))) & set(found)
    assert not set(journal.names_of_rows(rows.reshape(4, 3, 1))) & set(found)


# ---- per record ----------------------------------------------------------------------------------


def test_counts_go_on_in_other_runs_with_other_rows(journal: Journal) -> None:
    first = Tally(journal, "embedding", names(journal, "a", "b", "c"))
    assert first.book("run 1, epoch 1") and first.book("run 1, epoch 2", np.array([0, 2]))
    assert first.counts.tolist() == [2, 1, 2]
    later = Tally(Journal(journal.folder), "embedding", names(journal, "d", "c", "a"))
    assert later.counts.tolist() == [0, 2, 2]
    later.book("run 2", times=5)
    assert later.counts.tolist() == [5, 7, 7] and later.distinct == 4
    assert Tally(journal, "prediction", names(journal, "a")).counts.tolist() == [0]


def test_what_is_repeated_is_counted_once(journal: Journal) -> None:
    records = names(journal, "a", "b")
    assert Tally(journal, "embedding", records).book("run 1, epoch 1")
    after_a_kill = Tally(Journal(journal.folder), "embedding", records)
    assert not after_a_kill.book("run 1, epoch 1")
    assert after_a_kill.counts.tolist() == [1, 1]
    # Two processes that were both open before: the second sees what the first has written.
    one, other = (Tally(Journal(journal.folder), "embedding", records) for _ in range(2))
    assert one.book("run 1, epoch 2") and not other.book("run 1, epoch 2")
    assert other.counts.tolist() == [2, 2]


def test_the_same_records_are_listed_once(journal: Journal) -> None:
    tally = Tally(journal, "embedding", names(journal, *map(str, range(100))))
    for epoch in range(20):
        tally.book(f"epoch {epoch}")
    assert len(list((journal.folder / ROWS).iterdir())) == 1
    assert tally.counts.tolist() == [20] * 100


@pytest.mark.parametrize("how", ["removed", "changed"])
def test_a_list_of_records_that_was_changed_is_refused(journal: Journal, how: str) -> None:
    Tally(journal, "embedding", names(journal, "a", "b")).book("x")
    (place,) = (journal.folder / ROWS).iterdir()
    if how == "removed":
        place.unlink()
    else:
        place.write_bytes(place.read_bytes()[8:])
    with pytest.raises(JournalError, match="missing or was changed"):
        Tally(Journal(journal.folder), "embedding", names(journal, "a"))
