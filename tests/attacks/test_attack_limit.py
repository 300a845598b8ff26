"""What all runs together may tell of a record is one limit, whoever asks, and whatever is removed.

A party's policy says [privacy] features = 10; a run tells within ε = 8. So the first run trains.
The next one finds that too much was spent, whichever folders are gone, before its first message;
and where a lying hub gets past that, the journal refuses to count it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from child import Plan
from covert import shop
from federations import Field, toy
from nursery import Nursery
from points import Kill

from colonnade.cli.main import main
from colonnade.data import Split
from colonnade.errors import BudgetSpent, Denied
from colonnade.journal import Journal, RunJournal, Spending
from colonnade.privacy.account import Organisation
from colonnade.privacy.protection import Planned, Protections, protect
from colonnade.privacy.settings import Protect
from colonnade.role.party import Party
from colonnade.wire import Kind
from colonnade.wire.gate import Gate
from colonnade.wire.limits import Limits
from colonnade.wire.policy import Policy

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="features", carries="features")
GRADIENT = Kind("gradient", ("batch", "dim"), reveals="labels", carries="labels")
HEAD = Kind("head", ("batch", "dim"), reveals="both", carries="models")
EIGHT = Protect(embedding_epsilon=8.0)
LIMIT = Organisation(Limits(labels=4.0, features=10.0), "shop", "policy.toml")
PASSIVE, EPOCHS, STEPS = "party2", 8, 3


# ---- one party -----------------------------------------------------------------------------------


def party(
    folder: Path,
    run: str,
    how: Protect = EIGHT,
    train: int = 30,
    more: dict[str, int] | None = None,
    sent: tuple[Kind, ...] = (EMBEDDING,),
) -> Party:
    """With its limit, and noise that is counted; its role has not begun."""
    me = shop(folder, run, EPOCHS, train, more or {})
    journal = Journal(folder)
    me.journal = RunJournal(lambda: journal, run, [f"id-{n}" for n in range(99)], limit=LIMIT)
    protect(me, how, sent=sent)
    return me


def begun(me: Party) -> Protections:
    assert isinstance(me.protection, Protections)
    me.protection.begin(me)
    return me.protection


def train(me: Party) -> int:
    """How many vectors leave."""
    protection, left = begun(me), 0
    for _ in me.epochs():
        for batch in me.batches():
            protection.applied(me, EMBEDDING, batch.x[:, :4])
            left += 1
    return left


def predict(me: Party) -> int:
    protection, left = begun(me), 0
    with me.evaluating():
        for batch in me.rows("predict"):
            protection.applied(me, EMBEDDING, batch.x[:, :4])
            left += 1
    return left


def test_a_second_run_does_not_begin(tmp_path: Path) -> None:
    assert train(party(tmp_path, "a1")) == EPOCHS * STEPS
    with pytest.raises(BudgetSpent, match=r"'shop'.*ε = 10 .*ε = 8 .*Nothing was sent.*smaller"):
        begun(party(tmp_path, "b2"))
    assert (
        train(party(tmp_path, "c3", Protect(embedding_epsilon=1.0))) == EPOCHS * STEPS
    )  # of what is left


def test_two_runs_that_begin_at_once_share_one_limit(tmp_path: Path) -> None:
    """When each began, the other had spent nothing: the journal refuses what would be too much."""
    first, second = party(tmp_path, "a1"), party(tmp_path, "b2")
    protection = begun(second)
    assert train(first) == EPOCHS * STEPS
    left = 0
    with pytest.raises(BudgetSpent, match="Nothing was sent"):
        for _ in second.epochs():
            for batch in second.batches():
                protection.applied(second, EMBEDDING, batch.x[:, :4])
                left += 1
    booked = list(Journal(tmp_path).entries("spent", run="b2"))
    assert left == STEPS * len(booked) and 0 < len(booked) < EPOCHS  # what was booked, no more


def test_a_run_that_says_nothing_beforehand_is_stopped_where_it_is_booked(tmp_path: Path) -> None:
    assert train(party(tmp_path, "a1")) == EPOCHS * STEPS
    hidden = party(tmp_path, "b2", sent=())  # as if no message were declared
    with pytest.raises(BudgetSpent):
        train(hidden)


def test_predictions_are_within_the_same_limit(tmp_path: Path) -> None:
    """A training spends 8 of 10 on 30 records. Single vectors of one of them follow, under other
    weights each time, until that would be too much. New records have all of it."""
    assert train(party(tmp_path, "a1")) == EPOCHS * STEPS
    left, row = 0, torch.zeros(1, 784)
    with pytest.raises(BudgetSpent, match="'shop'"):
        for number in range(50):
            me = party(tmp_path, f"predict {number}", train=0, more={"predict": 1})
            me.splits = {"predict": Split(row, None, torch.tensor([3]))}
            me.keep("bottom", lambda: torch.nn.Linear(1, 1)).bias.data.fill_(number)
            left += predict(me)
    assert 0 < left < 10
    fresh = party(tmp_path, "predict fresh", train=0, more={"predict": 1})
    fresh.splits = {"predict": Split(row, None, torch.tensor([77]))}
    assert predict(fresh) == 1


@pytest.mark.parametrize(("limit", "said"), [("features", "features"), ("labels", "labels")])
def test_models_that_leave_are_within_both_limits(limit: str, said: str, tmp_path: Path) -> None:
    """They are trained on features and labels alike. Held-out rows are not trained on."""
    how = Protect(model_epsilon=8.0)
    for most, stops in ((7.9, True), (8.0, False)):
        me, journal = shop(tmp_path, "a1", 4, 30, {"test": 5}), Journal(tmp_path)
        organisation = Organisation(Limits(**{limit: most}), "shop", "policy.toml")
        ids = [f"id-{n}" for n in range(99)]
        me.journal = RunJournal(lambda: journal, "a1", ids, limit=organisation)  # noqa: B023
        me.protection = Protections(how, planned=Planned.of(how, me.schedule, (), {"head": 4}))
        if stops:
            with pytest.raises(BudgetSpent, match=f"no more of the {said}"):
                begun(me)
        else:
            begun(me)


@pytest.mark.parametrize(
    ("kind", "how", "about"),
    [
        (EMBEDDING, Protect(), "features"),
        (EMBEDDING, Protect(label_epsilon=1.0), "features"),
        (GRADIENT, Protect(), "labels"),
        (GRADIENT, EIGHT, "labels"),
        (EMBEDDING, EIGHT, ""),
        (GRADIENT, Protect(label_epsilon=1.0), ""),
        (HEAD, EIGHT, "labels"),
        (HEAD, Protect(model_epsilon=8.0), ""),
        (Kind("any", ("batch", "dim"), reveals="?"), EIGHT, "labels"),
    ],
)
def test_what_no_protection_counts_does_not_get_past_the_limit(
    kind: Kind, how: Protect, about: str, tmp_path: Path
) -> None:
    """The easiest way around a limit would be a run without noise: nobody could count it."""
    me = party(tmp_path, "a1", how)
    rules = {"privacy": {"labels": 4, "features": 10}, "allow": {kind.name: {}}}
    gate = Gate("shop", Policy.from_table(rules), 784, 2)
    for batch in me.rows("train"):
        if not about:
            gate.check("bank", kind, batch.x[:, :4], 160, me)
            continue
        with pytest.raises(Denied, match=f"record's {about}, and without a \\[protect\\]"):
            gate.check("bank", kind, batch.x[:, :4], 160, me)


def test_answers_for_labels_are_within_the_limit(tmp_path: Path) -> None:
    me = party(tmp_path, "a1")
    assert isinstance(me.journal, RunJournal)
    answers = me.journal.spendings(me.records("train"))
    with pytest.raises(BudgetSpent, match=r"labels of these records.*label_epsilon"):
        answers.book("a", Spending("response", 4.5), "labels", "labels")
    some = np.arange(10)
    assert answers.book("b", Spending("response", 4.0), "labels", "labels", positions=some)
    assert not list(me.journal.journal.entries("spent", key="a"))


# ---- a federation --------------------------------------------------------------------------------


def federation(folder: Path, method: str = "splitnn", parties: int = 2) -> Field:
    field = Field(folder, toy(method, parties), deadline=10.0)
    with field.changed() as content:
        content["run"]["protect"] = {"embedding_epsilon": 8.0}
        allowed = content["policy"]["allow"]
    kept = folder.parent / "kept"  # of what outlives the folders of runs
    policy = {"journal": str(kept), "privacy": {"features": 10.0}, "allow": allowed}
    (folder / "policy.toml").write_text(tomli_w.dumps(policy))
    return field


def start(field: Field, program: tuple[str, ...]) -> None:
    for name in field.names:
        more = ["--policy", str(field.folder / "policy.toml")] if name == PASSIVE else []
        field.start(name, program, *more)


def sent(field: Field) -> int:
    book = field.out(PASSIVE) / "ledger.jsonl"
    return book.read_text().count('"embedding"') if book.exists() else 0


def listed(what: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["privacy", str(what), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["journals"]
    return dict(found)


@pytest.mark.slow
def test_kills_and_lost_folders_and_cut_journals_give_nothing_back(
    nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One record's budget, through a kill -9, a resumed run, a second run and lost folders."""
    first = federation(tmp_path / "first")
    plan = Plan([Kill("ledger: after", PASSIVE, 14)]).write(tmp_path / "plan")
    start(first, nursery.program(plan))
    assert first.processes[PASSIVE].wait(40) == -9
    policy = ("--policy", str(first.folder / "policy.toml"))
    first.start(PASSIVE, nursery.program(plan), *policy)
    assert set(first.wait(60).values()) == {0}
    found = listed(tmp_path / "kept", capsys)
    assert found["lost"]["features"]["epsilon"] == pytest.approx(8.0, rel=1e-6)  # once

    kept = (tmp_path / "kept" / "journal.jsonl").read_text()
    (tmp_path / "kept" / "journal.jsonl").write_text("".join(kept.splitlines(True)[:-1]))
    assert main(["privacy", str(first.out(PASSIVE)), *policy]) == 1
    assert "cut, changed or replaced" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "kept" / "journal.jsonl").write_text(kept)
    assert listed(tmp_path / "kept", capsys) == found

    shutil.rmtree(first.folder / "parties")  # ledgers, checkpoints, weights, results
    again = federation(tmp_path / "again")
    start(again, (*nursery.command(), "party"))
    codes = again.wait(60)
    shown = " ".join(again.shown(PASSIVE).split())
    assert codes[PASSIVE] == 2 and not sent(again)
    assert "ε = 10 at δ = 1e-05 on a record's features" in shown and "it would be 1" in shown
    assert "dialling" not in shown and "waiting" not in shown  # nobody was called
    assert listed(tmp_path / "kept", capsys) == found


@pytest.mark.slow
def test_sums_under_masks_are_within_the_limit(
    nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In EASTER a party adds a share of the noise, and is charged what the sum tells."""
    program = (*nursery.command(), "party")
    first = federation(tmp_path / "first", "easter", 4)
    start(first, program)
    assert set(first.wait(90).values()) == {0}
    found = listed(tmp_path / "kept", capsys)
    assert {line["mechanism"] for line in found["spent"]} == {"discrete"}
    assert found["lost"]["features"]["epsilon"] == pytest.approx(8.0, rel=1e-6)
    again = federation(tmp_path / "again", "easter", 4)
    again.start(PASSIVE, program, "--policy", str(again.folder / "policy.toml"))
    assert again.wait()[PASSIVE] == 2
    assert "ε = 10 at δ = 1e-05 on a record's features" in " ".join(again.shown(PASSIVE).split())


@pytest.mark.slow
def test_without_noise_nobody_is_called(nursery: Nursery, tmp_path: Path) -> None:
    field = federation(tmp_path / "field")
    with field.changed() as content:
        del content["run"]["protect"]
    program = (*nursery.command(), "party")
    field.start(PASSIVE, program, "--policy", str(field.folder / "policy.toml"))
    assert field.wait()[PASSIVE] == 2
    shown = " ".join(field.shown(PASSIVE).split())
    assert "'embedding' would leave without a protection that counts" in shown
    assert "dialling" not in shown
