"""Noise is drawn from what nobody else has: whoever knows all the rest cannot make it again.

The attacker knows the seed, the configuration, the names, the messages and the code, and even the
rows: it runs the same federation itself, and takes the noise that it finds there for that of the
real one. What that explains of a release's noise is the square of their correlation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import colonnade
from colonnade.cli.main import main
from colonnade.wire import ledger

MOST = 0.01


@dataclass(frozen=True)
class Case:
    """A run whose `kind` leaves with noise, and what makes that noise too small to matter."""

    method: str
    kind: str
    noise: dict[str, Any]
    nearly_none: dict[str, Any]

    def tree(self, changes: dict[str, Any], seed: int | None = None) -> dict[str, Any]:
        columns = {"kind": "columns", "parties": 3}
        tree: dict[str, Any] = {
            "method": self.method,
            "name": "noise",
            "seed": 3,
            "epochs": 1,
            "batch_size": 300,
            "evaluate_every": 0,
            "data": {"name": "digits", "train_rows": 300, "test_rows": 60},
            "partition": columns,
            "model_options": {"hidden": [16]},
            "absence": False,
            **SMALL.get(self.method, {}),
        }
        for table, values in changes.items():
            tree[table] = {**tree.get(table, {}), **values}
        if seed is not None:
            tree["protect"] = {**tree.get("protect", {}), "simulate_noise_seed": seed}
        return tree


SMALL: dict[str, dict[str, Any]] = {
    "splitnn": {"splitnn": {"dim": 64}},
    "aggvfl": {
        "aggvfl": {"dim": 16},
        "batch_size": 1200,
        "data": {"name": "digits", "train_rows": 1200, "test_rows": 60},
    },
    "easter": {"easter": {"dim": 64, "mask": "none", "stand_in": "present"}},
    "adptvfedconv": {
        "model_options": {"width": 0.1, "fc": [16], "dropout": 0.1},
        "partition": {"kind": "strips", "parties": 3},
        "adptvfedconv": {"pretrain_epochs": 1, "finetune_epochs": 1, "chunk": 300},
        "evaluate_every": 1,
    },
    "jovefl": {"epochs": 3, "checkpoint": {"epochs": 1}},
    "fedemb": {
        "model_options": {"hidden": [64, 12, 10]},
        "fedemb": {"groups": 250, "server_epochs": 1},
        "checkpoint": {"epochs": 1},
        "evaluate_every": 1,
    },
}
FROZEN = {"bottom": "frozen"}
CASES = {
    "vectors": Case(
        "splitnn",
        "embedding",
        {"protect": {"embedding_epsilon": 8.0}},
        {"protect": {"embedding_epsilon": 1e9}},
    ),
    "vectors of a frozen network": Case(
        "splitnn",
        "embedding",
        {"protect": {"embedding_epsilon": 8.0, **FROZEN}},
        {"protect": {"embedding_epsilon": 1e9, **FROZEN}},
    ),
    "scores": Case(
        "aggvfl",
        "scores",
        {"protect": {"embedding_epsilon": 8.0}},
        {"protect": {"embedding_epsilon": 1e9}},
    ),
    "unmasked embeddings": Case(
        "easter",
        "embedding",
        {"protect": {"embedding_epsilon": 8.0}},
        {"protect": {"embedding_epsilon": 1e9}},
    ),
    "sums of shares": Case(
        "easter",
        "global_embedding",
        {"protect": {"embedding_epsilon": 8.0}, "easter": {"mask": "prg"}},
        {"protect": {"embedding_epsilon": 1e6}, "easter": {"mask": "prg"}},
    ),
    "heads": Case(
        "jovefl",
        "head",
        {"protect": {"model_epsilon": 0.05}},
        {"protect": {"model_epsilon": 1e6}},
    ),
    "feature maps": Case(
        "adptvfedconv",
        "maps",
        {"adptvfedconv": {"noise": 2.0}},
        {"adptvfedconv": {"noise": 1e-9}},
    ),
    "means": Case(
        "fedemb",
        "group_embeddings",
        {"fedemb": {"noise": 10.0}},
        {"fedemb": {"noise": 1e-9}},
    ),
    "means within a budget": Case(
        "fedemb",
        "noisy_embeddings",
        {"fedemb": {"epsilon": 8.0}},
        {"fedemb": {"epsilon": 1e4, "delta": 0.0}},
    ),
}


def first(tree: dict[str, Any], kind: str, out: Path) -> Tensor:
    """The first message of a Kind in a run; of models, which are still all alike then, the last one
    and its largest tensor."""
    colonnade.run(tree | {"record": [kind]}, out=out)
    messages: dict[str, Tensor] = {}
    for file in (out / "record").glob(f"{kind}-*.safetensors"):
        messages |= load_file(file)
    chosen = max(messages) if kind == "head" else min(messages)
    number = chosen.partition("/")[0]
    parts = [value for name, value in messages.items() if name.startswith(number)]
    return max(parts, key=Tensor.numel).double()


def without(exact: Tensor, noisy: Tensor) -> Tensor:
    """The noise on it, whatever it was scaled by."""
    return noisy - exact * ((noisy * exact).sum() / exact.square().sum())


@pytest.mark.parametrize("name", CASES)
def test_the_same_run_again_has_other_noise(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    exact = first(case.tree(case.nearly_none), case.kind, tmp_path / "exact")
    real, made = (
        without(exact, first(case.tree(case.noise), case.kind, tmp_path / where))
        for where in ("real", "attacker")
    )
    assert real.numel() > 1000 and float(real.std()) > 0.01
    explained = float(torch.stack([real.flatten(), made.flatten()]).corrcoef()[0, 1]) ** 2
    assert explained <= MOST


@pytest.mark.parametrize("name", ["vectors", "feature maps", "means within a budget"])
def test_with_a_seed_of_its_own_it_is_equal_and_says_that_nothing_is_protected(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The attack works here: the run repeats itself, for tests, and warns of it."""
    case = CASES[name]
    tree = case.tree(case.noise, seed=5)
    one, other = (first(tree, case.kind, tmp_path / where) for where in ("1", "2"))
    assert torch.equal(one, other)
    content = json.loads((tmp_path / "1" / "result.json").read_text())
    assert content["privacy"]["simulated"] is True
    assert any("nothing is protected" in warning for warning in content["warnings"])
    assert "nothing is protected" in (tmp_path / "1" / "config.toml").read_text()
    assert main(["report", str(tmp_path / "1")]) == 0
    capsys.readouterr()
    assert "nothing is protected" in (tmp_path / "1" / "report.html").read_text()


def digests(tree: dict[str, Any], kind: str, out: Path) -> list[str]:
    """Of the first message of a Kind from each party, in processes."""
    runtime: Literal["process"] = "process"
    colonnade.run(tree, out=out, runtime=runtime)
    found = []
    for party in sorted((out / "parties").iterdir()):
        if (party / "ledger.jsonl").exists():
            rows = ledger.read(party / "ledger.jsonl")
            sent = (r for r in rows if r.get("kind") == kind and r["sender"] == party.name)
            found += [str(row["sha256"]) for row in list(sent)[:1]]
    assert found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vectors", "means"])
def test_processes_draw_other_noise_too(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    one, other = (digests(case.tree(case.noise), case.kind, tmp_path / w) for w in ("1", "2"))
    assert not set(one) & set(other)
    tree = case.tree(case.noise, seed=5)
    one, other = (digests(tree, case.kind, tmp_path / where) for where in ("3", "4"))
    assert one == other
