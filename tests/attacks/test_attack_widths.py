"""A party of VFedTrans tells the key generator how many columns it has, and gets masks for them:
one number must not cost the key generator its memory, or an error in its own name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import colonnade
from colonnade.errors import ColonnadeError, Untrusted
from colonnade.privacy import fedsvd
from colonnade.wire import Peer

TREE = {
    "method": "vfedtrans",
    "seed": 5,
    "epochs": 1,
    "batch_size": 64,
    "model_options": {"hidden": [12]},
    "data": {"name": "digits", "train_rows": 150, "test_rows": 60},
    "partition": {"kind": "columns", "parties": 3},
    "checkpoint": {"epochs": 0},
    "vfedtrans": {"unsafe_q": True, "hidden": 16, "distil_epochs": 1, "block": 20},
}


@pytest.mark.parametrize("width", [-1, 0, 1 << 31, 1 << 62, -(1 << 63)])
@pytest.mark.parametrize("block", [0, 20])
def test_an_absurd_width_is_its_senders(
    width: int, block: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain, masks, sent = Peer.send, fedsvd.column_masks, list[int]()

    def send(self: Any, of: Any, value: Any) -> None:
        if of.name == "width":
            sent.append(int(value))
            value = torch.tensor([width]) if len(sent) == 2 else value
        plain(self, of, value)

    def column_masks(seed: bytes, widths: list[int], **options: Any) -> Any:
        assert max(widths) < 1 << 30, "it takes 17 GB"  # the attack, without its harm
        return masks(seed, widths, **options)

    monkeypatch.setattr(Peer, "send", send)
    monkeypatch.setattr(fedsvd, "column_masks", column_masks)
    tree = TREE | {"vfedtrans": {**TREE["vfedtrans"], "block": block}}  # type: ignore[dict-item]
    began = time.monotonic()
    with pytest.raises(ColonnadeError) as caught:
        colonnade.run(tree, out=tmp_path / "run")
    assert isinstance(caught.value, Untrusted) and "'party2' sent" in str(caught.value)
    assert "'party1'" not in str(caught.value) and time.monotonic() - began < 20


def test_masks_of_the_widest_party_fit_into_memory() -> None:
    """What is let through costs 2 GB at most, and the columns of a real table are let through."""
    for width, block in ((27_648, 100), (16_384, 0), (200_000, 100)):
        assert fedsvd.checked_width("shop", width, block) == width
        assert 8 * width * (block or width) <= 1 << 31
    for width, block in ((1 << 19, 2), (200_000, 100_000), (16_385, 0)):
        with pytest.raises(Untrusted, match="'shop' sent"):
            fedsvd.checked_width("shop", width, block)
