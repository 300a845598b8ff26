"""What was damaged on the disk is never gone on from, and never predicted with."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nursery import Nursery

import colonnade
from colonnade.deploy.supervisor import Options
from colonnade.errors import RunError
from colonnade.results.observer import Observer
from colonnade.wire import store

TOY: dict[str, Any] = {
    "method": "splitnn",
    "seed": 3,
    "epochs": 4,
    "batch_size": 50,
    "model_options": {"hidden": [8]},
    "data": {"name": "digits", "train_rows": 100, "test_rows": 60},
    "partition": {"kind": "columns", "parties": 3},
    "splitnn": {"dim": 4},
    "absence": False,
}


def flip(path: Path, bit: int = -5) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    place, within = divmod(bit % (8 * len(data)), 8)
    data[place] ^= 1 << within
    path.write_bytes(data)


class StopAt(Observer):
    """Ctrl-C when a party has ended this epoch."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def epoch(self, party: str, row: Mapping[str, Any]) -> None:
        if row["epoch"] == self._epoch:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> colonnade.Result:
    return colonnade.run(TOY, out=tmp_path_factory.mktemp("undisturbed") / "run")


def stopped(folder: Path) -> list[Path]:
    """A run that was stopped in its fourth epoch; its checkpoints, oldest first."""
    with pytest.raises(KeyboardInterrupt):
        colonnade.run(TOY, out=folder, observer=StopAt(4))
    return sorted((folder / "checkpoints").glob("*-*"))


@pytest.mark.parametrize("suffix", ["json", "safetensors", "npy"])
def test_no_flipped_bit_is_read(suffix: str, tmp_path: Path) -> None:
    """A disk flips one bit of a saved state, any bit: reading it must end with a RunError."""
    path = tmp_path / "bank"
    store.save({"w": torch.arange(3.0), "state": {"n": 3, "text": "ä"}}, path)
    store.write_array(torch.arange(3.0), tmp_path / "bank.npy")
    file = tmp_path / f"bank.{suffix}"
    good = file.read_bytes()
    unseen = []
    for bit in random.Random(1).sample(range(8 * len(good)), 120):
        flip(file, bit)
        try:
            if suffix == "npy":
                store.read_array(file)
            else:
                store.load(path)
            unseen.append(bit)
        except RunError:
            pass
        except Exception as error:
            raise AssertionError(f"a traceback: {error}") from error
        file.write_bytes(good)
    assert unseen == []


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    suffix: str, undisturbed: colonnade.Result, tmp_path: Path
) -> None:
    """A disk flips a bit of one party's newest checkpoint: the run goes back one further, says so,
    and ends with the bits of an undisturbed one."""
    *_, newest = stopped(tmp_path / "run")
    flip(newest / f"party2.{suffix}")
    try:
        result = colonnade.run(TOY, resume=tmp_path / "run")
    except RunError as error:
        raise AssertionError("nothing to fall back to") from error
    assert result.weights_sha256 == undisturbed.weights_sha256
    assert result.history[-1]["epoch"] == 4
    told = [line for line in result.content["warnings"] if "damaged" in line]
    assert told and f"{newest.name}/party2" in told[0]


def test_without_any_intact_checkpoint_it_begins_again(
    undisturbed: colonnade.Result, tmp_path: Path
) -> None:
    """A disk damages all checkpoints: nothing of them is used."""
    for place in stopped(tmp_path / "run"):
        flip(place / "party1.safetensors")
    try:
        result = colonnade.run(TOY, resume=tmp_path / "run")
    except RunError as error:
        raise AssertionError("it does not begin again") from error
    assert result.weights_sha256 == undisturbed.weights_sha256
    assert any("damaged" in line for line in result.content["warnings"])


@pytest.mark.slow
@pytest.mark.parametrize("party", ["party1", "party3"])
def test_all_parties_go_back_to_what_one_holds_intact(
    party: str, undisturbed: colonnade.Result, nursery: Nursery, tmp_path: Path
) -> None:
    """A disk flips a bit of the newest checkpoint of the hub, or of another party: all processes
    go back to one that everybody holds intact, and end with the same bits."""
    folder, plan = tmp_path / "run", tmp_path / "plan" / "plan.json"
    plan.parent.mkdir()
    kill = {"point": "checkpoint: before", "party": "party2", "nth": 4}
    plan.write_text(json.dumps({"kills": [kill], "noise": None}))
    dying = Options(restarts=0, program=nursery.program(plan))
    with pytest.raises(colonnade.ColonnadeError, match="SIGKILL"):
        colonnade.run(TOY, out=folder, runtime="process", processes=dying)
    # One without its .json was being written when the run ended, and counts for nothing.
    written = sorted((folder / "parties" / party / "checkpoints").glob("0*.json"))
    places = [file.with_suffix(".safetensors") for file in written]
    assert len(places) > 1, "nothing to fall back to"
    flip(places[-1])
    try:
        result = colonnade.run(TOY, resume=folder, processes=Options(restarts=0))
    except colonnade.ColonnadeError as error:
        raise AssertionError("no common place is left") from error
    assert result.weights_sha256 == undisturbed.weights_sha256
    log = (folder / "parties" / party / "log.txt").read_text()
    assert f"{places[-1].stem} is damaged" in log
    label = places[-2].stem.partition("-")[2]
    assert f"attempt 2: all start from {label}" in log


def test_nobody_predicts_with_damaged_weights(tmp_path: Path) -> None:
    """A disk flips a bit of a party's trained weights: predicting is refused, with a way out."""
    result = colonnade.run(TOY | {"epochs": 1}, out=tmp_path / "run")
    trained = colonnade.load(result.path)
    rows = trained.predict()["party1"].probabilities
    for party in ("party1", "party3"):
        file = result.path / "weights" / f"{party}.safetensors"
        good = file.read_bytes()
        flip(file)
        try:
            again = trained.predict()["party1"].probabilities
            raise AssertionError(f"predicted: {np.allclose(rows, again)}")
        except RunError as error:
            said = str(error)
        assert f"{party}.safetensors is damaged" in said and "backup" in said
        assert f"colonnade run {result.path}/config.toml" in said
        file.write_bytes(good)
    trained.predict()
