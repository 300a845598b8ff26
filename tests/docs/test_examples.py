"""The examples run, and do what their comments say. Fewer rows and epochs than in the files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import colonnade
from colonnade import data, plugin
from colonnade.cli.main import main
from colonnade.wire import ledger

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.toml"))
ROWS = {"03-tabular": (300, 100)}  # a small set; the others give more
OWN_FILES = "09-own-files"


def settings(path: Path) -> list[str]:
    if path.stem == OWN_FILES:
        return ["epochs=5"]
    train, test = ROWS.get(path.stem, (1000, 200))
    return ["epochs=2", f"data.train_rows={train}", f"data.test_rows={test}"]


def needs_data(path: Path) -> None:
    config = colonnade.config.load(path, rule=plugin.own)
    if config.files:
        return
    name = config.data.name
    (status,) = (row.status for row in data.available() if row.name == name)
    if status not in ("embedded", "here"):
        pytest.skip(f"the data set '{name}' is not here: set COLONNADE_DATA, or fetch it")


def trained(stem: str, folder: Path, *more: str) -> colonnade.Result:
    path = EXAMPLES / f"{stem}.toml"
    needs_data(path)
    return colonnade.run(path, overrides=[*settings(path), *more], out=folder / "run")


def with_files(folder: Path) -> Path:
    """A copy of the example with own files, after its script has made them."""
    shutil.copy(EXAMPLES / f"{OWN_FILES}.toml", folder)
    shutil.copytree(
        EXAMPLES / "own-files", folder / "own-files", ignore=shutil.ignore_patterns("*.csv")
    )
    for words in ([], ["400", "new"]):
        script = [sys.executable, str(folder / "own-files" / "make.py"), *words]
        subprocess.run(script, check=True, stdout=subprocess.DEVNULL)
    return folder / f"{OWN_FILES}.toml"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_runs_and_is_listed(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"`colonnade run examples/{path.name}`" in (EXAMPLES / "README.md").read_text()
    assert f"colonnade run examples/{path.name}" in path.read_text(encoding="utf-8")
    needs_data(path)
    if path.stem == OWN_FILES:
        path = with_files(tmp_path)
    options = [f"--set={setting}" for setting in settings(path)]
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--quiet", *options]) == 0
    result = colonnade.load(capsys.readouterr().out.strip()).result
    assert result["status"] == "finished"
    measured = result["metrics"]["test"]
    if classes := result["data"]["classes"]:
        assert measured["accuracy"] > 1.2 / len(classes)
    else:
        assert all(found["r2"]["value"] > 0.2 for found in measured["measures"].values())


def test_they_are_numbered() -> None:
    assert [path.stem[:2] for path in FILES] == [f"{number:02}" for number in range(1, 13)]


def test_easter_leaves_a_model_at_every_party_and_its_file_serves_other_methods(
    tmp_path: Path,
) -> None:
    result = trained("06-easter", tmp_path)
    parties = ["clinic", "laboratory", "insurer", "pharmacy"]
    assert list(result.metrics["test"]["per_party"]) == parties
    assert "masked_embedding" in result.wire["by_kind"]
    for method in ("aggvfl", "cvfl"):
        other = trained("06-easter", tmp_path / method, f"method={method}", "epochs=1")
        assert other.content["status"] == "finished"


def test_the_tabular_label_holder_has_no_features(tmp_path: Path) -> None:
    result = trained("03-tabular", tmp_path)
    assert result.content["roles"] == {
        "registry": "active",
        "clinic": "passive",
        "laboratory": "passive",
    }
    sent = {flow["kind"] for flow in result.wire["flows"] if flow["sender"] == "registry"}
    assert sent == {"gradient"}


def test_adult_keeps_gradients_and_scores_validation_rows(tmp_path: Path) -> None:
    result = trained("04-adult", tmp_path)
    assert result.content["parties"] == ["employer", "bank", "registry", "school"]
    assert result.content["roles"]["bank"] == "active"
    assert set(result.metrics) == {"validation", "test"}
    assert {file.name.partition("-")[0] for file in (result.path / "record").iterdir()} == {
        "gradient"
    }


def test_numbers_are_told_in_public_units_and_decided_by_their_own_metric(tmp_path: Path) -> None:
    result = trained("11-numbers", tmp_path, "epochs=3")
    told = {"kind": "regression", "mean": 4000.0, "spread": 4000.0}
    assert result.content["data"]["task"] == told
    assert result.metrics["test"]["metric"] == "mae"
    assert result.content["stopping"]["metric"] == "mae"
    # Without the public numbers they would be those of the label holder's rows, told to all.
    path, names = EXAMPLES / "11-numbers.toml", ("measures", "grading")
    tree = colonnade.config.load(path, settings(path)).resolved()
    del tree["data"]["mean"], tree["data"]["spread"]
    other = colonnade.run(tree | {"epochs": 1}, out=tmp_path / "other").content["data"]["task"]
    assert other["mean"] != 4000.0 and result.content["parties"] == list(names)


def test_few_that_buy_are_found_at_the_chosen_rate(tmp_path: Path) -> None:
    needs_data(EXAMPLES / "12-few.toml")
    result = colonnade.run(EXAMPLES / "12-few.toml", overrides=["epochs=8"], out=tmp_path / "run")
    measured = result.metrics["test"]
    assert measured["metric"] == "auc" and measured["value"] > 0.6
    (_, wrongly), (_, rightly) = measured["confusion"]
    flagged = (wrongly + rightly) / sum(map(sum, measured["confusion"]))
    assert 0.06 < flagged < 0.14  # chosen on 930 validation rows, for a tenth
    assert result.content["decision"]["chosen_by"] == "rate"


def test_the_own_method_learns_numbers_too(tmp_path: Path) -> None:
    """Without a hidden layer it is linear regression over all parties' columns."""
    import numpy as np
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import LinearRegression

    x, y = load_diabetes(return_X_y=True)
    result = colonnade.run(
        {
            "method": str(EXAMPLES / "my_method.py"),
            "task": "regression",
            "epochs": 60,
            "batch_size": 32,
            "model_options": {"hidden": []},
            "lr": 0.01,
            "name": "own",
        },
        parties={"clinic": (x[:300, :5], y[:300]), "laboratory": x[:300, 5:]},
        test={"clinic": (x[300:, :5], y[300:]), "laboratory": x[300:, 5:]},
        out=tmp_path / "run",
    )
    guessed = LinearRegression().fit(x[:300], y[:300]).predict(x[300:])
    wanted = float(np.sqrt(np.mean((guessed - y[300:]) ** 2)))
    found = result.metrics["test"]["measures"]["clinic"]["rmse"]["value"]
    assert found == pytest.approx(wanted, rel=0.03)
    kinds = {(row["kind"], row["shape"][1]) for row in ledger.read(result.path / "ledger.jsonl")}
    assert kinds == {("scores", 1), ("gradient", 1)}


def test_the_own_method_does_not_lean_on_shared_memory(tmp_path: Path) -> None:
    plain = trained("05-own-method", tmp_path / "plain")
    strict = trained("05-own-method", tmp_path / "strict", "strict=true")
    assert strict.weights_sha256 == plain.weights_sha256
    assert strict.wire["flows"] == plain.wire["flows"]
    kinds = {(row["kind"], row["shape"][1]) for row in ledger.read(strict.path / "ledger.jsonl")}
    assert kinds == {("scores", 10), ("gradient", 10)}


def test_the_own_method_resumes_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained("05-own-method", tmp_path / "whole", "checkpoint.steps=3")
    path, original = EXAMPLES / "05-own-method.toml", colonnade.Party.log

    def stop(me: colonnade.Party, **values: object) -> None:
        if me.progress.steps == 10:
            raise KeyboardInterrupt
        original(me, **values)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(colonnade.Party, "log", stop)
        with pytest.raises(KeyboardInterrupt):
            trained("05-own-method", tmp_path, "checkpoint.steps=3")
    again = colonnade.run(
        path, overrides=[*settings(path), "checkpoint.steps=3"], resume=tmp_path / "run"
    )
    assert again.weights_sha256 == whole.weights_sha256
    assert again.metrics == whole.metrics


def test_the_own_method_without_hidden_layers_is_logistic_regression(tmp_path: Path) -> None:
    """One step of it equals one step on all pixels at once."""
    import torch
    from torch.nn import functional as F

    from colonnade import assembly, config
    from colonnade.wire import store

    path = EXAMPLES / "05-own-method.toml"
    once = ["epochs=1", "data.train_rows=64", "data.test_rows=50", "batch_size=64", "momentum=0"]
    result = colonnade.run(path, overrides=once, out=tmp_path / "run")
    start = colonnade.run(path, overrides=[*once, "lr=1e-30"], out=tmp_path / "start")
    federation = assembly.from_catalogue(config.load(path, once, rule=plugin.own))
    xs, weights, steps = [], [], []
    for name, party in federation.parties.items():
        (batch,) = party.rows("train")
        xs.append(batch.x.flatten(1))
        before, after = (
            store.load(folder / "weights" / name)["weights"]["scorer"]
            for folder in (start.path, result.path)
        )
        weights.append((before["layer1.linear.weight"], before["layer1.linear.bias"]))
        steps.append(after["layer1.linear.weight"] - before["layer1.linear.weight"])
    weight = torch.cat([w for w, _ in weights], 1).requires_grad_()
    bias = torch.stack([b for _, b in weights]).sum(0)
    labels = federation.parties[federation.holder].splits["train"].y
    assert labels is not None
    scores = torch.cat(xs, 1) @ weight.T + bias
    loss = F.cross_entropy(scores, labels) + 0.05 * scores.square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(torch.cat(steps, 1), -0.05 * gradient, atol=1e-6, rtol=1e-3)
