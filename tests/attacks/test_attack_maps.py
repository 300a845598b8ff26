"""Feature maps of another size than the tile's are refused from the first message on, when there is
no earlier one to compare with: in the slot of a tile, one number would be spread over all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import colonnade
from colonnade.errors import ColonnadeError, Untrusted, WireError
from colonnade.wire import Peer

TREE = {
    "seed": 3,
    "epochs": 1,
    "batch_size": 50,
    "model_options": {"width": 0.125, "fc": [16]},
    "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
    "partition": {"kind": "tiles", "grid": [1, 3]},
    "checkpoint": {"epochs": 0},
}
SHARED = {"cut": "1C"}
ONCE = SHARED | {"pretrain_epochs": 1, "finetune_epochs": 1}
MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "one cell": lambda maps: maps[:, :, :1, :1].contiguous(),
    "one cell of one channel": lambda maps: maps[:, :1, :1, :1].contiguous(),
    "wider": lambda maps: torch.cat([maps, maps], 3),
    "more channels": lambda maps: torch.cat([maps, maps], 1),
    "no cell": lambda maps: maps[..., :0],
}
FIRST = {
    "splitconv": SHARED,
    "adptvfedconv": ONCE,
    "adptvfedconv int8": ONCE | {"upload_dtype": "int8"},
}


def refusal(method: str, out: Path, kind: str, lie: Callable[[Tensor], Tensor]) -> str:
    """What a run says in which every message of this Kind of the second party is a lie."""
    plain = Peer.send

    def send(self: Any, of: Any, value: Any) -> None:
        sent.append(of.name)
        plain(self, of, lie(value) if of.name == kind and sent.count(kind) == 1 else value)

    sent: list[str] = []
    name = method.split()[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peer, "send", send)
        try:
            colonnade.run(TREE | {"method": name, name: FIRST[method]}, out=out)
        except ColonnadeError as error:
            assert isinstance(error, Untrusted | WireError), repr(error)
            return str(error)
    raise AssertionError("it was taken")


@pytest.mark.parametrize("method", FIRST)
@pytest.mark.parametrize("lie", MAPS)
def test_first_maps_of_another_size_are_their_senders(
    method: str, lie: str, tmp_path: Path
) -> None:
    said = refusal(method, tmp_path / "run", "maps", MAPS[lie])
    assert "'party2' sent" in said and "'party3'" not in said


@pytest.mark.parametrize("size", [0, 1, 2, 99])
def test_scales_of_other_channels_are_their_senders(size: int, tmp_path: Path) -> None:
    said = refusal("adptvfedconv int8", tmp_path / "run", "scale", lambda _: torch.ones(size))
    assert "'party2' sent" in said and "'party3'" not in said


PLACES = {
    "below nothing": [1, -3, 0, 8, 2, 8, 8],
    "outside": [1, 0, 7, 8, 4, 8, 8],
    "nothing": [1, 0, 0, 0, 0, 8, 8],
    "wider than can be": [1, 0, 0, 8, 1 << 40, 8, 8],
}


@pytest.mark.parametrize("lie", PLACES)
def test_a_place_that_is_none_is_its_senders(lie: str, tmp_path: Path) -> None:
    said = refusal("splitconv", tmp_path / "run", "place", lambda _: torch.tensor(PLACES[lie]))
    assert "'party2' sent" in said and "'party3'" not in said


@pytest.mark.parametrize("method", ["splitconv", "adptvfedconv"])
def test_other_maps_at_a_prediction_are_their_senders(method: str, tmp_path: Path) -> None:
    """No batch of a training comes before it."""
    run = colonnade.run(TREE | {"method": method, method: FIRST[method]}, out=tmp_path / "run")
    plain, sent = Peer.send, list[str]()

    def send(self: Any, of: Any, value: Any) -> None:
        sent.append(of.name)
        one = of.name == "maps" and sent.count("maps") == 1
        plain(self, of, value[:, :, :1, :1].contiguous() if one else value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peer, "send", send)
        with pytest.raises(Untrusted, match="'party2' sent"):
            colonnade.load(run.path).predict()
