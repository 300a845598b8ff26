"""The whole flow: folders, own arrays, resume after a kill, losing a party."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nursery import Nursery
from sklearn.datasets import load_breast_cancer

import colonnade
from colonnade import assembly
from colonnade import config as configuration
from colonnade.errors import (
    ColonnadeError,
    ConfigError,
    DataError,
    Diverged,
    KindError,
    PeerLost,
    RoleFailed,
    RunError,
    Untrusted,
)
from colonnade.methods import splitnn
from colonnade.results import folder
from colonnade.results.observer import Observer
from colonnade.results.result import read_json
from colonnade.wire import store


def settings(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": "splitnn",
        "name": "small",
        "epochs": 2,
        "batch_size": 32,
        "data": {"name": "digits", "train_rows": 256, "test_rows": 50},
    }
    return base | changes


def columns() -> tuple[Any, Any]:
    x, y = load_breast_cancer(return_X_y=True)
    return x.astype(np.float32), y


def test_an_older_run_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [colonnade.run(settings(seed=seed)) for seed in range(3)]
    assert [str(run.path) for run in runs] == ["runs/small", "runs/small-2", "runs/small-3"]
    assert [colonnade.load(run.path).result["seed"] for run in runs] == [0, 1, 2]
    colonnade.run(settings(seed=9), overwrite=True)
    assert colonnade.load("runs/small").result["seed"] == 9


def test_a_folder_that_was_asked_for_is_replaced_only_on_request(tmp_path: Path) -> None:
    first = colonnade.run(settings(), out=tmp_path / "run")
    before = (first.path / "result.json").read_bytes()
    with pytest.raises(RunError, match=r"holds an older run.*--overwrite"):
        colonnade.run(settings(seed=1), out=tmp_path / "run")
    assert (first.path / "result.json").read_bytes() == before
    again = colonnade.run(settings(seed=2), out=tmp_path / "run", overwrite=True)
    assert again.content["seed"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not (again.path / "replaced").exists()


@pytest.mark.parametrize("apart", [False, True])
def test_a_run_is_kept_until_the_one_that_replaces_it_is_finished(
    tmp_path: Path, apart: bool
) -> None:
    """Also if several fail in a row; here by a cut that is wrong only once networks are built."""
    runtime: Any = "process" if apart else "local"
    first = colonnade.run(settings(), out=tmp_path / "run")
    kept = {path.name: path.read_bytes() for path in first.path.iterdir() if path.is_file()}
    wrong = settings(method="fedemb", fedemb={"cut": "nowhere"})
    older = first.path / "replaced"
    for _ in range(2):
        with pytest.raises(ColonnadeError, match="nowhere") as caught:
            colonnade.run(wrong, out=first.path, overwrite=True, runtime=runtime)
        notes = "".join(caught.value.__notes__)
        assert f"the older run, that it was to replace, lies in {older}" in notes
    assert {path.name: path.read_bytes() for path in older.iterdir() if path.is_file()} == kept
    assert colonnade.load(older).result["seed"] == 0
    again = colonnade.run(settings(seed=2), out=tmp_path / "run", overwrite=True)
    assert again.content["seed"] == 2 and not older.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("second", ["overwrite", "resume"])
def test_a_folder_in_which_a_run_works_is_left_alone(tmp_path: Path, second: str) -> None:
    """Else the two would break each other's ledger, or one would take the other's folder away."""
    refused: list[ColonnadeError] = []

    class Intruder(Observer):
        def epoch(self, party: str, row: Any) -> None:
            if refused:
                return
            with pytest.raises(RunError, match=f"in use by process {os.getpid()}") as caught:
                if second == "resume":
                    colonnade.run(settings(), resume=tmp_path / "run")
                else:
                    colonnade.run(settings(), out=tmp_path / "run", overwrite=True)
            refused.append(caught.value)

    result = colonnade.run(settings(), out=tmp_path / "run", observer=Intruder())
    assert refused and result.content["status"] == "finished"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (
        colonnade.run(settings(seed=3), out=tmp_path / "run", overwrite=True).content["seed"] == 3
    )


def test_a_run_that_is_withdrawn_leaves_the_older_one_as_it_was(tmp_path: Path) -> None:
    loaded, place = configuration.load(settings()), tmp_path / "run"
    folder.create(place, loaded, overwrite=False, note="first")
    folder.create(place, loaded, overwrite=True, note="second")
    assert read_json(place / "run.json")["note"] == "second"
    folder.withdraw(place)
    assert read_json(place / "run.json")["note"] == "first"
    folder.withdraw(place)
    assert not any(tmp_path.iterdir())


def test_the_config_of_an_in_memory_run_cannot_train_on_something_else(tmp_path: Path) -> None:
    x, y = columns()
    parties = {"bank": (x[:, :10], y), "shop": x[:, 10:]}
    result = colonnade.run(
        {"method": "splitnn", "epochs": 1}, parties=parties, out=tmp_path / "run"
    )
    with pytest.raises(DataError, match="in-memory data"):
        colonnade.run(result.path / "config.toml", out=tmp_path / "again")
    with pytest.raises(DataError, match="in-memory data"):
        colonnade.load(result.path).labels()
    again = colonnade.run(result.path / "config.toml", parties=parties, out=tmp_path / "again")
    assert again.weights_sha256 == result.weights_sha256
    with pytest.raises(ConfigError, match="no meaning beside parties"):
        colonnade.run({"method": "splitnn", "data": {"name": "adult"}}, parties=parties)


def test_every_party_that_brings_labels_trains_alone(tmp_path: Path) -> None:
    x, y = columns()
    parties = {"a": (x[:, :10], y), "b": (x[:, 10:], y), "c": x[:, :3]}
    result = colonnade.run({"method": "local", "epochs": 2}, parties=parties, out=tmp_path / "run")
    assert list(result.metrics["test"]["per_party"]) == ["a", "b"]


def test_a_training_that_diverges_says_so(tmp_path: Path) -> None:
    """A party keeps nonsense to itself; where nobody is told anything, it is a warning."""
    with pytest.raises(Diverged, match=r"'party2' does not send a 'embedding'.*smaller lr"):
        colonnade.run(settings(lr=1e9, epochs=3), out=tmp_path / "stopped")
    alone = settings(lr=1e9, epochs=3, method="local")
    result = colonnade.run(alone, out=tmp_path / "run")
    (warning,) = result.content["warnings"]
    assert "not finite since epoch 1" in warning or "not finite since epoch 2" in warning
    assert "smaller lr" in warning


LEFT = """
from dataclasses import dataclass
import torch
from colonnade import Kind, Method, Role

NOTE = Kind("note", (), "nothing", late=True)

@dataclass(frozen=True)
class Options:
    late: bool = False

async def passive(me, active, cfg):
    for epoch in me.epochs():
        active.send(NOTE, torch.tensor(1.0))

async def active(me, passives, cfg):
    for epoch in me.epochs():
        if cfg.late and epoch == 1:
            await passives[0].recv(NOTE)

async def nothing(me, cfg, split): ...

METHOD = Method("left", "sends what nobody takes", Options,
                {"active": Role(active, nothing), "passive": Role(passive, nothing)}, (NOTE,))
"""


def test_messages_that_nobody_takes_or_takes_late_are_reported(tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text(LEFT)
    tree = settings(method=str(tmp_path / "left.py"), partition={"kind": "columns", "parties": 2})
    tree |= {"left": {"late": True}}
    warnings = colonnade.run(tree, out=tmp_path / "run").content["warnings"]
    assert any(
        "1 messages 'note' from 'party2' to 'party1' were never received" in w for w in warnings
    )
    assert any("another epoch than they were sent in" in w for w in warnings)
    assert colonnade.run(settings(), out=tmp_path / "clean").content["warnings"] == []
    (tmp_path / "left.py").write_text(LEFT.replace(", late=True", ""))
    with pytest.raises(Untrusted, match=r"'party2' says that its 'note' is of epoch 1.*late=True"):
        colonnade.run(tree, out=tmp_path / "refused")


def test_a_mistake_in_a_method_file_names_its_line(tmp_path: Path) -> None:
    source = LEFT.replace(
        "active.send(NOTE, torch.tensor(1.0))", "active.send(NOTE, torch.tensr(1))"
    )
    (tmp_path / "typo.py").write_text(source)
    tree = settings(method=str(tmp_path / "typo.py"), partition={"kind": "columns", "parties": 2})
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "tensr" in text)
    with pytest.raises(RoleFailed, match=rf"'party2'.*tensr.*\(typo.py, line {line}\)"):
        colonnade.run(tree, out=tmp_path / "run")
    (tmp_path / "typo.py").write_text(LEFT.replace("torch.tensor(1.0)", "torch.zeros(2)"))
    with pytest.raises(KindError) as caught:
        colonnade.run(tree, out=tmp_path / "other")
    assert any(f"typo.py, line {line}" in note for note in caught.value.__notes__)


def test_a_wrong_number_of_predictions_is_refused_and_leaves_a_result(tmp_path: Path) -> None:
    source = Path(splitnn.__file__).read_text().replace('name="splitnn"', 'name="short"')
    (tmp_path / "short.py").write_text(source.replace("torch.cat(logits)", "torch.cat(logits)[:5]"))
    with pytest.raises(ColonnadeError, match=r"scores 'test' with predictions of shape \(5, 10\)"):
        colonnade.run(settings(method=str(tmp_path / "short.py")), out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"


def test_losing_a_stranger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no party 'nobody' as lose: one of party1"):
        colonnade.run(settings(), out=tmp_path / "run", lose={"nobody": 3})
    assert not (tmp_path / "run").exists()


def test_the_resolved_config_gives_the_same_weights(tmp_path: Path) -> None:
    first = colonnade.run(settings(), out=tmp_path / "first")
    again = colonnade.run(first.path / "config.toml", out=tmp_path / "again")
    assert again.weights_sha256 == first.weights_sha256
    assert again.content["config_sha256"] == first.content["config_sha256"]


def test_a_finished_run_keeps_models_and_no_checkpoints(tmp_path: Path) -> None:
    result = colonnade.run(settings(), out=tmp_path / "run")
    names = {path.name for path in result.path.iterdir()}
    kept = {"config.toml", "run.json", "lock", "ledger.jsonl", "result.json", "weights"}
    assert names == kept


def test_threads_of_the_caller_are_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        colonnade.run(settings(threads=1), out=tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_own_arrays_tensors_and_frames_give_the_same_weights(tmp_path: Path) -> None:
    import pandas as pd

    x, y = columns()
    forms = {
        "arrays": {"bank": (x[:, :10], y), "shop": x[:, 10:]},
        "tensors": {
            "bank": (torch.tensor(x[:, :10]), torch.tensor(y)),
            "shop": torch.tensor(x[:, 10:]),
        },
        "frames": {
            "bank": (pd.DataFrame(x[:, :10]), pd.Series(y)),
            "shop": pd.DataFrame(x[:, 10:]),
        },
    }
    digests = []
    for name, parties in forms.items():
        result = colonnade.run(
            {"method": "splitnn", "epochs": 5, "batch_size": 32},
            parties=parties,
            out=tmp_path / name,
        )
        digests.append(result.weights_sha256)
        assert result.accuracy is not None
        assert result.accuracy > 0.9
    assert digests[0] == digests[1] == digests[2]


def test_predicting_new_rows_uses_the_training_statistics(tmp_path: Path) -> None:
    x, y = columns()
    parties = {"bank": (x[:400, :10], y[:400]), "shop": x[:400, 10:]}
    test = {"bank": (x[400:, :10], y[400:]), "shop": x[400:, 10:]}
    result = colonnade.run({"method": "splitnn"}, parties=parties, test=test, out=tmp_path / "run")
    prediction = colonnade.load(result.path).predict({"bank": x[400:, :10], "shop": x[400:, 10:]})
    assert (prediction["bank"].codes.numpy() == y[400:]).mean() == result.accuracy
    one = colonnade.load(result.path).predict({"bank": x[400:401, :10], "shop": x[400:401, 10:]})
    torch.testing.assert_close(one["bank"].probabilities, prediction["bank"].probabilities[:1])


def test_a_centralised_run_on_own_arrays_predicts_from_the_parties_rows(tmp_path: Path) -> None:
    x, y = columns()
    parties = {"bank": (x[:400, :10], y[:400]), "shop": x[:400, 10:]}
    test = {"bank": (x[400:, :10], y[400:]), "shop": x[400:, 10:]}
    tree = {"method": "centralised", "epochs": 3}
    result = colonnade.run(tree, parties=parties, test=test, out=tmp_path / "run")
    new = {"shop": x[400:, 10:], "bank": x[400:, :10]}  # in any order
    prediction = colonnade.load(result.path).predict(new)["all"]
    assert (prediction.codes.numpy() == y[400:]).mean() == result.accuracy


def test_categories_of_a_frame_keep_their_codes_in_prediction(tmp_path: Path) -> None:
    import pandas as pd

    colours = pd.DataFrame({"colour": ["red", "green", "blue"] * 60})
    y = (colours["colour"] == "blue").astype(int)
    noise = np.random.default_rng(0).normal(size=(180, 2))
    result = colonnade.run(
        {"method": "splitnn", "epochs": 8, "batch_size": 16},
        parties={"bank": (noise, y), "shop": colours},
        out=tmp_path / "run",
    )
    assert result.accuracy == 1.0
    rows = {"bank": noise[:2], "shop": pd.DataFrame({"colour": ["blue", "green"]})}
    assert colonnade.load(result.path).predict(rows)["bank"].labels == ["1", "0"]


def test_validation_rows_are_scored_and_never_trained_on(tmp_path: Path) -> None:
    tree = settings(data={"name": "digits", "validation": 0.25})
    result = colonnade.run(tree, out=tmp_path / "run")
    assert 0 < result.metrics["validation"]["accuracy"] <= 1
    whole = colonnade.run(settings(data={"name": "digits"}), out=tmp_path / "whole")
    assert result.content["data"]["train_rows"] == round(0.75 * whole.content["data"]["train_rows"])
    assert sum(map(sum, result.metrics["validation"]["confusion"])) == round(
        0.25 * whole.content["data"]["train_rows"]
    )


def test_groups_name_the_parties_whatever_the_order_of_their_tables(tmp_path: Path) -> None:
    groups = {"bank": ["mean *"], "shop": ["worst *"]}
    tree = settings(
        data={"name": "breast-cancer"},
        partition={"kind": "columns", "groups": groups},
        parties={"shop": {"model_options": {"hidden": [3]}}},
    )
    result = colonnade.run(tree, out=tmp_path / "run")
    assert result.content["parties"] == ["bank", "shop"]
    first = {
        name: store.load(tmp_path / "run" / "weights" / name)["weights"]["bottom"]
        for name in groups
    }
    assert [len(next(iter(weights.values()))) for weights in first.values()] == [256, 3]


def test_centralised_sees_what_the_parties_hold_together(tmp_path: Path) -> None:
    """Half of the image hidden from everybody is hidden from the baseline as well."""
    full = {"kind": "tiles"}
    half = {"kind": "rectangles", "rectangles": [[0, 0, 4, 4], [0, 4, 4, 4]]}
    accuracies = []
    for name, partition in (("full", full), ("half", half)):
        tree = settings(method="centralised", partition=partition, epochs=6)
        accuracies.append(colonnade.run(tree, out=tmp_path / name).accuracy)
    assert accuracies[0] is not None
    assert accuracies[1] is not None
    assert accuracies[0] > accuracies[1] + 0.05


def test_a_lost_party_ends_the_run_with_a_clear_word_and_a_result(tmp_path: Path) -> None:
    with pytest.raises(PeerLost, match="waited for 'embedding' from 'party3' at step 6"):
        colonnade.run(settings(), out=tmp_path / "run", lose={"party3": 5})
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert content["status"] == "failed"
    assert "party3" in content["error"]


def test_a_run_that_failed_can_be_resumed(tmp_path: Path) -> None:
    checkpoint = {"steps": 2}
    whole = colonnade.run(settings(checkpoint=checkpoint), out=tmp_path / "whole")
    with pytest.raises(PeerLost):
        colonnade.run(settings(checkpoint=checkpoint), out=tmp_path / "run", lose={"party2": 11})
    resumed = colonnade.run(settings(checkpoint=checkpoint), resume=tmp_path / "run")
    assert resumed.weights_sha256 == whole.weights_sha256
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    ]
    assert {row["attempt"] for row in rows} == {1, 2}  # what left twice is recorded twice
    assert resumed.wire["messages"] > whole.wire["messages"]
    assert resumed.wire["rounds"] == whole.wire["rounds"]


@pytest.mark.parametrize("after", [100, 500])
def test_kill_9_and_resume_give_the_same_weights(
    nursery: Nursery, tmp_path: Path, after: int
) -> None:
    """A real process, killed while it trains, with a ledger line torn in the middle."""
    tree = settings(epochs=20, checkpoint={"steps": 7})
    path = tmp_path / "config.toml"
    path.write_text(
        'method = "splitnn"\nname = "small"\nepochs = 20\nbatch_size = 32\n'
        '[data]\nname = "digits"\ntrain_rows = 256\ntest_rows = 50\n[checkpoint]\nsteps = 7\n'
    )
    whole = colonnade.run(tree, out=tmp_path / "whole")
    command = ["run", str(path), "--quiet"]
    real = [sys.executable, "-m", "colonnade.cli.main", *command, "--out", str(tmp_path / "run")]
    with subprocess.Popen(real) as process:
        book = tmp_path / "run" / "ledger.jsonl"
        deadline = time.monotonic() + 60
        while not (book.exists() and book.stat().st_size > after * 300):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "run" / "weights").exists()
    with book.open("ab") as file:
        file.write(b'{"row": 99')  # as a crash in the middle of a write leaves it
    again = [*nursery.command(), *command, "--resume", str(tmp_path / "run")]
    done = subprocess.run(again, check=False)
    assert done.returncode == 0
    resumed = json.loads((tmp_path / "run" / "result.json").read_text())
    assert resumed["weights_sha256"] == whole.weights_sha256
    assert resumed["status"] == "finished"


def test_resume_refuses_another_configuration_and_a_finished_run(tmp_path: Path) -> None:
    with pytest.raises(PeerLost):
        colonnade.run(settings(), out=tmp_path / "run", lose={"party2": 9})
    with pytest.raises(RunError, match="another configuration"):
        colonnade.run(settings(seed=9), resume=tmp_path / "run")
    colonnade.run(settings(), resume=tmp_path / "run")
    with pytest.raises(RunError, match="is finished"):
        colonnade.run(settings(), resume=tmp_path / "run")


def test_same_result_from_the_command_line_and_the_library(tmp_path: Path) -> None:
    from colonnade.cli.main import main

    path = tmp_path / "small.toml"
    path.write_text(
        'method = "splitnn"\nepochs = 2\nbatch_size = 32\n'
        '[data]\nname = "digits"\ntrain_rows = 256\ntest_rows = 50\n'
    )
    assert main(["run", str(path), "--quiet", "--out", str(tmp_path / "cli")]) == 0
    result = colonnade.run(settings(), out=tmp_path / "library")
    from_cli = json.loads((tmp_path / "cli" / "result.json").read_text())
    assert from_cli["weights_sha256"] == result.weights_sha256


@pytest.mark.parametrize(("key", "what"), [("train_rows", "training"), ("test_rows", "test")])
def test_a_sample_without_some_class_is_refused(key: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"the {what} rows of 'digits': no row has the class"):
        colonnade.run(settings(data={"name": "digits", key: 6}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_all_rows_can_be_divided_anew() -> None:
    settings: dict[str, Any] = {"method": "local", "data": {"name": "mnist-sample", "test": 1 / 12}}
    kept = assembly.from_catalogue(configuration.load(settings))
    settings["data"] |= {"official": False, "validation": 1 / 11}
    anew = assembly.from_catalogue(configuration.load(settings))
    sizes = {name: len(split) for name, split in anew.parties["party1"].splits.items()}
    total = sum(len(split) for split in kept.parties["party1"].splits.values())
    assert sum(sizes.values()) == total
    assert sizes["test"] == pytest.approx(total / 12, abs=10)
    assert sizes["validation"] == pytest.approx(total / 12, abs=10)
    ids = torch.cat([split.ids for split in anew.parties["party1"].splits.values()])
    assert len(ids.unique()) == total
