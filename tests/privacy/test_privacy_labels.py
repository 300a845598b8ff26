"""Labels that are answered: what roles see instead, for how long it lasts, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colonnade.assembly import from_memory
from colonnade.config import load
from colonnade.data import Split
from colonnade.errors import ConfigError, DataError
from colonnade.journal import Journal, RunJournal
from colonnade.journal.spendings import Spending
from colonnade.privacy.labels import STAGES, LabelAnswers, numbered
from colonnade.privacy.settings import Protect
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task

ROWS = 400
CLASSES = tuple("abcde")
TRUTH = torch.arange(ROWS) % 5


def holder(
    journal: Journal,
    run: str = "1",
    truth: torch.Tensor = TRUTH,
    order: Sequence[int] = range(ROWS),
    classes: tuple[str, ...] = CLASSES,
) -> Party:
    """A party with these rows of a table of 400, every fourth for validation."""
    rows = torch.tensor(list(order))
    ids = torch.arange(len(rows))
    held = ids % 4 == 3
    splits = {
        name: Split(torch.zeros(int(some.sum()), 1), truth[rows[some]], ids[some])
        for name, some in (("train", ~held), ("validation", held), ("test", ids < 3))
    }
    task = Task("multiclass", classes) if classes else Task("regression")
    me = Party(
        "bank", "active", Recipe(), Schedule(0, 10, 20), splits, None, task, torch.device("cpu")
    )
    me.journal = RunJournal(lambda: journal, run, [f"row {row}" for row in rows.tolist()])
    return me


def answers_of(me: Party, how: Protect) -> dict[int, float]:
    """What its roles see, by the number of the row in the table."""
    LabelAnswers(how, 10).begin(me)
    names = me.journal._ids  # type: ignore[union-attr]
    found = {}
    for name in ("train", "validation"):
        split = me.splits[name]
        assert split.y is not None
        for row, label in zip(split.ids.tolist(), split.y.tolist(), strict=True):
            found[int(names[row].split()[1])] = label
    return found


def test_labels_are_replaced_before_a_role_sees_them(tmp_path: Path) -> None:
    me = holder(Journal(tmp_path / "journal"))
    found = answers_of(me, Protect(label_epsilon=1.0))
    right = sum(found[row] == int(TRUTH[row]) for row in range(ROWS))
    kept = math.e / (math.e + 4)
    assert abs(right - kept * ROWS) < 5 * math.sqrt(ROWS * kept * (1 - kept))
    assert me.splits["test"].y is not None and me.splits["test"].y.tolist() == [0, 1, 2]
    assert me.task.responses is not None


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_one_answer_for_all_runs(tmp_path: Path, epsilon: float) -> None:
    """Another run, another order and other splits of the rows, another ε: the same answers. Rows
    that were not answered get one at the present ε, and are booked at it."""
    journal = Journal(tmp_path / "journal")
    some = list(range(0, ROWS, 2))
    first = answers_of(holder(journal, order=some), Protect(label_epsilon=1.0))
    journal = Journal(tmp_path / "journal")
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)).tolist()
    me = holder(journal, "2", order=order)
    protection = LabelAnswers(Protect(label_epsilon=epsilon), 10)
    protection.begin(me)
    again = answers_of(holder(journal, "3", order=order), Protect(label_epsilon=0.1))
    assert {row: again[row] for row in some} == first
    told = protection.told()
    assert (told["epsilon"], told["least"], told["asked"]) == (max(1.0, epsilon), 1.0, epsilon)
    assert (told["rows"], told["answered_before"]) == (ROWS, ROWS // 2)
    assert me.journal is not None
    records = np.concatenate([me.records("train"), me.records("validation")])
    spent = {use.size for use, _ in me.journal.spendings(records).spent(kind="labels")}
    assert spent == {1.0, epsilon}
    assert len(list(journal.entries("spent"))) == 2  # the third run spent nothing


def test_rows_of_one_name_are_answered_each_by_itself(tmp_path: Path) -> None:
    assert numbered(np.array([5, 9, 5, 5, 9], dtype=np.uint64)).tolist() == [0, 0, 1, 2, 1]
    me = holder(Journal(tmp_path / "journal"), truth=torch.zeros(ROWS, dtype=torch.long))
    me.journal = RunJournal(lambda: Journal(tmp_path / "bare"), "1")  # all rows have one content
    LabelAnswers(Protect(label_epsilon=1.0), 10).begin(me)
    labels = me.splits["train"].y
    assert labels is not None and len(labels.unique()) == 5


def test_other_labels_are_not_taken_for_those_that_were_answered(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    answers_of(holder(journal), Protect(label_epsilon=4.0))
    corrected = torch.where(torch.arange(ROWS) % 50 == 0, (TRUTH + 1) % 5, TRUTH)
    answers_of(holder(journal, "2", corrected), Protect(label_epsilon=4.0))
    with pytest.raises(DataError, match="not answers to these labels"):
        answers_of(holder(journal, "3", (TRUTH + 1) % 5), Protect(label_epsilon=4.0))


def test_with_a_prior_rows_wait_for_it(tmp_path: Path) -> None:
    """The first share is answered at once; the others count nothing until the networks have
    spoken, and are then answered by groups of classes that follow from what they said."""
    journal = Journal(tmp_path / "journal")
    me, how = holder(journal), Protect(label_epsilon=2.0, label_response="prior")
    protection = LabelAnswers(how, 10)
    protection.begin(me)
    responses = me.task.responses
    assert responses is not None
    first = int(responses.answered.sum())
    share = STAGES[0][1]
    assert abs(first - 300 * share) < 5 * math.sqrt(300 * share * (1 - share))
    due = round(STAGES[1][0] * 10)
    ids = me.splits["train"].ids  # whose labels are ids % 5
    either = [torch.nn.functional.one_hot((ids + more) % 5, 5) for more in (0, 1)]
    sure = 6.0 * (either[0] + either[1])
    for epoch in me.epochs():
        protection.epoch(me)
        responses = me.task.responses
        assert responses is not None
        rows = torch.arange(300)
        batch = me.splits["train"].rows(rows)
        responses.loss(sure, _Batch(rows))
        if epoch + 1 < due:
            assert responses.seen is None
        assert int(responses.answered.sum()) == (first if epoch < due else 300)
        assert batch.y is not None
    responses = me.task.responses
    assert responses is not None and responses.members is not None
    known = protection._known
    assert known is not None
    first_rows = known.since[:300] == 0
    assert int(first_rows.sum()) == first and (known.groups[300:] == 5).all()  # validation rows
    likely = np.stack([((ids + more) % 5).numpy() for more in (0, 1)], 1)[~first_rows]
    shown = known.answers[:300][~first_rows]
    members = responses.members[torch.from_numpy(~first_rows)].numpy()
    # the two likely classes are told apart, and the likelier one of the answered group is shown
    assert (np.take_along_axis(members, likely, 1).sum(1) == 1).all()
    assert (shown[:, None] == likely).any(1).all()
    assert (known.groups[:300][~first_rows] == 2).all()
    told = protection.told()
    assert told["rows"] == ROWS and told["groups"] < 5
    again = holder(Journal(tmp_path / "journal"), "2")
    LabelAnswers(Protect(label_epsilon=1.0), 10).begin(again)
    assert again.splits["train"].y is not None and me.splits["train"].y is not None
    assert again.splits["train"].y.tolist() == me.splits["train"].y.tolist()


class _Batch:
    weights = None

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows


def test_numbers_get_laplace_noise_in_their_range(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    truth = torch.linspace(-5, 15, ROWS, dtype=torch.double)
    me = holder(journal, truth=truth, classes=())
    found = answers_of(me, Protect(label_epsilon=2.0, label_range=(0.0, 10.0)))
    noise = np.array([found[row] - float(truth[row].clamp(0, 10)) for row in range(ROWS)])
    assert 0.7 * 5 < np.abs(noise).mean() < 1.3 * 5  # b = 10 / 2
    grid = np.array(list(found.values())) / 10 * 2**16
    assert np.allclose(grid, grid.round(), atol=1e-6)
    (entry,) = journal.entries("spent")
    assert Spending(entry["mechanism"], entry["size"]) == Spending("laplace", 0.5)
    again = holder(journal, "2", truth=truth, classes=())
    assert answers_of(again, Protect(label_epsilon=2.0, label_range=(0.0, 10.0))) == found


# ---- settings ------------------------------------------------------------------------------------


def refused(tree: Mapping[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        load(dict(tree))
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "vfedtrans"}, "nothing needs protection"),
        ({"method": "local"}, "sends nothing"),
        ({"method": "jovefl"}, "not corrected for answers"),
        ({"method": "cvfl", "cvfl": {"labels": "shared"}}, "gives all parties the labels"),
        ({"easter": {"loss": "sigmoid"}, "method": "easter"}, "take softmax"),
        ({"class_weight": "balanced"}, "Omit class_weight"),
        (
            {"decision": {"calibrate": "platt"}, "data": {"validation": 0.2}},
            "decision.calibrate would fit probabilities to answers",
        ),
        ({"protect": {"label_response": "prior"}}, "no effect without label_epsilon"),
        (
            {"method": "fedemb", "protect": {"label_epsilon": 1.0, "label_response": "prior"}},
            "fedemb has several",
        ),
    ],
)
def test_what_cannot_be_protected_is_refused(changes: dict[str, Any], said: str) -> None:
    tree = {"method": "splitnn", "protect": {"label_epsilon": 2.0}} | changes
    assert said in refused(tree)


def test_numbers_need_a_range_and_classes_none() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    settings = load({"method": "splitnn", "protect": {"label_epsilon": 2.0}})
    with pytest.raises(ConfigError, match=r"set protect\.label_range"):
        from_memory(settings, {"a": (x, y), "b": x}, None)
    ranged = {"label_epsilon": 2.0, "label_range": [0, 1]}
    settings = load({"method": "splitnn", "protect": ranged})
    with pytest.raises(ConfigError, match="these are classes: omit it"):
        from_memory(settings, {"a": (x, y > 0), "b": x}, None)


def test_neither_the_scale_nor_the_test_rows_depend_on_labels() -> None:
    """All are told the mean and spread of numbers, and which rows are for tests."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 2)), rng.uniform(0, 1, 80)
    found = []
    for protect in ({}, {"label_epsilon": 2.0, "label_range": [0, 1]}):
        settings = load({"method": "splitnn", "protect": protect})
        made = [
            from_memory(settings, {"a": (x, labels), "b": x}, None).parties["a"]
            for labels in (y, 1 - y**8)
        ]
        rows = [me.splits["test"].ids.tolist() for me in made]
        found.append((rows[0] == rows[1], made[0].task == made[1].task))
        assert not protect or made[0].task.mean == 0.5
    assert found == [(False, False), (True, True)]
