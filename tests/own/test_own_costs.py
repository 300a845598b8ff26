"""What is said of a run before it begins is what it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_own_runs import write

import colonnade
from colonnade.config import load
from colonnade.deploy.costs import epoch_bytes, remarks
from colonnade.deploy.doctor import examine_run
from colonnade.report.units import size
from colonnade.results.observer import Observer


@pytest.mark.parametrize("dim", [3, 16])
def test_costs_are_what_a_run_sends(tmp_path: Path, dim: int) -> None:
    file = write(tmp_path)
    text = file.read_text().replace("epochs = 2", "epochs = 3").replace("size = 16", "size = 13")
    file.write_text(f"{text}[splitnn]\ndim = {dim}\n")
    said = {c.about: c.found for c in examine_run(file) if c.verdict == "note"}
    result = colonnade.run(file, out=tmp_path / "run")
    settings = load(file)
    lines = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()
    rows = result.content["data"]["train_rows"]
    for name, sender in (("embedding", "shop"), ("gradient", "bank")):
        sent = sum(
            row["bytes"]
            for row in map(json.loads, lines)
            if row.get("kind") == name and row["phase"] == "train"
        )
        assert sent == 3 * epoch_bytes(settings, settings.kinds[name], rows)
        assert f"{name}: each record that trains" in said[f"{sender} sends"]
        assert (
            f"leaves 3 times, {dim} numbers each time: {size(sent)} for" in said[f"{sender} sends"]
        )


def test_a_run_remarks_on_embeddings_far_wider_than_the_rows(tmp_path: Path) -> None:
    said: list[str] = []

    class Ears(Observer):
        def note(self, text: str) -> None:
            said.append(text)

    file = write(tmp_path)
    colonnade.run(file, out=tmp_path / "run", observer=Ears())
    assert said == ["note: 'shop' sends more than it has. 'embedding' has 128 numbers about each "
                    "row of 4: that costs bytes, and may let the row be worked out from them: try "
                    "dim = 8, an option of splitnn"]  # fmt: skip
    colonnade.run(file, overrides=["splitnn.dim=8"], out=tmp_path / "other", observer=Ears())
    assert len(said) == 1
    assert remarks(load(file), {"bank": "active", "shop": "passive"}, {"bank": 1, "shop": 0}) == []
