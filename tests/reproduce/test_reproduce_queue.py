"""`colonnade reproduce --missing`: what is recorded, what is missing, and how it goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colonnade.cli.main import main
from colonnade.errors import RunError
from colonnade.reproduce import catalogue, queue, records
from colonnade.reproduce.exhibit import Place, Planned
from colonnade.reproduce.records import Record

TABLE = """
title = "Tiny"
[common]
method = "local"
epochs = 1
batch_size = 32
[data.Digits]
data = { name = "digits", train_rows = 100, test_rows = 50 }
[splits.halves]
partition = { kind = "strips", parties = 2 }
[columns]
Small = { model = "mlp" }
[full]
seeds = 2
[[runs]]
row = "Alone"
method = "local"
[[runs]]
row = "Split"
method = "splitnn"
"""
COMMIT = "0123abc"


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One paper with one table of two rows and two seeds."""
    folder = tmp_path / "papers"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "table1.toml").write_text(TABLE)
    monkeypatch.setattr(catalogue, "folder", lambda: folder)
    return folder


def _run(key: str = "digits-halves-alone-small-seed0", **config: Any) -> Planned:
    settings = {"method": "local", "seed": 0, "device": "cpu", "name": key, **config}
    return Planned(key, Place("Digits", "halves", ""), 0, settings, ())


def _commit(monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
    """The workers run the package of this tree, whose commit a test does not choose."""
    written = records.write

    def named(table: str, run: Planned, result: Any, command: str, out: Path) -> Path:
        environment = result["environment"] | {"commit": commit}
        return written(table, run, result | {"environment": environment}, command, out)

    monkeypatch.setattr(records, "write", named)
    monkeypatch.setattr(queue, "commit", lambda: commit)


def test_what_is_made_is_recorded_once_and_fills_the_table(
    papers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _commit(monkeypatch, COMMIT)
    jobs = queue.missing("tiny", "cpu", papers)
    assert [job.run.seed for job in jobs] == [0, 1, 0, 1] and all(job.guessed for job in jobs)
    first = [job for job in jobs if job.run.seed == 0]
    scratch = papers.parent / "scratch"
    assert [error for _, error in queue.perform(first, papers, 2, None, scratch)] == ["", ""]
    left = queue.missing("tiny", "cpu", papers)
    assert {job.run.seed for job in left} == {1}
    assert not any(job.guessed for job in left)  # seed 0 says what seed 1 will take
    found = records.read(papers / "tiny/cells/tiny-table1/digits-halves-split-small-seed0.json")
    assert (found.commit, found.method, found.device) == (COMMIT, "splitnn", "cpu")

    def fill(*more: str) -> Any:
        out = str(papers.parent / "filled")
        main(["reproduce", "tiny-table1", "--full", "--out", out, "--json", *more])
        return json.loads(capsys.readouterr().out)

    table = fill("--recorded", "--seeds", "1")
    assert [cell["mean"] is not None for cell in table["cells"]] == [True, True]
    assert table["commits"] == [COMMIT]
    assert fill("--seeds", "1")["cells"] == table["cells"]  # the numbers of a new training


def test_other_settings_are_missing_again(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _commit(monkeypatch, COMMIT)
    (job,) = [j for j in queue.missing("tiny", "cpu", papers) if "alone-small-seed0" in j.name]
    list(queue.perform([job], papers, 1, None, papers.parent / "scratch"))
    assert job.run.key not in {j.run.key for j in queue.missing("tiny", "cpu", papers)}
    assert job.run.key not in {j.run.key for j in queue.missing("tiny", "cuda", papers)}
    (papers / "tiny" / "table1.toml").write_text(
        TABLE.replace("batch_size = 32", "batch_size = 16")
    )
    assert job.run.key in {j.run.key for j in queue.missing("tiny", "cpu", papers)}


@pytest.mark.parametrize("commit", ["", "0123abc+"])
def test_nothing_is_begun_that_could_not_be_recorded(
    papers: Path, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    _commit(monkeypatch, commit)
    scratch = papers.parent / "scratch"
    with pytest.raises(RunError, match="the tree names no clean commit"):
        list(queue.perform(queue.missing("tiny", "cpu", papers), papers, 2, None, scratch))
    assert not scratch.exists()


def test_nothing_is_begun_that_would_end_too_late(
    papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _commit(monkeypatch, COMMIT)
    jobs = [replace(job, seconds=7200.0) for job in queue.missing("tiny", "cpu", papers)]
    assert list(queue.perform(jobs, papers, 2, 1.0, papers.parent / "scratch")) == []


def test_a_table_that_is_held_back_says_why_and_comes_last(papers: Path) -> None:
    (papers / "tiny" / "table2.toml").write_text(TABLE)
    (papers / queue.HELD).write_text('[tiny-table1]\nwhy = "a rate is open"\n')
    jobs = queue.missing(None, "cpu", papers)
    assert [job.held for job in jobs] == [""] * 4 + ["a rate is open"] * 4


@pytest.mark.parametrize("commit", ["", "0123abc+", "main"])
def test_a_run_without_a_clean_commit_is_not_recorded(tmp_path: Path, commit: str) -> None:
    result = {"environment": {"commit": commit}}
    with pytest.raises(RunError, match="COLONNADE_COMMIT"):
        records.write("tiny-table1", _run(), result, "colonnade reproduce", tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_the_estimate_is_that_of_the_most_alike() -> None:
    def record(table: str, run: str, seconds: float, device: str = "cpu") -> Record:
        return Record(table, run, COMMIT, seconds, device, "local")

    estimate = queue.Estimate(
        [
            record("a", "digits-alone-small-seed0", 3.0),
            record("a", "digits-alone-small-seed1", 5.0),
            record("a", "digits-alone-large-seed0", 30.0),
            record("b", "mnist-alone-large-seed0", 100.0, "NVIDIA H200"),
        ]
    )
    assert estimate("a", _run("digits-alone-small-seed2")) == 4.0  # other seeds of the cell
    assert estimate("a", _run("digits-alone-medium-seed0")) == 5.0  # its table
    assert estimate("c", _run("other")) == 5.0  # its method
    assert estimate("c", _run("other", device="cuda")) == 100.0  # … on such a device
    assert estimate("c", _run("other", method="easter")) is None


def test_a_name_that_is_none_is_told_the_nearest() -> None:
    with pytest.raises(RunError, match="did you mean 'easter'"):
        queue.missing("eastr", "cpu")


def test_every_record_of_the_tree_can_be_read() -> None:
    """Each has a clean commit, fits the schema, and is of a table and a run that there are."""
    planned: dict[str, set[str]] = {}
    for path in sorted(catalogue.folder().glob("*/cells/*/*.json")):
        record = records.read(path)
        assert path == records.place(catalogue.folder(), record.table, record.run)
        if record.table not in planned:
            exhibit = catalogue.find(record.table)
            runs = exhibit.plan("full", exhibit.full.seeds, {}, "cpu")
            planned[record.table] = {run.key for run in runs}
        assert record.run in planned[record.table], path
