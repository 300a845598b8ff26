"""VFedTrans' studies: who has which rows, what is compared with what, and the paper's files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colonnade.cli.main import main
from colonnade.errors import ConfigError, DataError
from colonnade.reproduce import catalogue, enrichment, exhibit, study
from colonnade.reproduce.enrichment import Study
from colonnade.reproduce.exhibit import Size
from colonnade.reproduce.study import LOCAL, Measured, Setting

NAMES = [name for name in catalogue.names() if name.startswith("vfedtrans-")]
TREE: dict[str, Any] = {
    "title": "Tiny",
    "kind": "enrichment",
    "common": {"classifiers": ["knn"], "options": {"epochs": 2, "hidden": 16}, "q": 4},
    "data": {"Digits": {"name": "digits", "rows": 300, "shared": 200}},
    "points": {"10": {"task_columns": 10}, "20": {"task_columns": 20}},
    "full": {"seeds": 2, "set": {"data_columns": 30}},
    "fast": {"set": {"data_columns": 30}},
}
SMALL = Setting(
    "toy", 120, 70, 6, 8, classifiers=("knn",), q=3, options={"epochs": 3, "hidden": 16}
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """400 rows of 20 columns in 3 classes; column 3 has gaps."""
    generator = np.random.default_rng(0)
    y = np.arange(400) % 3
    x = generator.normal(size=(400, 20)) + y[:, None] * generator.normal(size=20)
    x[::7, 3] = np.nan
    table = Measured(x, np.arange(20), y, [f"column {k}" for k in range(20)], None)
    monkeypatch.setattr(study, "load", lambda setting: table)
    return table


def found(name: str) -> Study:
    table = catalogue.find(name)
    assert isinstance(table, Study)
    return table


# ---- rows and columns ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_tested_row_is_fitted_to_and_none_is_shared(toy: Measured, seed: int) -> None:
    scored = ("local", "all", "new iid", "new dirichlet", "new label")
    divided = study.rows_of(toy, replace(SMALL, scored=scored), seed)
    assert set(divided) == set(scored)
    for name, rows in divided.items():
        assert not set(rows.tested) & set(rows.trained)
        if name != "all":
            assert not set(rows.tested) & {*rows.seen, *rows.shared}
        if name != "new dirichlet":  # drawn again
            assert len(set(rows.tested)) == len(rows.tested)
        assert (rows.seen[-len(rows.shared) :] == rows.shared).all()  # as `further` takes it
        assert len(rows.shared) == SMALL.shared
    local = divided["local"]
    assert not set(local.trained) & set(local.shared)
    assert len(local.tested) == 10 and len(local.trained) == 40
    new = divided["new label"]
    assert (toy.y[new.tested] == 2).all() and not (toy.y[new.seen] == 2).any()
    assert (toy.y[new.trained] == 2).any()


def test_subjects_are_either_trained_on_or_tested(toy: Measured) -> None:
    people = np.repeat(np.arange(20), 20)
    rows = study.rows_of(replace(toy, people=people), SMALL, 0)
    for divided in rows.values():
        assert not set(people[divided.tested]) & set(people[divided.seen])
        assert not set(people[divided.tested]) & set(people[divided.trained])


@pytest.mark.parametrize("order", ["first", "random"])
def test_columns_are_disjoint_and_categories_stay_together(toy: Measured, order: Any) -> None:
    wide = replace(toy, owner=np.arange(20) // 2, names=[str(k) for k in range(10)])
    setting = replace(SMALL, task_columns=3, data_columns=2, parties=3, columns=order)
    task, others = study.columns(wide, setting, 0)
    assert [len(part) for part in (task, *others)] == [6, 4, 4, 4]
    owners = [set(wide.owner[part]) for part in (task, *others)]
    assert len(set.union(*owners)) == sum(map(len, owners)) == 9
    assert (order == "first") == (set(task) == set(range(6)))
    with pytest.raises(DataError, match="too few"):
        study.columns(wide, replace(setting, parties=4), 0)


def test_statistics_are_of_the_rows_that_may_be_seen(toy: Measured) -> None:
    seen = np.arange(50)
    scaled = study.standardised(toy.x, seen)
    assert np.allclose(scaled[seen].mean(0), 0) and (scaled[toy.x != toy.x] == 0).all()
    other = toy.x.copy()
    other[200:] *= 100
    assert np.array_equal(study.standardised(other, seen)[:200], scaled[:200])


def test_tested_rows_leave_no_trace_in_the_further_columns(
    toy: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = study.rows_of(toy, SMALL, 0)["local"]
    moved = replace(toy, x=toy.x.copy(), y=toy.y.copy())
    moved.x[rows.tested] = 1000.0
    moved.y[rows.tested] = 0
    assert all(
        np.array_equal(a[rows.trained], b[rows.trained])
        for variant in SMALL.variants
        for a, b in [[_further(table, variant) for table in (toy, moved)]]
    )


def _further(table: Measured, variant: str, setting: Setting = SMALL) -> Any:
    task, others = study.columns(table, setting, 0)
    rows = study.rows_of(table, setting, 0)["local"]
    targets = list(study.first_step(table, setting, task, others, rows.shared, 0))
    own = study.standardised(table.x[:, task], rows.seen)
    return study.further(variant, table, own, others, rows, targets, setting, 0)


# ---- variants ------------------------------------------------------------------------------------


def test_variants_differ_and_have_their_width(toy: Measured) -> None:
    made = {variant: _further(toy, variant) for variant in SMALL.variants}
    q, rank = SMALL.q, 14
    wide = {LOCAL: 0, "paper's settings": rank, "published code": 6, "FULL": 8}
    for variant, columns in made.items():
        assert columns.shape == (400, wide.get(variant, q)), variant
        assert np.isfinite(columns).all()
    codes = [columns for columns in made.values() if columns.shape[1] == q]
    for number, first in enumerate(codes):
        assert all(np.abs(first - other).max() > 1e-3 for other in codes[number + 1 :])


def test_several_data_parties_give_a_code_each_or_one_together(toy: Measured) -> None:
    several = replace(SMALL, data_columns=4, parties=3)
    assert _further(toy, "distilled", several).shape[1] == 3 * several.q
    assert _further(toy, "distilled, one FedSVD", several).shape[1] == several.q
    assert _further(toy, "PCA", replace(several, q=2)).shape[1] == 6


def test_published_code_is_not_fitted_to_the_samples_own_rows(toy: Measured) -> None:
    """A second Aᵀ mixes the rows, and keeps their lengths together."""
    task, others = study.columns(toy, SMALL, 0)
    rows = study.rows_of(toy, SMALL, 0)["local"]
    (target,) = study.first_step(toy, SMALL, task, others, rows.shared, 0)
    options, u = study._second_step("published code", target, SMALL, 0)
    assert options.output == "decoder" and options.target == "raw"
    assert np.allclose(u.mT @ u, np.eye(u.shape[1]), atol=1e-9)
    assert float((u - target.u).abs().max()) > 0.05


def test_scores_are_repeated_and_every_classifier_works(toy: Measured) -> None:
    pytest.importorskip("xgboost")
    every = replace(SMALL, classifiers=study.CLASSIFIERS, variants=(LOCAL, "PCA"))
    scores = study.measure(every, 0)
    assert set(scores) == {f"{s}/{c}" for s in ("local", "all") for c in study.CLASSIFIERS}
    assert all(0.3 < value <= 1 for by in scores.values() for value in by.values())
    again = study.measure(replace(every, classifiers=("knn", "lr100")), 0)
    assert again == {key: scores[key] for key in again}


def test_time_has_two_parts(toy: Measured) -> None:
    taken = study.measure(replace(SMALL, parties=2, data_columns=4, seconds=True), 0)["seconds"]
    assert math.isclose(taken["step 1"] + taken["step 2"], taken["steps 1 and 2"])


# ---- tables --------------------------------------------------------------------------------------


def test_the_paired_interval() -> None:
    ours, local = [80.0, 82.0, 87.0, None], [79.0, 80.0, 81.0, 70.0]
    mean, half = enrichment.paired(ours, local)
    assert mean == 3.0 and half == pytest.approx(4.302653 * stdev([1, 2, 6]) / math.sqrt(3))
    assert enrichment.paired([80.0], [79.0]) == [1.0, None]


def test_a_study_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(
        """
        title = "Tiny"
        kind = "enrichment"
        shape = "figure"
        axis = "column"
        common = { classifiers = ["knn"], options = { epochs = 1, hidden = 8 }, q = 4 }
        [data.Digits]
        name = "digits"
        rows = 300
        shared = 200
        data_columns = 30
        [points.10]
        task_columns = 10
        [points.20]
        task_columns = 20
        [fast]
        seeds = 2
        [[claims]]
        text = "All columns are better"
        above = ["FULL"]
        below = ["LOCAL"]
        """,
        encoding="utf-8",
    )
    out = tmp_path / "out"
    command = ["reproduce", str(file), "--jobs", "1", "--out", str(out)]
    few = ["--only", "rows=PCA,FULL", "splits=local"]
    assert main([*command, *few]) == 0
    content = json.loads((out / "table.json").read_text(encoding="utf-8"))
    cells = {(cell["row"], cell["column"]): cell for cell in content["cells"]}
    assert set(cells) == {(r, c) for r in (LOCAL, "PCA", "FULL") for c in ("10", "20")}
    for (row, column), cell in cells.items():
        assert len(cell["values"]) == 2 and cell["split"] == "local rows" and cell["block"] == "knn"
        local = cells[LOCAL, column]["values"]
        assert cell["gain"] == (None if row == LOCAL else enrichment.paired(cell["values"], local))
    assert {claim["of"] for claim in content["claims"]} == {2}
    assert "against LOCAL" in (out / "table.md").read_text(encoding="utf-8")
    assert "<svg" in (out / "report.html").read_text(encoding="utf-8")
    # Nothing is measured twice.
    before = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/result.json")}
    assert len(before) == 4
    capsys.readouterr()
    assert main([*command, *few]) == 0
    assert "4 finished already" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_straight_line_through_times() -> None:
    def cell(column: str, mean: float) -> Any:
        return SimpleNamespace(data="d", split="", block="", row="r", column=column, mean=mean)

    timed = replace(found("vfedtrans-fig15"), axis="data party")
    (line,) = enrichment.fits(timed, [cell(str(k), 2.0 + 3 * k) for k in (1, 2, 4)])
    assert line["slope"] == pytest.approx(3) and line["start"] == pytest.approx(2)
    assert line["r2"] == pytest.approx(1)


def test_mistakes_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    study_ = enrichment.load(path, TREE)
    assert [s.task_columns for s in study_.settings("full", {}).values()] == [10, 20]
    wrong = {**TREE, "common": {**TREE["common"], "classifiers": ["svm"]}}
    with pytest.raises(ConfigError, match="svm"):
        enrichment.load(path, wrong)
    with pytest.raises(ConfigError, match="colour"):
        enrichment.load(path, {**TREE, "colour": 1})
    with pytest.raises(ConfigError, match="no row 'ours'"):
        enrichment.load(path, {**TREE, "alias": {"ours": "theirs"}})
    with pytest.raises(ConfigError, match="shared = 300"):
        enrichment.load(path, {**TREE, "fast": {"set": {"data_columns": 3, "shared": 300}}})


# ---- the paper -----------------------------------------------------------------------------------


def test_the_studies_there_are() -> None:
    figures = {f"vfedtrans-fig{number}" for number in range(2, 17)}
    assert set(NAMES) == {"vfedtrans-hapt", "vfedtrans-table2", "vfedtrans-table3", *figures}
    assert {name for name in NAMES if found(name).kind == "figure"} == figures


@pytest.mark.parametrize("size", ["fast", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_every_unit_is_planned_once(name: str, size: Size) -> None:
    units = found(name).plan(size, 2, {}, "cpu")
    assert len({unit.key for unit in units}) == len(units)
    assert len({enrichment.digest(unit.config) for unit in units}) == len(units)


def test_controls_stand_in_every_accuracy_figure() -> None:
    needed = set(study.BUILT_IN) - {"distilled, one FedSVD"}
    for name in NAMES:
        for setting in found(name).settings("full", {}).values():
            if not setting.seconds and name != "vfedtrans-table3":
                assert needed <= set(setting.variants), name


@pytest.mark.parametrize(("name", "count"), [("vfedtrans-table2", 9), ("vfedtrans-table3", 24)])
def test_every_number_of_the_paper_has_exactly_one_cell(name: str, count: int) -> None:
    table = found(name)
    assert len(table.numbers) == count
    units = table.plan("full", 1, {}, "cpu")
    cells = table.fill(units, {}, True).cells
    assert sum(cell.paper is not None for cell in cells) == count


def test_numbers_as_printed() -> None:
    numbers = found("vfedtrans-table2").numbers
    assert numbers["SUSY", "FULL", "rf"] == (79.9, None)
    assert numbers["RNA-Seq", "VFedTrans", "rf"] == (96.67, None)
    assert found("vfedtrans-table3").numbers["Gisette", "4 layers", "ReLU"] == (95.2, None)


def test_two_figures_share_their_units() -> None:
    for one, other in (("fig2", "fig13"), ("fig5", "fig14")):
        digests = [
            {
                enrichment.digest(u.config)
                for u in found(f"vfedtrans-{n}").plan("full", 1, {}, "cpu")
            }
            for n in (one, other)
        ]
        assert digests[0] == digests[1]


def test_a_selection_keeps_local() -> None:
    table = found("vfedtrans-hapt")
    only = exhibit.selection(["rows=PCA", "columns=knn", "data=random columns"], table)
    (unit,) = table.plan("full", 1, only, "cpu")
    assert unit.config["study"]["variants"] == (LOCAL, "PCA")
    assert unit.config["study"]["classifiers"] == ("knn",)
