"""Every command on a tiny run: what it prints, what it leaves, and that it prints nothing else."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colonnade
from colonnade import data, methods, report
from colonnade.cli.main import main
from colonnade.methods import splitnn

CONFIG = """
method = "splitnn"
epochs = 2
[data]
name = "digits"
train_rows = 120
test_rows = 40
[partition]
kind = "strips"
parties = 2
[splitnn]
dim = 8
[parties.bank]
[parties.shop]
optimizer = "adam"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLONNADE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLONNADE_CACHE", str(tmp_path / "cache"))
    Path("tiny.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run that no test changes."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "tiny.toml").write_text(CONFIG)
    return colonnade.run(folder / "tiny.toml", out=folder / "tiny").path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command that succeeds prints, without a single escape code."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert err == "" and "\x1b" not in out
    return out


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The same with --json: nothing but JSON, which knows no NaN."""
    return json.loads(said(capsys, *arguments, "--json"), parse_constant=pytest.fail)


# --- run ------------------------------------------------------------------------------------------


def test_run(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "run", "tiny.toml")
    epochs = [line for line in out.splitlines() if line.startswith("  epoch ")]
    assert [line.split()[1] for line in epochs] == ["1/2", "2/2"]
    assert all("loss" in line and "test accuracy" in line and " %" in line for line in epochs)
    result = json.loads(Path("runs/tiny/result.json").read_text())
    report.check(result)
    assert f"{100 * result['metrics']['test']['accuracy']:.2f} %" in out
    left = result["metrics"]["test"]["absent"]["shop"]
    assert "With one party absent" in out and f"{100 * left:.2f} %" in out
    assert result["parties"] == ["bank", "shop"] and result["status"] == "finished"
    for line in ("result  runs/tiny/result.json", "report  runs/tiny/report.html"):
        assert line in out.splitlines()
    assert "<!doctype html>" in Path("runs/tiny/report.html").read_text(encoding="utf-8")


def test_what_must_be_said_is_said_before_training_too(capsys: pytest.CaptureFixture[str]) -> None:
    text = CONFIG.replace("splitnn", "fedemb").replace("dim = 8", "noise = 0.1")
    Path("noisy.toml").write_text(text)
    lines = said(capsys, "run", "noisy.toml").splitlines()
    warnings = [number for number, line in enumerate(lines) if line.startswith("warning: no guar")]
    epochs = [number for number, line in enumerate(lines) if " epoch " in line]
    assert warnings[0] < min(epochs) and max(epochs) < warnings[1] and len(warnings) == 2


def test_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    printed = told(capsys, "run", "tiny.toml")
    assert printed == json.loads(Path("runs/tiny/result.json").read_text())


def test_a_run_that_diverges_is_still_json(capsys: pytest.CaptureFixture[str]) -> None:
    far = ["--set", "method=local", "--set", "lr=1e30", "--set", "parties.shop.optimizer=sgd"]
    printed = told(capsys, "run", "tiny.toml", *far)
    assert printed["history"][-1]["parties"]["bank"]["loss"] is None
    assert told(capsys, "compare", "runs/tiny")[0]["name"] == "tiny"
    assert "epoch 2/2  loss nan" in said(capsys, "run", "tiny.toml", *far)


def test_a_run_that_diverges_sends_nobody_what_is_not_finite(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "tiny.toml", "--set", "lr=1e30"]) == 1
    assert "its training has diverged" in capsys.readouterr().err


def test_run_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "run", "tiny.toml", "--quiet") == "runs/tiny\n"


def test_run_with_overrides_and_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--set", "epochs=1", "--set", "splitnn.cut=sum", "--device", "cpu", "--out", "o/x"]
    printed = told(capsys, "run", "tiny.toml", *arguments)
    assert printed["config"]["epochs"] == 1 and printed["config"]["splitnn"]["cut"] == "sum"
    assert len(printed["history"]) == 1
    assert Path("o/x/result.json").exists() and not Path("runs").exists()


def test_a_second_run_keeps_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    sample = ("--set", "epochs=1", "--set", "data.test_rows=120")  # all classes with any seed
    first = told(capsys, "run", "tiny.toml", *sample)
    second = told(capsys, "run", "tiny.toml", *sample, "--set", "seed=1")
    assert json.loads(Path("runs/tiny/result.json").read_text()) == first
    assert json.loads(Path("runs/tiny-2/result.json").read_text()) == second
    assert first["weights_sha256"] != second["weights_sha256"]


def test_a_stopped_run_is_resumed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = told(capsys, "run", "tiny.toml", "--out", "whole")
    score = colonnade.Party.score
    calls = iter(range(9))

    def interrupted(self: colonnade.Party, *arguments: Any) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        score(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(colonnade.Party, "score", interrupted)
        assert main(["run", "tiny.toml"]) == 130
    assert capsys.readouterr().err == ("stopped\n  go on with: colonnade run --resume runs/tiny\n")
    assert json.loads(Path("runs/tiny/result.json").read_text())["status"] == "stopped"
    resumed = told(capsys, "run", "--resume", "runs/tiny")
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["metrics"] == whole["metrics"] and resumed["status"] == "finished"


def test_a_method_of_ones_own(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    source = Path(splitnn.__file__).read_text(encoding="utf-8")
    Path("mine.py").write_text(source.replace('name="splitnn"', 'name="mine"'), encoding="utf-8")
    Path("own.toml").write_text(
        CONFIG.replace('"splitnn"', '"mine.py"').replace("[splitnn]", "[mine]")
    )
    ran = told(capsys, "run", "own.toml")
    same = told(capsys, "run", "tiny.toml")
    assert ran["method"] == "mine" and ran["metrics"] == same["metrics"]
    assert ran["weights_sha256"] == same["weights_sha256"]
    Path("mine.py").unlink()
    Path("own.toml").unlink()
    (Path("runs/own")).rename("elsewhere")
    predicted = told(capsys, "predict", "elsewhere")
    assert predicted["parties"][0]["accuracy"] == ran["metrics"]["test"]["accuracy"]
    assert told(capsys, "ledger", "elsewhere")["messages"] == ran["wire"]["messages"]


# --- predict --------------------------------------------------------------------------------------


def test_predict(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((made / "result.json").read_text())
    accuracy = result["metrics"]["test"]["accuracy"]
    out = said(capsys, "predict", made, "--out", "p.csv")
    assert "bank" in out and "40" in out and f"{100 * accuracy:.2f} %" in out
    with Path("p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40 and "party" not in rows[0]  # only one predicts
    right = sum(row["predicted"] == row["label"] for row in rows)
    assert right / 40 == accuracy
    assert len({row["id"] for row in rows}) == 40
    shares = [[float(row[f"p({digit})"]) for digit in range(10)] for row in rows]
    assert [sum(row) for row in shares] == pytest.approx([1] * 40)
    best = [str(np.argmax(row)) for row in shares]
    assert best == [row["predicted"] for row in rows]
    assert {row["run"] for row in rows} == {"tiny"}
    assert {row["model"] for row in rows} == {result["weights_sha256"]["bank"][:12]}


def test_predict_as_json_and_quietly(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = told(capsys, "predict", made, "--out", "p.csv")
    result = json.loads((made / "result.json").read_text())
    accuracy = result["metrics"]["test"]["accuracy"]
    (party,) = printed.pop("parties")
    assert printed == {"predictions": "p.csv", "left_out": {}, "warnings": []}
    assert (party["party"], party["rows"], party["scored"]) == ("bank", 40, 40)
    assert party["accuracy"] == party["measures"]["accuracy"] == accuracy
    out = said(capsys, "predict", made, "--out", "p.csv", "--quiet", "--overwrite")
    assert out == "p.csv\n"


def test_predict_new_rows(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits = data.load("digits").train.x[:6].numpy()
    np.save("bank.npy", digits[..., :4])
    np.save("shop.npy", digits[..., 4:])
    rows = ["--data", "bank=bank.npy", "--data", "shop=shop.npy"]
    printed = told(capsys, "predict", made, *rows, "--out", "p.csv")
    (party,) = printed["parties"]
    assert (party["rows"], party["scored"], party["accuracy"]) == (6, 0, None)
    parties = {"bank": digits[..., :4], "shop": digits[..., 4:]}
    expected = colonnade.load(made).predict(parties)["bank"].labels
    with Path("p.csv").open(newline="") as file:
        assert [row["predicted"] for row in csv.DictReader(file)] == expected


def test_predict_rows_of_a_table_from_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), np.arange(30) % 2
    config = {"method": "splitnn", "epochs": 1, "splitnn": {"dim": 4}}
    colonnade.run(config, parties={"bank": (x, y), "shop": x[:, :1]}, out="table")
    for name, table in (("bank", x[:3]), ("shop", x[:3, :1])):
        header = ",".join("ab"[: table.shape[1]])
        np.savetxt(f"{name}.csv", table, delimiter=",", header=header, comments="")
    rows = ["--data", "bank=bank.csv", "--data", "shop=shop.csv"]
    printed = told(capsys, "predict", "table", *rows)
    (party,) = printed.pop("parties")
    assert (party["rows"], party["threshold"], party["accuracy"]) == (3, 0.5, None)
    assert printed == {"predictions": "table/predictions.csv", "left_out": {}, "warnings": []}


def test_predict_without_a_party(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = json.loads((made / "result.json").read_text())["metrics"]["test"]["absent"]
    printed = told(capsys, "predict", made, "--absent", "shop", "--out", "p.csv")
    (party,) = printed["parties"]
    assert (party["rows"], party["accuracy"]) == (40, left["shop"])
    np.save("bank.npy", data.load("digits").train.x[:6, ..., :4].numpy())
    rows = ["--data", "bank=bank.npy", "--absent", "shop"]
    assert told(capsys, "predict", made, *rows, "--out", "q.csv")["parties"][0]["rows"] == 6
    for name, why in {"bank": "it is the active party", "shpo": "did you mean 'shop'?"}.items():
        assert main(["predict", str(made), "--absent", "shop", "--absent", name]) == 2
        assert why in capsys.readouterr().err
    said(capsys, "run", "tiny.toml", "--set", 'method="cvfl"', "--quiet", "--out", "cvfl")
    assert main(["predict", "cvfl", "--absent", "shop"]) == 2
    assert "method 'cvfl' needs all its parties" in capsys.readouterr().err


# --- what there is --------------------------------------------------------------------------------


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "methods")
    listed = told(capsys, "methods")
    assert [row["name"] for row in listed] == methods.names()
    for row in listed:
        assert any(line.split()[:1] == [row["name"]] for line in out.splitlines())


def test_data_list(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "data", "list")
    listed = told(capsys, "data", "list")
    assert [row["name"] for row in listed] == list(data.names())
    status = {row["name"]: row["status"] for row in listed}
    assert (status["digits"], status["mnist"]) == ("embedded", "can be fetched")
    for name, word in status.items():
        assert any(line.startswith(name) and word in line for line in out.splitlines())
    assert said(capsys, "data") == out


def test_data_check_of_an_embedded_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "data", "check", "digits") == []


# --- what a run was -------------------------------------------------------------------------------


def test_compare(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "run", "tiny.toml", "--set", 'method="local"', "--quiet", "--out", "alone")
    out = said(capsys, "compare", made, "alone")
    runs = [json.loads((path / "result.json").read_text()) for path in (made, Path("alone"))]
    for result in runs:
        (line,) = [text for text in out.splitlines() if text.split()[:1] == [result["name"]]]
        assert f"{100 * result['metrics']['test']['accuracy']:.2f} %" in line
    printed = told(capsys, "compare", made, "alone")
    assert [row["name"] for row in printed] == ["tiny", "alone"]
    assert printed[0]["accuracy"] == runs[0]["metrics"]["test"]["accuracy"]


def test_report(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "report", made, "--out", "page.html") == "page.html\n"
    assert told(capsys, "report", made, "--out", "page.html") == {"report": "page.html"}
    page = Path("page.html").read_text(encoding="utf-8")
    assert "bank" in page and "shop" in page


def test_ledger(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((made / "result.json").read_text())
    out = said(capsys, "ledger", made)
    assert "the chain of hashes holds" in out
    assert "the labels, through dL/dh_k" in out  # what each Kind reveals
    printed = told(capsys, "ledger", made)
    assert printed["bytes"] == result["wire"]["bytes"]
    assert printed["flows"] == result["wire"]["flows"]
    assert printed["by_party"] == result["wire"]["by_party"]
    # 120 rows are one batch: there and back in each of 2 epochs; one evaluation in each.
    assert f"{2 * 2 + 2} messages" in out


def test_a_csv_with_and_without_a_header_gives_the_same_rows(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    parties = {"a": (x[:, :2], y), "b": x[:, 2:]}
    run = colonnade.run({"method": "splitnn", "epochs": 1}, parties=parties, out=here / "own")
    for name, header in (("with", "p,q"), ("without", "")):
        np.savetxt(f"a-{name}.csv", x[:5, :2], delimiter=",", header=header, comments="")
        np.savetxt(f"b-{name}.csv", x[:5, 2:], delimiter=",", header=header and "r", comments="")
        told(
            capsys,
            "predict",
            str(run.path),
            "--out",
            f"{name}.csv",
            "--data",
            f"a=a-{name}.csv",
            "--data",
            f"b=b-{name}.csv",
        )
    assert Path("with.csv").read_text() == Path("without.csv").read_text()
    assert len(Path("with.csv").read_text().splitlines()) == 6


# --- the command itself ---------------------------------------------------------------------------


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"colonnade {colonnade.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["fly"], ["predict"], ["run", "a", "--runtime", "x"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: colonnade" in capsys.readouterr().err


def test_as_a_process_with_a_pipe_that_closes() -> None:
    """The installed way: exit code and streams, and no complaint when `head` has seen enough."""
    command = [sys.executable, "-m", "colonnade.cli.main"]
    bad = subprocess.run([*command, "run", "no.toml"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2 and bad.stdout == ""
    assert "no.toml" in bad.stderr and "Traceback" not in bad.stderr
    reader, writer = os.pipe()
    os.close(reader)
    try:
        early = subprocess.run(
            [*command, "data", "list"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert early.stderr == ""
