"""The file format, the selection, and the arithmetic of cells and claims, on made-up numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from colonnade.errors import ColonnadeError, ConfigError, RunError
from colonnade.report import plots
from colonnade.reproduce import cells, exhibit, flow, reading, table, view, write
from colonnade.reproduce.exhibit import Claim, Place, Size
from colonnade.reproduce.page import render

SIZES: tuple[Size, Size] = ("fast", "full")
TEXT = """
title = "Made up"
expected = "one"
[common]
batch_size = 32
splitnn = { dim = 4, hidden = 0 }
[data.A]
data.name = "digits"
[data.B]
data.name = "digits"
[splits.halves]
partition = { kind = "strips", parties = 2 }
[columns]
Small = { model = "mlp" }
Large = { model = "cnn" }
[recipes]
Slow = { lr = 0.01 }
Fast = { lr = 0.1 }
[mixes]
both = ["Small", "Large"]
paces = ["Slow", "Fast"]
[fast]
only = { data = ["A"] }
set.epochs = 1
[[runs]]
row = "Split"
method = "splitnn"
paper = "SplitNN"
set.splitnn.dim = 8
[[runs]]
row = "Mixed"
method = "local"
mixes = ["both"]
extra = { "Mixed, together" = "accuracy" }
[[runs]]
block = "by pace"
method = "local"
mixes = ["paces"]
[[claims]]
text = "Split is above Mixed"
above = ["Split"]
below = ["Mixed"]
"""
NUMBERS = """{"one": {"columns": ["Small", "Large"],
 "rows": {"A": {"SplitNN": [[90.0, 1.0], 95.0], "Mixed": [80.0, 96.0]}}}}"""


def made(folder: Path, text: str = TEXT, numbers: str = NUMBERS) -> table.Table:
    (folder / "table.toml").write_text(text, encoding="utf-8")
    (folder / "expected.json").write_text(numbers, encoding="utf-8")
    return reading.load(folder / "table.toml")


def mistakes(folder: Path, text: str, numbers: str = NUMBERS) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        made(folder, text, numbers)
    return caught.value.problems


# --- the file -------------------------------------------------------------------------------------


def test_settings_are_laid_over_each_other(tmp_path: Path) -> None:
    first, second, *_ = made(tmp_path).plan("fast", 1, {}, "cuda")
    assert first.config == {
        "batch_size": 32,
        "splitnn": {"dim": 8, "hidden": 0},
        "data": {"name": "digits"},
        "partition": {"kind": "strips", "parties": 2},
        "model": "mlp",
        "epochs": 1,
        "method": "splitnn",
        "name": "a-halves-split-small-seed0",
        "seed": 0,
        "device": "cuda",
        "checkpoint": {"epochs": 0},
        "absence": False,
    }
    assert second.config["model"] == "cnn"


def test_a_table_may_ask_for_checkpoints(tmp_path: Path) -> None:
    """A privacy budget does not go without."""
    table = made(tmp_path, TEXT.replace("[common]", "[common]\ncheckpoint.epochs = 1"))
    assert all(r.config["checkpoint"] == {"epochs": 1} for r in table.plan("fast", 1, {}, ""))


def test_a_run_per_column_a_run_per_mix_and_rows_that_are_parties(tmp_path: Path) -> None:
    runs = made(tmp_path).plan("fast", 2, {}, "cpu")
    assert [run.seed for run in runs] == [0] * 5 + [1] * 5  # the first seed first
    filled = [[(f.row, f.column, f.metric, f.parties) for f in run.fills] for run in runs]
    assert filled[0] == [("Split", "Small", "accuracy", ())]
    assert filled[2] == [
        ("Mixed", "Small", "per_party", ("party1",)),
        ("Mixed", "Large", "per_party", ("party2",)),
        ("Mixed, together", "Small", "accuracy", ()),
        ("Mixed, together", "Large", "accuracy", ()),
    ]
    assert filled[4] == [
        ("Slow", "Large", "per_party", ("party1",)),
        ("Fast", "Large", "per_party", ("party2",)),
    ]
    assert runs[4].config["model"] == "cnn"
    assert runs[4].config["parties"] == {"party1": {"lr": 0.01}, "party2": {"lr": 0.1}}
    # the second seed: everything one party on
    assert filled[7][0] == ("Mixed", "Small", "per_party", ("party2",))
    assert runs[9].config["parties"] == {"party1": {"lr": 0.1}, "party2": {"lr": 0.01}}


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = (
        TEXT.replace('mixes = ["both"]', 'mixes = ["booth"]')
        .replace("Slow = { lr = 0.01 }", "Slow = { rate = 0.01 }")
        .replace('both = ["Small", "Large"]', 'both = ["Small", "Fast"]')
    )
    problems = mistakes(tmp_path, text)
    assert len(problems) == 3
    assert any("no mix 'booth'" in problem and "'both'" in problem for problem in problems)
    assert any("no key 'rate' in [recipes.Slow]" in problem for problem in problems)
    assert any("columns and recipes" in problem for problem in problems)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('paper = "SplitNN"', 'paper = "SplitN"', "has no numbers"),
        ('below = ["Mixed"]', 'below = ["Mixd"]', "no row 'Mixd'"),
        ('below = ["Mixed"]', "within = 1.0", "give above and below, or rows and within"),
        ('row = "Mixed"', 'row = "Split"', "again"),
        ('only = { data = ["A"] }', 'only = { date = ["A"] }', "did you mean 'data'"),
        ('row = "Split"\n', "", "row is missing"),
        ('title = "Made up"', 'titel = "Made up"', "did you mean 'title'"),
        ("set.epochs = 1", "sets.epochs = 1", "no key 'sets'"),
        ("[data.A]", "[data.A", "not valid TOML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in TEXT
    assert any(problem in found for found in mistakes(tmp_path, TEXT.replace(old, new, 1)))


def test_numbers_that_do_not_fit_their_columns_are_an_error(tmp_path: Path) -> None:
    (problem,) = mistakes(
        tmp_path, TEXT.replace('paper = "SplitNN"', ""), NUMBERS.replace(", 95.0", "")
    )
    assert "cannot be read" in problem


def test_one_data_set_may_have_the_numbers_of_another(tmp_path: Path) -> None:
    shared = NUMBERS.replace('"rows": {', '"rows": {"A whole": "A", ')
    numbers = made(tmp_path, numbers=shared).numbers
    assert numbers["A whole", "SplitNN", "Small"] == numbers["A", "SplitNN", "Small"] == (90.0, 1.0)
    problem = mistakes(tmp_path, TEXT, shared.replace(': "A"', ': "B"'))[0]
    assert "cannot be read" in problem and "'B'" in problem


# --- the selection --------------------------------------------------------------------------------


def test_only(tmp_path: Path) -> None:
    made_up = made(tmp_path)
    only = exhibit.selection(["columns=small", "rows=Mixed, together", "rows=Split"], made_up)
    assert only == {"columns": ("Small",), "rows": ("Mixed, together", "Split")}
    runs = made_up.plan("fast", 1, only, "cpu")
    assert [[(f.row, f.column) for f in run.fills] for run in runs] == [
        [("Split", "Small")],
        [("Mixed, together", "Small")],
    ]
    assert set(runs[1].config["parties"]) == {"party1", "party2"}  # the run itself is whole


def test_only_on_the_command_line_overrides_the_choice_of_the_size(tmp_path: Path) -> None:
    runs = made(tmp_path).plan("fast", 1, {"data": ("B",), "blocks": ("by pace",)}, "cpu")
    assert {run.place for run in runs} == {Place("B", "halves", "by pace")}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("columns", "KEY=VALUE"),
        ("colums=Small", "did you mean 'columns'"),
        ("columns=Smal", "no column 'Smal' in --only: did you mean 'Small'"),
        ("data=C", "no data set 'C'"),
    ],
)
def test_a_wrong_selection_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises((RunError, ConfigError), match=problem):
        exhibit.selection([text], made(tmp_path))


def test_a_selection_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="leaves nothing"):
        made(tmp_path).plan("full", 1, {"rows": ("Split",), "blocks": ("by pace",)}, "cpu")


# --- cells and claims -----------------------------------------------------------------------------


def result(accuracy: float, parties: dict[str, float], seconds: float = 1.0) -> dict[str, Any]:
    """As much of a result.json as a table reads."""
    history = []
    for phase, epoch in (("pretrain", 1), ("train", 1), ("train", 2)):  # only the second counts
        scores = {p: {"test_accuracy": v * epoch / 2} for p, v in parties.items()}
        history.append({"phase": phase, "epoch": epoch, "parties": scores})
    return {
        "method": "made-up",
        "parties": ["party1", "party2", "party3"],
        "metrics": {"test": {"accuracy": accuracy, "per_party": parties}},
        "history": history,
        "data": {"train_rows": 100},
        "config": {"batch_size": 32},
        "wire": {"bytes": 900, "by_phase": {"train": {"bytes": 800, "messages": 64}}},
        "timing": {"seconds_total": seconds, "seconds_per_epoch": [0.1, 0.1]},
        "environment": {"commit": "abc"},
        "config_sha256": "",
        "warnings": [],
    }


def results(tmp_path: Path) -> tuple[table.Table, list[exhibit.Planned], dict[str, dict[str, Any]]]:
    made_up = made(tmp_path)
    runs = made_up.plan("fast", 2, {"blocks": ("",)}, "cpu")
    found = {
        "a-halves-split-small-seed0": result(0.9, {"party1": 0.9}),
        "a-halves-split-small-seed1": result(0.94, {"party1": 0.94}),
        "a-halves-split-large-seed0": result(0.5, {"party1": 0.5}),
        "a-halves-mixed-both-seed0": result(0.75, {"party1": 0.7, "party2": 0.8}),
        "a-halves-mixed-both-seed1": result(0.65, {"party1": 0.6, "party2": 0.7}),
    }
    return made_up, runs, found  # Split with the large network failed for seed 1


def filled(
    made_up: table.Table,
    runs: list[exhibit.Planned],
    known: dict[str, dict[str, Any]],
    comparable: bool,
) -> list[cells.Cell]:
    return list(made_up.fill(runs, known, comparable).cells)


def test_a_cell_over_its_seeds(tmp_path: Path) -> None:
    found = {(c.row, c.column): c for c in filled(*results(tmp_path), comparable=True)}
    cell = found["Split", "Small"]
    assert cell.values == pytest.approx([90.0, 94.0])
    assert cell.mean == pytest.approx(92.0) and cell.sd == pytest.approx(8**0.5)
    assert (cell.paper, cell.paper_sd) == (90.0, 1.0)
    assert cell.difference == pytest.approx(2.0)
    assert cell.runs == ["a-halves-split-small-seed0", "a-halves-split-small-seed1"]
    # party 1 holds the small network for seed 0, party 2 for seed 1
    assert found["Mixed", "Small"].values == pytest.approx([70.0, 70.0])
    assert found["Mixed", "Large"].values == pytest.approx([80.0, 60.0])
    assert found["Mixed", "Large"].curve == ([1, 2], pytest.approx([35.0, 70.0]))
    assert found["Mixed, together", "Large"].mean == pytest.approx(70.0)
    assert found["Mixed, together", "Large"].paper is None


def test_a_gap_stays_a_gap(tmp_path: Path) -> None:
    made_up, runs, known = results(tmp_path)
    cell = next(
        c for c in filled(made_up, runs, known, True) if (c.row, c.column) == ("Split", "Large")
    )
    assert cell.values == [pytest.approx(50.0), None] and cell.sd is None
    del known["a-halves-split-large-seed0"]
    cell = next(
        c for c in filled(made_up, runs, known, True) if (c.row, c.column) == ("Split", "Large")
    )
    assert cell.mean is None and cell.difference is None and cell.paper == 95.0
    assert view.ours(vars(cell)) == "–"


def test_a_small_run_is_not_compared(tmp_path: Path) -> None:
    found = filled(*results(tmp_path), comparable=False)
    assert all(cell.difference is None for cell in found)


def test_claims_are_judged_column_by_column(tmp_path: Path) -> None:
    made_up, runs, known = results(tmp_path)
    found = filled(made_up, runs, known, True)
    (claim,) = cells.judged(made_up.claims, found)
    assert (claim["holding"], claim["unresolved"], claim["of"]) == (0, 1, 2)
    small, large = claim["verdicts"]
    assert (small["column"], small["seeds_holding"]) == ("Small", 2)
    assert small["margins"] == pytest.approx([20.0, 24.0])  # two seeds: a wide interval
    assert view.verdict(small) == "not resolved (+22.00 ± 25.41 points, 2 seeds)"
    assert (large["holds"], large["seeds"], large["seeds_holding"]) == (False, 1, 0)
    # the second seed of Split is missing, so only the first of Mixed counts: 50 against 80
    assert large["margin"] == pytest.approx(-30.0) and large["interval"] is None
    assert large["margins"] == [pytest.approx(-30.0), None]
    assert view.verdict(large) == "does not hold (−30.00 points, one seed)"
    # in the paper: 90 > 80, but 95 < 96
    assert (claim["paper_holding"], claim["paper_of"]) == (1, 2)
    assert view.printed(claim) == "1 of 2 (+10.00, −1.00 points)"
    # a variant has no number of its own in the paper
    variants = [replace(cell, variant=cell.row == "Mixed") for cell in found]
    assert view.printed(cells.judged(made_up.claims, variants)[0]) == ""


def test_a_tie_is_not_above_and_the_limit_is_within(tmp_path: Path) -> None:
    cell = filled(*results(tmp_path), comparable=True)[0]
    same = [
        replace(cell, row=row, mean=90.0 + extra, values=[90.0 + extra])
        for row, extra in (("x", 0.0), ("y", 1.0))
    ]
    tie = [replace(one, mean=90.0, values=[90.0]) for one in same]
    assert cells.judged([Claim("", above=("y",), below=("x",))], same)[0]["holding"] == 1
    assert cells.judged([Claim("", above=("y",), below=("x",))], tie)[0]["holding"] == 0
    assert cells.judged([Claim("", rows=("x", "y"), within=1.0)], same)[0]["holding"] == 1
    assert cells.judged([Claim("", rows=("x", "y"), within=0.9)], same)[0]["holding"] == 0
    assert cells.judged([Claim("", rows=("x", "z"), within=1.0)], same)[0]["of"] == 0


def rows_of(cell: cells.Cell, **values: list[float | None]) -> list[cells.Cell]:
    """Rows with these values by seed."""
    known = {row: [v for v in numbers if v is not None] for row, numbers in values.items()}
    return [
        replace(cell, row=row, values=numbers, mean=fmean(known[row]) if known[row] else None)
        for row, numbers in values.items()
    ]


def test_differences_are_paired_and_have_an_interval(tmp_path: Path) -> None:
    cell = filled(*results(tmp_path), comparable=True)[0]
    # the seeds differ by tens of points, the paired rows by one
    found = rows_of(cell, x=[50.0, 70.0, 90.0], y=[51.0, 71.5, 90.5], z=[60.0, 60.0, 60.0])
    (claim,) = cells.judged([Claim("", above=("y",), below=("x",))], found)
    (one,) = claim["verdicts"]
    assert one["margins"] == pytest.approx([1.0, 1.5, 0.5])
    # t(0.975, 2) = 4.3027; the deviation of the differences is 0.5
    assert one["margin"] == pytest.approx(1.0)
    assert one["interval"] == pytest.approx(4.302653 * 0.5 / 3**0.5, rel=1e-6)
    assert (one["outcome"], claim["holding"], claim["unresolved"]) == ("not resolved", 0, 1)
    assert view.count(claim) == "not resolved (+1.00 ± 1.24 points, 3 seeds)"
    # lowest of `above` minus highest of `below`, in each seed
    (claim,) = cells.judged([Claim("", above=("y",), below=("x", "z"))], found)
    assert claim["verdicts"][0]["margins"] == pytest.approx([-9.0, 1.5, 0.5])
    (claim,) = cells.judged([Claim("", above=("x",), below=("y",), columns=("Large",))], found)
    assert claim["of"] == 0


def test_a_claim_holds_fails_or_is_not_resolved(tmp_path: Path) -> None:
    cell = filled(*results(tmp_path), comparable=True)[0]
    found = rows_of(cell, x=[50.0, 50.0], y=[51.0, 51.1], z=[49.0, 51.2], gap=[None, 60.0])
    above = {row: Claim("", above=(row,), below=("x",)) for row in "yz"}
    holds, unresolved = cells.judged(list(above.values()), found)
    assert holds["verdicts"][0]["outcome"] == "holds"
    assert unresolved["verdicts"][0]["outcome"] == "not resolved"
    (fails,) = cells.judged([Claim("", above=("x",), below=("y",))], found)
    assert fails["verdicts"][0]["outcome"] == "does not hold"
    assert view.verdict(fails["verdicts"][0]) == "does not hold (−1.05 ± 0.64 points, 2 seeds)"
    # one seed that both have: the sign alone, and no interval
    (single,) = cells.judged([Claim("", above=("gap",), below=("x",))], found)
    assert view.count(single) == "holds (+10.00 points, one seed)"
    # none: nothing is said
    never = rows_of(cell, x=[50.0, None], gap=[None, 60.0])
    assert cells.judged([Claim("", above=("gap",), below=("x",))], never)[0]["of"] == 0


def test_many_verdicts_are_counted_and_few_are_listed(tmp_path: Path) -> None:
    cell = filled(*results(tmp_path), comparable=True)[0]
    values = {"high": [[51.0, 51.1], [50.0, 51.0], [49.0, 49.1]], "low": [[50.0, 50.0]] * 3}
    found = [
        replace(one, data=data)
        for number, data in enumerate("ABC")
        for one in rows_of(cell, **{row: list(v[number]) for row, v in values.items()})
    ]
    claims = cells.judged([Claim("High is above", above=("high",), below=("low",))], found)
    assert view.count(claims[0]) == "holds in 1 of 3, 1 not resolved"
    first = [replace(one, values=one.values[:1]) for one in found]
    claims_of_one = cells.judged([Claim("", above=("high",), below=("low",))], first)
    assert view.count(claims_of_one[0]) == "holds in 1 of 3, one seed"
    assert view.listed(claims[0])[1] == (
        "B, halves, Small: not resolved (+0.50 ± 6.35 points, 2 seeds)"
    )
    text = write.markdown(content(tmp_path, claims=claims))
    assert "B, halves, Small (+0.50, ?); C, halves, Small (−0.95) |" in text
    assert "| High is above | A, halves | +1.05 ± 0.64 points, 2 seeds |" in text
    more = {"verdicts": claims[0]["verdicts"] * 2, "of": 6, "holding": 2, "unresolved": 2}
    assert len(view.listed(claims[0] | more)) == 4  # without the two that hold
    page = render(content(tmp_path, claims=claims))
    assert "holds (+1.05 ± 0.64 points, 2 seeds)" in page and "95 % interval" in page


# --- further columns, other units, other axes -----------------------------------------------------


FURTHER = TEXT.replace(
    'row = "Mixed"\n', 'row = "Mixed"\ncolumns = { SSIM = "ssim", PSNR = "psnr" }\n', 1
)


def test_further_columns_are_further_numbers_of_the_same_run(tmp_path: Path) -> None:
    table_ = made(tmp_path, FURTHER)
    assert table_.names("columns") == ["Small", "Large", "SSIM", "PSNR"]
    runs = table_.plan("fast", 1, {"blocks": ("",)}, "cpu")
    assert [len(run.fills) for run in runs] == [1, 1, 6]
    assert [(f.row, f.column, f.metric, f.parties) for f in runs[2].fills[-2:]] == [
        ("Mixed", "SSIM", "ssim", ()),
        ("Mixed", "PSNR", "psnr", ()),
    ]
    (run,) = table_.plan("fast", 1, {"columns": ("PSNR",)}, "cpu")
    assert [fill.column for fill in run.fills] == ["PSNR"]
    assert not table_.plan("fast", 1, {"rows": ("Split",)}, "cpu")[0].config.get("parties")
    problems = mistakes(tmp_path, FURTHER.replace("SSIM =", "Small =", 1))
    assert problems[0] == "table.toml: runs[2] fills A / halves /  / Mixed / Small again"


def test_decibels_are_not_per_cent(tmp_path: Path) -> None:
    made_up = made(tmp_path, FURTHER)
    runs = made_up.plan("fast", 1, {"rows": ("Mixed",)}, "cpu")
    one = result(0.5, {"party1": 0.5, "party2": 0.5})
    one["metrics"]["test"] |= {
        "ssim": {"party2": 0.25, "party3": 0.35},
        "psnr": {"party2": 18.0, "party3": 20.0},
    }
    found = filled(made_up, runs, {runs[0].key: one}, comparable=False)
    shown = {cell.column: view.ours(vars(cell)) for cell in found}
    assert shown == {"Small": "50.00", "Large": "50.00", "SSIM": "30.00", "PSNR": "19.00 dB"}
    assert view.measure({"cells": [vars(cell) for cell in found]}).endswith("names nothing else")
    low = [replace(cell, row="low") for cell in found]
    (claim,) = cells.judged([Claim("", above=("Mixed",), below=("low",))], [*found, *low])
    assert view.verdict(claim["verdicts"][3]) == "does not hold (0.00 dB, one seed)"


def test_settings_of_one_row_at_the_fast_size(tmp_path: Path) -> None:
    text = TEXT.replace("set.splitnn.dim = 8", "set.splitnn.dim = 8\nfast.splitnn.dim = 2")
    fast, full = (made(tmp_path, text).plan(size, 1, {}, "cpu")[0] for size in SIZES)
    assert fast.config["splitnn"] == {"dim": 2, "hidden": 0}
    assert full.config["splitnn"] == {"dim": 8, "hidden": 0}


def test_a_figure_from_row_to_row(tmp_path: Path) -> None:
    page = render(content(tmp_path, against="rows"))
    assert "Test accuracy from row to row" in page and page.count("<figure>") == 2
    assert ">Mixed, together</text>" in page and "<span>the paper</span>" in page
    cells_ = [cell | {"difference": None} for cell in content(tmp_path)["cells"]]
    small = render(content(tmp_path, against="rows", comparable=False, cells=cells_))
    assert "<span>ours</span>" in small and "<span>the paper</span>" not in small
    svg = plots.by_name(["a", "b", "c"], [[90.0, None, 91.0]], key="k", label="<")
    assert svg.count("<use ") == 2 and "90.5 %</text>" in svg and 'aria-label="&lt;"' in svg
    assert plots.by_name(["a"], [[None]], key="k", label="").count("<use ") == 0


# --- communication and pages ----------------------------------------------------------------------


def test_messages_per_batch_and_passive_party(tmp_path: Path) -> None:
    _, runs, known = results(tmp_path)
    lines = cells.traffic(runs, known)
    # 64 messages, 2 epochs of 4 batches, 2 passive parties
    assert {line["messages_per_batch_and_passive"] for line in lines} == {4.0}
    assert {line["bytes_per_epoch"] for line in lines} == {400.0}
    known["a-halves-split-small-seed0"] |= {"parties": ["all"]}
    assert cells.traffic(runs, known)[0]["messages_per_batch_and_passive"] is None
    assert [write.messages(n) for n in (None, 0, 0.001, 4.0)] == ["–", "0", "< 0.01", "4"]
    (split, mixed) = cells.communication(cells.traffic(runs, known))
    assert (split["rows"], split["runs"]) == ("Split", 3)
    assert (mixed["rows"], mixed["runs"]) == ("Mixed; Mixed, together", 2)


def content(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    made_up, runs, known = results(tmp_path)
    found = filled(made_up, runs, known, True)
    lines = cells.traffic(runs, known)
    whole = {
        "name": "made-up",
        "title": 'Made up <b>"&"</b>',
        "kind": "table",
        "against": "epochs",
        "paper": "",
        "comparable": True,
        "note": "A note.",
        "seeds": [0, 1],
        "command": "colonnade reproduce made-up",
        "colonnade": "0",
        "commits": ["abc"],
        "environments": [],
        "settings": {"common": {"momentum": 0.0, "nesterov": False}},
        "cells": [vars(cell) for cell in found],
        "claims": cells.judged(made_up.claims, found),
        "runs": lines,
        "communication": cells.communication(lines),
        "failures": [
            {"run": "a-run", "error": "ConfigError: two\nlines | a pipe", "diverged": False}
        ],
        "skipped": ["C is left out"],
        "notes": ["Ours is made up."],
    }
    return whole | changes


def test_markdown(tmp_path: Path) -> None:
    text = write.markdown(content(tmp_path))
    assert "| Split | 92.00 ± 2.83 / 90.00 ± 1.00 / +2.00 | 50.00 / 95.00 / −45.00 |" in text
    assert "| Mixed, together | 70.00 ± 7.07 | 70.00 ± 7.07 |" in text
    assert (
        "| Split is above Mixed | holds in 0 of 2, 1 not resolved | 1 of 2 (+10.00, −1.00 " in text
    )
    assert "| A, halves, Small (+22.00, ?); A, halves, Large (−30.00) |" in text
    assert "| A, halves | +22.00 ± 25.41 points, 2 seeds | −30.00 points, one seed |" in text
    assert "| A | Split | 4 | 1 | 400 B | 800 B | 1.00 s |" in text
    assert "Failed: `a-run`: ConfigError: two lines" in text
    assert "C is left out" in text and "* Ours is made up." in text and "commit abc" in text
    assert "Not comparable" not in text


def test_markdown_of_a_small_run_has_no_numbers_of_the_paper(tmp_path: Path) -> None:
    text = write.markdown(content(tmp_path, comparable=False))
    assert "**Not comparable with the paper.** A note." in text
    assert "| Split | 92.00 ± 2.83 | 50.00 |" in text
    assert "95.00" not in text


def test_the_page_holds_everything_and_loads_nothing(tmp_path: Path) -> None:
    page = render(content(tmp_path))
    assert "92.00 ± 2.83" in page and "90.00 ± 1.00 / +2.00" in page and "does not hold" in page
    assert "Made up &lt;b&gt;" in page and '<b>"&"</b>' not in page
    assert page.count("<figure>") == 2 and "momentum = 0.0" in page and "nesterov = false" in page
    assert "http://" not in page and "https://" not in page and "<script" not in page
    assert "Not comparable" not in page
    small = render(content(tmp_path, comparable=False, kind="figure"))
    assert "Not comparable with the paper" in small and "90.00 ± 1.00" not in small


def test_a_training_that_diverges_is_a_result_and_anything_else_a_failure(tmp_path: Path) -> None:
    diverged = {"run": "a", "error": "Diverged: too large", "diverged": True}
    flow.check({"failures": [diverged], "runs": []}, tmp_path)
    broken = {"run": "b", "error": "ConfigError: no", "diverged": False}
    with pytest.raises(ColonnadeError, match=r"1 of 1 runs failed .* b: ConfigError: no"):
        flow.check({"failures": [diverged, broken], "runs": []}, tmp_path)


def test_the_config_of_one_run_is_sent_where_it_belongs(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('method = "splitnn"\n')
    with pytest.raises(ConfigError, match=r"train it with colonnade run .*run\.toml"):
        reading.load(file)
