"""What all runs have spent, listed and counted by record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colonnade.journal import Exchanges, Journal, Names, Releases, Spending, Spendings
from colonnade.journal.spendings import NO_NOISE
from colonnade.journal.spent import by_run, counted, records_of

FINE, COARSE, ANSWER = Spending("gaussian", 4.0), Spending("gaussian", 2.0), Spending("response", 3)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def names(*numbers: int) -> Names:
    return np.array(numbers, dtype=np.uint64)


def fill(journal: Journal) -> None:
    one = Spendings(journal, "one", names(1, 2, 3))
    for epoch in range(3):
        one.book(f"{epoch}", FINE, "embedding", "training")
    one.book("answers", ANSWER, "labels", "labels", positions=np.array([0, 1]))
    two = Spendings(journal, "two", names(3, 4))
    two.book("0", COARSE, "embedding", "prediction", times=2, positions=np.array([0]))
    two.book("1", COARSE, "embedding", "prediction", positions=np.array([1]))
    Releases(journal, "three", names(1, 4)).book("0 ab", 0.5)


def test_a_line_says_how_often_the_record_was_met_that_was_met_most(journal: Journal) -> None:
    fill(journal)
    lines = {(one["run"], one["kind"]): one for one in by_run(journal)}
    assert lines["one", "embedding"] == {
        "run": "one",
        "kind": "embedding",
        "purpose": "training",
        "mechanism": "gaussian",
        "size": 4.0,
        "times": 3,
        "records": 3,
    }
    assert (lines["one", "labels"]["times"], lines["one", "labels"]["records"]) == (1, 2)
    assert (lines["two", "embedding"]["times"], lines["two", "embedding"]["records"]) == (2, 2)
    released = lines["three", "sums of groups"]
    assert (released["mechanism"], released["size"], released["records"]) == ("laplace", 2.0, 2)
    assert len(lines) == 4


def test_what_left_without_noise_is_listed(journal: Journal) -> None:
    Exchanges(journal, "four", names(1)).book()
    Releases(journal, "five", names(2, 3), named=True).book_bare()
    found = [(one["kind"], one["mechanism"], one["records"]) for one in by_run(journal)]
    assert found == [("evaluated rows", "none", 2), ("singular vectors", "none", 1)]
    assert counted(journal, names(1, 4), "features")[NO_NOISE].tolist() == [1, 0]


def test_only_some_records_are_listed(journal: Journal) -> None:
    fill(journal)
    found = [(one["run"], one["times"], one["records"]) for one in by_run(journal, names(4, 9))]
    assert found == [("two", 1, 1), ("three", 1, 1)]
    assert by_run(journal, names(9)) == []
    assert records_of(journal).tolist() == [1, 2, 3, 4]


def test_each_record_is_counted_by_itself_and_labels_apart(journal: Journal) -> None:
    fill(journal)
    records = names(3, 1, 9)
    features = {use: n.tolist() for use, n in counted(journal, records, "features").items()}
    assert features == {FINE: [3, 3, 0], COARSE: [2, 0, 0], Spending("laplace", 2.0): [0, 1, 0]}
    labels = counted(journal, records, "labels")
    released = Spending("laplace", 2.0)  # sums over groups tell of labels, too
    found = {use: n.tolist() for use, n in labels.items()}
    assert found == {ANSWER: [0, 1, 0], released: [0, 1, 0]}
    assert FINE not in counted(journal, records, "features", without="one")
