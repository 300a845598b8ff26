"""A run that begins again on other rows: others decide which rows are common, and a hub may say
that there is no checkpoint. What leaves is counted for each record, and has noise of its own.

A party that brings one id less shifts all rows by one place, or changes who is in which batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from colonnade.data import Split
from colonnade.errors import BudgetSpent
from colonnade.journal import Journal, RunJournal
from colonnade.privacy.protection import protect
from colonnade.privacy.settings import Protect
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task
from colonnade.wire import Kind

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="features", carries="features")
WIDTH, RUN = 40, "3f"
ALL = [f"person {number}" for number in range(12)]
HOW, FROZEN = Protect(embedding_epsilon=1.0), Protect(embedding_epsilon=1.0, bottom="frozen")


def vector(person: str) -> Tensor:
    """What the party's network makes of a person, whatever row that is in."""
    generator = torch.Generator().manual_seed(int(person.split()[1]))
    return nn.functional.normalize(torch.randn(WIDTH, generator=generator), dim=0) / 2


def party(place: Path, how: Protect, people: Sequence[str], split: str = "train") -> Party:
    """One attempt of the run, with these people in common."""
    rows = {split: Split(torch.ones(len(people), 3), None, torch.arange(len(people)))}
    rows.setdefault("train", Split(torch.ones(1, 3), None, torch.tensor([0])))
    schedule, cpu = Schedule(seed=1, epochs=3, batch_size=4), torch.device("cpu")
    me = Party("shop", "passive", Recipe(), schedule, rows, None, Task.of(("a", "b")), cpu)
    journal = Journal(place)
    me.journal = RunJournal(lambda: journal, RUN, people)
    protect(me, how, {"optimizer": 3})
    me.keep("bottom", lambda: nn.Linear(3, WIDTH))
    assert me.protection is not None
    me.protection.begin(me)
    return me


def attempt(
    place: Path, how: Protect, people: Sequence[str], split: str = "train", later: float = 1.0
) -> Iterator[tuple[str, Tensor]]:
    """Who leaves, and as what.

    later  what all vectors but those of the first batch are multiplied by
    """
    me = party(place, how, people, split)
    scale = 1.0
    assert me.protection is not None
    for _ in me.epochs():
        for batch in me.batches() if split == "train" else me.rows(split):
            who = [people[row] for row in range(len(people))[: len(batch)]]
            if batch.rows is not None:
                who = [people[row] for row in batch.rows.tolist()]
            value = scale * torch.stack([vector(one) for one in who])
            scale = later
            sent = me.protection.applied(me, EMBEDDING, value)
            assert isinstance(sent, Tensor)
            yield from zip(who, sent, strict=True)
        if split != "train":
            return


def booked(place: Path, person: str) -> int:
    """How often the journal says that a person has left in this run."""
    journal = Journal(place)
    run = RunJournal(lambda: journal, RUN, [person])
    names = run.names(torch.tensor([0]), torch.zeros(1))
    return sum(times for _, times in run.spendings(names).spent())


def without(person: str) -> list[str]:
    return [one for one in ALL if one != person]


@pytest.mark.parametrize("missing", ["person 0", "person 11"])
def test_what_leaves_again_on_other_common_rows_is_counted(missing: str, tmp_path: Path) -> None:
    """Fresh noise on the same vectors, as often as somebody changes what is common: averages."""
    left: dict[str, set[bytes]] = {one: set() for one in ALL}
    for people in (ALL, without(missing), without("person 5")):
        try:
            for number, (who, sent) in enumerate(attempt(tmp_path, HOW, people)):
                left[who].add(sent.numpy().tobytes())
                if number + 1 == len(people):
                    break  # killed after one epoch
        except BudgetSpent:
            pass
    counts = Counter({who: booked(tmp_path, who) - len(sent) for who, sent in left.items()})
    assert min(counts.values()) >= 0


def test_who_is_trained_on_again_with_other_common_rows_is_counted(tmp_path: Path) -> None:
    trained = Counter[str]()
    for people in (ALL, without("person 0"), without("person 5"), without("person 7")):
        me = party(tmp_path, Protect(model_epsilon=1.0), people)
        bottom = me.kept.modules()["bottom"]
        optimizer = me.optimizer(bottom)
        try:
            for _ in me.epochs(count=1):
                for batch in me.batches():
                    optimizer.zero_grad()
                    bottom(batch.x).square().mean().backward()
                    optimizer.step()
                    assert batch.rows is not None
                    trained.update(people[row] for row in batch.rows.tolist())
        except BudgetSpent:
            pass
    assert all(booked(tmp_path, who) >= times for who, times in trained.items())


def test_two_people_in_one_place_do_not_share_noise(tmp_path: Path) -> None:
    """Whose networks are frozen: the difference of what left is not that of the vectors."""
    first = dict(attempt(tmp_path, FROZEN, ALL))
    try:
        second = dict(attempt(tmp_path, FROZEN, without("person 0")))
    except BudgetSpent:
        return
    for before, after in zip(ALL, without("person 0"), strict=False):
        exact = vector(before) - vector(after)
        assert float((first[before] - second[after] - exact).abs().max()) > 0.1


def test_one_person_has_one_noise_in_whatever_place_and_split(tmp_path: Path) -> None:
    """Frozen: another place, or validation in place of training, gives no second draw."""
    first = dict(attempt(tmp_path, FROZEN, ALL))
    for split in ("train", "validation"):
        found = dict(attempt(tmp_path, FROZEN, without("person 0"), split))
        for who, sent in found.items():
            assert torch.equal(sent, first[who])


def test_two_processes_of_one_run_do_not_send_two_things(tmp_path: Path) -> None:
    """A hub calls two runs of one party alike, before either has counted anything. Each knows what
    the other has sent, also what was sent since it began."""
    first, second = (attempt(tmp_path, HOW, ALL, later=later) for later in (0.5, 0.9))
    for _ in range(4):
        (who, sent), (other, again) = next(first), next(second)
        assert who == other and torch.equal(sent, again)
    next(first)
    with pytest.raises(BudgetSpent, match="other vectors"):
        next(second)
