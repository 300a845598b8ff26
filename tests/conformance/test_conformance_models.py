"""Models that leave are trained with noise: in every method that says how, alike in all runtimes
and after a resume; the other methods say why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interrupted import interrupt_after

import colonnade
from colonnade import methods
from colonnade.errors import ConfigError
from colonnade.results.result import Result
from colonnade.wire import ledger

# The Kinds that carry models, and the epochs in which a record is trained on
COVERED: dict[str, tuple[set[str], int]] = {
    "fedemb": ({"public_part"}, 3),
    "jovefl": ({"head"}, 2),
    "adptvfedconv": ({"extractor"}, 2),
    "splitnn": (set(), 2),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedemb": {"rounds": 2, "later_epochs": 1, "groups": 20},
    "jovefl": {"dim": 8},
    "adptvfedconv": {"pretrain_epochs": 2, "finetune_epochs": 1},
    "splitnn": {"dim": 4},
}
REFUSED = [name for name in methods.names() if name not in COVERED]


def settings(method: str, **protect: Any) -> dict[str, Any]:
    noise: dict[str, Any] = {"model_epsilon": 20.0, "simulate_noise_seed": 1}
    if method == "splitnn":
        noise |= {"embedding_epsilon": 20.0, "bottom": "private"}
    tree: dict[str, Any] = {
        "method": method,
        "name": "noisy",
        "seed": 3,
        "epochs": 2,
        "batch_size": 50,
        "absence": False,
        "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
        "partition": {"kind": "strips", "parties": 2},
        "checkpoint": {"epochs": 1, "steps": 2},
        "protect": {**noise, **protect},
        method: OPTIONS.get(method, {}),
    }
    if methods.find(method).method.network.images:
        tree["model_options"] = {"width": 0.1, "fc": [8], "dropout": 0.1, "norm": "group"}
    return tree


def parties(result: Result) -> dict[str, Any]:
    """What is told of the models of each party that trains some."""
    told = result.content["privacy"]["parties"]
    return {name: parts["models"] for name, parts in told.items() if "models" in parts}


@pytest.fixture(scope="module", params=COVERED)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp(request.param) / "plain"
    return colonnade.run(settings(request.param), out=folder)


def test_models_are_the_same_in_all_runtimes(plain: Result, tmp_path: Path) -> None:
    method = plain.content["method"]
    apart = colonnade.run(settings(method), out=tmp_path / "apart", runtime="process")
    assert apart.weights_sha256 == plain.weights_sha256
    assert apart.metrics == plain.metrics
    assert apart.content["privacy"] == plain.content["privacy"]


def test_a_resumed_run_takes_the_same_steps_and_counts_them_once(
    plain: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = settings(plain.content["method"])
    with monkeypatch.context() as patch:
        interrupt_after(patch, 6)
        with pytest.raises(KeyboardInterrupt):
            colonnade.run(tree, out=tmp_path / "run")
    resumed = colonnade.run(tree, resume=tmp_path / "run")
    assert resumed.weights_sha256 == plain.weights_sha256
    assert resumed.content["privacy"] == plain.content["privacy"]


def test_what_is_spent_is_what_was_agreed_and_the_ledger_names_it(plain: Result) -> None:
    kinds, epochs = COVERED[plain.content["method"]]
    told = parties(plain)
    for noise in told.values():
        assert noise["epsilon"] == pytest.approx(20.0, rel=1e-6)
        assert noise["releases"] == epochs and noise["claim"].startswith("per record")
    rows = list(ledger.read(plain.path / "ledger.jsonl"))
    sent = [row for row in rows if row["kind"] in kinds]
    assert {row["sender"] for row in sent} == (set(told) if kinds else set())
    assert all("gradients clipped to 1" in row["protected"] for row in sent)
    assert told


def test_a_seed_of_the_run_does_not_lead_to_the_noise(plain: Result, tmp_path: Path) -> None:
    tree = settings(plain.content["method"])
    del tree["protect"]["simulate_noise_seed"]
    one, two = (colonnade.run(tree, out=tmp_path / name).weights_sha256 for name in ("one", "two"))
    assert all(one[name] != two[name] != plain.weights_sha256[name] for name in parties(plain))


@pytest.mark.parametrize("method", REFUSED)
def test_other_methods_say_why_not(method: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"model_epsilon = 20: .*{method}"):
        colonnade.run(settings(method), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "changes", "said"),
    [
        ("fedemb", {"protect": {"bottom": "private"}}, "needs embedding_epsilon"),
        ("fedemb", {"protect": {"delta": 1e-8}}, r"protect.delta = 1e-08: at least 1e-06"),
        ("splitnn", {"protect": {"bottom": "trained"}}, 'bottom = "private"'),
        ("splitnn", {"protect": {"model_epsilon": 0.0}}, "by how much"),
        ("jovefl", {"jovefl": {"rate": "plateau"}}, "jovefl.rate = 'plateau' tells others"),
        ("jovefl", {"jovefl": {"adopt": "insured"}}, "jovefl.adopt = 'insured' tells others"),
        ("jovefl", {"jovefl": {"prox": 0.1}}, "jovefl.prox = 0.1 adds to gradients"),
        ("jovefl", {"model": "resnet8"}, "has a layer BatchNorm2d"),
        ("adptvfedconv", {"model_options": {"width": 0.1, "fc": [8]}}, "has a layer BatchNorm2d"),
    ],
)
def test_what_would_tell_more_is_refused(
    method: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    tree = settings(method)
    for key, value in changes.items():
        replaces = isinstance(value, dict) and key != "model_options"
        tree[key] = tree[key] | value if replaces else value
    tree["data"] |= {"validation": 0.2}
    with pytest.raises(ConfigError, match=said):
        colonnade.run(tree, out=tmp_path / "run")
