"""Numbers of runs that have several phases: what is an epoch, and where a curve begins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_examples import example, phased

from colonnade import config
from colonnade.report.overview import curve, epochs, phases, spent
from colonnade.results.writer import ResultFile

Combined = Callable[..., dict[str, Any]]


@pytest.fixture
def combined(tmp_path: Path) -> Combined:
    def write(*entries: tuple[str, int, float], scores: Any = None) -> dict[str, Any]:
        """The result of a run in which one party logged (phase, epoch, seconds)."""
        history = [{"phase": p, "epoch": e, "seconds": s, "loss": 1.0} for p, e, s in entries]
        told = {"history": history, "scores": scores or {}, "spent": {}, "weights_sha256": ""}
        settings = {"method": "local", "data": {"name": "mnist-sample"}, "parties": {"a": {}}}
        file = ResultFile.begin(tmp_path, config.load(settings), "local", {"a": "alone"}, "a")
        result = file.write("finished", "", data={}, accounts={"a": told}, setup=0.0, wire={})
        return result.content

    return write


def test_epochs_are_those_of_training(combined: Combined) -> None:
    timing = combined(("pretrain", 1, 5.0), ("pretrain", 2, 6.0), ("train", 1, 1.0))["timing"]
    assert timing["seconds_per_epoch"] == [1.0]
    assert timing["by_phase"] == {"pretrain": 11.0, "train": 1.0}
    assert list(timing["by_phase"]) == ["pretrain", "train"]


def test_without_training_every_epoch_counts(combined: Combined) -> None:
    timing = combined(("two", 1, 5.0), ("one", 1, 6.0))["timing"]
    assert timing["seconds_per_epoch"] == [5.0, 6.0]
    assert list(timing["by_phase"].items()) == [("two", 5.0), ("one", 6.0)]
    assert combined()["timing"]["by_phase"] == {}


def test_what_does_not_count_gives_no_accuracy(combined: Combined) -> None:
    metrics = combined(scores={"test": {"alone": {"a": 0.5}}})["metrics"]
    assert metrics["test"] == {
        "metric": "accuracy",
        "value": None,
        "measures": {},
        "accuracy": None,
        "per_party": {},
        "confusion": None,
        "confusion_party": None,
        "alone": {"a": 0.5},
    }


def test_a_curve_in_one_phase_counts_its_epochs() -> None:
    result = phased()
    assert epochs(result) == 4
    assert curve(result, "test_accuracy")[0] == [1, 2, 3, 4]
    assert curve(result, "loss", "party3") == ([1, 2], [20.0, 10.0])
    assert curve(result, "loss", phase="train")[0] == [1, 2, 3, 4]
    assert curve(result, "loss", phase="pretrain")[1] == [10.0, 5.0, 10 / 3]
    assert curve(result, "nothing") == ([], [])


def test_a_curve_over_several_phases_counts_the_history() -> None:
    # the epoch of the upload, the sixth, logged nothing
    assert curve(phased(), "loss")[0] == [1, 2, 3, 4, 5, 7, 8, 9, 10]


def test_phases() -> None:
    found = phases(phased())
    assert list(found) == ["pretrain", "transfer", "upload", "train"]
    assert found["transfer"] == {
        "epochs": 2,
        "seconds": 4.0,
        "losses": {"party2": {"loss": 5.0}, "party3": {"loss": 10.0}, "party4": {"loss": 15.0}},
    }
    assert found["upload"]["losses"] == {}
    assert list(found["train"]["losses"]["party1"]) == ["loss"]  # an accuracy is none
    assert list(phases(example())) == ["train"]


def test_what_was_spent_is_a_share_of_all_phases() -> None:
    result = phased()
    result["timing"]["spent"] = {"party1": {"masking": 6.0}}
    seconds, share = spent(result)["masking"]
    assert seconds == 6.0
    assert share == pytest.approx(6.0 / sum(result["timing"]["by_phase"].values()))
