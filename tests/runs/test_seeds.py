"""Several seeds of one configuration: each its own run, finished ones once, means as by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scipy import stats  # type: ignore[import-untyped]
from sklearn.datasets import load_breast_cancer

import colonnade
from colonnade.cli.main import main
from colonnade.errors import RunError
from colonnade.report import seeds

TREE: dict[str, Any] = {
    "method": "splitnn",
    "seed": 5,
    "epochs": 1,
    "data": {"name": "digits", "train_rows": 120, "test_rows": 60},
    "absence": False,
}
TEXT = """
method = "splitnn"
seed = 5
epochs = 1
absence = false
[data]
name = "digits"
train_rows = 120
test_rows = 60
"""


class Watch(colonnade.Observer):
    """What was trained."""

    def __init__(self, stop_in: int = -1) -> None:
        self.seeds: list[int] = []
        self.stop_in = stop_in

    def began(self, config: Any, meters: Any, ledger: Any) -> None:
        self.seeds.append(config.run.seed)

    def epoch(self, party: str, row: Mapping[str, Any]) -> None:
        if self.seeds[-1] == self.stop_in:
            raise KeyboardInterrupt


def test_each_seed_is_the_run_that_it_would_be_alone(tmp_path: Path) -> None:
    done = colonnade.run_seeds(TREE, 3, out=tmp_path / "all")
    assert done.content["seeds"] == [5, 6, 7]
    alone = colonnade.run(TREE | {"seed": 6}, out=tmp_path / "alone")
    assert done.results[1].weights_sha256 == alone.weights_sha256
    assert colonnade.load(tmp_path / "all" / "seed-6").result["seed"] == 6
    values = [result.value for result in done.results]
    assert all(value is not None for value in values)
    told = done.measures["accuracy"]
    assert told["values"] == values and told["mean"] == pytest.approx(sum(values) / 3)  # type: ignore[arg-type]
    low, high = stats.t.interval(0.95, 2, loc=told["mean"], scale=stats.sem(values))
    assert (told["low"], told["high"]) == pytest.approx((max(low, 0), min(high, 1)))
    assert json.loads((tmp_path / "all" / "seeds.json").read_text()) == done.content
    assert "\n" not in repr(done)


def test_finished_seeds_are_not_trained_again_and_a_stopped_one_goes_on(tmp_path: Path) -> None:
    out, tree = tmp_path / "all", TREE | {"epochs": 2}
    first = Watch(stop_in=6)
    with pytest.raises(KeyboardInterrupt) as stopped:
        colonnade.run_seeds(tree, 3, out=out, observer=first)
    assert first.seeds == [5, 6] and "1 of 3 seeds are finished" in str(stopped.value.__notes__)
    begun = (out / "seed-5" / "result.json").read_bytes()
    again = Watch()
    done = colonnade.run_seeds(tree, 3, out=out, observer=again)
    assert again.seeds == [6, 7]
    assert (out / "seed-5" / "result.json").read_bytes() == begun
    assert json.loads((out / "seed-6" / "run.json").read_text())["attempt"] == 2
    whole = colonnade.run_seeds(tree, 3, out=tmp_path / "whole")
    assert [r.weights_sha256 for r in done.results] == [r.weights_sha256 for r in whole.results]
    more = Watch()
    colonnade.run_seeds(tree, 4, out=out, observer=more)
    assert more.seeds == [8]


def test_other_settings_do_not_mix_with_finished_seeds(tmp_path: Path) -> None:
    colonnade.run_seeds(TREE, 1, out=tmp_path / "all")
    with pytest.raises(RunError, match="made with other settings"):
        colonnade.run_seeds(TREE | {"lr": 0.5}, 2, out=tmp_path / "all")
    watch = Watch()
    colonnade.run_seeds(TREE | {"lr": 0.5}, 1, out=tmp_path / "all", overwrite=True, observer=watch)
    assert watch.seeds == [5]
    colonnade.run(TREE, out=tmp_path / "one")
    with pytest.raises(RunError, match="a run of one seed"):
        colonnade.run_seeds(TREE, 2, out=tmp_path / "one")


def test_arrays_may_have_several_seeds(tmp_path: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    parties = {"clinic": (x[:, :10], y), "laboratory": x[:, 10:]}
    tree = {"method": "splitnn", "epochs": 1}
    done = colonnade.run_seeds(tree, 2, parties=parties, out=tmp_path / "all")
    assert done.metric == "auc" and len(done.measures["auc"]["values"]) == 2
    watch = Watch()
    colonnade.run_seeds(tree, 2, parties=parties, out=tmp_path / "all", observer=watch)
    assert watch.seeds == []


def test_differences_are_paired_by_seed() -> None:
    def content(seeds: list[int], values: list[float]) -> dict[str, Any]:
        return {"seeds": seeds, "metric": "auc", "measures": {"auc": {"values": values}}}

    one = content([1, 2, 3, 4], [0.70, 0.80, 0.90, 0.5])
    other = content([3, 2, 1], [0.85, 0.76, 0.67])
    difference, pairs = seeds.paired(one, other, "auc")
    assert pairs == 3 and difference.value == pytest.approx(0.04)
    low, high = stats.ttest_rel([0.7, 0.8, 0.9], [0.67, 0.76, 0.85]).confidence_interval()
    assert (difference.low, difference.high) == pytest.approx((low, high))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out, other = tmp_path / "a.toml", tmp_path / "out", tmp_path / "other"
    file.write_text(TEXT)
    for at in (out, other):
        main(["run", str(file), "--seeds", "2", "--out", str(at)])
    shown = capsys.readouterr().out
    assert "seed 5, 1 of 2" in shown and "Mean test accuracy" in shown and "two seeds." in shown
    assert (out / "seed-6" / "report.html").exists()
    page = (out / "report.html").read_text()
    assert (
        "Seed by seed" in page
        and "<script" not in page
        and "http:" not in page
        and "https" not in page
    )
    main(["compare", str(out), str(other)])
    shown = capsys.readouterr().out
    assert re.search(r"other +SplitNN +2 +\S+ % +0\.00 +0\.00 to 0\.00", shown)
    main(["report", str(out)])
    assert capsys.readouterr().out.strip() == str(out / "report.html")


def test_one_seed_is_called_one_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.toml"
    file.write_text(TEXT)
    main(["run", str(file), "--seeds", "1", "--out", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    assert "one seed." in shown and "95 %" not in shown and "Mean" not in shown
    page = (tmp_path / "out" / "report.html").read_text()
    assert "One seed says nothing about others" in page and "95 %" not in page


def test_runs_and_several_seeds_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    colonnade.run(TREE, out=tmp_path / "one")
    colonnade.run_seeds(TREE, 1, out=tmp_path / "all")
    assert main(["compare", str(tmp_path / "all"), str(tmp_path / "one")]) == 2
    assert "compare either runs or several seeds of each" in capsys.readouterr().err


def test_a_folder_of_seeds_says_which_runs_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"
    colonnade.run_seeds(TREE, 2, out=out)
    for command in ("predict", "ledger"):
        assert main([command, str(out)]) == 2
        said = capsys.readouterr().err
        assert f"{out} holds runs of several seeds" in said
        assert f"such as {out / 'seed-5'}" in said
    assert main(["predict", str(out / "seed-5")]) == 0


@pytest.mark.slow
def test_processes_go_through_several_seeds_alike(tmp_path: Path) -> None:
    local = colonnade.run_seeds(TREE, 2, out=tmp_path / "local")
    apart = colonnade.run_seeds(TREE, 2, out=tmp_path / "apart", runtime="process")
    assert apart.measures == local.measures
