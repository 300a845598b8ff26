"""Others choose which rows are common, and so whose answers meet whose labels. Whether a run begins
must not depend on that: it would tell of each label whether its answer is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade.align import phase
from colonnade.data import Split
from colonnade.errors import DataError
from colonnade.journal import Journal, RunJournal
from colonnade.privacy.labels import LabelAnswers
from colonnade.privacy.protection import protect
from colonnade.privacy.settings import Protect
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task

ROWS, CLASSES = 4000, tuple("abcdefghij")
TRUTH = torch.arange(ROWS) % len(CLASSES)


def answered(place: Path, run: str, rows: np.ndarray, epsilon: float) -> np.ndarray:
    """What a run on these rows says of their labels; its gradients show it to all."""
    ids = torch.arange(len(rows))
    split = Split(torch.zeros(len(rows), 1), TRUTH[torch.from_numpy(rows)], ids)
    me = Party(
        "bank",
        "active",
        Recipe(),
        Schedule(0, 1, 20),
        {"train": split},
        None,
        Task("multiclass", CLASSES),
        torch.device("cpu"),
    )
    journal = Journal(place)
    me.journal = RunJournal(lambda: journal, run, [f"row {row}" for row in rows])
    LabelAnswers(Protect(label_epsilon=epsilon), 1).begin(me)
    labels = me.splits["train"].y
    assert labels is not None
    return labels.numpy()


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_run_on_rows_that_were_chosen_by_their_answers_begins(
    epsilon: float, tmp_path: Path
) -> None:
    """Somebody suspects, by a model of its own, whose answers are wrong, and brings only these."""
    every = np.arange(ROWS)
    answers = answered(tmp_path, "1", every, epsilon)
    wrong = every[answers != TRUTH.numpy()]
    for number, rows in enumerate((wrong, wrong[:100], every[answers == TRUTH.numpy()])):
        again = answered(tmp_path, f"chosen {number}", rows, epsilon)
        assert np.array_equal(again, answers[rows])


def test_other_labels_are_still_noticed(tmp_path: Path) -> None:
    answered(tmp_path, "1", np.arange(ROWS), 4.0)
    shifted = (TRUTH + 1) % len(CLASSES)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DataError, match="not answers to"):
        patch.setattr("test_attack_answered_rows.TRUTH", shifted)
        answered(tmp_path, "2", np.arange(ROWS), 4.0)


@pytest.mark.parametrize("protected", [True, False])
def test_common_rows_of_one_class_begin_like_any_others(protected: bool, tmp_path: Path) -> None:
    """Somebody brings the two rows of which it wants to know whether their labels are alike. That
    all are of one class is an error only where labels may be told."""
    few = torch.arange(40)
    rows = {"train": Split(torch.zeros(40, 1), TRUTH[few], few)}
    task, cpu = Task("multiclass", CLASSES), torch.device("cpu")
    names = [f"row {row}" for row in few.tolist()]
    me = Party("bank", "active", Recipe(), Schedule(0, 1, 4), rows, None, task, cpu, names=names)
    journal = Journal(tmp_path)
    me.journal = RunJournal(lambda: journal, "1", names)
    if protected:
        protect(me, Protect(label_epsilon=4.0))
    alike = torch.tensor([3, 13, 23, 33])
    if protected:
        phase.keep(me, alike)
        assert len(me.splits["train"]) == 4
    else:
        with pytest.raises(DataError, match="no row has the class"):
            phase.keep(me, alike)
