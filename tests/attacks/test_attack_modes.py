"""What a party writes can be read by its owner alone, whatever the user's umask says."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery

import colonnade
from colonnade.cli.main import main
from colonnade.deploy.supervisor import Options
from colonnade.results.observer import Observer

TOY: dict[str, Any] = {
    "method": "splitnn",
    "seed": 3,
    "epochs": 2,
    "batch_size": 50,
    "model_options": {"hidden": [8]},
    "data": {"name": "digits", "train_rows": 100, "test_rows": 60},
    "partition": {"kind": "columns", "parties": 3},
    "splitnn": {"dim": 4},
    "absence": False,
}


class CtrlC(Observer):
    """At the end of the second epoch, when there are checkpoints."""

    def epoch(self, party: str, row: Any) -> None:
        if row["epoch"] == 2:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """That of most systems: everybody may read what is written."""
    before = os.umask(0o022)
    yield
    assert os.umask(before) == 0o022  # the caller's own files are the caller's matter


def readable(folder: Path) -> list[str]:
    """What others than the owner may read, write or enter."""
    assert len(list(folder.rglob("*"))) > 5
    return sorted(
        f"{path.relative_to(folder)} {stat.filemode(path.stat().st_mode)}"
        for path in [folder, *folder.rglob("*")]
        if path.stat().st_mode & 0o077
    )


def test_another_user_reads_no_run(tmp_path: Path) -> None:
    """Somebody else on the machine opens files of a run: checkpoints, ledger, weights, results."""
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        colonnade.run(TOY, out=folder, observer=CtrlC())
    assert list(folder.glob("checkpoints/*/*.json"))
    assert readable(folder) == []
    colonnade.run(TOY, resume=folder)
    assert readable(folder) == []


def test_another_user_reads_no_predictions_and_no_report(tmp_path: Path) -> None:
    """Somebody else on the machine opens predictions.csv, which holds ids, or the report."""
    folder = tmp_path / "run"
    config = tmp_path / "run.toml"
    config.write_text('method = "local"\nepochs = 1\n[data]\nname = "digits"\ntrain_rows = 100\n')
    for command in (
        ["run", config, "--out", folder],
        ["predict", folder],
        ["report", folder],
    ):
        assert main([*map(str, command), "--quiet"]) == 0
    assert (folder / "predictions.csv").exists() and (folder / "report.html").exists()
    assert readable(folder) == []
    trained = colonnade.load(folder)
    (folder / "ledger-predict.jsonl").unlink()
    trained.predict()
    assert readable(folder) == []


@pytest.mark.slow
def test_another_user_reads_nothing_of_a_party(nursery: Nursery, tmp_path: Path) -> None:
    """Somebody else on the machine opens files of a party's own process, under way and after."""
    folder, plan = tmp_path / "run", tmp_path / "plan" / "plan.json"
    plan.parent.mkdir()
    kill = {"point": "checkpoint: after", "party": "party2", "nth": 2}
    plan.write_text(json.dumps({"kills": [kill], "noise": None}))
    with pytest.raises(colonnade.ColonnadeError, match="SIGKILL"):
        colonnade.run(
            TOY,
            out=folder,
            runtime="process",
            processes=Options(restarts=0, program=nursery.program(plan)),
        )
    assert list(folder.glob("parties/*/checkpoints/*.json"))
    assert readable(folder) == []
    colonnade.run(TOY, resume=folder, processes=Options(restarts=0))
    assert readable(folder) == []
    assert json.loads((folder / "parties" / "party2" / "result.json").read_text())
