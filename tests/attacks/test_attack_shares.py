"""Shares of noise in masked sums: each sum has noise of its own, whoever takes part, and a Kind of
sums whose terms nobody has noised does not leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from covert import shop
from torch import Tensor

import colonnade
from colonnade import config
from colonnade.errors import BudgetSpent, ColonnadeError, ConfigError, MaskError
from colonnade.privacy.masking import MASKED
from colonnade.privacy.protection import protect
from colonnade.privacy.rows import Plan
from colonnade.privacy.settings import Protect
from colonnade.privacy.sums import SumNoise, share
from colonnade.role.party import Party
from colonnade.wire import Kind

HOW = Protect(embedding_epsilon=8.0)
WIDTH = 6
OWN_SUM = Kind("own_sum", ("batch", "dim"), reveals="a sum of features", carries="sums")


def party(place: Path, split: str) -> Party:
    me = shop(place, "a1", 1, 30, {split: 30} if split != "train" else {})
    if split != "train":
        me.splits = {split: me.splits[split]}
    protect(me, HOW)
    assert me.protection is not None
    me.protection.begin(me)
    return me


def terms(place: Path, split: str, senders: int) -> Tensor:
    """What this party adds to sums of so many, of vectors that never change."""
    me, found = party(place, split), []
    assert me.protection is not None
    for _ in me.epochs() if split == "train" else range(1):
        for batch in me.batches() if split == "train" else me.rows(split, 10):
            value = torch.full((len(batch), WIDTH), 0.1)
            found.append(me.protection.term(me, MASKED, value, senders))
    return torch.cat(found)


def test_the_same_step_with_fewer_senders_is_not_done_again(tmp_path: Path) -> None:
    """Its share is larger: where the same words made it, two sums would show the noise of both."""
    first = terms(tmp_path, "train", 4)
    assert torch.equal(terms(tmp_path, "train", 4), first)
    with pytest.raises(BudgetSpent):
        terms(tmp_path, "train", 3)


def test_a_prediction_with_fewer_senders_has_noise_of_its_own(tmp_path: Path) -> None:
    first, second = (terms(tmp_path, "predict", senders) - 0.1 for senders in (4, 3))
    both = torch.stack([first.flatten(), second.flatten()])
    assert abs(float(both.corrcoef()[0, 1])) < 0.4


def test_a_kind_of_sums_whose_terms_have_no_noise_does_not_leave(tmp_path: Path) -> None:
    """A method that adds up by itself, and says "sums": ε would be promised for it."""
    me = party(tmp_path, "train")
    assert me.protection is not None
    assert me.protection.guaranteed(OWN_SUM) is not None
    for _ in me.epochs():
        for batch in me.batches():
            with pytest.raises(ColonnadeError, match="own_sum"):
                me.protection.applied(me, OWN_SUM, torch.zeros(len(batch), WIDTH))
            return


def settings(clip: float, **options: Any) -> dict[str, Any]:
    return {
        "method": "easter",
        "name": "toy",
        "epochs": 1,
        "batch_size": 50,
        "absence": False,
        "data": {"name": "digits", "train_rows": 100, "test_rows": 50},
        "partition": {"kind": "columns", "parties": 4},
        "easter": {"dim": 4, **options},
        "model_options": {"hidden": [8]},
        "protect": {"embedding_epsilon": 8.0, "embedding_clip": clip},
    }


def test_shares_that_a_ring_would_round_off_do_not_leave(tmp_path: Path) -> None:
    """Each share would be rounded by itself: of many small ones nothing is left in the sum."""
    coarse = {"ring": 32, "fraction": 2}
    with pytest.raises(MaskError, match=r"party.*masked_embedding.*embedding_clip"):
        colonnade.run(settings(0.1, **coarse), out=tmp_path / "coarse")
    colonnade.run(settings(0.1), out=tmp_path / "fine")


@pytest.mark.parametrize("colluding", [0, 1, 2])
@pytest.mark.parametrize("senders", [2, 3, 5])
def test_a_sender_that_gets_the_sum_back_finds_all_of_the_noise(
    senders: int, colluding: int, tmp_path: Path
) -> None:
    """Every sender gets the mean of all embeddings, and knows its own share of the noise. So one
    colludes at least, with itself; it looks at another sender's vector, and at the receiver's."""
    tree = settings(1.0)
    tree["protect"]["colluding"] = colluding
    try:
        how = config.load(tree).protect
    except ConfigError as error:
        assert "colluding" in str(error)
        return
    noise = SumNoise(how, Plan.of(how, shop(tmp_path, "a1", 1, 30, {}).schedule, discrete=True))
    known = max(how.colluding, 1)
    unknown = max(senders - known, 1) * share(noise.sigma, senders, how.colluding) ** 2
    assert unknown >= noise.sigma**2 * (1 - 1e-9)
