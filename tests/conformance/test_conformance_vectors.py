"""Noise on vectors of rows: in every method that sends some, alike in all runtimes and after a
resume; the other methods say why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import colonnade
from colonnade import methods
from colonnade.errors import ConfigError
from colonnade.results.result import Result
from colonnade.wire import ledger

COVERED = ("splitnn", "aggvfl", "splitconv", "easter")
REFUSED = [name for name in methods.names() if name not in COVERED]
NOISE = {"embedding_epsilon": 20.0, "simulate_noise_seed": 1}


def settings(method: str, **protect: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "method": method,
        "name": "noisy",
        "seed": 3,
        "epochs": 2,
        "batch_size": 50,
        "absence": False,
        "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
        "partition": {"kind": "columns", "parties": 3},
        "checkpoint": {"epochs": 1, "steps": 2},
        "protect": {**NOISE, **protect},
    }
    if methods.find(method).method.network.images:
        tree["partition"] = {"kind": "strips", "parties": 3}
        tree["model_options"] = {"width": 0.2, "fc": [16], "dropout": 0.1}
    return tree


@pytest.fixture(scope="module", params=COVERED)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp(request.param) / "plain"
    return colonnade.run(settings(request.param), out=folder)


def test_noise_is_the_same_in_all_runtimes(plain: Result, tmp_path: Path) -> None:
    method = plain.content["method"]
    strict = colonnade.run(settings(method) | {"strict": True}, out=tmp_path / "strict")
    apart = colonnade.run(settings(method), out=tmp_path / "apart", runtime="process")
    for other in (strict, apart):
        assert other.weights_sha256 == plain.weights_sha256
        assert other.metrics == plain.metrics
        assert other.content["privacy"] == plain.content["privacy"]


def test_a_resumed_run_sends_the_same_noise_and_counts_it_once(
    plain: Result, tmp_path: Path
) -> None:
    tree = settings(plain.content["method"])
    with pytest.raises(colonnade.errors.PeerLost):
        colonnade.run(tree, out=tmp_path / "run", lose={"party2": 3})
    resumed = colonnade.run(tree, resume=tmp_path / "run")
    assert resumed.weights_sha256 == plain.weights_sha256
    assert resumed.content["privacy"] == plain.content["privacy"]


def test_what_is_spent_is_what_was_agreed_and_the_ledger_names_it(plain: Result) -> None:
    parties = plain.content["privacy"]["parties"]
    rows = list(ledger.read(plain.path / "ledger.jsonl"))
    for party, told in parties.items():
        for noise in told.values():
            assert noise["epsilon"] == pytest.approx(20.0, rel=1e-6)
            assert noise["releases"] == 2
            for kind in noise["kinds"]:
                sent = [r for r in rows if (r["sender"], r["kind"]) == (party, kind)]
                assert all("noise" in row["protected"] for row in sent), (party, kind)
    assert {"party2", "party3"} <= parties.keys()


@pytest.mark.parametrize("method", REFUSED)
def test_other_methods_say_why_not(method: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"embedding_epsilon = 20: .*{method}"):
        colonnade.run(settings(method), out=tmp_path / "run")
