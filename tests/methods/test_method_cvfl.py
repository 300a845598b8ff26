"""Compressed VFL: equal to split learning without compression, to a loop with it; bytes; labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import colonnade
from colonnade import assembly, config
from colonnade.errors import ConfigError, Diverged, PeerLost
from colonnade.methods.parts.compression import Compressor, Float32, Scalar
from colonnade.models import network
from colonnade.role.recipe import make_optimizer, rate_factor
from colonnade.role.seeds import derive
from colonnade.wire import ledger, store

UNSORTED = {"zoo": {}, "mill": {}, "bank": {"optimizer": "adam"}, "ant": {"model": "mlp"}}


def settings(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": "cvfl",
        "seed": 5,
        "epochs": 2,
        "batch_size": 64,
        "batching": "papers",  # as in the hand-written loops
        "model": "cnn",
        "data": {"name": "digits", "train_rows": 300, "test_rows": 60},
        "partition": {"kind": "tiles"},
    }
    return base | changes


@pytest.mark.parametrize(
    ("hidden", "changes"),
    [
        (0, {}),
        (32, {"parties": UNSORTED, "label_holder": "mill"}),
        (32, {"label_only": True, "parties": {"clinic": {}, **UNSORTED}}),
    ],
    ids=["linear top", "unsorted names", "labels only"],
)
def test_without_compression_it_is_split_learning(
    hidden: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    split = {"splitnn": {"hidden": hidden}}
    wanted = colonnade.run(settings(method="splitnn", **split, **changes), out=tmp_path / "split")
    ours = {"cvfl": {"compressor": "none", "hidden": hidden}}
    result = colonnade.run(settings(**ours, **changes), out=tmp_path / "ours")
    for name in result.content["parties"]:
        a, b = (
            store.load(tmp_path / run / "weights" / name)["weights"] for run in ("ours", "split")
        )
        trained = [part for part in b if not part.startswith("mean of ")]  # for absent parties
        assert list(a) == trained
        assert all(torch.equal(a[part][key], b[part][key]) for part in a for key in a[part])
    assert result.accuracy == wanted.accuracy


def by_hand(tree: dict[str, Any], c: Compressor, steps: int, shared: bool) -> list[dict[str, Any]]:
    """The weights of all parties, party1 being active; every compression is written out."""
    checked = config.load(tree)
    parties = list(assembly.from_catalogue(checked).parties.values())
    torch.set_num_threads(1)
    bottoms: list[nn.Module] = []
    top: nn.Module = nn.Identity()
    for number, party in enumerate(parties):
        torch.manual_seed(derive(5, "party", party.name))
        bottoms.append(network("cnn", party.shape, 16))
        if number == 0:
            top = nn.Sequential(nn.Linear(16 * 4, 8), nn.ReLU(), nn.Linear(8, 10))
    for module in (*bottoms, top):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    owned = [[*bottoms[0].parameters(), *top.parameters()]]
    owned += [list(bottom.parameters()) for bottom in bottoms[1:]]
    optimizers = [make_optimizer(checked.recipe, parameters) for parameters in owned]
    labels = parties[0].splits["train"].y
    assert labels is not None
    inputs = []
    for party in parties:
        assert party.preparation is not None
        inputs.append(party.preparation.to_float(party.splits["train"].x))

    def squeezed(x: Tensor, sender: int, what: str = "") -> Tensor:
        at = ("train", epoch, step, parties[sender].name, what)
        seed = derive(5, "dither", *at)
        return c.decompress(c.compress(x, seed), x.shape, seed)

    for epoch in range(2):
        seed = derive(5, "order", "train", epoch)
        order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
        for step, index in enumerate(order.split(64)):
            for one in optimizers:
                for group in one.param_groups:
                    factor = rate_factor(checked.recipe, epoch + step / 5, 2)
                    group["lr"] = group["initial_lr"] * factor
            batch = [x[index].contiguous(memory_format=torch.channels_last) for x in inputs]
            y = labels[index]
            first = [bottom(x) for bottom, x in zip(bottoms, batch, strict=True)]
            came = [squeezed(embedding, k) for k, embedding in enumerate(first)]
            frozen = {name: squeezed(weight, 0, name) for name, weight in top.named_parameters()}
            gradients: list[Tensor] = []
            for local in range(steps):  # the active party
                own = bottoms[0](batch[0]) if local else first[0]
                leaves = [one.clone().requires_grad_() for one in came[1:]]
                loss = F.cross_entropy(top(torch.cat([own, *leaves], 1)), y)
                optimizers[0].zero_grad()
                loss.backward()
                optimizers[0].step()
                if local == 0:
                    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
            for k in range(1, 4):  # the passive parties
                if not shared:
                    gradient = squeezed(gradients[k - 1], 0, parties[k].name)
                for local in range(steps):
                    own = bottoms[k](batch[k]) if local else first[k]
                    optimizers[k].zero_grad()
                    if shared:
                        view = torch.cat([own if j == k else came[j] for j in range(4)], 1)
                        inner = F.linear(view, frozen["0.weight"], frozen["0.bias"]).relu()
                        logits = F.linear(inner, frozen["2.weight"], frozen["2.bias"])
                        F.cross_entropy(logits, y).backward()
                    else:
                        own.backward(gradient)
                    optimizers[k].step()
    active = {"bottom": bottoms[0].state_dict(), "top": top.state_dict()}
    return [active, *({"bottom": bottom.state_dict()} for bottom in bottoms[1:])]


@pytest.mark.parametrize("labels", ["holder", "shared"])
@pytest.mark.parametrize("compression", [Float32(), Scalar(3)], ids=["none", "scalar"])
@pytest.mark.parametrize("steps", [1, 3])
def test_equals_a_hand_written_loop(
    labels: str, compression: Compressor, steps: int, tmp_path: Path
) -> None:
    options = {
        "compressor": "scalar" if isinstance(compression, Scalar) else "none",
        "labels": labels,
        "local_steps": steps,
        "dim": 16,
        "hidden": 8,
    }
    tree = settings(cvfl=options, momentum=0.0)
    result = colonnade.run(tree, out=tmp_path / "run")
    wanted = by_hand(tree, compression, steps, labels == "shared")
    for name, modules in zip(result.content["parties"], wanted, strict=True):
        saved = store.load(tmp_path / "run" / "weights" / name)["weights"]
        assert saved.keys() == modules.keys()
        for module, weights in modules.items():
            for key, value in weights.items():
                assert torch.equal(saved[module][key], value), (name, module, key)


# ---- bytes and messages --------------------------------------------------------------------------


LARGE = {"epochs": 1, "batch_size": 128, "data": {"name": "digits", "train_rows": 256}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What split learning sends."""
    tree = settings(method="splitnn", **LARGE)
    return colonnade.run(tree, out=tmp_path_factory.mktemp("plain") / "run").wire


@pytest.mark.parametrize(("compressor", "bits"), [("scalar", 3), ("scalar", 4), ("lattice", 4)])
def test_a_seventh_of_the_bytes(
    plain: dict[str, Any], bits: int, compressor: str, tmp_path: Path
) -> None:
    """At batch 128 and d = 128: 32 / bits, less a few bytes of header."""
    options = {"bits": bits, "compressor": compressor}
    ours = colonnade.run(settings(cvfl=options, **LARGE), out=tmp_path / "ours").wire
    for kind in ("embedding", "gradient"):
        assert ours["by_kind"][kind]["bytes"] <= plain["by_kind"][kind]["bytes"] / 7
    assert ours["bytes"] <= plain["bytes"] / 7
    assert ours["messages"] == plain["messages"]
    for row in ledger.read(tmp_path / "ours" / "ledger.jsonl"):
        if row["phase"] == "train":
            assert row["bytes"] == 128 * 128 * bits // 8 + 8 + 42  # codes, scale, header


def test_gradients_may_stay_as_they_are(tmp_path: Path) -> None:
    tree = settings(epochs=1, cvfl={"compress_gradient": False})
    wire = colonnade.run(tree, out=tmp_path / "run").wire
    assert wire["by_kind"]["gradient"]["bytes"] > 3 * 300 * 128 * 4
    assert wire["by_kind"]["embedding"]["bytes"] < 3 * 360 * 128 * 4 / 9


@pytest.mark.parametrize(("labels", "answer"), [("holder", "gradient"), ("shared", "view")])
def test_two_messages_per_batch_and_passive_party(labels: str, answer: str, tmp_path: Path) -> None:
    tree = settings(cvfl={"labels": labels, "local_steps": 2}, model="mlp", lr=0.01)
    result = colonnade.run(tree, out=tmp_path / "run")
    batches = 2 * 5  # epochs × ⌈300 / 64⌉
    assert result.wire["by_phase"]["train"]["messages"] == 2 * 3 * batches
    assert result.wire["rounds"] == 2 * batches
    assert result.wire["by_kind"].keys() == {"embedding", answer}
    assert result.wire["by_kind"][answer]["messages"] == 3 * batches
    assert result.wire["by_phase"]["eval"]["messages"] == 3 * 2
    for row in ledger.read(tmp_path / "run" / "ledger.jsonl"):
        if row["kind"] == "view":  # everybody's embedding but the receiver's own
            others = set(result.content["parties"]) - {row["receiver"]}
            assert row["shape"]["embeddings"].keys() == others
        if row["phase"] == "eval":  # compressed as well
            assert row["kind"] == "embedding"
            assert row["bytes"] == 60 * 128 * 3 // 8 + 8 + 42


# ---- labels --------------------------------------------------------------------------------------


def test_only_the_shared_variant_gives_labels_to_passive_parties() -> None:
    for labels, everyone in (("holder", False), ("shared", True)):
        tree = settings(cvfl={"labels": labels})
        parties = assembly.from_catalogue(config.load(tree)).parties
        assert parties["party1"].labelled
        assert {parties[name].labelled for name in ("party2", "party3", "party4")} == {everyone}


# ---- the shared variant in full; the conformance suite runs the default --------------------------


@pytest.mark.parametrize("compressor", ["none", "lattice"])
def test_the_shared_variant_is_the_same_strict_and_resumed(compressor: str, tmp_path: Path) -> None:
    """An uncompressed top that is sent must not change with the sender's next step."""
    tree = settings(
        parties=UNSORTED,
        label_holder="mill",
        checkpoint={"steps": 3},  # the last before step 7 lies inside an epoch
        cvfl={"labels": "shared", "compressor": compressor, "local_steps": 2, "dim": 16},
        momentum=0.0,
    )
    whole = colonnade.run(tree, out=tmp_path / "whole")
    strict = colonnade.run(tree | {"strict": True}, out=tmp_path / "strict")
    with pytest.raises(PeerLost):
        colonnade.run(tree, out=tmp_path / "resumed", lose={"bank": 7})
    resumed = colonnade.run(tree, resume=tmp_path / "resumed")
    assert strict.weights_sha256 == whole.weights_sha256
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.metrics == whole.metrics
    assert not whole.content["warnings"]
    prediction = colonnade.load(whole.path).predict()
    truth = colonnade.load(whole.path).labels()
    assert list(prediction) == ["mill"]
    assert float((prediction["mill"].codes == truth).double().mean()) == whole.accuracy


def test_the_shared_variant_with_labels_only_at_the_server(tmp_path: Path) -> None:
    tree = settings(
        epochs=6,
        batch_size=20,
        model="mlp",
        label_only=True,
        parties={"clinic": {}, **{f"lab{i}": {} for i in range(4)}},
        cvfl={"labels": "shared", "bits": 6, "dim": 32, "hidden": 0},
    )
    result = colonnade.run(tree, out=tmp_path / "run")
    assert list(store.load(tmp_path / "run" / "weights" / "clinic")["weights"]) == ["top"]
    assert result.accuracy is not None
    assert result.accuracy > 0.5


@pytest.mark.parametrize(
    ("compressor", "labels"),
    [("scalar", "shared"), ("lattice", "holder"), ("topk", "shared")],
)
def test_every_compressor_learns(compressor: str, labels: str, tmp_path: Path) -> None:
    options = {"compressor": compressor, "labels": labels, "bits": 4, "dim": 32, "hidden": 0}
    tree = settings(epochs=6, batch_size=20, model="mlp", cvfl=options)
    result = colonnade.run(tree, out=tmp_path / "run")
    assert result.accuracy is not None
    assert result.accuracy > 0.5


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 1}, "cvfl.bits = 1: from 2 to 8"),
        ({"bits": 9}, "cvfl.bits = 9: from 2 to 8"),
        ({"local_steps": 0}, "cvfl.local_steps = 0: at least 1"),
        ({"dim": 0}, "cvfl.dim = 0: at least 1"),
        ({"hidden": -1}, "cvfl.hidden = -1: at least 0"),
        ({"compressor": "zip"}, "must be one of 'scalar', 'lattice', 'topk', 'none'"),
        ({"labels": "all"}, "must be one of 'holder', 'shared'"),
        ({"compress_gradient": 1}, "must be true or false"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(settings(cvfl=options))
    assert message in str(caught.value)


def test_a_training_that_diverges_says_so(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"NaN or infinite.*smaller lr") as caught:
        colonnade.run(settings(lr=1e20), out=tmp_path / "run")
    assert any("cvfl.py, line" in note for note in caught.value.__notes__)
