"""Noise that is to protect comes from a secret of the party: nobody who knows the seed removes it.

All members know the run's seed, and what each draws from it. And noise that is drawn again for the
same row can be averaged, so a row has the same noise in whichever message it leaves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from colonnade.data import Split
from colonnade.journal import Journal, RunJournal
from colonnade.methods import adptvfedconv
from colonnade.methods.adptvfedconv import AdptVFedConv
from colonnade.methods.parts.tiles import extractor_of
from colonnade.partition import View
from colonnade.privacy.grouping import single_groups
from colonnade.privacy.noise import laplace
from colonnade.privacy.release import Release, protected
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.role.seeds import derive
from colonnade.runtime.drive import drive
from colonnade.task import Task
from colonnade.wire import Peer

SEED, ROWS = 7, 6


def client(folder: Path, run: str = "3f") -> Party:
    """A party of a federation of strangers: its journal has a secret of its own."""
    x = torch.arange(ROWS * 64, dtype=torch.float32).reshape(ROWS, 1, 8, 8).sin()
    made = Party(
        "shop",
        "passive",
        Recipe(),
        Schedule(seed=SEED, epochs=1, batch_size=2),
        {"train": Split(x, None, torch.arange(ROWS))},
        None,
        Task.of(("no", "yes")),
        torch.device("cpu"),
        View.of([0, 0, 8, 8, 8, 8]),
    )
    journal = Journal(folder / "journal")
    made.journal = RunJournal(lambda: journal, run, [f"row {n}" for n in range(ROWS)])
    return made


def uploaded(me: Party, noise: float, chunk: int = ROWS, **options: Any) -> Tensor:
    """What a client of AdptVFedConv sends, in messages of so many rows."""
    sent: list[Any] = []

    class Wire:
        def put(self, receiver: str, kind: Any, value: Any) -> None:
            sent.append(value)

        def reaches(self, receiver: str) -> bool:
            return True

    cfg = AdptVFedConv(**{"cut": "1C", "noise": noise, "chunk": chunk, **options})
    torch.manual_seed(1)
    extractor_of(me, cfg)
    torch.manual_seed(derive(SEED, "party", me.name))  # as a session does
    upload = adptvfedconv.passive_upload(me, Peer("bank", Wire()), cfg, "train")
    drive(upload, lambda wanted: True)
    return torch.cat(sent)


def test_the_noise_of_feature_maps_is_not_drawn_again(tmp_path: Path) -> None:
    """The server seeds its generator as the client did, draws, and subtracts."""
    exact, noisy = (uploaded(client(tmp_path), noise) for noise in (0.0, 2.0))
    torch.manual_seed(derive(SEED, "party", "shop"))
    guessed = noisy - 2.0 * torch.randn_like(exact)
    assert float((guessed - exact).abs().mean()) > 1.0


def test_the_noise_of_a_row_cannot_be_averaged(tmp_path: Path) -> None:
    """The same rows are asked for in messages of other sizes, in other runs and predictions: each
    row comes with the same noise. Two rows never have the same, nor two sizes of noise."""
    first = uploaded(client(tmp_path), 2.0)
    exact = uploaded(client(tmp_path), 0.0)
    for run, chunk in (("3f", ROWS), ("3f", 2), ("40", 4), ("41", 1)):
        again = uploaded(client(tmp_path, run), 2.0, chunk)
        assert torch.allclose(again, first, atol=1e-4)
    added = first - exact
    for row in range(1, ROWS):
        assert float((added[row] - added[0]).abs().mean()) > 1.0
    larger = uploaded(client(tmp_path), 4.0) - exact
    assert float((larger / 2 - added).abs().mean()) > 1.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"padding": "replicate"}, {"padding": "zeros"}),
        ({"cut": "2C"}, {"cut": "2C+1M"}),
    ],
    ids=["other borders", "another cut"],
)
def test_other_maps_of_a_tile_have_other_noise(
    one: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    """The server hands down the same weights in two runs, which differ in a setting. Were the noise
    the same, subtracting would leave exact differences of the maps."""
    first, second = (
        uploaded(client(tmp_path), 2.0, **cut) - uploaded(client(tmp_path), 0.0, **cut)
        for cut in (one, other)
    )
    width = min(first[0].numel(), second[0].numel())
    apart = first.flatten(1)[:, :width] - second.flatten(1)[:, :width]
    assert float(apart.abs().mean()) > 1.0


def test_the_noise_of_means_is_not_drawn_again(tmp_path: Path) -> None:
    """FedEmb's `noise`, without a guarantee: the server draws it from the seed, and subtracts."""
    me, x = client(tmp_path), torch.randn(ROWS, 50)
    noisy = protected(me, x, single_groups(ROWS), Release(noise=10.0))
    seed = derive(SEED, "noise", "shop", 1)
    drawn = laplace(torch.zeros_like(x), 10.0, torch.Generator().manual_seed(seed))
    assert float((noisy - drawn - x).abs().mean()) > 5.0


def test_the_noise_of_equal_means_is_the_same_in_every_round(tmp_path: Path) -> None:
    """FedEmb's `noise`: a network that does not learn any more gives the same means in each round,
    and the server averages what it gets of them."""
    me, x = client(tmp_path), torch.randn(ROWS, 50)
    rounds = [protected(me, x, single_groups(ROWS), Release(noise=10.0)) for _ in range(20)]
    assert float((torch.stack(rounds).mean(0) - x).abs().mean()) > 5.0


def test_the_noise_of_equal_means_is_the_same_in_every_run(tmp_path: Path) -> None:
    """The hub begins run after run with one seed: nobody has learnt anything from anybody in the
    first round, so the means are equal, and it averages what it gets of them. Another size of the
    noise, or a party with another journal, has other noise."""
    x, how = torch.randn(ROWS, 50), Release(noise=10.0)
    runs = [
        protected(client(tmp_path, f"{run:x}"), x, single_groups(ROWS), how) for run in range(20)
    ]
    assert float((torch.stack(runs).mean(0) - x).abs().mean()) > 5.0
    assert all(torch.equal(run, runs[0]) for run in runs)
    other = protected(client(tmp_path / "other"), x, single_groups(ROWS), how)
    larger = protected(client(tmp_path), x, single_groups(ROWS), Release(noise=20.0))
    assert float((other - runs[0]).abs().mean()) > 5.0
    assert float(((larger - x) / 2 - (runs[0] - x)).abs().mean()) > 5.0


def test_two_sizes_of_noise_are_not_one_noise_made_larger(tmp_path: Path) -> None:
    """Within a budget: the same means are released under one name of a run with two clips, or with
    groups of other sizes. Were both the same noise, made larger, the server would solve for the
    means; and what is not the same noise is another release, which must be counted."""
    x, groups = torch.rand(ROWS, 5) / 10, single_groups(ROWS)
    first, second = (
        protected(client(tmp_path), x, groups, Release(epsilon=4.0, clip=clip, planned=4))
        for clip in (10.0, 20.0)
    )
    solved = 2 * first - second
    assert float((solved - x).abs().mean()) > 1.0
    again = client(tmp_path)
    assert again.journal is not None
    assert again.journal.releases(again.records()).spent() == [[1.0, 2]]
