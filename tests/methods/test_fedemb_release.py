"""What leaves a client of FedEmb: means over groups, changed or noisy, and within a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from fedemb_runs import (
    CLASSES,
    HYBRID,
    PRIVATE,
    ROWS,
    SEED,
    UP,
    R,
    Seen,
    close,
    columns,
    embeddings,
    forward,
    means,
    settings,
    stopped,
    train,
)
from torch import Tensor

import colonnade
from colonnade import config, methods
from colonnade.errors import BudgetSpent, ConfigError
from colonnade.methods import fedemb
from colonnade.methods.fedemb import FedEmb
from colonnade.methods.parts import client_report
from colonnade.privacy import release
from colonnade.privacy.budget import Budget, clip_rows
from colonnade.privacy.grouping import kmeans_groups
from colonnade.privacy.noise import secret_of
from colonnade.results.observer import Observer
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.wire import ledger

pytestmark = pytest.mark.usefixtures("quick_runs")


@pytest.mark.parametrize(
    ("setting", "grouping", "targets"),
    [
        ("vertical", "random", "soft"),
        ("vertical", "class", "mse"),
        ("vertical", "kmeans", "hard"),
        ("hybrid", "random", "mse"),
        ("hybrid", "class", "soft"),
        ("hybrid", "kmeans", "proportions"),
    ],
)
def test_means_over_groups(setting: str, grouping: str, targets: str, tmp_path: Path) -> None:
    """Of what the networks make of all training rows, in evaluation mode, and nothing else."""
    options = {"setting": setting, "grouping": grouping, "targets": targets, "rounds": 2}
    tree = settings(options, **(HYBRID if setting == "hybrid" else {}))
    seen = train(tmp_path / "run", tree)
    memberships = {name: party.state["membership"] for name, party in seen.clients.items()}
    for name, party in seen.clients.items():
        part = seen.parts(name)[-1]
        own = embeddings(party)
        outputs = forward(part, own)
        outputs = outputs.softmax(1) if targets == "soft" else outputs
        close(seen.values("group_embeddings", name)[-1], means(own, memberships[name]))
        close(seen.values("group_outputs", name)[-1], means(outputs, memberships[name]))
        labels = party.splits["train"].y
        assert labels is not None
        sizes = memberships[name].bincount()
        assert len(sizes) <= R and int(sizes.sum()) == len(labels)
        if grouping != "kmeans":
            assert len(sizes) == R
        if grouping == "random":
            assert int(sizes.max() - sizes.min()) <= 1
        pure = all(len(labels[memberships[name] == g].unique()) == 1 for g in range(len(sizes)))
        assert pure is (grouping == "class")
    first = memberships["party1"]
    for name in ("party2", "party3"):
        equal = len(memberships[name]) == len(first) and torch.equal(memberships[name], first)
        assert equal is (setting == "vertical")


def test_other_groups_at_every_client_of_equally_many_rows(tmp_path: Path) -> None:
    """The seed holds the name: in the hybrid setting nobody knows which rows others join."""
    for setting in ("hybrid", "vertical"):
        seen = train(tmp_path / setting, settings({"setting": setting}))  # aligned rows in both
        found = [party.state["membership"] for party in seen.clients.values()]
        assert torch.equal(found[0], found[1]) is (setting == "vertical")


@pytest.mark.parametrize("setting", ["vertical", "hybrid"])
def test_kmeans_looks_at_embeddings_of_the_first_round(setting: str, tmp_path: Path) -> None:
    """In the vertical setting at those of the client whose name comes first."""
    names = ("b", "a", "c")
    tree = settings({"setting": setting, "grouping": "kmeans"}, schedule="constant")
    tree["parties"] = {name: {} for name in names}
    early = train(tmp_path / "one", tree | ({} if setting == "vertical" else HYBRID))
    tree["fedemb"] |= {"rounds": 2}
    later = train(tmp_path / "two", tree | ({} if setting == "vertical" else HYBRID))
    for name in names:
        leader = "a" if setting == "vertical" else name
        seed = derive(SEED, "groups", "" if setting == "vertical" else name)
        found = kmeans_groups(embeddings(early.parties[leader]), R, seed).membership
        assert torch.equal(early.parties[name].state["membership"], found)
        assert torch.equal(later.parties[name].state["membership"], found)
    told = [m for m in later.messages if m.kind is release.MEMBERSHIP]
    assert [m.sender for m in told] == (["a", "a"] if setting == "vertical" else [])


def generalised(x: Tensor, size: int) -> Tensor:
    """Algorithm 2 by hand: neighbours in a column take the least value among them."""
    x = x.clone()
    for column in range(x.shape[1]):
        order = x[:, column].argsort()
        for low in range(0, len(x) // size * size, size):
            high = len(x) if low + 2 * size > len(x) else low + size
            x[order[low:high], column] = x[order[low], column].clone()
    return x


def test_generalised_means(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings({"generalise": 0.2}))
    for name, party in seen.clients.items():
        members, own = party.state["membership"], embeddings(party)
        outputs = forward(seen.parts(name)[0], own)
        for kind, values in (("group_embeddings", own), ("group_outputs", outputs)):
            sent = seen.values(kind, name)[0]
            close(sent, generalised(means(values, members), 4))
            assert max(len(column.unique()) for column in sent.T) <= R // 4


def test_noisy_means(tmp_path: Path) -> None:
    """Laplace(0, b), drawn again for every matrix, client and round; then generalised."""
    scale, drawn = 0.5, []
    seen = train(tmp_path / "run", settings({"noise": scale, "groups": 100}))
    for name, party in seen.clients.items():
        members, own = party.state["membership"], embeddings(party)
        outputs = forward(seen.parts(name)[0], own)
        for kind, values in (("group_embeddings", own), ("group_outputs", outputs)):
            drawn.append((seen.values(kind, name)[0] - means(values, members))[:, :CLASSES])
            assert abs(float(drawn[-1].mean())) < 0.1
            assert float(drawn[-1].abs().mean()) == pytest.approx(scale, rel=0.12)
            assert float(drawn[-1].square().mean()) == pytest.approx(2 * scale**2, rel=0.3)
    for i, one in enumerate(drawn):
        assert all(float((one - other).abs().mean()) > 0.3 for other in drawn[:i])
    options = {"noise": 100.0, "rounds": 2, "generalise": 0.25}
    repeated = {"lr": 1e-9, "protect": {"simulate_noise_seed": 1}}
    again = train(tmp_path / "again", settings(options, **repeated))
    for name in again.clients:
        first, second = again.values("group_embeddings", name)
        assert float((first - second).abs().mean()) > 30  # the same rows with other noise
        assert max(len(column.unique()) for column in first.T) == 4
    assert again.result.weights_sha256 == (  # but the same in another run with this noise
        train(tmp_path / "third", settings(options, **repeated)).result.weights_sha256
    )
    fresh = train(tmp_path / "fresh", settings(options, lr=1e-9))  # without: drawn for itself
    assert fresh.result.weights_sha256["server"] != again.result.weights_sha256["server"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 0},
        {"groups": ROWS},
        {"groups": 0, "noise": 0.1},
        {"generalise": 0.3, "noise": 0.2, "rounds": 2, "targets": "soft"},
        {"epsilon": 20.0, "delta": 0.0},
    ],
    ids=str,
)
def test_ppm_is_the_relative_change(options: dict[str, Any], tmp_path: Path) -> None:
    """Every row's own vector against the one that was sent for its group; the smaller counts."""
    seen = train(tmp_path / "run", settings(options))
    kinds = ("noisy_embeddings", "noisy_outputs") if "epsilon" in options else UP[:2]
    for name, party in seen.clients.items():
        own, members = embeddings(party), party.state["membership"]
        outputs = forward(seen.parts(name)[-1], own)
        outputs = outputs.softmax(1) if "targets" in options else outputs
        terms = []
        for kind, values in zip(kinds, (own, outputs), strict=True):
            change = seen.values(kind, name)[-1][members] - values
            terms.append(float(change.abs().sum() / values.abs().sum()))
        if options.get("groups") in (0, ROWS) and "noise" not in options:
            assert party.figures == {"ppm": 0.0, "ppm_embedding": 0.0, "ppm_output": 0.0}
            continue
        assert terms[0] > 0.01 and terms[1] > 0.01
        assert seen.metrics("ppm_embedding")[name] == pytest.approx(terms[0], rel=1e-4)
        assert seen.metrics("ppm_output")[name] == pytest.approx(terms[1], rel=1e-4)
        assert seen.metrics("ppm")[name] == pytest.approx(min(terms), rel=1e-4)


def test_a_budget_needs_checkpoints(tmp_path: Path) -> None:
    """Begun again with a new secret, a run would tell everything a second time."""
    tree = settings({"epsilon": 4.0}, checkpoint={"epochs": 0})
    with pytest.raises(ConfigError, match="epsilon needs checkpoints"):
        colonnade.run(tree, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"noise": 0.5}, "noise = 0.5"),
        ({"generalise": 0.1, "noise": 0.5}, "noise = 0.5 and generalise = 0.1"),
        ({}, ""),
    ],
    ids=str,
)
def test_heuristics_say_that_they_guarantee_nothing(
    options: dict[str, Any], asked: str, tmp_path: Path
) -> None:
    """In the log and the report, which show warnings; in config.toml, which still can be read."""
    seen = train(tmp_path / "run", settings(options))
    said = [f"no guarantee: [fedemb] {asked} guarantees nobody's privacy. "] * (asked != "")
    warned = seen.result.content["warnings"]
    assert [text.removesuffix("epsilon would give a guarantee") for text in warned] == said
    text = (tmp_path / "run" / "config.toml").read_text()
    assert text.startswith(f"# {said[0]}" if said else "method")
    assert config.load(tmp_path / "run" / "config.toml").options.noise == options.get("noise", 0.0)


def test_labels_of_every_row_are_not_called_those_of_groups() -> None:
    said = [fedemb.caveats(FedEmb(targets="proportions", groups=count)) for count in (0, 9)]
    assert [text.rpartition(" those of ")[2] for (text,) in said] == ["every row", "groups"]


def test_a_clip_that_clips_nothing_is_told() -> None:
    assert fedemb.caveats(FedEmb(clip=2.0)) == ["clip = 2.0 has no effect without epsilon"]
    assert len(fedemb.caveats(FedEmb(clip=2.0, epsilon=1.0))) == 1
    assert not fedemb.caveats(FedEmb())


def test_noisy_kinds_are_declared_randomised() -> None:
    declared = methods.find("fedemb").method.kinds
    noisy = {"noisy_embeddings", "noisy_outputs", "noisy_class_sums", "noise_scale"}
    assert {k.name for k in declared if k.randomised} == noisy


def test_clipped_means_with_noise_to_measure(tmp_path: Path) -> None:
    """b = 2C / (members · ε of one release); other noise in every run, client, matrix, round."""
    options = PRIVATE | {"rounds": 2, "groups": 40, "targets": "soft"}
    drawn: list[Tensor] = []
    for seed in (1, 2):
        seen = train(tmp_path / f"{seed}", settings(options, lr=1e-9, seed=seed))
        for name, party in seen.clients.items():
            members, own = party.state["membership"], embeddings(party)
            outputs = forward(seen.parts(name)[-1], own).softmax(1)
            sizes = members.bincount()
            scale = 2 * 2.0 / sizes / (6.0 / 4)
            assert len(sizes.unique()) == 2
            for kind, values in (("noisy_embeddings", own), ("noisy_outputs", outputs)):
                exact = means(clip_rows(values, 2.0), members)
                noise = (seen.values(kind, name)[-1] - exact) / scale[:, None]
                assert float(noise.abs().mean()) == pytest.approx(1, rel=0.25)
                first, last = seen.values(kind, name)
                assert float(((first - last) / scale[:, None]).abs().mean()) > 0.5
                drawn.append(noise[:, :CLASSES])
    assert len(drawn) == 12
    for number, one in enumerate(drawn):
        assert all(float((one - other).abs().mean()) > 0.5 for other in drawn[:number])


def released(party: Party) -> list[list[float]]:
    """What a client's journal has of its training rows."""
    assert party.journal is not None
    return party.journal.releases(party.records("train")).spent()


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_all_rounds_together_spend_the_budget(delta: float, tmp_path: Path) -> None:
    options = PRIVATE | {"delta": delta, "rounds": 2}
    seen = train(tmp_path / "run", settings(options, partition=columns(2)))
    for name, party in seen.clients.items():
        ((share, count),) = released(party)
        assert count == 4
        spent = Budget(6.0, delta, released(party)).spent
        assert seen.metrics("epsilon")[name] == spent
        assert 5.99 < spent <= 6.0 * (1 + 1e-9)
        if not delta:
            assert share == pytest.approx(1.5, rel=1e-4)
        rounds = [row["parties"] for row in seen.result.history if row["phase"] == "train"]
        shown = [row[name]["epsilon"] for row in rounds]
        assert shown[0] < shown[1]  # means of two releases each
    assert not [kind for kind in seen.result.wire["by_kind"] if kind.startswith("group_")]
    assert "epsilon" not in train(tmp_path / "plain", settings()).result.metrics["test"]


@pytest.mark.parametrize(("planned", "complete"), [(1, 0), (3, 1)])
def test_nothing_leaves_when_the_budget_is_spent(
    planned: int, complete: int, tmp_path: Path
) -> None:
    """The budget of fewer releases than there will be: it ends in the middle of a round."""
    seen = Seen()

    def watch(patch: pytest.MonkeyPatch) -> None:
        original = Budget.share
        patch.setattr(Budget, "share", lambda budget, count: original(budget, planned))

    with pytest.raises(BudgetSpent, match=rf"after {planned} releases.*Nothing was rel") as caught:
        train(tmp_path / "run", settings(PRIVATE | {"rounds": 3}), watch, seen)
    sent = [m.kind.name for m in seen.messages if m.sender == "party1" and m.phase == "train"]
    assert sent == ["ready", *["noisy_embeddings", "noisy_outputs", "public_part"] * complete]
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert content["status"] == "failed" and "the privacy budget is spent" in content["error"]
    assert (
        "Privacy budget spent: ε = 6, δ = 0 for a row at one client" in caught.value.__notes__[-1]
    )


@pytest.mark.parametrize("place", ["first", "training", "tuning"])
def test_a_spent_budget_survives_a_resume(place: str, tmp_path: Path) -> None:
    """Stopped in round 1 or 2, before or after its release; what is told twice is the same."""
    tree = settings(PRIVATE | {"rounds": 2}, checkpoint={"epochs": 1})
    seen = stopped(tmp_path / "run", tree, place)
    first = {name: secret_of(party) for name, party in seen.clients.items()}
    train(tmp_path / "run", tree, seen=seen, resume=tmp_path / "run")
    told: dict[tuple[str, str, int], list[Tensor]] = {}
    for message in seen.messages:
        if message.kind in (client_report.NOISY_EMBEDDINGS, client_report.NOISY_OUTPUTS):
            key = (message.sender, message.kind.name, message.epoch)
            told.setdefault(key, []).append(cast(Tensor, message.value))
    assert len(told) == 3 * 2 * 2
    assert any(len(values) > 1 for values in told.values())
    assert all(torch.equal(values[0], values[-1]) for values in told.values())
    for name, party in seen.clients.items():
        assert secret_of(party) == first[name]
        ((share, count),) = released(party)
        assert count == 4 and share == pytest.approx(1.5, rel=1e-4)
        assert seen.metrics("epsilon")[name] == pytest.approx(6.0, rel=1e-4)
    assert len(set(first.values())) == 3


def test_nobody_releases_before_all_have_a_checkpoint(tmp_path: Path) -> None:
    """Who has released refuses to begin from nothing, so nobody may have to. Stopped wherever some
    client trains for the first time, and gone on with."""
    tree = settings(PRIVATE, epochs=2, checkpoint={"epochs": 1})
    for batches in range(1, 3 * 2 * 5, 4):
        seen = stopped(tmp_path / f"{batches}", tree, "training", batches)
        assert not [m.kind.name for m in seen.messages if m.kind is not release.READY]
        train(tmp_path / f"{batches}", tree, seen=seen, resume=tmp_path / f"{batches}")
        sent = [m.sender for m in seen.messages if m.kind is client_report.NOISY_OUTPUTS]
        assert sorted(sent) == ["party1", "party2", "party3"]


def test_a_stopped_process_tells_what_it_has_spent(tmp_path: Path) -> None:
    class Impatient(Observer):
        def epoch(self, party: str, entry: dict[str, Any]) -> None:
            if entry["phase"] == "train" and entry["epoch"] == 2:
                raise KeyboardInterrupt

    tree = settings(PRIVATE | {"rounds": 40})
    with pytest.raises(KeyboardInterrupt) as caught:
        colonnade.run(tree, out=tmp_path / "run", runtime="process", observer=Impatient())
    assert "Privacy budget spent: ε = " in caught.value.__notes__[-1]
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert content["status"] == "stopped" and content["history"]
    for name, spent in content["metrics"]["test"]["epsilon"].items():
        rows = ledger.read(tmp_path / "run" / "parties" / name / "ledger.jsonl")
        told = sum(row["kind"] == "noisy_embeddings" for row in rows)
        assert told >= 2 and spent == pytest.approx(6.0 / 40 * told, rel=1e-3)
    assert content["metrics"]["test"]["epsilon"].keys() == {"party1", "party2", "party3"}
