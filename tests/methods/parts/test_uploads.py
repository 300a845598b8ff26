"""Feature maps on their way from a client to the server."""

from __future__ import annotations

from typing import Any

import torch

from colonnade.methods.parts.uploads import Upload
from colonnade.wire import Peer


def test_int8_is_read_back_with_the_scale_of_each_channel() -> None:
    """The error of a value is at most half a step of its channel."""
    sent: list[tuple[str, Any]] = []

    class Tapped:
        def put(self, receiver: str, kind: Any, value: Any) -> None:
            sent.append((kind.name, value))

    maps = torch.randn(5, 3, 2, 2) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    Upload("int8", 500).send(Peer("server", Tapped()), maps)
    (_, scale), (_, codes) = sent
    assert [name for name, _ in sent] == ["scale", "maps"]
    assert codes.dtype == torch.int8
    assert codes.abs().amax((0, 2, 3)).tolist() == [127, 127, 127]
    error = (codes.float() * scale[:, None, None] - maps).abs().amax((0, 2, 3))
    assert (error <= 0.501 * scale).all()
