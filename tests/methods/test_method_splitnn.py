"""Split learning against the same mathematics written as one graph, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import colonnade
from colonnade import assemble, config, state
from colonnade.methods.splitnn import SplitNN, join
from colonnade.models import network
from colonnade.party import derive
from colonnade.recipe import make_optimizer, rate_factor
from colonnade.wire import ledger


def settings(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": "splitnn",
        "seed": 5,
        "epochs": 2,
        "batch_size": 64,
        "model": "cnn",
        "data": {"name": "digits", "train_rows": 300, "test_rows": 60},
        "partition": {"kind": "tiles"},
    }
    return base | changes


@pytest.mark.parametrize("cut", ["concat", "sum", "mean"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_equals_one_joint_graph(cut: str, optimizer: str, tmp_path: Path) -> None:
    tree = settings(optimizer=optimizer, splitnn={"cut": cut, "dim": 16, "hidden": 8})
    result = colonnade.run(tree, out=tmp_path / "run")
    checked = config.load(tree)
    federation = assemble.from_catalogue(checked)
    parties = list(federation.parties.values())
    torch.set_num_threads(1)

    bottoms: list[nn.Module] = []
    top: nn.Module = nn.Identity()
    for number, party in enumerate(parties):
        torch.manual_seed(derive(5, "party", party.name))
        bottoms.append(network("cnn", party.shape, 16))
        if number == 0:
            width = 16 * len(parties) if cut == "concat" else 16
            top = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 10))
    for module in (*bottoms, top):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    owned = [
        [*bottoms[0].parameters(), *top.parameters()],
        *(list(b.parameters()) for b in bottoms[1:]),
    ]
    optimizers = [make_optimizer(checked.recipe, parameters) for parameters in owned]
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
            for one in optimizers:
                for group in one.param_groups:
                    factor = rate_factor(checked.recipe, epoch + step / 5, 2)
                    group["lr"] = group["initial_lr"] * factor
            batch = [x[index].contiguous(memory_format=torch.channels_last) for x in inputs]
            embeddings = [bottom(x) for bottom, x in zip(bottoms, batch, strict=True)]
            loss = F.cross_entropy(top(join(embeddings, SplitNN(cut=cut))), y[index])  # type: ignore[arg-type]
            for one in optimizers:
                one.zero_grad()
            loss.backward()
            for one in optimizers:
                one.step()
            losses.append(loss.detach())

    saved = state.load(tmp_path / "run" / "weights" / parties[0].name)["weights"]
    for name, value in top.state_dict().items():
        assert torch.equal(saved["top"][name], value), name
    for party, bottom in zip(parties, bottoms, strict=True):
        weights = state.load(tmp_path / "run" / "weights" / party.name)["weights"]["bottom"]
        for name, value in bottom.state_dict().items():
            assert torch.equal(weights[name], value), (party.name, name)
    logged = result.history[-1]["parties"][parties[0].name]["loss"]
    assert logged == float(torch.stack(losses).double().mean())


def test_two_messages_per_batch_and_passive_party(tmp_path: Path) -> None:
    result = colonnade.run(settings(), out=tmp_path / "run")
    batches = 2 * 5  # epochs × ⌈300 / 64⌉
    assert result.wire["by_phase"]["train"]["messages"] == 2 * 3 * batches
    assert result.wire["rounds"] == 2 * batches
    assert result.wire["by_phase"]["eval"]["messages"] == 3 * 2  # embeddings only
    for row in ledger.read(tmp_path / "run" / "ledger.jsonl"):
        assert row["phase"] == "train" or row["kind"] == "embedding"


def test_a_label_holder_without_features(tmp_path: Path) -> None:
    tree = settings(
        epochs=8,
        batch_size=20,
        label_only=True,
        parties={"clinic": {}, **{f"lab{i}": {} for i in range(4)}},
    )
    result = colonnade.run(tree, out=tmp_path / "run")
    assert result.content["roles"]["clinic"] == "active"
    assert len(result.content["parties"]) == 5
    assert list(state.load(tmp_path / "run" / "weights" / "clinic")["weights"]) == ["top"]
    assert result.accuracy is not None
    assert result.accuracy > 0.3
    prediction = colonnade.load(tmp_path / "run").predict()["clinic"]
    assert len(prediction) == 60


def test_every_party_may_have_its_own_network_and_optimiser(tmp_path: Path) -> None:
    parties = {
        "a": {"model": "cnn"},
        "b": {"model": "lenet", "optimizer": "adam"},
        "c": {"model": "mlp", "optimizer": "adagrad", "model_options": {"hidden": [32, 32]}},
        "d": {"model": "resnet8", "model_options": {"width": 0.25}, "optimizer": "adamw"},
    }
    result = colonnade.run(settings(epochs=8, batch_size=20, parties=parties), out=tmp_path / "run")
    assert result.accuracy is not None
    assert result.accuracy > 0.4
    widths = {
        name: {
            k: tuple(v.shape)
            for k, v in state.load(tmp_path / "run" / "weights" / name)["weights"]["bottom"].items()
        }
        for name in parties
    }
    assert len({str(shapes) for shapes in widths.values()}) == 4
