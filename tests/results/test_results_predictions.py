"""A prediction, how good it is, and the file it lies in."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, recall_score, roc_auc_score, root_mean_squared_error

from colonnade.errors import DataError, RunError
from colonnade.results import predictions_csv
from colonnade.results.prediction import Prediction
from colonnade.task import Task
from colonnade.task.decision import Decision

ROWS = 50
CHURN = Task.of(("no", "yes"))
SIZES = Task.of(("l", "m", "s"))
PRICE = Task("regression", mean=900.0, spread=250.0)


def predicted(task: Task, decision: Decision | None = None, party: str = "bank") -> Prediction:
    draw = torch.Generator().manual_seed(1)
    scores = task.scores(torch.randn(ROWS, task.outputs, generator=draw))
    names = tuple(f"person {row}" for row in range(ROWS))
    chosen = Decision(positive=task.positive) if decision is None else decision
    return Prediction(
        party, task, torch.arange(ROWS), scores, names, chosen, run="churn", model="0123456789ab"
    )


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ---- decisions -----------------------------------------------------------------------------------


def test_without_a_threshold_the_more_probable_class_is_predicted() -> None:
    found = predicted(CHURN)
    assert found.threshold == 0.5 and found.positive == "yes"
    assert torch.equal(found.codes, found.probabilities.argmax(1))
    many = predicted(SIZES)
    assert many.threshold is None
    assert many.labels == [SIZES.classes[code] for code in many.probabilities.argmax(1).tolist()]


@pytest.mark.parametrize("positive", [0, 1])
def test_a_threshold_decides(positive: int) -> None:
    found = predicted(CHURN, Decision(0.2, "rate", positive))
    flagged = found.probabilities[:, positive] >= 0.2
    names = {True: CHURN.classes[positive], False: CHURN.classes[1 - positive]}
    assert found.decisions == found.labels == [names[bool(one)] for one in flagged]
    assert found.decisions != predicted(CHURN).decisions and found.threshold == 0.2


# ---- how good it is ------------------------------------------------------------------------------


def test_scores_are_those_of_scikit_learn() -> None:
    y = np.array(["no", "yes"])[np.random.default_rng(0).integers(0, 2, ROWS)]
    found = predicted(CHURN, Decision(0.4, "fixed", 1))
    share = found.probabilities[:, 1].double().numpy()
    scores = found.score(y)
    assert scores["auc"] == pytest.approx(roc_auc_score(y == "yes", share), abs=1e-12)
    assert scores["recall"] == recall_score(y == "yes", share >= 0.4)
    assert scores["log_loss"] == pytest.approx(log_loss(y == "yes", share), abs=1e-6)
    assert scores["accuracy"] == found.accuracy(y) == np.mean(np.array(found.labels) == y)
    weights = np.linspace(0, 1, ROWS)
    weighed = found.score(y, weights)["recall"]
    assert weighed == pytest.approx(recall_score(y == "yes", share >= 0.4, sample_weight=weights))


def test_numbers_have_values_and_no_classes() -> None:
    found = predicted(PRICE)
    y = np.random.default_rng(0).normal(900, 250, ROWS)
    assert found.values.dtype == torch.float64 and found.classes == ()
    scores = found.score(y)
    assert scores["rmse"] == pytest.approx(root_mean_squared_error(y, found.values.numpy()))
    assert found.score([repr(value) for value in y.tolist()]) == scores  # as a file has them
    for what in ("probabilities", "codes", "labels", "decisions"):
        with pytest.raises(DataError, match=r"'bank' predicts numbers.*: use values, or score"):
            getattr(found, what)
    with pytest.raises(DataError, match="no classes, and no accuracy: use values, or score"):
        found.accuracy(y)
    with pytest.raises(DataError, match="there are no values: use probabilities"):
        _ = predicted(CHURN).values
    y[3] = np.nan
    with pytest.raises(DataError, match="the label in row 3 is missing"):
        found.score(y)


def test_labels_of_other_rows_are_refused() -> None:
    for task, y in ((CHURN, ["no"]), (PRICE, [1.0])):
        with pytest.raises(DataError, match="1 labels for 50 predicted rows"):
            predicted(task).score(y)
    with pytest.raises(DataError, match="row 0 is 'maybe', which is not one of the classes"):
        predicted(CHURN).score(["maybe"] * ROWS)


# ---- the file ------------------------------------------------------------------------------------


def test_columns_of_two_classes(tmp_path: Path) -> None:
    """What is read back decides and measures as the prediction did, to the last bit."""
    found = predicted(CHURN, Decision(0.3, "cost", 1))
    path = predictions_csv.write({"bank": found}, tmp_path)
    assert path == tmp_path / "predictions.csv"
    rows = lines(path)
    assert list(rows[0]) == ["id", "p(no)", "p(yes)", "predicted", "threshold", "run", "model"]
    assert [row["id"] for row in rows] == list(found.names)
    again = [[float(row["p(no)"]), float(row["p(yes)"])] for row in rows]
    assert again == found.probabilities.double().tolist()
    for row in rows:
        flagged = float(row["p(yes)"]) >= float(row["threshold"])
        assert row["predicted"] == ("yes" if flagged else "no")
        assert (row["run"], row["model"]) == ("churn", "0123456789ab")


def test_columns_of_many_classes_and_of_several_parties(tmp_path: Path) -> None:
    both = {name: predicted(SIZES, party=name) for name in ("bank", "shop")}
    truth = {"bank": ["s"] * ROWS}
    rows = lines(predictions_csv.write(both, tmp_path, truth=truth))
    shares = ["p(l)", "p(m)", "p(s)"]
    assert list(rows[0]) == ["party", "id", *shares, "predicted", "label", "run", "model"]
    assert [row["party"] for row in rows] == ["bank"] * ROWS + ["shop"] * ROWS
    assert {row["label"] for row in rows[:ROWS]} == {"s"}
    assert {row["label"] for row in rows[ROWS:]} == {""}


def test_columns_of_numbers(tmp_path: Path) -> None:
    found = predicted(PRICE)
    rows = lines(predictions_csv.write({"bank": found}, tmp_path))
    assert list(rows[0]) == ["id", "predicted", "run", "model"]
    assert [float(row["predicted"]) for row in rows] == found.values.tolist()


def test_ids_and_classes_are_data(tmp_path: Path) -> None:
    """A spreadsheet may take some for formulas; a join by id needs them as they are."""
    ids = ('=cmd|"/c calc"!A1', "+49 30", "-7", "@home", "a,b", "two\nlines", *["x"] * (ROWS - 6))
    plain = predicted(Task.of(("-1", "+1")))
    found = Prediction("bank", plain.task, plain.ids, plain.scores, ids)
    rows = lines(predictions_csv.write({"bank": found}, tmp_path))
    assert [row["id"] for row in rows] == list(ids)
    assert {row["predicted"] for row in rows} == {"-1", "+1"}


def test_nothing_is_overwritten_silently(tmp_path: Path) -> None:
    found = {"bank": predicted(CHURN)}
    made = [predictions_csv.write(found, tmp_path).name for _ in range(3)]
    assert made == ["predictions.csv", "predictions-2.csv", "predictions-3.csv"]
    (tmp_path / "predictions.csv").write_text("mine\n")
    predictions_csv.write(found, tmp_path)
    assert (tmp_path / "predictions.csv").read_text() == "mine\n"
    assert predictions_csv.write(found, tmp_path, overwrite=True).name == "predictions.csv"
    assert len(lines(tmp_path / "predictions.csv")) == ROWS
    own = tmp_path / "own.csv"
    assert predictions_csv.write(found, tmp_path, out=own) == own
    own.write_text("mine\n")
    with pytest.raises(RunError, match=r"own.csv exists: give another --out, or .*--overwrite"):
        predictions_csv.write(found, tmp_path, out=own)
    assert own.read_text() == "mine\n"
    predictions_csv.write(found, tmp_path, out=own, overwrite=True)
    assert len(lines(own)) == ROWS
    with pytest.raises(RunError, match="is a folder, and --out is the file"):
        predictions_csv.write(found, tmp_path, out=tmp_path)
    with pytest.raises(RunError, match="cannot be written: No such file"):
        predictions_csv.write(found, tmp_path, out=tmp_path / "none" / "p.csv")


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_that_cannot_be_finished_leaves_everything_as_it_was(
    overwrite: bool, tmp_path: Path
) -> None:
    old = predictions_csv.write({"bank": predicted(CHURN)}, tmp_path).read_text()
    broken = replace(predicted(CHURN), names=("person 0",) * (ROWS - 1) + ("\ud800",))
    with pytest.raises(UnicodeEncodeError):
        predictions_csv.write({"bank": broken}, tmp_path, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.csv"]
    assert (tmp_path / "predictions.csv").read_text() == old


def test_what_a_link_leads_to_is_overwritten_and_not_the_link(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    real, link = tmp_path / "shared" / "real.csv", tmp_path / "link.csv"
    real.write_text("older")
    link.symlink_to(real)
    predictions_csv.write({"bank": predicted(CHURN)}, tmp_path, out=link, overwrite=True)
    assert link.is_symlink() and len(lines(real)) == ROWS


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (CHURN, "<Prediction of bank: 50 rows, no, yes, threshold 0.5>"),
        (SIZES, "<Prediction of bank: 50 rows, l, m, s>"),
        (PRICE, "<Prediction of bank: 50 rows, numbers>"),
        (Task.of([f"class {n:02}" for n in range(40)]), "class 02 and 37 more>"),
    ],
)
def test_a_prediction_is_printed_in_a_few_words(task: Task, said: str) -> None:
    assert repr(predicted(task)).endswith(said) and len(repr(predicted(task))) < 100
