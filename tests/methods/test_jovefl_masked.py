"""JoVe-FL's heads under masks: the server opens their mean, and no single one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from scipy import stats
from torch import Tensor

import colonnade
from colonnade.errors import ColonnadeError, ConfigError, MethodError
from colonnade.results.result import Result
from colonnade.role.party import Party


def settings(options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "method": "jovefl",
        "name": "masked",
        "seed": 3,
        "epochs": 3,
        "batch_size": 50,
        "lr": 0.1,
        "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
        "partition": {"kind": "strips", "parties": 3},
        "model_options": {"hidden": [16]},
        "checkpoint": {"epochs": 1, "steps": 2},
        "record": ["global_head"],
    }
    return tree | {"jovefl": {"dim": 12, "secure": True} | (options or {})} | changes


def recorded(result: Result, kind: str) -> dict[str, Tensor]:
    parts = sorted((result.path / "record").glob(f"{kind}-*.safetensors"))
    return {name: x for part in parts for name, x in load_file(part).items()}


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Result:
    tree = settings(record=["global_head", "masked_head"])
    return colonnade.run(tree, out=tmp_path_factory.mktemp("masked") / "run")


def test_the_mean_is_that_of_heads_in_the_clear(masked: Result, tmp_path: Path) -> None:
    plain = colonnade.run(settings({"secure": False}), out=tmp_path / "plain")
    here, there = (list(recorded(one, "global_head").values()) for one in (masked, plain))
    assert len(here) == len(there) > 0
    for one, other in zip(here, there, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    alike = [one for one in here if one.shape == here[-1].shape]
    assert not torch.equal(alike[0], alike[-1])  # of the first round, and of the last


def test_what_single_clients_send_cannot_be_told_from_noise(masked: Result) -> None:
    sent = recorded(masked, "masked_head")
    by_client: dict[str, list[Tensor]] = {}
    for name, values in sent.items():
        by_client.setdefault(name.split("/")[1], []).append(values)
    assert by_client.keys() == {"party1", "party2", "party3"}
    for values in by_client.values():
        assert all(one.dtype == torch.int64 for one in values)
        numbers = torch.cat([one.flatten() for one in values])
        counts = torch.bincount(numbers.view(torch.uint8).long(), minlength=256)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-6
    first = [values[0] for values in by_client.values()]  # all clients begin with the same head
    assert not any(torch.equal(first[0], other) for other in first[1:])


def test_a_process_for_each_party_gives_the_same_bits(masked: Result, tmp_path: Path) -> None:
    apart = colonnade.run(settings(record=[]), out=tmp_path / "apart", runtime="process")
    assert apart.weights_sha256 == masked.weights_sha256
    assert apart.metrics == masked.metrics


def test_a_resumed_run_has_fresh_masks_and_the_same_weights(
    masked: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, count = Party._set_rates, 0

    def counted(party: Party, done: float) -> None:
        nonlocal count
        count += 1
        if count > 17:
            raise KeyboardInterrupt
        original(party, done)

    with monkeypatch.context() as patch:
        patch.setattr(Party, "_set_rates", counted)
        with pytest.raises(KeyboardInterrupt):
            colonnade.run(settings(), out=tmp_path / "run")
    resumed = colonnade.run(settings(), resume=tmp_path / "run")
    assert resumed.weights_sha256 == masked.weights_sha256


def test_noise_on_gradients_and_masks_go_together(tmp_path: Path) -> None:
    result = colonnade.run(settings(protect={"model_epsilon": 8.0}), out=tmp_path / "run")
    told = result.content["privacy"]["parties"]
    assert {name: parts["models"]["epsilon"] for name, parts in told.items()} == {
        name: pytest.approx(8.0, rel=1e-6) for name in ("party1", "party2", "party3")
    }


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"strategy": "fedavgm"}, "strategy"),
        ({"weighted": True}, "weighted"),
        ({"compress": "scalar"}, "compress"),
        ({"mode": "async"}, "mode"),
        ({"deadline": 1.0}, "deadline"),
        ({"contact": 1.0}, "contact"),
        ({"absence": 0.5}, "absence"),
        ({"away": {"party1": [2]}}, "away"),
        ({"share": "nothing"}, "share"),
    ],
)
def test_what_needs_single_heads_is_refused(
    options: dict[str, Any], wrong: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"secure opens the mean .*omit {wrong}"):
        colonnade.run(settings(options), out=tmp_path / "run")


def test_statistics_of_batches_and_early_ends_are_refused(tmp_path: Path) -> None:
    net = {"model": "resnet8", "model_options": {"width": 0.25}}
    with pytest.raises(ConfigError, match="has statistics of batches"):
        cut = {"cut": "stage2", "fit_size": 3}
        colonnade.run(settings(cut, **net, epochs=1), out=tmp_path / "a")
    held = {"name": "digits", "train_rows": 200, "test_rows": 60, "validation": 0.2}
    with pytest.raises(ConfigError, match="Omit patience"):
        colonnade.run(settings(data=held, patience=1), out=tmp_path / "b")


def test_a_client_that_goes_ends_the_run_and_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(ColonnadeError) as caught:
        colonnade.run(settings(record=[]), out=tmp_path / "run", lose={"party2": 2})
    assert isinstance(caught.value, MethodError) and "sent no head" in str(caught.value)
