"""All measures, the threshold and the curves on the page; tables and sentences by the measure that
decides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from report_examples import example
from rich.console import Console, RenderableType

from colonnade import report
from colonnade.report import check, measured
from colonnade.report.overview import overviews, without
from colonnade.task.measures import MEASURES

CALIBRATION = {
    "way": "platt",
    "positive": 1,
    "slope": 1.0,
    "offset": 0.0,
    "lines": [],
    "note": "",
}


def interval(value: float, wide: float = 0.01) -> dict[str, float]:
    return {"value": value, "low": value - wide, "high": value + wide}


def binary(name: str = "churn", auc: float = 0.774, **changed: Any) -> dict[str, Any]:
    """Two classes, 80 % "no"; with a threshold."""
    result = example(name, classes=["no", "yes"], parties=["bank", "shop"], **changed)
    test = result["metrics"]["test"]
    test |= {
        "metric": "auc",
        "value": auc,
        "accuracy": 0.81,
        "per_party": {"bank": 0.81},
        "measures": {
            "bank": {
                "auc": interval(auc),
                "log_loss": interval(0.43),
                "accuracy": interval(0.81),
                "precision": {"value": None, "low": None, "high": None},
            }
        },
        "curves": {
            "bank": {
                "roc": {"false_positive_rate": [0.0, 0.2, 1.0], "recall": [0.0, 0.6, 1.0]},
                "precision_recall": {"recall": [0.0, 1.0], "precision": [0.9, 0.2]},
                "calibration": {
                    "predicted": [0.1, 0.6],
                    "observed": [0.2, 0.5],
                    "share": [0.5, 0.5],
                },
            }
        },
        "confusion": [[700, 100], [90, 110]],
        "confusion_party": "bank",
        "absent": {"shop": 0.7984},
        "absent_value": {"shop": 0.65},
    }
    result["decision"] = {
        "threshold": 0.342,
        "chosen_by": "rate",
        "positive": 1,
        "calibration": CALIBRATION,
    }
    result["config"]["decision"] = {"rate": 0.2, "calibrate": "platt"}
    for row in result["history"]:
        row["parties"]["bank"]["test_auc"] = auc - 0.1 / row["epoch"]
        row["parties"]["bank"] |= {"validation_auc": 0.75, "validation_loss": 0.5, "test_loss": 0.4}
    return result


def regression(name: str = "prices", rmse: float = 812.3) -> dict[str, Any]:
    result = example(name, classes=[], parties=["bank", "shop"])
    result["metrics"]["test"] |= {
        "metric": "rmse",
        "value": rmse,
        "accuracy": None,
        "per_party": {},
        "measures": {"bank": {"rmse": interval(rmse, 20.0), "r2": interval(-0.2)}},
        "curves": {
            "bank": {
                "residuals": {"predicted": [1.0, 2.0], "residual": [0.1, -0.1], "spread": [1, 1]},
                "residual_histogram": {"edges": [-1.0, 0.0, 2.0], "share": [0.5, 0.5]},
            }
        },
        "absent_value": {"shop": 1359.0},
    }
    for row in result["history"]:
        row["parties"]["bank"] = {"loss": 0.5, "test_loss": 0.4, "test_rmse": 900 / row["epoch"]}
    return result


def shown(table: RenderableType) -> list[str]:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [" ".join(line.split()) for line in captured.get().splitlines() if line.strip()]


def page(folder: Path, *results: dict[str, Any]) -> str:
    for result in results:
        check(result)
    return report.write_report(results, folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("predicted", "highest"), [(0.03, "4 %"), (0.17, "20 %"), (0.21, "40 %"), (0.9, "100 %")]
)
def test_rare_classes_fill_the_figure_of_their_calibration(
    tmp_path: Path, predicted: float, highest: str
) -> None:
    result = binary()
    curve = result["metrics"]["test"]["curves"]["bank"]["calibration"]
    curve |= {"predicted": [0.01, predicted], "observed": [0.0, predicted / 2]}
    text = page(tmp_path, result)
    figure = text[text.index("Calibration: how often it came true") :]
    ticks = re.findall(r">([\d.]+ %)</text>", figure[: figure.index("</svg>")])
    assert len(ticks) == 10 and ticks.count(highest) == 2
    assert max(float(tick[:-2]) for tick in ticks) == float(highest[:-2])


def test_the_page_has_every_measure_and_what_the_threshold_does(tmp_path: Path) -> None:
    text = page(tmp_path, binary())
    for said in (
        "How good the predictions are",
        "A row is flagged as yes from a probability of 0.342 on.",
        "so that 20\u00a0% of the validation rows are flagged",
        "Probabilities were calibrated by Platt’s method",
        "210 of 1,000",
        "0.764 to 0.784",
        "ROC curve, and the threshold",
        "Precision over recall",
        "Calibration:",
        "right as often as always saying &#39;no&#39;",
        "Test AUC 0.774 (95\u00a0% interval 0.764 to 0.784), accuracy 81.0\u00a0%",
    ):
        assert said in text, said
    assert text.index("ROC AUC") < text.index("Log loss")
    assert "<td>training" not in text and "validation</span>" in text  # the legend of the curves


def test_a_regression_has_residuals_and_no_classes(tmp_path: Path) -> None:
    text = page(tmp_path, regression())
    for said in ("Test RMSE 812.3", "RMSE: lower is better", "True over predicted", "Residuals:"):
        assert said in text, said
    assert "accuracy" not in text.lower() and "ROC" not in text
    assert "−0.200" in text  # an R² below zero


def test_the_best_epoch_is_marked(tmp_path: Path) -> None:
    stopping = {"best_epoch": 3, "of": 5, "metric": "auc", "value": 0.75}
    text = page(tmp_path, binary(stopping=stopping))
    assert "marks epoch 3, whose weights were kept" in text
    assert "whose weights were kept" not in page(tmp_path, binary())


def test_different_data_is_said_on_the_page_too(tmp_path: Path) -> None:
    other = binary("other")
    other["data"] = other["data"] | {"test_rows": 77}
    text = page(tmp_path, binary(), other)
    assert "The runs are of different data" in text
    assert "of different data" not in page(tmp_path, binary(), binary("other"))


def test_a_comparison_goes_by_the_measure_that_decides() -> None:
    lines = shown(report.comparison([binary(), binary("local", auc=0.65)]))
    assert lines[0].startswith("Run Method AUC Difference Accuracy Epoch")
    assert any("local SplitNN 0.650 −0.124 81.00 %" in line for line in lines)
    rows = overviews([binary(), binary("local", auc=0.65)])
    assert rows[1].difference == pytest.approx(-0.124)
    assert rows[1].difference_points == pytest.approx(0)


def test_of_errors_less_is_better() -> None:
    lines = shown(report.comparison([regression(), regression("local", rmse=1359.0)]))
    assert lines[0].startswith("Run Method RMSE Difference Epoch")
    assert any("local SplitNN 1,359 +546.7" in line for line in lines)
    assert "RMSE: lower is better." in " ".join(lines)
    assert "Accuracy" not in " ".join(lines)


def test_runs_with_other_metrics_are_compared_by_the_first_ones() -> None:
    other = binary("other")
    other["metrics"]["test"] |= {"metric": "log_loss", "value": 0.43}
    assert [row.value for row in overviews([binary(), other])] == [0.774, 0.774]
    assert [row.value for row in overviews([other, binary()])] == [0.43, 0.43]


def test_what_is_left_without_a_party_is_held_against_a_constant_answer() -> None:
    found = without(binary())["shop"]
    assert (found.value, found.accuracy) == (0.65, 0.7984)
    assert found.difference == pytest.approx(-0.124)
    assert found.constant == "right as often as always saying 'no'"
    lines = " ".join(shown(report.summary([binary()])))
    assert (
        "Without shop: right as often as always saying 'no', which is right for 80.00 %." in lines
    )
    better = binary()
    better["metrics"]["test"]["absent"]["shop"] = 0.806
    assert without(better)["shop"].constant == ""
    worse = binary()
    worse["metrics"]["test"]["absent"]["shop"] = 0.3
    assert without(worse)["shop"].constant == "right less often than always saying 'no'"


def test_a_regression_without_a_party() -> None:
    lines = shown(report.summary([regression()]))
    assert "With one party absent RMSE Difference" in lines
    assert any("shop 1,359 +546.7" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("accuracy", 0.98614, "98.61 %"),
        ("auc", 0.7716, "0.772"),
        ("rmse", 1131.26, "1,131"),
        ("rmse", 0.00123456, "0.001235"),
        ("rmse", 0.0, "0"),
        ("r2", -0.25, "−0.250"),
        ("auc", None, "–"),
        ("rmse", float("nan"), "–"),
    ],
)
def test_numbers_as_a_person_reads_them(name: str, value: float | None, said: str) -> None:
    assert measured.value(name, value) == said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("accuracy", -0.0596, "−5.96"),
        ("auc", 0.0124, "+0.012"),
        ("auc", -0.0001, "0.000"),
        ("rmse", -12.34, "−12.34"),
        ("auc", None, "–"),
    ],
)
def test_differences_have_a_sign(name: str, value: float | None, said: str) -> None:
    assert measured.change(name, value) == said


def test_every_measure_is_explained() -> None:
    assert all(measured.meaning(name) for name in MEASURES)
