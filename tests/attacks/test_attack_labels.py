"""Gradients show the labels of every row. With `label_epsilon` they show answers, all of them, and
labels only as often as the answers are right: what is kept in the journal decides, not the run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from child import Plan
from federations import Field, toy
from nursery import Nursery
from points import Kill
from torch import Tensor

import colonnade
from colonnade import assembly, config
from colonnade.journal import Journal, default_place
from colonnade.role.party import Party
from colonnade.wire import store

SEED = 11


def tree(method: str, epsilon: float, **changes: Any) -> dict[str, Any]:
    base = {
        "method": method,
        "seed": 2,
        "epochs": 1,
        "batch_size": 50,
        "data": {"name": "digits", "train_rows": 1000, "test_rows": 50},
        "partition": {"kind": "columns", "parties": 3},
        "absence": False,
        "record": ["gradient"],
        **({method: {"hidden": 0}} if method == "splitnn" else {}),
    }
    if epsilon:
        base["protect"] = {"label_epsilon": epsilon, "simulate_noise_seed": SEED}
    return base | changes


def truths(settings: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """The labels of training rows, and the positions of each batch of the first epoch."""
    made = assembly.from_catalogue(config.load(settings))
    me = made.parties[made.holder]
    batches = [batch.rows for _ in me.epochs("train", 1) for batch in me.batches()]
    labels = me.splits["train"].y
    assert labels is not None
    return labels, [rows for rows in batches if rows is not None]


def received(folder: Path, by: str) -> list[Tensor]:
    """The gradients that a passive party got, in the order of the steps."""
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    mine = [row["row"] for row in rows if row.get("receiver") == by]
    tensors: dict[str, Tensor] = {}
    for file in (folder / "record").glob("*.safetensors"):
        tensors |= {name[:8]: value for name, value in store.read_tensors(file).items()}
    return [tensors[f"{row:08d}"] for row in mine if f"{row:08d}" in tensors]


def by_sign(gradients: list[Tensor]) -> Tensor:
    """Of class scores: the one entry of a row that is below zero."""
    return torch.cat([gradient.argmin(1) for gradient in gradients])


def by_least_squares(gradients: list[Tensor], answers: list[Tensor], classes: int) -> Tensor:
    """Of embeddings under a linear top: dL/dh = δ W. A party that knows some rows' answers in a
    batch fits δ's signs to the others: it solves for a matrix that gives back one-hot answers."""
    found = []
    for gradient, known in zip(gradients, answers, strict=True):
        g = gradient.double()
        scale = g.norm(dim=1, keepdim=True).clamp(min=1e-30)
        target = torch.nn.functional.one_hot(known, classes).double()
        fit = torch.linalg.lstsq(g / scale, target - target.mean(0)).solution
        found.append((g / scale @ fit).argmax(1))
    return torch.cat(found)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("method", ["easter", "splitnn"])
def test_gradients_show_answers_and_labels_as_often_as_answers_do(
    method: str, epsilon: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Party] = {}
    keep = Party.batches

    def watched(me: Party, **more: bool) -> Any:
        if me.labelled:
            seen[me.name] = me
        return keep(me, **more)

    settings = tree(method, epsilon)
    labels, rows = truths(settings)
    monkeypatch.setattr(Party, "batches", watched)
    colonnade.run(settings, out=tmp_path / "run")
    (holder,) = seen.values()
    answers = holder.splits["train"].y
    assert answers is not None
    gradients = received(tmp_path / "run", "party2")
    assert len(gradients) == len(rows)
    order = torch.cat(rows)
    if method == "easter":
        guessed = by_sign(gradients)
    else:
        guessed = by_least_squares(gradients, [answers[some] for some in rows], 10)
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    said = {
        row.get("protected") for row in map(json.loads, ledger) if row.get("kind") == "gradient"
    }
    assert said == {f"labels answered within ε = {epsilon:g}" if epsilon else None}
    told = float((guessed == answers[order]).double().mean())
    assert told > (0.99 if method == "easter" else 0.9)
    right = float((guessed == labels[order]).double().mean())
    if not epsilon:
        assert right == told
        return
    kept = math.exp(epsilon) / (math.exp(epsilon) + 9)
    expected = told * kept + (1 - told) * (1 - kept) / 9
    assert abs(right - expected) < 5 * math.sqrt(kept * (1 - kept) / len(labels))


# ---- what outlives a run ------------------------------------------------------------------------


def federation(name: str, epsilon: float = 1.0, **changes: Any) -> dict[str, Any]:
    protect = {"label_epsilon": epsilon, "label_response": "prior"}
    return toy("splitnn", 2, name=name, epochs=8, lr=0.2, protect=protect, **changes)


def finished(field: Field, nursery: Nursery, plan: Path) -> None:
    for name in field.names:
        field.start(name, nursery.program(plan))
    assert set(field.wait(60).values()) == {0}


def labels_of(field: Field) -> dict[str, Any]:
    found: dict[str, Any] = field.result("party1")["privacy"]["parties"]["party1"]["labels"]
    return found


@pytest.mark.slow
def test_a_second_run_has_the_same_answers(nursery: Nursery, tmp_path: Path) -> None:
    """All folders of the first run are removed, and ε is lower in the second: it has the answers of
    the first, at its ε, and says so."""
    plan = Plan().write(tmp_path / "plan")
    first = Field(tmp_path / "first", federation("second", 2.0))
    finished(first, nursery, plan)
    told = labels_of(first)
    assert (told["epsilon"], told["answered_before"]) == (2.0, 0)
    shutil.rmtree(tmp_path / "first")
    again = Field(tmp_path / "again", federation("second", 0.5))
    finished(again, nursery, plan)
    told = labels_of(again)
    assert (told["asked"], told["epsilon"], told["least"]) == (0.5, 2.0, 2.0)
    assert told["answered_before"] == told["rows"] == 200


@pytest.mark.slow
def test_a_kill_changes_no_answer(nursery: Nursery, tmp_path: Path) -> None:
    """The label holder is killed while it gathers what networks say, before it answers by that, and
    just after: each time the run ends with the bits of one that nobody disturbed. Both begin with
    the same journal, which has a secret and no entry."""
    born = Journal(tmp_path / "born")
    born.close()
    ends = []
    for number, nth in enumerate((0, 30, 45, 49)):
        name = f"killed-{nth}"
        place = default_place(name, "party1")
        shutil.copytree(tmp_path / "born", place)
        kills = [Kill("ledger: after", "party1", nth)] if nth else []
        plan = Plan(kills).write(tmp_path / f"plan{number}")
        field = Field(tmp_path / name, federation(name, 2.0))
        for party in field.names:
            field.start(party, nursery.program(plan))
        if nth:
            assert field.processes["party1"].wait(60) == -9
            field.start("party1", nursery.program(plan))
        assert set(field.wait(90).values()) == {0}
        journal = Journal(place)
        assert len(list(journal.entries("answered"))) == 2
        assert [entry["size"] for entry in journal.entries("spent")] == [2.0, 2.0]
        told = labels_of(field)
        assert told["answered_before"] == 0 and told["groups"] < 10
        ends.append((field.weights(), told))
    assert ends[0][0] and ends == [ends[0]] * 4
