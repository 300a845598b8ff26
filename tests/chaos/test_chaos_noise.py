"""Frames that come twice, out of order, not at all, or from long ago: nothing is applied twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from child import Plan, events
from federations import Options, toy
from intercept import Noise
from nursery import Nursery
from test_chaos_kills import check_ledgers

import colonnade

Weights = Callable[[dict[str, Any]], dict[str, str]]
NAMES = ["party1", "party2", "party3"]


def disturbed(
    tree: dict[str, Any], folder: Path, nursery: Nursery, noise: Noise
) -> tuple[dict[str, str], Counter[str], Counter[str]]:
    """The weights, what was done to frames, and what the parties' logs say they refused."""
    plan = Plan(
        noise=noise,
        part_bytes=300,
        patched={"net.link.GAP_SECONDS": 0.3, "net.mesh.RETRY_SECONDS": [0.05, 0.2]},
    ).write(folder / "plan")
    options = Options(restarts=0, program=nursery.program(plan))
    result = colonnade.run(tree, out=folder / "run", runtime="process", processes=options)
    done: Counter[str] = Counter()
    for event in events(plan.parent):
        done.update(event.get("noise", {}))
    refused: Counter[str] = Counter()
    for name in NAMES:
        log = (folder / "run" / "parties" / name / "log.txt").read_text()
        for count, why in re.findall(r"refused (\d+) × (.+)", log):
            refused[why] += int(count)
    check_ledgers(folder / "run" / "parties", NAMES)
    return result.weights_sha256, done, refused


@pytest.mark.parametrize("method", ["splitnn", "easter"])
def test_duplicates_disorder_and_losses(
    method: str, nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    noise = Noise(duplicate=0.1, reorder=0.1, drop=0.003, replay=0.02, cut=0.002, seed=1)
    weights, done, refused = disturbed(toy(method), tmp_path, nursery, noise)
    assert weights == undisturbed(toy(method))
    assert done["duplicate"] > 20 and done["reorder"] > 20 and done["replay"]
    assert refused["duplicate"] >= done["duplicate"] // 2  # an ack may come twice unnoticed


def test_frames_of_an_older_run_are_refused(
    nursery: Nursery, undisturbed: Weights, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    tree = toy("splitnn", epochs=1)
    disturbed(tree, tmp_path / "first", nursery, Noise(record=str(old)))
    weights, done, refused = disturbed(
        tree, tmp_path / "second", nursery, Noise(replay=0.2, old=str(old))
    )
    assert weights == undisturbed(tree)
    assert done["replay"] > 20
    assert 20 < refused["another run or process"] <= done["replay"]  # some came after the end
