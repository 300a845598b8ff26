"""What is measured without each party, and that measuring it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

import colonnade
from colonnade import assembly, config
from colonnade.errors import DataError, MethodError
from colonnade.role.party import Party
from colonnade.runs import absence
from colonnade.runtime import local


def settings(method: str = "splitnn", **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": method,
        "epochs": 2,
        "batch_size": 32,
        "data": {"name": "digits", "train_rows": 256, "test_rows": 50},
    }
    return base | changes


@pytest.mark.parametrize("method", ["splitnn", "easter"])
def test_every_evaluated_split_has_it(method: str, tmp_path: Path) -> None:
    tree = settings(method, data={"name": "digits", "validation": 0.25})
    result = colonnade.run(tree, out=tmp_path / "run")
    on_disk = json.loads((tmp_path / "run" / "result.json").read_text())
    assert on_disk == result.content
    for split in ("test", "validation"):
        found = result.metrics[split]["absent"]
        assert list(found) == ["party2", "party3", "party4"]
        assert all(0 < share < 1 for share in found.values())
    assert result.metrics["test"]["absent"] != result.metrics["validation"]["absent"]


@pytest.mark.slow
def test_it_is_measured_alike_where_every_party_is_a_process(tmp_path: Path) -> None:
    one = colonnade.run(settings(), out=tmp_path / "one")
    each = colonnade.run(settings(), out=tmp_path / "each", runtime="process")
    for key in ("absent", "absent_value"):
        assert one.metrics["test"][key] and one.metrics["test"][key] == each.metrics["test"][key]


@pytest.mark.parametrize(
    "changes",
    [
        {"absence": False},
        {"evaluate_every": 0},
        {"method": "aggvfl"},
        {"partition": {"kind": "columns", "parties": 9}},
    ],
)
def test_when_it_is_skipped(changes: dict[str, Any], tmp_path: Path) -> None:
    result = colonnade.run(settings() | changes, out=tmp_path / "run")
    assert "absent" not in result.metrics.get("test", {})


@pytest.mark.parametrize("method", ["splitnn", "easter"])
def test_it_leaves_no_trace_in_the_parties(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parties, random numbers and gradient mode are as they were."""
    checked = config.load(settings(method))
    kept: list[assembly.Assembly] = []
    measure, original = absence.measure, assembly.from_catalogue

    def spy(*arguments: Any) -> Any:
        kept.append(original(*arguments))
        return kept[-1]

    def told(party: Party) -> dict[str, Any]:
        plain = vars(party) | vars(party.progress) | {"weights": party.kept.sha256()}
        plain["identity"] = id(party.identity)
        hidden = ("splits", "predictions", "meter", "preparation", "kept", "progress", "_log")
        return {k: repr(v) for k, v in plain.items() if k not in hidden}

    def watched(*arguments: Any) -> Any:
        before = {name: told(party) for name, party in kept[0].parties.items()}
        random = torch.default_generator.get_state()
        found = measure(*arguments)
        assert found["test"]
        assert {name: told(party) for name, party in kept[0].parties.items()} == before
        assert torch.equal(torch.default_generator.get_state(), random)
        assert torch.is_grad_enabled()
        return found

    monkeypatch.setattr("colonnade.runs.run.from_catalogue", spy)
    monkeypatch.setattr(absence, "measure", watched)
    result = colonnade.run(checked, out=tmp_path / "run")
    assert "absent" in result.metrics["test"]
    names = {path.name for path in result.path.iterdir()}
    assert names == {"config.toml", "run.json", "lock", "ledger.jsonl", "result.json", "weights"}


def test_a_run_that_fails_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absence, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(colonnade.ColonnadeError):
        colonnade.run(settings(), out=tmp_path / "run", lose={"party3": 5})


def test_a_measurement_that_fails_keeps_the_trained_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, runs = local.run, iter(range(2))

    def second_fails(*arguments: Any, **named: Any) -> Any:
        if next(runs):
            raise KeyboardInterrupt
        return original(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(local, "run", second_fails)
        with pytest.raises(KeyboardInterrupt):
            colonnade.run(settings(), out=tmp_path / "run")
    trained = colonnade.load(tmp_path / "run")
    assert trained.result["status"] == "finished"
    assert len(trained.predict()["party1"]) == 50


# ---- predict -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """Three parties with arrays of their own; the label holder has some columns too."""
    x, y = load_breast_cancer(return_X_y=True)
    x = x.astype(np.float32)
    parties = {"bank": (x[:, :10], y), "shop": x[:, 10:20], "post": x[:, 20:]}
    folder = tmp_path_factory.mktemp("own") / "run"
    result = colonnade.run({"method": "splitnn", "epochs": 3}, parties=parties, out=folder)
    return result.path, x, y


def test_the_rows_of_the_absent_are_not_needed(own: tuple[Path, Any, Any]) -> None:
    path, x, y = own
    trained = colonnade.load(path)
    found = trained.predict({"bank": x[:, :10], "post": x[:, 20:]}, absent=["shop"])
    assert list(found) == ["bank"]
    assert found["bank"].accuracy(y) > 0.8
    same = trained.predict({"bank": x[:, :10], "post": x[:, 20:]}, absent="shop")
    assert torch.equal(same["bank"].probabilities, found["bank"].probabilities)
    alone = trained.predict({"bank": x[:, :10]}, absent={"shop", "post"})
    assert not torch.equal(alone["bank"].probabilities, found["bank"].probabilities)
    for name in ("shop", "post"):  # not even what it saved
        (path / "weights" / f"{name}.json").rename(path / f"{name}.json")
    again = trained.predict({"bank": x[:, :10]}, absent=["shop", "post"])
    assert torch.equal(again["bank"].probabilities, alone["bank"].probabilities)
    for name in ("shop", "post"):
        (path / f"{name}.json").rename(path / "weights" / f"{name}.json")


def test_what_cannot_be_predicted_without_a_party(own: tuple[Path, Any, Any]) -> None:
    path, x, _ = own
    trained, rows = colonnade.load(path), {"bank": x[:, :10], "shop": x[:, 10:20]}
    with pytest.raises(DataError, match="rows of post are missing"):
        trained.predict(rows)
    with pytest.raises(DataError, match="shop: absent, and yet rows are given"):
        trained.predict(rows, absent=["shop", "post"])
    with pytest.raises(MethodError, match="'bank' cannot be absent: it is the active party"):
        trained.predict(rows, absent=["bank"])
    with pytest.raises(MethodError, match=r"no party 'poste' as absent: did you mean 'post'\?"):
        trained.predict(rows, absent=["poste"])
