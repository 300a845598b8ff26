"""The active party's own vector within the mean that it tells: covered by the others' noise, in the
same measure as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import colonnade
from colonnade.wire import store


def sent(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    """The first message of a Kind, by sender."""
    (file,) = (folder / "record").glob(f"{kind}-*.safetensors")
    found: dict[str, torch.Tensor] = {}
    for name, value in sorted(store.read_tensors(file).items()):
        found.setdefault(name.split("/")[1], value)
    return found


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_noise_covers_the_active_partys_own_vector(parties: int, tmp_path: Path) -> None:
    """A passive party subtracts what it knows; the rest is the own vector and others' noise."""
    tree: dict[str, Any] = {
        "method": "easter",
        "epochs": 1,
        "batch_size": 100,
        "absence": False,
        "evaluate_every": 0,
        "record": ["embedding", "global_embedding"],
        "data": {"name": "digits", "train_rows": 100, "test_rows": 200},
        "partition": {"kind": "columns", "parties": parties},
        "easter": {"mask": "none", "dim": 16},
        "protect": {"embedding_epsilon": 4.0, "embedding_clip": 1.0},
    }
    content = colonnade.run(tree, out=tmp_path / "run").content
    told = content["privacy"]["parties"]["party2"]["embeddings"]
    vectors = sent(tmp_path / "run", "embedding")
    shared = sent(tmp_path / "run", "global_embedding")["party1"]
    own = parties * shared - torch.stack(list(vectors.values())).sum(0)
    noise = float(torch.stack(list(vectors.values())).std())  # of which a vector is a small part
    if parties == 2:  # nobody else's noise is left: the party adds its own
        assert float(own.std()) > 0.8 * noise
    else:
        assert float(own.norm(dim=1).max()) < 1.2 * told["clip"] * noise / told["sigma"]
