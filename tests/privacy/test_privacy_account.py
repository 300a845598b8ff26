"""What a record has lost in all runs, and the limit of an organisation."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from colonnade.errors import BudgetSpent
from colonnade.journal import Journal, Names, Releases, RunJournal, Spending, Spendings
from colonnade.privacy import accountant
from colonnade.privacy.account import MOST_SORTS, Organisation, lost
from colonnade.privacy.settings import TAILS
from colonnade.wire.limits import Limits

DELTA = 1e-5
USE, OTHER = Spending("gaussian", 4.0), Spending("gaussian", 3.0)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def names(numbers: Iterable[int]) -> Names:
    return np.array(list(numbers), dtype=np.uint64)


def organisation(**limits: float) -> Organisation:
    return Organisation(Limits(**limits), "shop", "policy.toml")


def book(journal: Journal, run: str, records: Names, use: Spending, times: int) -> None:
    Spendings(journal, run, records).book("all", use, "embedding", "training", times)


def test_a_record_loses_what_itself_has_lost(journal: Journal) -> None:
    """Record 1 was trained on, record 2 predicted. Neither has lost what both have together."""
    book(journal, "one", names([1]), USE, 5)
    book(journal, "two", names([2]), OTHER, 3)
    found = lost(journal, names([1, 2, 3]), "features", DELTA)
    worst = max([(USE, 5)], [(OTHER, 3)], key=lambda use: accountant.epsilon(use, DELTA))
    assert found.spent == worst and found.records == 2
    assert found.epsilon == pytest.approx(accountant.epsilon(worst, DELTA - TAILS), rel=1e-12)
    assert found.epsilon < accountant.epsilon([(USE, 5), (OTHER, 3)], DELTA)
    book(journal, "three", names([1]), OTHER, 3)
    both = lost(journal, names([1, 2, 3]), "features", DELTA)
    assert both.spent == [(OTHER, 3), (USE, 5)]
    assert lost(journal, names([3]), "features", DELTA).epsilon == 0.0
    assert lost(journal, names([1, 2]), "labels", DELTA).records == 0


def test_so_many_sorts_of_records_are_bounded_from_above(journal: Journal) -> None:
    """No record includes another: each was met by two of many sizes."""
    count = 2 * MOST_SORTS
    for number in range(count):
        use = Spending("gaussian", 4.0 + number / count)
        book(journal, f"{number}", names([number, (number + 1) % count]), use, 1)
    found = lost(journal, names(range(count)), "features", DELTA)
    least = accountant.epsilon([(USE, 1), (Spending("gaussian", 4.0 + 1 / count), 1)], DELTA)
    assert found.epsilon >= least and found.records == count


def test_fedembs_releases_and_noised_vectors_are_one_account(journal: Journal) -> None:
    pytest.importorskip("dp_accounting")
    book(journal, "one", names([1]), USE, 5)
    Releases(journal, "two", names([1])).book("0 ab", 0.5)
    found = lost(journal, names([1]), "features", DELTA)
    assert found.spent == [(USE, 5), (Spending("laplace", 2.0), 1)]
    assert found.epsilon > lost(journal, names([1]), "features", DELTA, without="two").epsilon


def test_without_dp_accounting_what_is_pure_adds_up(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, name, None)
    book(journal, "one", names([1]), USE, 5)
    book(journal, "two", names([1]), Spending("laplace", 2.0), 3)
    found = lost(journal, names([1]), "features", DELTA)
    alone = accountant.epsilon([(USE, 5)], DELTA - TAILS)
    assert found.epsilon == pytest.approx(alone + 3 * 0.5, rel=1e-9)


def test_noise_that_was_planned_for_the_limit_is_within_it(journal: Journal) -> None:
    size = accountant.noise_for(8.0, DELTA - TAILS, 12)
    mine = Spendings(journal, "one", names([1, 2]), organisation(features=8.0))
    for epoch in range(12):
        assert mine.book(f"{epoch}", Spending("gaussian", size), "embedding", "training")
    with pytest.raises(BudgetSpent, match=r"'shop'.*features.*ε = 8 .*runs have spent ε = 8 on"):
        mine.book("12", Spending("gaussian", size), "embedding", "training")
    assert not mine.book("11", Spending("gaussian", size), "embedding", "training")  # counted once


def test_models_tell_of_labels_too(journal: Journal) -> None:
    mine = Spendings(journal, "one", names([1]), organisation(labels=2.0))
    mine.book("vectors", USE, "embedding", "training", times=50)
    with pytest.raises(BudgetSpent, match="of the labels"):
        mine.book("epochs", USE, "models", "model", times=50)


def test_the_limit_holds_wherever_it_is_booked(journal: Journal) -> None:
    mine = RunJournal(lambda: journal, "one", limit=organisation(features=2.0, labels=4.0))
    records = names([1, 2, 3])
    mine.releases(records[:1]).book("0 ab", 1.5)
    with pytest.raises(BudgetSpent, match=r"`features` in \[privacy\] of policy\.toml"):
        mine.releases(records).book("1 cd", 0.75)
    mine.releases(records[1:]).book("1 cd", 0.75)  # of others
    answers = mine.spendings(names([4]))
    assert answers.book("a", Spending("response", 4.0), "labels", "labels")
    with pytest.raises(BudgetSpent, match="label_epsilon"):
        answers.book("b", Spending("response", 0.5), "labels", "labels")
    RunJournal(lambda: journal, "two").releases(records).book("2 ef", 9.0)  # who has no limit


def test_what_left_without_noise_has_no_epsilon_and_no_room(journal: Journal) -> None:
    Releases(journal, "one", names([1]), named=True).book_bare()
    assert lost(journal, names([1, 2]), "features", DELTA).epsilon == math.inf
    assert lost(journal, names([2]), "features", DELTA).epsilon == 0.0
    mine = Spendings(journal, "two", names([1, 2]), organisation(features=8.0))
    with pytest.raises(BudgetSpent, match="without noise"):
        mine.book("0", USE, "embedding", "training")


def test_a_plan_counts_once_what_its_run_has_spent(journal: Journal) -> None:
    """A run that goes on after a crash has spent a part of its own plan."""
    limit, records = organisation(features=8.0), names([1, 2])
    use = Spending("gaussian", accountant.noise_for(8.0, DELTA - TAILS, 4))
    mine = Spendings(journal, "one", records, limit)
    mine.book("0", use, "embedding", "training", times=3)
    mine.foresee([(use, 4)])
    with pytest.raises(BudgetSpent):
        mine.foresee([(use, 5)])
    with pytest.raises(BudgetSpent):
        Spendings(journal, "two", records, limit).foresee([(use, 4)])
    Spendings(journal, "two", records, limit).foresee([(use, 1)])
    Spendings(journal, "two", names([3]), limit).foresee([(use, 4)])
