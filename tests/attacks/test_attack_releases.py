"""No record leaves more often than its policy allows: counted per record, whatever else the party
holds, and for good: in every run of this party together.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from covert import EMBEDDING, TREE, play, shop
from federations import Field, toy, wait_for
from nursery import Nursery

from colonnade.deploy.memory import run_of
from colonnade.errors import Denied
from colonnade.role.party import Party
from colonnade.wire import Peer


def honest(me: Party, to: Peer) -> None:
    """Send every training row once per epoch, as split learning does."""
    for _ in me.epochs():
        for batch in me.batches():
            to.send(EMBEDDING, batch.x[:, :4])


def test_rows_that_are_held_and_do_not_train_give_no_further_releases(tmp_path: Path) -> None:
    """30 rows train, 30 are only held: 3 releases were once 6 for each of the 30."""
    left, why = play(tmp_path, honest, epochs=6, more={"test": 30}, releases=3)
    assert len(left) == 3 * 3
    assert "3 releases" in why and "30 of its records" in why


def test_a_second_run_has_no_fresh_budget(tmp_path: Path) -> None:
    """Another run, in a new folder, with a new ledger, on the same records."""
    left, _ = play(tmp_path, honest, epochs=2, run="a1", releases=3)
    assert len(left) == 2 * 3
    left, why = play(tmp_path, honest, epochs=2, run="b2", releases=3)
    assert len(left) == 3 and "releases" in why


def test_a_crash_gives_no_release_back_and_takes_none(tmp_path: Path) -> None:
    """A process that dies in the middle of an epoch repeats it under the same run: what it had
    booked is booked once, and the epochs after it have what is left and no more."""

    def dies(me: Party, to: Peer) -> None:
        for _ in me.epochs():
            for batch in me.batches():
                to.send(EMBEDDING, batch.x[:, :4])
                if me.position[1:] == (1, 1):
                    raise Denied("killed")

    left, why = play(tmp_path, dies, epochs=4, releases=3)
    assert len(left) == 3 + 2 and why == "killed"
    left, why = play(tmp_path, honest, epochs=4, releases=3)  # from its first epoch on
    assert len(left) == 3 * 3 and "releases" in why


def test_predictions_are_counted_apart_and_per_record(tmp_path: Path) -> None:
    """Files of ten rows, one after the other, on one ledger: each of their rows may leave twice,
    whatever left in training and however small the next file is."""

    def predicting(me: Party, to: Peer) -> None:
        for batch in me.rows("predict"):
            to.send(EMBEDDING, batch.x[:, :4])

    play(tmp_path, honest, epochs=3, releases=3, predictions=2)
    for number in range(2):
        run = f"predict {number}"
        left, why = play(
            tmp_path,
            predicting,
            run=run,
            train=0,
            more={"predict": 10},
            task="predict",
            releases=3,
            predictions=2,
        )
        assert (len(left), why) == (1, "")
    left, why = play(
        tmp_path, predicting, train=0, more={"predict": 12}, task="predict", predictions=2
    )
    assert not left and "10 of its records, of 12" in why and "predictions" in why
    assert "id-" not in why


@pytest.mark.parametrize("limits", [{"predictions": 2}, {"numbers": 32}, {"min_prediction": 11}])
def test_a_prediction_does_not_speak_of_training_rows_instead(
    limits: dict[str, int], tmp_path: Path
) -> None:
    """A Kind that says nothing of a batch speaks of all training rows. Where a party predicts it
    has none, and sends the rows that it has, piece by piece."""

    def piecemeal(me: Party, to: Peer) -> None:
        for batch in me.rows("predict"):
            for start in range(0, 784, 16):
                to.send(TREE, {"": batch.x[0, start : start + 16]})

    more = {"predict": 10}
    left, why = play(tmp_path, piecemeal, train=0, more=more, task="predict", width=16, **limits)
    assert len(left) <= 2, f"{len(left)} pieces left"
    assert f"`{next(iter(limits))}`" in why


def test_a_role_that_turns_its_epochs_back_gets_no_release_for_it(tmp_path: Path) -> None:
    """What is repeated after a crash is free. A role pretends it: it leaves an epoch unfinished for
    another one, and comes back to it, again and again."""

    def turns_back(me: Party, to: Peer) -> None:
        for _ in range(9):
            for phase in ("one", "two"):
                for _ in me.epochs(phase, 1):
                    for batch in me.rows("train"):
                        to.send(EMBEDDING, batch.x[:, :4])
                    break

    left, why = play(tmp_path, turns_back, releases=4)
    assert len(left) == 4 and "releases" in why


def test_two_runs_at_a_time_share_one_budget(tmp_path: Path) -> None:
    """Two hubs train with the party at the same time: what one run books between two epochs of
    the other counts there, too."""
    left = []

    def meanwhile(me: Party, to: Peer) -> None:
        for epoch in me.epochs():
            if epoch == 1:
                left.extend(play(tmp_path, honest, run="b2", epochs=9, releases=3)[0])
            for batch in me.batches():
                to.send(EMBEDDING, batch.x[:, :4])

    left.extend(play(tmp_path, meanwhile, run="a1", epochs=9, releases=3)[0])
    assert len(left) == 3 * 3


def test_a_hub_that_calls_every_prediction_by_one_name_gets_no_more(tmp_path: Path) -> None:
    """What is repeated under one name is free, as after a crash, and the hub gives the names. So
    it says the name of an earlier prediction, and other rows are predicted."""

    def predicting(me: Party, to: Peer) -> None:
        for batch in me.rows("predict"):
            to.send(EMBEDDING, batch.x[:, :4])

    def predict(rows: int) -> tuple[list[Any], str]:
        more = {"predict": rows}
        return play(tmp_path, predicting, train=0, more=more, task="predict", predictions=1)

    assert len(predict(10)[0]) == 1
    assert len(predict(10)[0]) == 1  # the same, after a crash
    left, why = predict(12)
    assert not left and "10 of its records, of 12" in why


def test_one_name_of_a_prediction_is_not_that_of_other_weights_or_contents(tmp_path: Path) -> None:
    """The same ids are predicted after another training, or with other features, and the hub says
    the name of before: that is another release."""
    names = set()
    for weight, feature in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (1.0, 1.0)):
        me = shop(tmp_path, "a1", 1, 0, {"predict": 10})
        me.keep("embedding", lambda: torch.nn.Linear(4, 4)).requires_grad_(False).weight.fill_(
            weight
        )
        me.keep("embedding", lambda: torch.nn.Linear(4, 4)).bias.zero_()
        me.splits["predict"].x[3, 5] = feature
        names.add(run_of("a1", me))
    assert len(names) == 3


@pytest.mark.slow
def test_a_hub_that_calls_a_second_run_like_the_first(nursery: Nursery, tmp_path: Path) -> None:
    """What is counted under the name of a run is counted once, since it may be a repetition. The
    hub names a second run like the first one, and the party begins it in a new folder."""
    tree = toy("splitnn", 2, name="namesake", epochs=12, checkpoint={"epochs": 0})
    field = Field(tmp_path / "field", tree, deadline=5.0)
    with field.changed() as content:
        content["policy"]["allow"]["embedding"]["releases"] = 12
    lies = json.dumps({field.hub: ["call_every_run_the_same"]})
    program = (*nursery.program(Path("x"))[:-2], str(Path(__file__).with_name("liar.py")), lies)

    def left() -> int:
        book = field.out("party2") / "ledger.jsonl"
        return book.read_text().count('"embedding"') if book.exists() else 0

    with closing(field):
        for name in field.names:
            field.start(name, program)
        wait_for(lambda: left() > 30)  # in the fourth epoch the hub has enough of it
        field.close()
        for name in field.names:
            field.out(name).rename(tmp_path / f"first-of-{name}")
            field.start(name, program)
        field.wait(40)
    assert not left(), f"{left()} more embeddings left"
    assert "00000000000000ab" in field.log("party2") and "another --out" in field.log("party2")
