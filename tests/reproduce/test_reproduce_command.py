"""`colonnade reproduce` from end to end, on digits and in real processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

import colonnade
from colonnade import data
from colonnade.cli.main import main
from colonnade.reproduce import Request, jobs, reproduce
from colonnade.reproduce.exhibit import Planned
from colonnade.reproduce.flow import Watch

TABLE = """
title = "Tiny"
paper = "A paper that nobody wrote"
expected = "tiny"
[common]
batch_size = 32
[data.Digits]
data = { name = "digits", train_rows = 200, test_rows = 100 }
epochs = 3
[data.Absent]
data = { name = "susy" }
[splits.halves]
partition = { kind = "strips", parties = 2 }
[columns]
Small = { model = "mlp" }
Large = { model = "mlp", model_options = { hidden = [32] } }
[mixes]
both = ["Small", "Large"]
[fast]
note = "One epoch."
set.epochs = 1
[full]
seeds = 2
[[runs]]
row = "Too small"        # a CNN needs 4 x 4 pixels, and the run itself finds out
method = "local"
set = { model = "cnn", partition = { parties = 4 } }
only = { columns = ["Small"] }
[[runs]]
row = "No method"
method = "nosuch"
only = { columns = ["Small"] }
[[runs]]
row = "Alone"
method = "local"
[[runs]]
row = "Split"
method = "splitnn"
[[runs]]
row = "Each alone"
method = "local"
mixes = ["both"]
set.local.oracle = true
[[runs]]
row = "Dying"
method = "METHOD"
only = { columns = ["Small"] }
[[claims]]
text = "Split is above Alone"
above = ["Split"]
below = ["Alone"]
"""
NUMBERS = {"tiny": {"columns": ["Small", "Large"], "rows": {"Digits": {"Alone": [50.0, 60.0]}}}}
DYING = """
import os
from dataclasses import dataclass
from colonnade import Method, Role
@dataclass(frozen=True)
class Dying: pass
async def active(me, passives, cfg): os._exit(3)
async def passive(me, active, cfg): pass
METHOD = Method(name="dying", summary="ends its process", options=Dying, kinds=(),
    roles={"active": Role(active, active), "passive": Role(passive, passive)})
"""

STUB = """
import json, os, pathlib, shutil, sys, time
(pathlib.Path({pids!r}) / f"process.{{os.getpid()}}").touch()
for line in sys.stdin:
    folder = pathlib.Path(json.loads(line)["folder"])
    folder.mkdir()
    shutil.copy({result!r}, folder)
    print('{{"error": ""}}', flush=True)
    time.sleep({seconds})
"""


def write_table(folder: Path) -> Path:
    (folder / "dying.py").write_text(DYING, encoding="utf-8")
    (folder / "expected.json").write_text(json.dumps(NUMBERS), encoding="utf-8")
    path = folder / "tiny.toml"
    path.write_text(TABLE.replace("METHOD", str(folder / "dying.py"), 1), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The file of a table, and the folder of a full reproduction that no test changes.

    A run fails, a process dies, a method is not there: the others go on.
    """
    folder = tmp_path_factory.mktemp("made")
    path, out = write_table(folder), folder / "out"
    arguments = ["reproduce", str(path), "--full", "--device", "cpu", "--jobs", "1", "--quiet"]
    with redirect_stderr(StringIO()) as errors:
        assert main([*arguments, "--out", str(out), "--only", "data=Digits"]) == 1
    problem = errors.getvalue()
    assert "6 of 16 runs failed" in problem and "The same command tries them again" in problem
    return path, out


def read(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "table.json").read_text(encoding="utf-8"))
    return content


def cell(content: Mapping[str, Any], row: str, column: str) -> dict[str, Any]:
    (found,) = [c for c in content["cells"] if (c["row"], c["column"]) == (row, column)]
    return dict(found)


def stub(
    monkeypatch: pytest.MonkeyPatch, made: tuple[Path, Path], folder: Path, seconds: int
) -> None:
    """Workers that train nothing: every run gets the same result, and then a pause."""
    result = made[1] / "cells" / "digits-halves-alone-small-seed0" / "result.json"
    program = STUB.format(result=str(result), pids=str(folder), seconds=seconds)
    monkeypatch.setattr(jobs, "PROGRAM", program)


def test_cells_are_what_single_runs_give(made: tuple[Path, Path], tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "batch_size": 32,
        "epochs": 3,
        "data": {"name": "digits", "train_rows": 200, "test_rows": 100},
        "partition": {"kind": "strips", "parties": 2},
    }
    small = {"model": "mlp"}
    large = {"model": "mlp", "model_options": {"hidden": [32]}}
    alone, each = [], []
    for seed in (0, 1):
        one = {**config, **small, "method": "local", "seed": seed}
        alone.append(100 * (colonnade.run(one, out=tmp_path / f"a{seed}").accuracy or 0))
        networks = (small, large) if seed == 0 else (large, small)  # one party on
        both = {**config, "method": "local", "seed": seed, "local": {"oracle": True}}
        both["parties"] = dict(zip(("party1", "party2"), networks, strict=True))
        found = colonnade.run(both, out=tmp_path / f"b{seed}").metrics["test"]["per_party"]
        each.append(100 * found["party2" if seed == 0 else "party1"])  # who holds the large one
    content = read(made[1])
    shown = cell(content, "Alone", "Small")
    assert shown["values"] == pytest.approx(alone, abs=1e-9)
    assert shown["mean"] == pytest.approx(fmean(alone))
    assert shown["sd"] == pytest.approx(stdev(alone))
    assert shown["difference"] == pytest.approx(fmean(alone) - 50.0)
    assert cell(content, "Each alone", "Large")["values"] == pytest.approx(each, abs=1e-9)
    assert len(set(each)) == 2 and len(set(alone)) == 2  # else the test could not tell


def test_what_is_kept(made: tuple[Path, Path]) -> None:
    path, out = made
    names = {file.name for file in out.iterdir()}
    assert names == {"cells", "table.json", "table.md", "report.html", "unfinished"}
    assert {file.name[:12] for file in (out / "unfinished").iterdir()} == {"digits-halve"}
    folders = list((out / "cells").iterdir())
    assert len(folders) == 10
    assert all([f.name for f in folder.iterdir()] == ["result.json"] for folder in folders)
    content = read(out)
    assert content["command"].startswith(f"colonnade reproduce {path} --full --jobs 1 --device cpu")
    assert content["seeds"] == [0, 1] and content["comparable"]
    lines = {line["rows"]: line for line in content["communication"]}
    assert lines["Split"]["messages_per_batch_and_passive"] == 2
    assert lines["Split"]["bytes_per_epoch"] > lines["Alone"]["bytes_per_epoch"] == 0
    assert content["environments"][0]["device"] == "cpu"
    text = (out / "table.md").read_text(encoding="utf-8")
    shown = cell(content, "Alone", "Large")
    assert f"{shown['mean']:.2f} ± {shown['sd']:.2f} / 60.00 / " in text


def test_failing_runs_leave_gaps(made: tuple[Path, Path]) -> None:
    content = read(made[1])
    failures = {failure["run"]: failure["error"] for failure in content["failures"]}
    assert len(failures) == 6
    assert "no method" in failures["digits-halves-no-method-small-seed0"]
    assert "'cnn'" in failures["digits-halves-too-small-small-seed1"]
    assert "its process ended with code 3" in failures["digits-halves-dying-small-seed0"]
    assert cell(content, "Dying", "Small")["values"] == [None, None]
    assert cell(content, "Dying", "Small")["mean"] is None
    text = (made[1] / "table.md").read_text(encoding="utf-8")
    assert "| Dying | – |" in text and "Failed: `digits-halves-dying-small-seed0`" in text
    page = (made[1] / "report.html").read_text(encoding="utf-8")
    assert "its process ended with code 3" in page


def test_a_second_call_skips_what_is_finished(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = made
    before = {file: file.stat().st_mtime_ns for file in out.glob("cells/*/result.json")}
    arguments = ["reproduce", str(path), "--full", "--device", "cpu", "--only", "data=digits"]
    assert main([*arguments, "rows=Alone,Split,Each alone", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("10 runs, 10 finished already\n") and "1/10" not in said
    assert "Split is above Alone: holds in" in said and "\x1b" not in said
    assert {file: file.stat().st_mtime_ns for file in out.glob("cells/*/result.json")} == before
    # another table takes them over, if it is told where they are
    other = [*arguments, "rows=Alone", "--out", str(tmp_path / "o"), "--reuse", str(out), "--json"]
    assert main(other) == 0
    content = json.loads(capsys.readouterr().out)
    assert [len(c["values"]) for c in content["cells"]] == [2, 2]
    assert {c["row"] for c in content["cells"]} == {"Alone"}
    assert not list((tmp_path / "o").glob("cells/*"))


def test_a_fast_table_is_not_compared(
    made: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub(monkeypatch, made, tmp_path, seconds=0)
    out = tmp_path / "out"
    assert main(["reproduce", str(made[0]), "--only", "rows=Alone", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Absent is omitted: the data set 'susy' is not on this machine. To get")
    assert "\n2 runs\n  1/2  digits-halves-alone-" in said
    assert "Not comparable with the paper. One epoch." in said
    content = read(out)
    alone = cell(content, "Alone", "Small")
    assert alone["paper"] == 50.0 and alone["difference"] is None and alone["sd"] is None
    assert content["seeds"] == [0] and "omitted" in content["skipped"][0]
    text = (out / "table.md").read_text(encoding="utf-8")
    assert "**Not comparable with the paper.** One epoch." in text and "50.00" not in text


def test_what_is_stopped_can_go_on(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers that do one run at once and the next never: both are ended, one run is kept."""

    class Stop(Watch):
        def ended(self, run: Planned, result: Mapping[str, Any] | None, error: str) -> None:
            assert result is not None, error
            raise KeyboardInterrupt

    stub(monkeypatch, made, tmp_path, seconds=600)
    out = tmp_path / "out"
    request = Request(str(made[0]), "full", 4, ("data=Digits", "rows=Alone"), 2, "cpu", out)
    with pytest.raises(KeyboardInterrupt) as caught:
        reproduce(request, Stop())
    kept, command = caught.value.__notes__
    assert kept == f"1 of 8 runs are kept in {out}"
    assert command == f"go on with: {request.command()}"
    assert 1 <= len(list(out.glob("cells/*/result.json"))) <= 2  # both may have been quick
    assert not (out / "table.json").exists()
    numbers = [int(file.suffix[1:]) for file in tmp_path.glob("process.*")]
    assert 1 <= len(numbers) <= 2
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_nothing_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(write_table(tmp_path))
    assert main(["reproduce", path, "--only", "data=Absent"]) == 2
    assert capsys.readouterr().err.startswith("DataMissing: nothing can be run\nAbsent is omitted")
    assert main(["reproduce", path, "--only", "data=Digits", "rows=No method"]) == 2
    assert "no run can be made" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_without_a_name_it_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["easter-table2"]["full_runs"] > found["easter-table2"]["fast_runs"] > 0
    assert main(["reproduce"]) == 0
    assert "easter-fig5" in capsys.readouterr().out
    assert main(["reproduce", "easter-tabel4"]) == 2
    assert "did you mean 'easter-table4'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reproduce", "easter-table4", "--seeds", "0"])


def test_the_absent_data_set_is_absent() -> None:
    """The other tests rely on it."""
    assert {row.name: row.status for row in data.available()}["susy"] not in ("here", "embedded")
