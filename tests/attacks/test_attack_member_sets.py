"""No step meets two sets of members.

EASTER's hub learns the sum over the passive parties. Who has the sum of the same rows under the
same weights once with and once without a party has the difference: that party's embedding, whatever
the masks. So a passive party refuses a step that it has begun with other members, whatever the hub
says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from child import Plan
from federations import Field, toy
from numpy.typing import NDArray
from nursery import Nursery
from points import Kill

from colonnade.role.seeds import derive

LIAR = Path(__file__).with_name("liar.py")
LOST = "party4"


def attacked(
    nursery: Nursery, folder: Path, on_lost: str, epochs: int = 2, **lies: list[str]
) -> Field:
    """A federation of strangers, each with a journal of its own, in which some lie."""
    tree = toy("easter", 4, epochs=epochs)
    field = Field(folder / "field", tree, on_lost=on_lost, deadline=8.0)
    program = (*nursery.program(Path("x"))[:-2], str(LIAR), json.dumps(lies))
    for name in field.names:
        field.start(name, program)
    for name in field.names:
        if name != LOST:
            field.processes[name].wait(40)
    field.close()
    return field


def read(field: Field) -> float:
    """How far what the hub has computed is from the embedding of the party that it left out."""
    sums = {name: np.load(path) for path in field.out("party1").glob("sum-*.npy")
            for name in [path.stem]}  # fmt: skip
    if len(sums) < 2:
        return float("inf")
    truth = np.load(field.out(LOST) / "embedding.npy")
    return float(np.abs(sums["sum-4"] - sums["sum-3"] - truth).max())


@pytest.mark.slow
@pytest.mark.parametrize("on_lost", ["wait", "continue"])
def test_a_step_is_not_repeated_without_a_party(
    on_lost: str, nursery: Nursery, tmp_path: Path
) -> None:
    """The hub calls everybody back to the beginning and leaves one party out of the very first
    step; the difference of the two sums must stay unknown, and the others name the hub."""
    field = attacked(
        nursery, tmp_path, on_lost, party1=["repeat_without"], party4=["note_embedding"]
    )
    assert read(field) > 0.01
    for name in ("party2", "party3"):
        assert "'party1'" in field.log(name) and "'party4'" in field.log(name)
        assert "Untrusted" in field.log(name)


@pytest.mark.slow
def test_a_policys_members_are_those_who_take_part(nursery: Nursery, tmp_path: Path) -> None:
    """A policy wants four parties to take part; one is left behind, and the file still names four.
    The other passive parties must send nothing any more."""
    field = Field(tmp_path / "field", toy("easter", 4), on_lost="continue", deadline=1.5)
    with field.changed() as content:
        content["policy"]["allow"]["masked_embedding"]["min_members"] = 4
    program = nursery.program(Plan([Kill("ledger: after", LOST, 9)]).write(tmp_path / "plan"))
    for name in field.names:
        field.start(name, program)
    codes = field.wait()
    assert codes.pop(LOST) == -9 and set(codes.values()) == {1}
    assert "requires 4 members and 3 take part" in field.log("party2") + field.log("party3")


def rows_of(epoch: int, sums: Mapping[int, NDArray[np.float32]]) -> dict[int, NDArray[np.float32]]:
    """What is known of each row after an epoch: everybody knows the order of the rows."""
    generator = torch.Generator().manual_seed(derive(3, "order", "train", epoch))
    order = torch.randperm(200, generator=generator).tolist()
    return {
        row: numbers
        for step, found in sums.items()
        for row, numbers in zip(order[20 * step : 20 * step + 20], found, strict=True)
    }


@pytest.mark.slow
def test_weights_that_a_hub_keeps_as_they_are(nursery: Nursery, tmp_path: Path) -> None:
    """What is not covered, so that nobody claims it: a hub returns zeros as gradients, and says in
    the second epoch that a party is lost. No step is repeated, and the difference of two epochs is
    that party's embeddings. Only on_lost = "continue" lets it do so. The others notice at that
    epoch's end, when rows are evaluated: the weights are those of the first."""
    field = attacked(
        nursery,
        tmp_path,
        "continue",
        epochs=3,
        party1=["keep_weights_and_lose"],
        party4=["note_embeddings"],
    )

    def read(name: str, what: str, epoch: int) -> dict[int, NDArray[np.float32]]:
        found = {int(p.stem.split("-")[-1]): np.load(p) for p in field.out(name).glob(what)}
        return rows_of(epoch, found)

    everybody, truth = read("party1", "sum-0-*.npy", 0), read(LOST, "embedding-*.npy", 0)
    second = read("party1", "sum-1-*.npy", 1)
    found = [
        np.abs(everybody[row] - sums - truth[row]).max() < 1e-4 for row, sums in second.items()
    ]
    assert sum(found) >= 100
    assert not list(field.out("party1").glob("sum-2-*.npy"))
    for name in ("party2", "party3"):
        assert "have met others before under the same weights" in field.log(name)
