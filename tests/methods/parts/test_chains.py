"""A client's networks: what is shared, what insures it, and which rows decide."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from colonnade.data import Split
from colonnade.errors import ConfigError
from colonnade.methods.parts.chains import ALONE, SHARED, chains_of, predicted, score_all
from colonnade.methods.parts.scoring import (
    accuracy_and_loss,
    labels_of,
    logits_of,
    require_rows,
)
from colonnade.models.divided import Pair
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task

ROWS = {"train": 30, "validation": 10, "test": 20}


def party() -> Party:
    generator = torch.Generator().manual_seed(1)
    splits = {
        name: Split(
            torch.randn(count, 3, generator=generator),
            torch.randint(2, (count,), generator=generator),
            torch.arange(count),
        )
        for name, count in ROWS.items()
    }
    schedule = Schedule(seed=5, epochs=1, batch_size=10)
    return Party(
        "a", "client", Recipe(), schedule, splits, None, Task.of(("x", "y")), torch.device("cpu")
    )


def pairs(me: Party, *names: str) -> dict[str, Pair]:
    torch.manual_seed(2)
    return {
        name: (
            me.keep(f"{name} embedding", lambda: nn.Linear(3, 4)),
            me.keep(f"{name} head", lambda: nn.Linear(4, 2)),
        )
        for name in names
    }


def by_hand(pair: Pair, x: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = pair[1](pair[0](x))
        return logits


def test_a_chain_is_its_layers_and_shares_the_head_or_all() -> None:
    me = party()
    both = pairs(me, SHARED, ALONE)
    chains = chains_of(me, both, whole=False)
    assert [chain.name for chain in chains] == [SHARED, ALONE]
    x = me.splits["test"].x
    for chain in chains:
        assert torch.equal(chain(x), by_hand(both[chain.name], x))
        assert chain.shared is chain.layers[1]
        assert torch.equal(logits_of(me, "test", *chain.layers), by_hand(chain.layers, x))
    (whole,) = chains_of(me, {SHARED: both[SHARED]}, whole=True)
    assert len(list(whole.shared.parameters())) == 4
    assert chains[0].optimizer is whole.optimizer is not chains[1].optimizer


def test_one_network_is_scored_and_judged() -> None:
    me = party()
    chains = chains_of(me, pairs(me, SHARED), whole=False)
    for _ in me.epochs():
        assert chains[0].last(me, "accuracy") is None
        score_all(me, chains, ["test"], "validation")
    said = by_hand(chains[0].layers, me.splits["validation"].x)
    accuracy, loss = accuracy_and_loss(me.task, said, labels_of(me, "validation"))
    assert (chains[0].last(me, "accuracy"), chains[0].last(me, "loss")) == (accuracy, loss)
    assert me.predictions.keys() == {"test"} and me.predictions["test"].keys() == {"per_party"}
    assert "mixture" not in me.kept.modules()


def test_the_insured_predict_with_what_the_judging_rows_prefer() -> None:
    me = party()
    chains = chains_of(me, pairs(me, SHARED, ALONE), whole=False)
    for _ in me.epochs():
        score_all(me, chains, ["test"], "validation")
    assert me.state.keys() == {"accuracy", "loss", "accuracy alone", "loss alone"}
    assert me.predictions["test"].keys() == {"per_party", SHARED, ALONE}
    part = float(me.kept.weights()["mixture"]["part"])
    x = me.splits["test"].x
    shared, alone = (by_hand(chain.layers, x).softmax(1) for chain in chains)
    logits = {chain.name: by_hand(chain.layers, x) for chain in chains}
    wanted = part * shared + (1 - part) * alone
    torch.testing.assert_close(predicted(me, logits).exp(), wanted)
    assert torch.equal(predicted(me, {SHARED: logits[SHARED]}), logits[SHARED])


def test_rows_that_decide_must_be_there() -> None:
    me = party()
    require_rows(me, "validation", "rate = 'plateau'")
    del me.splits["validation"]
    with pytest.raises(ConfigError, match=r"plateau' decides by validation rows, and 'a' has none"):
        require_rows(me, "validation", "rate = 'plateau'")
