"""Split learning against the same mathematics written as one graph, to the last bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import colonnade
from colonnade import assembly, config
from colonnade.methods.splitnn import SplitNN, join
from colonnade.models import network
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.role.recipe import make_optimizer, rate_factor
from colonnade.role.seeds import derive
from colonnade.runtime import local
from colonnade.wire import Ledger, Wire, ledger, store


def settings(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": "splitnn",
        "seed": 5,
        "epochs": 2,
        "batch_size": 64,
        "batching": "papers",  # as in the hand-written loops
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
    federation = assembly.from_catalogue(checked)
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

    saved = store.load(tmp_path / "run" / "weights" / parties[0].name)["weights"]
    for name, value in top.state_dict().items():
        assert torch.equal(saved["top"][name], value), name
    for party, bottom in zip(parties, bottoms, strict=True):
        weights = store.load(tmp_path / "run" / "weights" / party.name)["weights"]["bottom"]
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
    means = [f"mean of lab{i}" for i in range(4)]
    assert list(store.load(tmp_path / "run" / "weights" / "clinic")["weights"]) == ["top", *means]
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
            for k, v in store.load(tmp_path / "run" / "weights" / name)["weights"]["bottom"].items()
        }
        for name in parties
    }
    assert len({str(shapes) for shapes in widths.values()}) == 4


# ---- a party is absent -------------------------------------------------------------------------


def kept(folder: Path, name: str) -> dict[str, Any]:
    weights: dict[str, Any] = store.load(folder / "weights" / name)["weights"]
    return weights


@pytest.mark.parametrize("cut", ["concat", "sum", "mean"])
def test_an_absent_party_is_replaced_by_the_mean_of_what_it_sent(cut: str, tmp_path: Path) -> None:
    """The mean is worked out from the recorded messages, the prediction from the saved networks."""
    tree = settings(record=["embedding"], splitnn={"cut": cut, "dim": 16, "hidden": 8})
    result = colonnade.run(tree, out=tmp_path / "run")
    training = {
        row["row"]: row["sender"]
        for row in ledger.read(tmp_path / "run" / "ledger.jsonl")
        if row["phase"] == "train" and row["kind"] == "embedding"
    }
    sent: dict[str, list[torch.Tensor]] = {}
    for file in sorted((tmp_path / "run" / "record").glob("embedding-*.safetensors")):
        for name, tensor in store.read_tensors(file).items():
            row = int(name.partition("/")[0])
            if row in training:
                sent.setdefault(training[row], []).append(tensor)
    means = {name: torch.cat(rows).double().mean(0).float() for name, rows in sent.items()}
    assert all(sum(map(len, rows)) == 2 * 300 for rows in sent.values())

    checked = config.load(tree)
    parties = assembly.from_catalogue(checked).parties
    hold = parties["party1"].splits["test"].y
    assert hold is not None
    embeddings = []
    for name, party in parties.items():
        bottom = network("cnn", party.shape, 16).eval()
        bottom.load_state_dict(kept(tmp_path / "run", name)["bottom"])
        assert party.preparation is not None
        with torch.no_grad():
            embeddings.append(bottom(party.preparation.to_float(party.splits["test"].x)))
    width = 64 if cut == "concat" else 16
    top = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 10))
    top.load_state_dict(kept(tmp_path / "run", "party1")["top"])
    trained = colonnade.load(tmp_path / "run")
    for number, absent in enumerate(parties):
        if number == 0:
            continue
        there = list(embeddings)
        there[number] = means[absent].expand(60, 16)
        with torch.no_grad():
            wanted = top(join(there, checked.options)).softmax(1)
        found = trained.predict(absent=[absent])
        assert list(found) == ["party1"]
        torch.testing.assert_close(found["party1"].probabilities, wanted, rtol=1e-4, atol=1e-6)
        assert (
            float((wanted.argmax(1) == hold).double().mean())
            == (result.metrics["test"]["absent"][absent])
        )


def train(tree: dict[str, Any], absent: set[str], *, since: Any = None) -> dict[str, Party]:
    """All roles but those of the absent, from the start or from a snapshot of every party."""
    checked = config.load(tree)
    federation = assembly.from_catalogue(checked)
    method = checked.found.method
    there = {name: party for name, party in federation.parties.items() if name not in absent}
    for name in there if since else ():
        there[name].resume(since[name])

    def start(party: Party, wire: Wire) -> Any:
        program = method.roles[party.role].train
        return bind(program, party, federation.cast, wire, checked.options, absent)

    kinds = {kind.name: kind for kind in method.kinds}
    local.run(there, start, local.Mailboxes(kinds, Ledger(None)))
    return there


def test_training_goes_on_without_a_party(tmp_path: Path) -> None:
    """Absent from the start, what stands in is zero: with a sum, as if it did not exist."""
    tree = settings(splitnn={"cut": "sum", "dim": 16}, absence=False)
    whole = colonnade.run(tree, out=tmp_path / "whole")
    there = train(tree, {"party3"})
    assert list(there) == ["party1", "party2", "party4"]
    weights = there["party1"].kept.weights()
    assert int(weights["mean of party3"]["rows"]) == 0
    assert not weights["mean of party3"]["total"].any()
    assert int(weights["mean of party2"]["rows"]) == 2 * 300
    losses = [row["loss"] for row in there["party1"].history]
    assert losses[1] < losses[0]
    assert there["party2"].kept.sha256() != whole.weights_sha256["party2"]

    quarters = {"kind": "rectangles", "rectangles": [[0, 0, 4, 4], [0, 4, 4, 4], [4, 4, 4, 4]]}
    parties = {"party1": {}, "party2": {}, "party4": {}}
    three = tree | {"partition": quarters, "parties": parties}
    colonnade.run(three, out=tmp_path / "three")
    for name, party in there.items():
        for part, values in kept(tmp_path / "three", name).items():
            for key, value in values.items():
                assert torch.equal(party.kept.weights()[part][key], value), (name, part, key)


def test_a_run_goes_on_without_a_party_that_it_has_learnt_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second epoch without party3: its mean is that of the first, and nobody changes it."""
    tree = settings(splitnn={"cut": "concat", "dim": 16})
    first: dict[str, Any] = {}

    def save(party: Party) -> None:
        first.setdefault(party.name, copy.deepcopy(party.snapshot()))

    with monkeypatch.context() as patch:
        patch.setattr(Party, "_checkpoint", save)
        train(tree, set())
    before = first["party1"]["kept"]["mean of party3"]
    assert int(before["rows"]) == 300
    there = train(tree, {"party3"}, since=copy.deepcopy(first))
    assert [row["epoch"] for row in there["party1"].history] == [1, 2]
    after = there["party1"].kept.weights()
    assert int(after["mean of party2"]["rows"]) == 2 * 300
    assert all(torch.equal(after["mean of party3"][name], value) for name, value in before.items())
    assert not torch.equal(after["top"]["0.weight"], first["party1"]["kept"]["top"]["0.weight"])
