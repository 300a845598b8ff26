"""Predictions for new files of parties that were trained on files of their own."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, precision_score, roc_auc_score
from test_own_runs import tables, write

import colonnade
from colonnade.cli.main import main
from colonnade.errors import DataError
from colonnade.task.calibration import Calibration
from colonnade.task.decision import Decision
from colonnade.wire import store

SIZES = ["s", "m", "l"]


def sized(folder: Path, name: str = "shop.csv") -> None:
    """Give the shop a column of text."""
    head, *lines = (folder / name).read_text().splitlines()
    text = [f"{head},size", *(f"{line},{SIZES[n % 3]}" for n, line in enumerate(lines))]
    (folder / name).write_text("\n".join(text) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    file = write(folder)
    sized(folder)
    for method in ("splitnn", "centralised", "local"):
        colonnade.run(file, overrides=[f"method={method}"], out=folder / method)
    return folder


def rows_of(folder: Path, party: str, chosen: slice) -> list[str]:
    head, *lines = (folder / f"{party}.csv").read_text().splitlines()
    return [head, *lines[chosen]]


def new(folder: Path, to: Path, **changes: list[str]) -> list[str]:
    """Some rows of both files as new ones; --data for each."""
    words = []
    for party, chosen in (("bank", slice(0, 80)), ("shop", slice(30, 120))):
        lines = changes.get(party) or rows_of(folder, party, chosen)
        (to / f"new_{party}.csv").write_text("\n".join(lines) + "\n")
        words += ["--data", f"{party}={to / f'new_{party}.csv'}"]
    return words


def decide(run: Path, party: str, threshold: float) -> None:
    """As if the party had chosen this threshold, and calibrated, at the end of its training."""
    place = run / "weights" / party
    fitted = Calibration("platt", 1, slope=1.5, offset=0.25)
    told = Decision(threshold, "cost", 1).told() | {"calibration": fitted.told()}
    store.save({**store.load(place), "decision": told}, place)


def middle(lines: list[dict[str, str]]) -> float:
    """A threshold that some rows reach, the first of them exactly, and others do not."""
    shares = sorted(float(line["p(good)"]) for line in lines)
    return shares[len(shares) // 2]


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    assert main(["predict", *map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    with Path(found["predictions"]).open(newline="") as file:
        found["lines"] = list(csv.DictReader(file))
    return found


def both() -> list[str]:
    found = tables()
    return sorted(set(found["bank"][0][:80]) & set(found["shop"][0][30:]))


def test_rows_are_joined_by_their_ids(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, trained / "splitnn", *new(trained, tmp_path))
    assert sorted(line["id"] for line in found["lines"]) == both()
    asked = [row.split(",")[0] for row in (tmp_path / "new_bank.csv").read_text().splitlines()[1:]]
    assert [line["id"] for line in found["lines"]] == [name for name in asked if name in both()]
    count = len(both())
    assert found["left_out"] == {"bank": 80 - count, "shop": 90 - count}
    # The same rows one by one, as arrays in one order, give the same answers.
    run = colonnade.load(trained / "splitnn")
    rows = run.read_files({p: tmp_path / f"new_{p}.csv" for p in ("bank", "shop")})
    (again,) = run.predict(rows).values()
    assert list(again.names) == [line["id"] for line in found["lines"]]
    whole = run.predict()["bank"]  # the test rows, as the run itself prepared them
    for name, label, share in zip(again.names, again.labels, again.probabilities, strict=True):
        if name in whole.names:
            at = whole.names.index(name)
            assert label == whole.labels[at]
            assert share.tolist() == pytest.approx(whole.probabilities[at].tolist(), abs=1e-5)


@pytest.mark.parametrize("method", ["splitnn", "centralised", "local"])
def test_labels_of_new_rows_are_scored(
    method: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the label holder's file; rows without a label are predicted and not counted."""
    head, *lines = rows_of(trained, "bank", slice(0, 80))
    at = head.split(",").index("verdict")
    cells = [line.split(",") for line in lines]
    for row in cells[::3]:
        row[at] = ""
    true = {row[0]: row[at] for row in cells}
    found = told(
        capsys,
        trained / method,
        *new(trained, tmp_path, bank=[head, *(",".join(row) for row in cells)]),
    )
    assert [line["label"] for line in found["lines"]] == [
        true[line["id"]] for line in found["lines"]
    ]
    scored = [line for line in found["lines"] if line["label"]]
    right = sum(line["predicted"] == line["label"] for line in scored)
    assert 0 < len(scored) < len(found["lines"])
    assert found["parties"][0]["accuracy"] == pytest.approx(right / len(scored))


def test_a_column_of_other_labels_scores_nothing(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *lines = rows_of(trained, "bank", slice(0, 80))
    at = head.split(",").index("verdict")
    other = [",".join([*(c := line.split(","))[:at], "soon", *c[at + 1 :]]) for line in lines]
    found = told(capsys, trained / "splitnn", *new(trained, tmp_path, bank=[head, *other]))
    assert found["parties"][0]["accuracy"] is None and "label" not in found["lines"][0]


def test_what_is_left_out_is_said(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(trained / "splitnn"), *new(trained, tmp_path)]) == 0
    count = 80 - len(both())
    assert f"{count} rows of bank are not predicted: not all have them" in capsys.readouterr().out


def test_categories_are_those_of_the_training(trained: Path, tmp_path: Path) -> None:
    lines = rows_of(trained, "shop", slice(0, 120))
    one = tables()["bank"][0][:80]
    chosen = [line for line in lines[1:] if line.split(",")[0] in one][:3]
    cells = [line.rsplit(",", 1)[0] for line in chosen]
    header = lines[0].split(",")
    turned = [
        ",".join([*header[1:], "x", header[0]]),  # another order, one column more, no labels
        *(",".join([*c.split(",")[1:], size, "7", c.split(",")[0]]) for c, size in zip(cells, ["l", "xl", ""], strict=True)),  # noqa: E501
    ]  # fmt: skip
    new(trained, tmp_path, shop=turned)
    run = colonnade.load(trained / "splitnn")
    rows = run.read_files({p: tmp_path / f"new_{p}.csv" for p in ("bank", "shop")})
    coded = dict(zip(rows.names["shop"], rows.rows["shop"][:, 4:].tolist(), strict=True))
    assert [coded[c.split(",")[0]] for c in cells] == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("method", ["centralised", "local"])
def test_the_baselines_predict_too(
    method: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = new(trained, tmp_path)
    found = told(capsys, trained / method, *words)
    if method == "centralised":
        assert sorted(line["id"] for line in found["lines"]) == both()
    else:
        assert [line["id"] for line in found["lines"]] == tables()["bank"][0][:80]
        assert len(told(capsys, trained / method, *words[:2])["lines"]) == 80


def test_without_the_shop_all_of_the_banks_rows(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = new(trained, tmp_path)[:2]
    found = told(capsys, trained / "splitnn", *words, "--absent", "shop")
    assert [line["id"] for line in found["lines"]] == tables()["bank"][0][:80]


def test_mistakes_in_new_files(trained: Path, tmp_path: Path) -> None:
    run = colonnade.load(trained / "splitnn")
    lines = rows_of(trained, "shop", slice(0, 20))
    words = new(trained, tmp_path, shop=[line.rsplit(",", 1)[0] for line in lines])
    bank, shop = tmp_path / "new_bank.csv", tmp_path / "new_shop.csv"
    with pytest.raises(DataError, match=r"'shop': .*new_shop.csv: no column 'size'"):
        run.read_files({"bank": bank, "shop": shop})
    with pytest.raises(DataError, match=r"(?s)2 mistakes.*'bank': .*none.csv.*'shop': .*'size'"):
        run.read_files({"bank": tmp_path / "none.csv", "shop": shop})
    with pytest.raises(DataError, match="rows of shop are missing: give --data shop=FILE"):
        run.read_files({"bank": bank})
    with pytest.raises(DataError, match="no party 'telco' in this run: one of bank, shop"):
        run.read_files({"bank": bank, "telco": shop})
    with pytest.raises(DataError, match="shop: absent, and yet"):
        run.read_files({"bank": bank, "shop": shop}, absent=["shop"])
    new(trained, tmp_path, shop=[line.replace("person", "client") for line in lines])
    with pytest.raises(DataError, match="no row is common to the files of bank, shop"):
        run.read_files({"bank": bank, "shop": shop})
    assert words


def test_a_file_that_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    colonnade.run(write(tmp_path), out=tmp_path / "run")
    assert colonnade.load(tmp_path / "run").changed() == []
    assert told(capsys, tmp_path / "run")["warnings"] == []
    shop = tmp_path / "shop.csv"
    lines = shop.read_text().splitlines()
    shop.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    (warning,) = told(capsys, tmp_path / "run")["warnings"]
    assert "the file of 'shop' has changed since the training" in warning


# ---- decisions, measures, and the file -----------------------------------------------------------


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run, without predictions."""
    copy = Path(shutil.copytree(trained / "splitnn", tmp_path / "run"))
    for file in copy.glob("predictions*.csv"):
        file.unlink()
    return copy


def test_the_threshold_of_the_run_decides(
    run: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = new(trained, tmp_path)
    plain = told(capsys, run, *words)["lines"]
    decide(run, "bank", 0.5)
    threshold = middle(told(capsys, run, *words)["lines"])
    decide(run, "bank", threshold)
    found = told(capsys, run, *words)
    assert found["parties"][0]["threshold"] == threshold
    assert {float(line["threshold"]) for line in found["lines"]} == {threshold}
    for line, before in zip(found["lines"], plain, strict=True):
        share, odds = float(line["p(good)"]), float(before["p(good)"])
        odds = 1.5 * np.log(odds / (1 - odds)) + 0.25
        assert share == pytest.approx(1 / (1 + np.exp(-odds)), abs=1e-6)
        assert line["predicted"] == ("good" if share >= threshold else "bad")
    assert {line["predicted"] for line in found["lines"]} == {"good", "bad"}
    # From Python, too.
    again = colonnade.load(run)
    rows = again.read_files({p: tmp_path / f"new_{p}.csv" for p in ("bank", "shop")})
    prediction = again.predict(rows)["bank"]
    assert prediction.threshold == threshold
    assert prediction.decisions == [line["predicted"] for line in found["lines"]]
    assert prediction.score(rows.truth["bank"]) == found["parties"][0]["measures"]


def test_all_measures_are_those_of_scikit_learn_on_the_file(
    run: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = new(trained, tmp_path)
    decide(run, "bank", 0.5)
    threshold = middle(told(capsys, run, *words)["lines"])
    decide(run, "bank", threshold)
    found = told(capsys, run, *words)
    measured = found["parties"][0]["measures"]
    true = [line["label"] == "good" for line in found["lines"]]
    share = [float(line["p(good)"]) for line in found["lines"]]
    said = [line["predicted"] == "good" for line in found["lines"]]
    assert measured["auc"] == pytest.approx(roc_auc_score(true, share), abs=1e-12)
    assert measured["precision"] == pytest.approx(precision_score(true, said), abs=1e-12)
    assert measured["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(true, said), abs=1e-12
    )
    assert main(["predict", str(run), *words]) == 0
    out = capsys.readouterr().out
    assert f"{measured['auc']:.3f}" in out and f"{100 * measured['precision']:.2f} %" in out
    assert f"{threshold:.3g} for good, by cost" in out
    assert f"Measures of {len(true)} rows with labels" in out


def test_labels_that_training_did_not_have_are_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *lines = rows_of(trained, "bank", slice(0, 80))
    at = head.split(",").index("verdict")
    cells = [line.split(",") for line in lines]
    for row in cells[:10]:
        row[at] = "Good"
    bank = [head, *(",".join(row) for row in cells)]
    found = told(capsys, trained / "splitnn", *new(trained, tmp_path, bank=bank))
    strange = sum(line["label"] == "Good" for line in found["lines"])
    assert strange and found["parties"][0]["scored"] == len(found["lines"]) - strange
    (warning,) = found["warnings"]
    assert f"{strange} rows of 'bank' have labels that did not occur in training" in warning
    assert "('Good')" in warning


def test_older_predictions_stay(
    run: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = new(trained, tmp_path)
    assert told(capsys, run, *words)["predictions"] == str(run / "predictions.csv")
    (run / "predictions.csv").write_text("mine\n")
    assert main(["predict", str(run), *words]) == 0
    out = capsys.readouterr().out
    assert f"predictions  {run / 'predictions-2.csv'}\nearlier ones stay as they are" in out
    assert (run / "predictions.csv").read_text() == "mine\n"
    own = str(tmp_path / "own.csv")
    (tmp_path / "own.csv").write_text("mine\n")
    assert main(["predict", str(run), *words, "--out", own]) == 2
    assert "own.csv exists: give another --out" in capsys.readouterr().err
    assert main(["predict", str(run), *words, "--out", own, "--overwrite"]) == 0
    assert (tmp_path / "own.csv").read_text().startswith("id,")


def test_a_run_of_processes_predicts_the_same_file(
    run: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apart = colonnade.run(trained / "run.toml", out=tmp_path / "apart", runtime="process").path
    words = new(trained, tmp_path)
    files = []
    for folder in (apart, run):
        decide(folder, "bank", 0.55)
        lines = told(capsys, folder, *words)["lines"]
        assert {line.pop("run") for line in lines} == {folder.name}
        files.append(lines)
    assert files[0] == files[1]


@pytest.mark.parametrize("runtime", ["local", "process"])
def test_prediction_finds_what_the_training_measured(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test rows once more: the same measures, by the threshold that the run has chosen."""
    file = write(tmp_path, metric='"recall"')
    decision = '[decision]\ncost = {false_positive = 1, false_negative = 3}\ncalibrate = "platt"\n'
    file.write_text(f"{file.read_text()}{decision}[data]\nvalidation = 0.2\ntest = 0.3\n")
    result = colonnade.run(file, out=tmp_path / "run", runtime=runtime)  # type: ignore[arg-type]
    chosen, measured = result.content["decision"], result.metrics["test"]["measures"]["bank"]
    assert chosen["chosen_by"] == "cost" and chosen["calibration"]["way"] == "platt"
    found = told(capsys, result.path)
    (party,) = found["parties"]
    assert party["threshold"] == chosen["threshold"]
    assert party["measures"] == {name: value["value"] for name, value in measured.items()}
    assert {float(line["threshold"]) for line in found["lines"]} == {chosen["threshold"]}
    prediction = colonnade.load(result.path).predict()["bank"]
    assert prediction.decisions == [line["predicted"] for line in found["lines"]]
    assert prediction.model == result.weights_sha256["bank"][:12] == found["lines"][0]["model"]
