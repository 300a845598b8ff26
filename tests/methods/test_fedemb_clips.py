"""Where FedEmb clips within a budget: apart for embeddings and outputs, alike wherever a row
leaves, and at a bound that the user chooses or that is found within the budget.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fedemb_runs import REPEATED, close, embeddings, forward, means, settings, train

import colonnade
from colonnade import config
from colonnade.errors import ConfigError, Diverged
from colonnade.methods import fedemb
from colonnade.methods.fedemb import FedEmb
from colonnade.privacy.budget import Budget, clip_rows
from colonnade.privacy.counted import EDGES
from colonnade.role.party import Party
from colonnade.runtime import local

pytestmark = pytest.mark.usefixtures("quick_runs")
LARGE = {"epsilon": 1e9, "delta": 0.0}  # next to no noise


def released(party: Party) -> list[list[float]]:
    """What a client's journal has of its training rows."""
    assert party.journal is not None
    return party.journal.releases(party.records("train")).spent()


@pytest.mark.parametrize(
    ("clips", "of_embeddings", "of_outputs"),
    [
        ({"clip": 1.0}, 1.0, 1.0),
        ({"clip": 1.0, "clip_output": 0.5}, 1.0, 0.5),
        ({"clip_embedding": 0.8, "clip_output": 0.5}, 0.8, 0.5),
    ],
    ids=str,
)
def test_embeddings_and_outputs_have_clips_of_their_own(
    clips: dict[str, float], of_embeddings: float, of_outputs: float, tmp_path: Path
) -> None:
    seen = train(tmp_path / "run", settings(LARGE | clips, **REPEATED))
    for name, party in seen.clients.items():
        own, members = embeddings(party), party.state["membership"]
        outputs = forward(seen.parts(name)[-1], own)
        assert float(own.abs().sum(1).max()) > of_embeddings
        assert float(outputs.abs().sum(1).max()) > of_outputs
        for kind, values, bound in (
            ("noisy_embeddings", own, of_embeddings),
            ("noisy_outputs", outputs, of_outputs),
        ):
            close(seen.values(kind, name)[-1], means(clip_rows(values, bound), members), 1e-3)


def test_what_is_evaluated_is_clipped_as_what_is_tuned_on(tmp_path: Path) -> None:
    """In training and in a prediction. Without a budget nothing is clipped."""
    seen = train(tmp_path / "run", settings(LARGE | {"clip_embedding": 0.5}, **REPEATED))
    for name, party in seen.clients.items():
        test = embeddings(party, "test")
        assert float(test.abs().sum(1).median()) > 0.5
        close(torch.cat(seen.values("embedding", name)), clip_rows(test, 0.5))
    told: dict[str, list[torch.Tensor]] = {}
    send = local.Mailboxes.send

    def spied(mail: local.Mailboxes, message: Any, *given: Any) -> None:
        if message.kind.name == "embedding":
            told.setdefault(message.sender, []).append(message.value.clone())
        send(mail, message, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local.Mailboxes, "send", spied)
        colonnade.load(tmp_path / "run").predict()
    for name in seen.clients:
        assert torch.equal(torch.cat(told[name]), torch.cat(seen.values("embedding", name)))
    plain = train(tmp_path / "plain", settings())
    for name, party in plain.clients.items():
        assert torch.equal(torch.cat(plain.values("embedding", name)), embeddings(party, "test"))


def test_a_private_clip_is_about_the_median_and_is_paid_for(tmp_path: Path) -> None:
    """Each matrix and client has its own. Its counts cost the share that is stated, together with
    the releases no more than ε; and it is kept with the weights, so that predictions have it."""
    options = {"epsilon": 400.0, "delta": 0.0, "clip": "private", "clip_share": 0.25, "rounds": 2}
    seen = train(tmp_path / "run", settings(options, **REPEATED))
    found = set()
    for name, party in seen.clients.items():
        assert sorted(released(party)) == [[50.0, 2], [pytest.approx(75.0, rel=1e-4), 4]]
        assert 399.9 < Budget(400.0, 0.0, released(party)).spent <= 400.0 * (1 + 1e-9)
        assert seen.metrics("epsilon")[name] == pytest.approx(400.0, rel=1e-4)
        kept = seen.weights(name)
        clips = [float(kept[f"clip_{what}"]["bound"]) for what in ("embedding", "output")]
        assert all(clip in EDGES.tolist() for clip in clips)
        found |= set(clips)
        told = torch.cat(seen.values("embedding", name)).abs().sum(1)
        assert float(told.max()) == pytest.approx(clips[0], rel=1e-4)
    assert len(found) > 2  # of three clients and two matrices


def test_half_of_the_rows_are_longer_than_a_private_clip(tmp_path: Path) -> None:
    """Of the rows of the first round, from which it is taken, but for the width of a bin."""
    options = LARGE | {"clip": "private"}
    seen = train(tmp_path / "run", settings(options, **REPEATED))
    for name, party in seen.clients.items():
        own = embeddings(party)
        for what, values in (("embedding", own), ("output", forward(seen.parts(name)[-1], own))):
            norms = values.abs().sum(1).double()
            bound = float(seen.weights(name)[f"clip_{what}"]["bound"])
            assert (norms <= bound).double().mean() >= 0.5
            assert (norms <= bound * 2**-0.25).double().mean() < 0.5


@pytest.mark.parametrize(("share", "different"), [(0.001, True), (0.999, False)])
def test_a_private_clip_is_chosen_with_noise(share: float, different: bool, tmp_path: Path) -> None:
    """The rows are the same, and the noise of their counts is other noise: with next to no ε for
    it, it decides, and with much it does not."""
    options = {"epsilon": 1e4 if share > 0.5 else 10.0, "delta": 0.0, "clip": "private"}
    found: dict[str, set[float]] = {}
    for seed in range(3):
        noise = {"simulate_noise_seed": seed}
        tree = settings(options | {"clip_share": share}, protect=noise, evaluate_every=0)
        seen = train(tmp_path / f"{seed}", tree)
        for name in seen.clients:
            bound = float(seen.weights(name)["clip_embedding"]["bound"])
            found.setdefault(name, set()).add(bound)
    assert any(len(bounds) > 1 for bounds in found.values()) is different


def test_rows_that_have_diverged_have_no_length(tmp_path: Path) -> None:
    options = {"epsilon": 10.0, "clip": "private"}
    with pytest.raises(Diverged, match="diverged"):
        train(tmp_path / "run", settings(options, lr=1e30, optimizer="sgd"))


@pytest.mark.parametrize(
    "bad", [{"clip": "median"}, {"clip_embedding": -1.0}, {"clip_output": "often"}], ids=str
)
def test_clips_that_are_none_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        config.load(settings(bad))


def test_clips_that_do_nothing_are_told() -> None:
    said = fedemb.caveats(FedEmb(clip_output=2.0)), fedemb.caveats(FedEmb(clip="private"))
    assert said == (
        ["clip_output = 2.0 has no effect without epsilon"],
        ["clip = private has no effect without epsilon"],
    )
