"""A row that was released within a budget does not leave again, by itself and without noise.

FedEmb's server scores rows from their embeddings, one by one. Were these rows that its clients have
trained on, no ε would hold for them: so a client does not tell them, whatever run or prediction
asks, and it does not train within a budget on rows that it has told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from colonnade.data import Split
from colonnade.errors import BudgetSpent
from colonnade.journal import Journal, RunJournal
from colonnade.privacy.grouping import single_groups
from colonnade.privacy.release import Release, protected
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task

HOW = Release(epsilon=4.0, delta=0.0, planned=1)
ALL = 20


def client(folder: Path, run: str, **rows: range) -> Party:
    """A party whose splits are some of its twenty rows, which have ids, and the same journal."""
    x = torch.arange(ALL * 3, dtype=torch.float32).reshape(ALL, 3).sin()
    splits = {
        name: Split(x[list(some)], None, torch.tensor(list(some))) for name, some in rows.items()
    }
    schedule = Schedule(seed=1, epochs=1, batch_size=2, checkpoint_epochs=1)
    cpu, task = torch.device("cpu"), Task.of(("no", "yes"))
    me = Party("shop", "client", Recipe(), schedule, splits, None, task, cpu)
    journal = Journal(folder / "journal")
    me.journal = RunJournal(lambda: journal, run, [f"person {number}" for number in range(ALL)])
    return me


def trains(me: Party) -> None:
    rows = me.splits["train"].x
    protected(me, rows, single_groups(len(rows)), HOW)


def evaluates(me: Party, split: str) -> Any:
    return HOW.evaluating(me, nn.Identity(), split)


def test_rows_that_were_trained_on_are_not_predicted(tmp_path: Path) -> None:
    """Not even one of them among others, in another file, order and run."""
    trains(client(tmp_path, "a1", train=range(10)))
    for run in ("a1", "b2"):
        with pytest.raises(BudgetSpent, match="1 rows of 'predict' were released within a privacy"):
            evaluates(client(tmp_path, run, predict=range(15, 8, -1)), "predict")
    evaluates(client(tmp_path, "b2", predict=range(15, 9, -1)), "predict")


def test_rows_that_were_evaluated_are_not_trained_on(tmp_path: Path) -> None:
    evaluates(client(tmp_path, "a1", train=range(10), test=range(10, 15)), "test")
    with pytest.raises(BudgetSpent, match="no ε can be claimed for 3 of these rows"):
        trains(client(tmp_path, "b2", train=range(12, 20)))
    trains(client(tmp_path, "b2", train=range(15, 20)))


def test_rows_are_evaluated_as_often_as_one_likes(tmp_path: Path) -> None:
    """ε does not cover them, and nobody claims it: in each round and run, before and after."""
    for run in ("a1", "a1", "b2"):
        me = client(tmp_path, run, train=range(10), test=range(10, 15))
        evaluates(me, "test")
    assert me.journal is not None
    entries = me.journal.releases(me.records("test")).journal.entries("bare")
    assert len(list(entries)) == 1
    trains(client(tmp_path, "c3", train=range(10)))
    evaluates(client(tmp_path, "c3", test=range(10, 15)), "test")


def test_without_a_budget_there_is_nothing_to_protect(tmp_path: Path) -> None:
    plain = Release()
    me = client(tmp_path, "a1", train=range(10), test=range(5, 15))
    assert plain.evaluating(me, nn.Identity(), "test") is not None
    trains(client(tmp_path, "b2", train=range(10)))
    assert plain.evaluating(me, nn.Identity(), "train") is not None
