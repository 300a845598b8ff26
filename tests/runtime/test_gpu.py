"""What must also hold on a GPU: the same bits twice, strict, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import colonnade
from colonnade.errors import Diverged, PeerLost
from colonnade.wire import Kind, Peer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def settings(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": "splitnn",
        "name": "gpu",
        "device": "cuda",
        "epochs": 2,
        "model": "cnn",
        "data": {"name": "mnist-sample", "train_rows": 2560},
        "checkpoint": {"steps": 3},
        "parties": {
            "a": {},
            "b": {"model": "lenet", "optimizer": "adam"},
            "c": {"model": "mlp", "optimizer": "adagrad"},
            "d": {"model": "resnet8", "optimizer": "adamw"},
        },
    }
    return base | changes


def tiled(method: str, **changes: Any) -> dict[str, Any]:
    """Methods over image tiles have one network, and parties of one kind."""
    own = {"adptvfedconv": {"pretrain_epochs": 2, "finetune_epochs": 2, "chunk": 400}}
    return settings(
        method=method,
        model="vgg16",
        model_options={"width": 0.25, "fc": [64]},
        batch_size=64,
        epochs=3,
        data={"name": "mnist-sample", "train_rows": 2560, "flip": True, "shift": 1},
        parties={name: {} for name in "abcd"},
        **{key: options | changes for key, options in own.items() if key == method},
    )


TILED = {
    "adptvfedconv": tiled("adptvfedconv"),
    "adptvfedconv, streamed": tiled("adptvfedconv", augment="consistent"),
    "splitconv": tiled("splitconv"),
}


@pytest.mark.parametrize("method", ["splitnn", "easter", "aggvfl", "cvfl", *TILED])
def test_the_same_bits_twice_strict_and_resumed(method: str, tmp_path: Path) -> None:
    plain = TILED.get(method) or settings(method=method)
    whole = colonnade.run(plain, out=tmp_path / "whole")
    again = colonnade.run(plain, out=tmp_path / "again")
    strict = colonnade.run(plain | {"strict": True}, out=tmp_path / "strict")
    with pytest.raises(PeerLost):
        colonnade.run(plain, out=tmp_path / "resumed", lose={"c": 17})
    resumed = colonnade.run(plain, resume=tmp_path / "resumed")
    for other in (again, strict, resumed):
        assert other.weights_sha256 == whole.weights_sha256
    assert whole.accuracy is not None
    assert whole.accuracy > 0.6
    truth = colonnade.load(whole.path).labels()
    predictions = colonnade.load(whole.path).predict()
    for name, accuracy in whole.metrics["test"]["per_party"].items():
        assert int((predictions[name].codes == truth).sum()) / len(truth) == accuracy


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("method", ["splitnn", "easter", "aggvfl", *TILED])
def test_a_step_never_waits_for_the_gpu(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch raises at any synchronisation after the first steps of the second epoch.

    Masks are made on the CPU and compressed tensors are checked for NaN: those do wait.
    """
    from colonnade.role.party import Party

    step, end = Party._set_rates, Party._end_epoch

    def watched(me: Party, done: float) -> None:
        if done > 1.1:  # every party has begun the epoch: its order and rows are on the GPU
            torch.cuda.set_sync_debug_mode("error")
        step(me, done)

    def released(me: Party, phase: str, epoch: int) -> None:
        torch.cuda.set_sync_debug_mode("default")
        end(me, phase, epoch)

    monkeypatch.setattr(Party, "_set_rates", watched)
    monkeypatch.setattr(Party, "_end_epoch", released)
    try:
        quiet = {"evaluate_every": 0, "easter": {"mask": "none"}, "checkpoint": {"epochs": 0}}
        plain = TILED.get(method) or settings(method=method)
        colonnade.run(plain | quiet, out=tmp_path / "run")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("method", ["splitnn", "easter", "adptvfedconv"])
def test_one_process_per_party_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    plain = TILED.get(method) or settings(method=method)
    local = colonnade.run(plain, out=tmp_path / "local")
    apart = colonnade.run(plain, out=tmp_path / "apart", runtime="process")
    assert apart.weights_sha256 == local.weights_sha256
    assert apart.metrics == local.metrics


def test_what_is_not_finite_is_found_before_it_is_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No step waits for the GPU; the next checkpoint does, and is not written."""
    plain, sent = Peer.send, []

    def send(self: Peer, kind: Kind, value: Any) -> None:
        sent.append(kind.name)
        plain(self, kind, value * float("nan") if len(sent) == 30 else value)

    with monkeypatch.context() as patch:
        patch.setattr(Peer, "send", send)
        with pytest.raises(Diverged, match="not finite"):
            colonnade.run(settings(), out=tmp_path / "run")
    again = colonnade.run(settings(), resume=tmp_path / "run")
    assert again.weights_sha256 == colonnade.run(settings(), out=tmp_path / "one").weights_sha256
