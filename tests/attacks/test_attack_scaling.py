"""One record moves the mean, the spread and the categories of its columns, and so the vectors of
all other rows. Where a guarantee for whole records is claimed, nothing is scaled by records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import colonnade
from colonnade.errors import ConfigError
from colonnade.wire import store

ROWS, CHANGED = 60, 7
RNG = np.random.default_rng(1)
BANK, LABELS = RNG.normal(size=(ROWS, 3)), np.arange(ROWS) % 2
SHOP = RNG.normal(size=(ROWS, 3))


def told(
    folder: Path, shop: NDArray[np.float64], standardise: bool
) -> tuple[NDArray[np.float32], str]:
    """The vectors of validation rows that left the shop, and what is claimed of them."""
    settings: dict[str, Any] = {
        "method": "splitnn",
        "epochs": 1,
        "batch_size": 60,
        "absence": False,
        "record": ["embedding"],
        "data": {"standardise": standardise},
        "splitnn": {"dim": 4, "hidden": 0},
        "model_options": {"hidden": [8]},
        "protect": {"embedding_epsilon": 8.0, "bottom": "frozen", "simulate_noise_seed": 1},
    }
    parties = {"bank": (BANK, LABELS), "shop": shop}
    later = {"bank": (BANK[:20], LABELS[:20]), "shop": shop[20:40]}
    result = colonnade.run(settings, parties=parties, test=later, out=folder)
    (file,) = (folder / "record").glob("*.safetensors")
    values = store.read_tensors(file)
    last = values[max(values)].numpy()  # what was evaluated
    return last, str(result.content["privacy"]["parties"]["shop"]["embeddings"]["claim"])


@pytest.mark.parametrize("standardise", [True, False])
def test_a_claim_for_records_holds_for_the_vectors_of_others(
    standardise: bool, tmp_path: Path
) -> None:
    other = SHOP.copy()
    other[CHANGED] = 1e6  # is no row of those that are evaluated
    (one, claim), (two, _) = (
        told(tmp_path / name, x, standardise) for name, x in (("one", SHOP), ("two", other))
    )
    assert len(one) == 20
    if claim == "per record":
        assert np.array_equal(one, two)
    assert (claim == "per record") is not standardise


def test_fedemb_does_not_claim_records_where_one_brings_a_category_of_its_own(
    tmp_path: Path,
) -> None:
    """A category more is an input more of the random network: all vectors are others."""
    pandas = pytest.importorskip("pandas")
    two = ["red", "blue"] * (ROWS // 2)
    colours = pandas.DataFrame({"colour": two, "trim": two[::-1]})
    settings: dict[str, Any] = {
        "method": "fedemb",
        "epochs": 1,
        "batch_size": 30,
        "data": {"standardise": False, "test": 0.2},
        "checkpoint": {"epochs": 1},
        "fedemb": {
            "public": "random",
            "private": "random",
            "grouping": "class",
            "targets": "class",
            "groups": 2,
            "epsilon": 4.0,
        },
    }
    parties = {"bank": (BANK, LABELS), "shop": (colours, LABELS)}
    with pytest.raises(ConfigError, match="categor"):
        colonnade.run(settings, parties=parties, out=tmp_path / "run")
