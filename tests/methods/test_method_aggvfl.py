"""Prediction aggregation against a hand-written loop, to the last bit; messages; local steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import colonnade
from colonnade import assembly, config
from colonnade.errors import ConfigError
from colonnade.models import head, network
from colonnade.role.recipe import make_optimizer, rate_factor
from colonnade.role.seeds import derive
from colonnade.wire import ledger, store

HETEROGENEOUS = {
    "party1": {"model": "mlp"},
    "party2": {"model": "lenet", "optimizer": "adam"},
    "party3": {},
    "party4": {"optimizer": "adagrad"},
}


def settings(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": "aggvfl",
        "seed": 5,
        "epochs": 2,
        "batch_size": 64,
        "batching": "papers",  # as in the hand-written loops
        "model": "cnn",
        "data": {"name": "digits", "train_rows": 300, "test_rows": 60},
        "partition": {"kind": "tiles"},
    }
    return base | changes


def by_hand(tree: dict[str, Any], steps: list[int]) -> tuple[list[nn.Module], float]:
    """The models of all parties after training, and the mean loss of the last epoch."""
    checked = config.load(tree)
    options = checked.options
    parties = list(assembly.from_catalogue(checked).parties.values())
    torch.set_num_threads(1)
    models: list[nn.Module] = []
    for party in parties:
        torch.manual_seed(derive(5, "party", party.name))
        name = party.recipe.model
        model = nn.Sequential(network(name, party.shape, options.dim), head(name, options.dim, 10))
        models.append(model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    optimizers = [
        make_optimizer(party.recipe, list(model.parameters()))
        for party, model in zip(parties, models, strict=True)
    ]
    y = parties[0].splits["train"].y
    assert y is not None
    inputs = []
    for party in parties:
        assert party.preparation is not None
        inputs.append(party.preparation.to_float(party.splits["train"].x))
    losses: list[torch.Tensor] = []
    for epoch in range(2):
        seed = derive(5, "order", "train", epoch)
        order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
        losses = []
        for step, index in enumerate(order.split(64)):
            for party, one in zip(parties, optimizers, strict=True):
                for group in one.param_groups:
                    factor = rate_factor(party.recipe, epoch + step / 5, 2)
                    group["lr"] = group["initial_lr"] * factor
            batch = [x[index].contiguous(memory_format=torch.channels_last) for x in inputs]
            # The first update of all parties is one of the joint graph.
            scores = [model(x) for model, x in zip(models, batch, strict=True)]
            for one_score in scores:
                one_score.retain_grad()
            together = torch.stack(scores)
            joint = together.mean(0) if options.aggregate == "mean" else together.sum(0)
            loss = F.cross_entropy(joint, y[index])
            for one in optimizers:
                one.zero_grad()
            loss.backward()
            for one in optimizers:
                one.step()
            losses.append(loss.detach())
            # Passive parties go on along the gradient they got; the active party knows the loss.
            for k in range(1, len(parties)):
                gradient = scores[k].grad
                assert gradient is not None
                for _ in range(steps[k] - 1):
                    optimizers[k].zero_grad()
                    (models[k](batch[k]) * gradient).sum().backward()
                    optimizers[k].step()
            for _ in range(steps[0] - 1):
                stale = [one_score.detach() for one_score in scores[1:]]
                together = torch.stack([models[0](batch[0]), *stale])
                joint = together.mean(0) if options.aggregate == "mean" else together.sum(0)
                optimizers[0].zero_grad()
                F.cross_entropy(joint, y[index]).backward()
                optimizers[0].step()
    return models, float(torch.stack(losses).double().mean())


@pytest.mark.parametrize(
    ("changes", "options", "steps"),
    [
        ({}, {}, [1, 1, 1, 1]),
        ({"optimizer": "adam"}, {"aggregate": "sum"}, [1, 1, 1, 1]),
        ({}, {"local_steps": {"party1": 2, "party3": 3}}, [2, 1, 3, 1]),
        ({"momentum": 0.0}, {"steps": 2, "local_steps": {"party2": 1}}, [2, 1, 2, 2]),
        ({"parties": HETEROGENEOUS}, {}, [1, 1, 1, 1]),
    ],
    ids=["mean", "sum", "local steps", "steps for all but one", "heterogeneous"],
)
def test_equals_a_hand_written_loop(
    changes: dict[str, Any], options: dict[str, Any], steps: list[int], tmp_path: Path
) -> None:
    tree = settings(aggvfl={"dim": 16, **options}, **changes)
    result = colonnade.run(tree, out=tmp_path / "run")
    models, loss = by_hand(tree, steps)
    for name, model in zip(result.content["parties"], models, strict=True):
        saved = store.load(tmp_path / "run" / "weights" / name)["weights"]["model"]
        for key, value in model.state_dict().items():
            assert torch.equal(saved[key], value), (name, key)
    assert result.history[-1]["parties"]["party1"]["loss"] == loss


def test_two_messages_per_batch_and_passive_party(tmp_path: Path) -> None:
    tree = settings(aggvfl={"steps": 2})
    result = colonnade.run(tree, out=tmp_path / "run")
    batches = 2 * 5  # epochs × ⌈300 / 64⌉
    assert result.wire["by_phase"]["train"]["messages"] == 2 * 3 * batches
    assert result.wire["rounds"] == 2 * batches
    assert result.wire["by_phase"]["eval"]["messages"] == 3 * 2  # scores only
    for row in ledger.read(tmp_path / "run" / "ledger.jsonl"):
        assert row["phase"] == "train" or row["kind"] == "scores"
        assert row["shape"][1] == 10
        assert row["bytes"] == 4 * 10 * row["shape"][0] + 19  # numbers, and the codec's header


def test_every_party_is_also_scored_alone(tmp_path: Path) -> None:
    tree = settings(epochs=6, batch_size=20, model="mlp", aggvfl={"aggregate": "sum"})
    result = colonnade.run(tree, out=tmp_path / "run")
    test = result.metrics["test"]
    assert list(test["per_party"]) == ["party1"]
    assert list(test["alone"]) == result.content["parties"]
    federation = assembly.from_catalogue(config.load(tree))
    y = federation.parties["party1"].splits["test"].y
    for name, party in federation.parties.items():
        assert party.preparation is not None
        model = nn.Sequential(network("mlp", party.shape, 128), head("mlp", 128, 10))
        model.load_state_dict(store.load(tmp_path / "run" / "weights" / name)["weights"]["model"])
        with torch.no_grad():
            own = model(party.preparation.to_float(party.splits["test"].x)).argmax(1)
        assert test["alone"][name] == float((own == y).double().mean())
    # A quarter of the picture says less than all four together.
    assert max(test["alone"].values()) < test["accuracy"]


def test_further_local_steps_change_only_what_comes_after(tmp_path: Path) -> None:
    """With one batch in all, only the party that goes on ends elsewhere."""
    one_batch = settings(epochs=1, batch_size=300)
    once = colonnade.run(one_batch, out=tmp_path / "once").weights_sha256
    options = {"local_steps": {"party2": 3}}
    more = colonnade.run(one_batch | {"aggvfl": options}, out=tmp_path / "more").weights_sha256
    assert [name for name in once if once[name] != more[name]] == ["party2"]


def test_a_label_holder_without_features(tmp_path: Path) -> None:
    tree = settings(
        epochs=8,
        batch_size=20,
        label_only=True,
        parties={"clinic": {}, **{f"lab{i}": {} for i in range(4)}},
        aggvfl={"steps": 2},
    )
    result = colonnade.run(tree, out=tmp_path / "run")
    assert store.load(tmp_path / "run" / "weights" / "clinic")["weights"] == {}
    assert list(result.metrics["test"]["alone"]) == [f"lab{i}" for i in range(4)]
    assert result.accuracy is not None
    assert result.accuracy > 0.5
    prediction = colonnade.load(tmp_path / "run").predict()
    assert list(prediction) == ["clinic"]
    assert len(prediction["clinic"]) == 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "aggvfl.dim = 0: at least 1"),
        ({"steps": 0}, "aggvfl.steps = 0: at least 1"),
        ({"local_steps": {"shop": 0}}, "aggvfl.local_steps.shop = 0: at least 1"),
        ({"local_steps": 3}, "must be a table, each a whole number"),
        ({"local_steps": {"shop": 1.5}}, "must be a table, each a whole number"),
        ({"aggregate": "median"}, "must be one of 'mean', 'sum'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(settings(aggvfl=options))
    assert message in str(caught.value)


def test_local_steps_of_a_stranger_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no party 'shop' in aggvfl\.local_steps: one of party1, "
    ):
        colonnade.run(settings(aggvfl={"local_steps": {"shop": 2}}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()  # before anything was written
