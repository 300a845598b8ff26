"""[protect] label_epsilon: every method learns from answers, with the same bits in one process and
over a network, or says why it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_conformance import interrupt_after, toy

import colonnade
from colonnade import config, methods
from colonnade.errors import ConfigError

OPTIONS: dict[str, dict[str, Any]] = {"fedemb": {"targets": "proportions", "groups": 40}}
RESPONSES = ("plain", "prior")


def protected(method: str, response: str = "plain", **changes: Any) -> dict[str, Any]:
    tree = toy(method, **changes)
    tree[method] = tree.get(method, {}) | OPTIONS.get(method, {})
    protect = {"label_epsilon": 4.0, "label_response": response, "simulate_noise_seed": 7}
    return tree | {"protect": protect, "absence": False}


def able(method: str) -> bool:
    found = methods.find(method).method
    return not found.learning.unprotected(config.load(toy(method)).options)


def test_which_methods_protect_labels() -> None:
    found = {name for name in methods.names() if able(name)}
    assert found == {"splitnn", "aggvfl", "cvfl", "easter", "heteronn", "splitconv", "fedemb"}


@pytest.mark.parametrize("method", methods.names())
def test_a_method_protects_labels_or_says_why_not(method: str) -> None:
    if able(method):
        assert config.load(protected(method)).protect.label_epsilon == 4.0
        return
    with pytest.raises(ConfigError, match="Omit label_epsilon, or take a method"):
        config.load(protected(method))


@pytest.mark.parametrize("method", [name for name in methods.names() if able(name)])
def test_answers_are_learnt_from_with_the_same_bits_everywhere(method: str, tmp_path: Path) -> None:
    single = methods.find(method).method.start is None
    for response in RESPONSES if single else RESPONSES[:1]:
        tree = protected(method, response)
        here = colonnade.run(tree, out=tmp_path / f"here {response}")
        apart = colonnade.run(tree, out=tmp_path / f"apart {response}", runtime="process")
        assert here.weights_sha256 == apart.weights_sha256
        assert here.content["privacy"] == apart.content["privacy"]
        told = [p["labels"] for p in here.content["privacy"]["parties"].values()]
        clients = [p for p, role in here.content["roles"].items() if role == "client"]
        assert len(told) == (len(clients) or 1)
        assert {one["epsilon"] for one in told} == {4.0}
        assert here.content["privacy"]["simulated"]
        assert here.accuracy is not None and here.accuracy > 0.3  # ten classes


@pytest.mark.parametrize("method", ["splitnn", "aggvfl", "cvfl", "easter", "heteronn"])
def test_numbers_are_learnt_from_answers(method: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    y = 50 + 10 * x[:, 0] + 10 * x[:, 3]
    parties = {"bank": (x[:, :2], y), "shop": x[:, 2:3], "post": x[:, 3:]}
    protect = {"label_epsilon": 8.0, "label_range": [0, 100], "simulate_noise_seed": 7}
    tree = {"method": method, "epochs": 4, "batch_size": 20, "protect": protect}
    here = colonnade.run(tree | {"absence": False}, parties=parties, out=tmp_path / "here")
    told = here.content["data"]["task"]
    assert (told["mean"], round(told["spread"], 3)) == (50.0, 28.868)
    (labels,) = (p["labels"] for p in here.content["privacy"]["parties"].values())
    assert labels["response"] == "laplace" and labels["scale"] == 100 / 8
    assert here.content["metrics"]["test"]["value"] < 0.9 * float(y.std())


@pytest.mark.parametrize("stop", [80, 122, 140])
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while rows wait for their prior, as they are answered, and later."""
    tree = protected("splitnn", "prior", epochs=8, checkpoint={"epochs": 1, "steps": 4})
    whole = colonnade.run(tree, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupt_after(patch, stop)
        with pytest.raises(KeyboardInterrupt):
            colonnade.run(tree, out=tmp_path / "run")
    again = colonnade.run(tree, resume=tmp_path / "run")
    assert again.weights_sha256 == whole.weights_sha256
    assert again.content["privacy"] == whole.content["privacy"]
