"""Terminal tables: 80 columns, no colour needed, no name that takes effect."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from report_examples import example, failed
from rich.cells import cell_len
from rich.console import Console, RenderableType

from colonnade import report
from colonnade.report import as_json, comparison, flows_table, summary

RUNS = [
    example("demo", "easter", everybody_predicts=True),
    example("local", "local", messages=False, accuracy=0.91),
    example("centralised", "centralised", parties=["all"], messages=False, accuracy=0.991),
    failed("splitnn"),
]


def shown(table: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    assert all(cell_len(line) <= width for line in lines)
    return [" ".join(line.split()) for line in lines if line.strip()]


def test_summary() -> None:
    lines = shown(summary(RUNS))
    assert lines[0] == "Run Method Parties Accuracy Epoch Bytes Messages"
    assert "demo EASTER 4 96.96 % 12.3 s 500 MB 14,070" in lines
    assert "centralised Centralised 1 99.10 % 12.3 s 0 B 0" in lines
    assert any(line.startswith("splitnn") and "–" in line for line in lines)
    assert any("splitnn (failed)" in line for line in lines)


def test_the_summary_says_what_is_left_without_each_party() -> None:
    run = example("demo", absent={"party2": 0.9011, "[b]4": 0.5}, parties=["a", "party2", "[b]4"])
    lines = shown(summary([run, *RUNS]))
    start = lines.index("With one party absent Accuracy Points")
    assert lines[start + 2 :] == ["party2 90.11 % −8.50", "[b]4 50.00 % −48.61"]
    assert not [line for line in shown(summary([*RUNS, run])) if "absent" in line]


def test_comparison_is_against_the_first() -> None:
    lines = shown(comparison(RUNS))
    assert "demo EASTER 96.96 % 12.3 s 500 MB" in lines
    assert "local Local 91.00 % −5.96 12.3 s × 1.00 0 B × 0.00" in lines
    assert "centralised Centralised 99.10 % +2.14 12.3 s × 1.00 0 B × 0.00" in lines


def numbers(rmse: float) -> dict[str, Any]:
    found: dict[str, Any] = example("prices", "splitnn")
    found["data"] |= {"task": {"kind": "regression", "mean": 4000.0, "spread": 900.0}}
    measures = {"bank": {"rmse": {"value": rmse, "low": None, "high": None}}}
    found["metrics"]["test"] |= {"metric": "rmse", "value": rmse, "accuracy": None}
    found["metrics"]["test"]["measures"] = measures
    return found


@pytest.mark.parametrize(
    ("rmse", "shown_as"),
    [(540.1, "0"), (540.0997, "0.00"), (541.34, "+1.24"), (31.0, "−509.1"), (0.1, "−540.0")],
)
def test_a_difference_has_the_digits_of_what_it_is_between(rmse: float, shown_as: str) -> None:
    lines = shown(comparison([numbers(540.1), numbers(rmse)]))
    (line,) = [line for line in lines if line.startswith("prices") and "×" in line]
    assert f" {shown_as} " in line


def test_runs_of_numbers_and_of_classes_are_not_comparable() -> None:
    classes = example("demo", "easter", everybody_predicts=True)
    for runs in ([numbers(540.1), classes], [classes, numbers(540.1)]):
        said = report.different_data(runs)
        assert "'prices' predicts numbers and 'demo' classes" in said, said
        assert "no measure is common to both" in said
    assert report.different_data([numbers(540.1), numbers(3.0)]) == ""


def test_flows() -> None:
    wire = example()["wire"]
    lines = shown(flows_table(wire["flows"], wire["by_kind"]))
    assert lines[0] == "Kind From To Messages Bytes Reveals"
    assert "gradient party1 party2 2,345 76.8 MB labels, through dL/dh_k" in lines
    assert "party1 party3 2,345 76.8 MB (batch × dim, float32)" in lines
    assert "party1 party4 2,345 76.8 MB" in lines


def test_no_flows() -> None:
    assert "nothing crossed" in " ".join(shown(flows_table([], {})))


@pytest.mark.parametrize("name", ["[bold]x[/nope]", ":smile:", "\x1b[31mred"])
def test_names_have_no_effect(name: str) -> None:
    result = example(name, name, parties=[name, "b"])
    wire = result["wire"]
    expected = name.replace("\x1b", "?")
    for table in (summary([result]), comparison([result, result])):
        assert any(expected in line for line in shown(table, 160))
    text = "\n".join(shown(flows_table(wire["flows"], wire["by_kind"]), 160))
    assert expected in text
    assert "\x1b" not in text


def test_json_has_the_same_numbers_unrounded() -> None:
    rows = json.loads(as_json(RUNS))
    assert [row["name"] for row in rows] == ["demo", "local", "centralised", "splitnn"]
    assert rows[0]["difference_points"] is None
    assert rows[1]["difference_points"] == pytest.approx(-5.96)
    assert rows[1]["accuracy"] == 0.91
    assert rows[0]["messages"] == 14_070
    assert rows[3]["status"] == "failed"
    assert rows[3]["accuracy"] is None


def test_exported_names_exist() -> None:
    assert all(hasattr(report, name) for name in report.__all__)


def test_importing_the_report_loads_no_plotting() -> None:
    heavy = {"matplotlib", "jinja2", "rich.table", "jsonschema", "tomli_w"}
    code = (
        "import sys, colonnade; before = set(sys.modules); import colonnade.report; "
        f"print(sorted({heavy} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
