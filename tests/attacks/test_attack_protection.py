"""A party that asks for noise sends nothing without: whatever the federation file or the hub says.

Its policy names an ε for a Kind. Without [protect], with a weaker one, or with noise that others
can draw again, it is refused before anybody is called, and by the doctor; and the gate stops what
gets past that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from covert import shop
from federations import Field, toy
from nursery import Nursery

from colonnade.errors import Denied
from colonnade.privacy.protection import protect
from colonnade.privacy.settings import Protect
from colonnade.wire import Kind
from colonnade.wire.gate import Gate
from colonnade.wire.policy import Policy

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="features", carries="features")
HEAD = Kind("head", None, reveals="a model", dtype="any", carries="models")
ASKS = {"epsilon": 8}


def told(folder: Path, how: Protect, kind: Kind = EMBEDDING, **rule: Any) -> str:
    """Why a gate with this rule denies an embedding of a party with this protection."""
    me = shop(folder, "a1", 1, 30, {})
    protect(me, how)
    gate = Gate("shop", Policy.from_table({"allow": {kind.name: rule}}), 784, 2)
    for _ in me.epochs():
        for batch in me.batches():
            try:
                value = batch.x[:, :4] if kind is EMBEDDING else {"w": torch.zeros(2)}
                gate.check("bank", kind, value, 160, me)
            except Denied as denied:
                return str(denied)
            return ""
    raise AssertionError


@pytest.mark.parametrize(
    ("how", "rule", "said"),
    [
        (Protect(), ASKS, "leaves as it is, without noise"),
        (Protect(label_epsilon=1.0), ASKS, "leaves as it is, without noise"),
        (Protect(embedding_epsilon=8.1), ASKS, "ε = 8.1 at δ = 1e-05"),
        (Protect(embedding_epsilon=8.0, delta=2e-5), ASKS, "ε = 8 at δ = 2e-05"),
        (Protect(embedding_epsilon=8.0), {"epsilon": 8, "delta": 1e-6}, "δ = 1e-06 or less"),
        (Protect(embedding_epsilon=8.0), ASKS, ""),
        (Protect(embedding_epsilon=2.0, delta=1e-6), {"epsilon": 8, "delta": 1e-6}, ""),
    ],
)
def test_the_gate_wants_the_noise_that_the_policy_asks_for(
    how: Protect, rule: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    why = told(tmp_path, how, **rule)
    assert bool(why) == bool(said) and said in why
    if why:
        assert "'shop' does not send 'embedding' to 'bank'" in why and "`epsilon`" in why


def test_what_no_noise_on_vectors_covers_is_not_let_go(tmp_path: Path) -> None:
    assert "without noise" in told(tmp_path, Protect(embedding_epsilon=1.0), HEAD, **ASKS)


# ---- a federation --------------------------------------------------------------------------------


def federation(folder: Path, protection: Mapping[str, Any], **rule: Any) -> Field:
    field = Field(folder, toy("splitnn", 2), deadline=6.0)
    with field.changed() as content:
        if protection:
            content["run"]["protect"] = dict(protection)
    policy = {"journal": "journal", "allow": {"embedding": rule}}
    (folder / "party2.toml").write_text(tomli_w.dumps(policy))
    return field


def outcome(field: Field, nursery: Nursery) -> tuple[int, str]:
    program = (*nursery.command(), "party")
    field.start("party2", program, "--policy", str(field.folder / "party2.toml"))
    return field.wait()["party2"], field.shown("party2")


@pytest.mark.parametrize(
    ("protection", "said"),
    [
        ({}, "leaves as it is, without noise"),
        ({"embedding_epsilon": 16.0}, "ε = 16"),
        ({"embedding_epsilon": 8.0, "simulate_noise_seed": 1}, "protect nobody"),
    ],
    ids=["none", "weaker", "noise that all know"],
)
def test_a_party_refuses_before_it_calls_anybody(
    protection: Mapping[str, Any], said: str, nursery: Nursery, tmp_path: Path
) -> None:
    """No other party is there: it would wait, had it not refused."""
    code, shown = outcome(federation(tmp_path / "field", protection, **ASKS), nursery)
    flat = " ".join(shown.split())
    assert code != 0 and said in flat
    assert "dialling" not in flat and "waiting" not in flat


def test_parties_that_disagree_about_protection_refuse_each_other(
    nursery: Nursery, tmp_path: Path
) -> None:
    """The hub's file says that less noise is enough. Each names what differs; nothing is sent."""
    field = federation(tmp_path / "field", {"embedding_epsilon": 8.0}, **ASKS)
    weaker = field.folder / "weaker.toml"
    with field.changed(weaker) as content:
        content["run"]["protect"]["embedding_epsilon"] = 80.0
    program = (*nursery.command(), "party")
    field.start("party1", program, file=weaker)
    field.start("party2", program, "--policy", str(field.folder / "party2.toml"))
    codes = field.wait()
    shown = " ".join(" ".join(field.shown(name).split()) for name in field.names)
    assert all(codes.values())
    assert "protect" in shown and "80.0" in shown and "8.0" in shown
    for name in field.names:
        ledger = field.out(name) / "ledger.jsonl"
        assert not ledger.exists() or "embedding" not in ledger.read_text()


def test_with_the_same_noise_they_train_and_each_has_counted(
    nursery: Nursery, tmp_path: Path
) -> None:
    field = federation(tmp_path / "field", {"embedding_epsilon": 8.0}, **ASKS)
    program = (*nursery.command(), "party")
    field.start("party1", program)
    field.start("party2", program, "--policy", str(field.folder / "party2.toml"))
    assert field.wait() == {"party1": 0, "party2": 0}
    (row,) = {r.get("protected") for r in field.rows("party2") if r.get("kind") == "embedding"}
    assert row.startswith("clipped to 1")
    part = field.result("party2")["privacy"]["parties"]["party2"]["embeddings"]
    assert part["epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert part["all_runs"] == pytest.approx(8.0, rel=1e-6)


@pytest.mark.parametrize("carries", ["features", "models"])
def test_features_that_are_said_to_speak_of_nothing_are_not_let_go(carries: Any) -> None:
    """A method's file declares both: what a Kind carries decides."""
    both = Kind("both", ("batch", "dim"), reveals="features", about="nothing", carries=carries)
    assert "'both'" in " ".join(Protect(embedding_epsilon=8.0).problems([EMBEDDING, both], "own"))
