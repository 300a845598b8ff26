from __future__ import annotations

import torch

from colonnade.role.progress import Progress
from colonnade.role.recipe import Schedule


def progress(**changed: int) -> Progress:
    return Progress(Schedule(7, 3, 4, **changed), torch.device("cpu"), labelled=True)


def test_a_phase_is_entered_once_for_every_epoch() -> None:
    at = progress()
    assert (at.phase, at.position) == ("setup", ("", 0, 0))
    for epoch in range(3):
        assert at.enter("train", 3)
        assert (at.phase, at.position) == ("train", ("train", epoch, 0))
        assert at.leave("train")
    assert not at.enter("train", 3)
    assert (at.phase, at.epochs_of("train")) == ("setup", 3)


def test_steps_say_when_to_save_and_when_to_stop() -> None:
    at = progress(checkpoint_steps=2)
    at.stop_at = 3
    assert at.enter("train", 3)
    assert [at.count_step() for _ in range(3)] == [(False, False), (True, False), (True, True)]
    assert at.position == ("train", 0, 3) and at.steps == 3
    assert at.epochs_done(6) == at.meter.share * 3 == 0.5


def test_epochs_say_when_to_save_and_when_to_evaluate() -> None:
    at = progress(checkpoint_epochs=2, evaluate_every=2)
    saves, evaluates = [], []
    while at.enter("train", 3):
        evaluates.append(at.evaluates)
        at.leave("train")
        saves.append(at.saves)
    assert saves == evaluates == [False, True, True]  # the last one always


def test_who_has_had_enough_goes_on_behind_the_phase() -> None:
    at = progress()
    assert at.enter("train", 3)
    at.enough = True
    assert not at.leave("train")
    assert not at.enter("train", 3)
    assert not at.enough


def test_a_snapshot_is_the_place_to_go_on_from() -> None:
    at = progress()
    assert at.enter("train", 3)
    at.count_step()
    at.hop, at.clock = 4, 2.5
    later = progress()
    later.resume(at.snapshot())
    assert later.enter("train", 3) and later.resume_epoch() == 1
    assert (later.position, later.steps) == (("train", 0, 1), 1)
    assert (later.hop, later.clock) == (4, 2.5)
    skipped = progress()
    skipped.skip_to("train", 2, 0)
    assert skipped.enter("train", 3) and skipped.position == ("train", 2, 0)
