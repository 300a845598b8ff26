"""FedEmb where no weights leave: public parts are random, drawn from the seed at both ends."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from fedemb_runs import (
    CLASSES,
    REPEATED,
    ROWS,
    SEED,
    TEST,
    WIDTH,
    R,
    Seen,
    as_part,
    close,
    embeddings,
    forward,
    same,
    settings,
    stopped,
    train,
)
from torch import Tensor

import colonnade
from colonnade import config
from colonnade.errors import ConfigError
from colonnade.methods import fedemb
from colonnade.methods.fedemb import FedEmb
from colonnade.methods.parts import class_report
from colonnade.models.drawn import drawn_part
from colonnade.privacy.budget import clip_rows, in_steps, step_of, sums
from colonnade.privacy.grouping import Grouping, class_places
from colonnade.role.seeds import derive

pytestmark = pytest.mark.usefixtures("quick_runs")
RANDOM: dict[str, Any] = {"public": "random", "grouping": "class", "targets": "class"}
ALL_RANDOM: dict[str, Any] = RANDOM | {"private": "random"}
LARGE = {"epsilon": 1e9, "delta": 0.0, "clip": 5.0}
PLAIN = {"data": {"standardise": False}}
EACH = R // CLASSES  # groups of a class


def places(seen: Seen, name: str) -> tuple[Grouping, Tensor]:
    """The groups of a client's rows, and its labels."""
    labels = seen.clients[name].splits["train"].y
    assert labels is not None
    return class_places(labels, CLASSES, R, derive(SEED, "groups", "")), labels


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("options", [RANDOM, ALL_RANDOM], ids=["public", "all"])
def test_nothing_but_sums_of_classes_crosses(
    options: dict[str, Any], noisy: bool, tmp_path: Path
) -> None:
    more = LARGE if noisy else {}
    seen = train(tmp_path / "run", settings(options | more, **REPEATED, **PLAIN))
    up = ["noisy_class_sums", "noise_scale", "public_shape"]
    up = up if noisy else ["class_sums", "public_shape"]
    for name in seen.clients:
        told = [m for m in seen.messages if m.sender == name and m.phase == "train"]
        assert [m.kind.name for m in told if m.kind.name != "ready"] == up
        (shape,) = seen.values("public_shape", name)
        assert shape.keys() == {"widths", "rows", "evaluations"}
        assert shape["widths"].tolist() == [WIDTH, 10, CLASSES]
        assert (shape["rows"], shape["evaluations"]) == (ROWS, 1)
        (told_sums,) = seen.values(up[0], name)
        assert told_sums.shape == (CLASSES * EACH, WIDTH + 1)
    down = {m.kind.name for m in seen.messages if m.sender == "server"}
    assert down == {"scores"} | ({"ready"} if noisy else set())


@pytest.mark.parametrize("rounds", [1, 2])
def test_public_parts_are_drawn_from_the_seed_and_stay(rounds: int, tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings(RANDOM | {"rounds": rounds, "server_epochs": 0}))
    drawn = {}
    for number, name in enumerate(seen.clients):
        drawn[name] = drawn_part([WIDTH, 10, CLASSES], derive(SEED, "public", name))
        assert same(as_part(seen.weights(name)["public"]), drawn[name])
        assert same(seen.block(number), drawn[name])  # the server's, which told it nothing
        before, _ = seen.starts[name]
        trained = seen.weights(name)["private"]
        moved = [not torch.equal(trained[k], v) for k, v in before.state_dict().items()]
        assert all(moved)  # the private part learns under it
    assert not same(drawn["party1"], drawn["party2"])
    bound = (6 / WIDTH) ** 0.5
    assert 0.9 * bound < float(drawn["party1"]["0.weight"].abs().max()) <= bound


def test_with_random_private_parts_nothing_is_trained_but_the_server(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings(ALL_RANDOM, epochs=3, **PLAIN))
    for name in seen.clients:
        for before, kept in zip(seen.starts[name], ("private", "public"), strict=True):
            assert same(before.state_dict(), seen.weights(name)[kept])
    rows = [row["parties"] for row in seen.result.history]
    assert not any("loss" in told.get(name, {}) for told in rows for name in seen.clients)
    assert "alone" not in seen.result.metrics["test"]
    again = train(tmp_path / "again", settings(ALL_RANDOM, epochs=1, **PLAIN))
    assert again.result.weights_sha256 == seen.result.weights_sha256


def test_the_sums_are_those_of_rows_of_a_class(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings(RANDOM))
    for name, party in seen.clients.items():
        groups, labels = places(seen, name)
        own = embeddings(party)
        (told,) = seen.values("class_sums", name)
        for group in range(CLASSES * EACH):
            mine = groups.membership == group
            assert (labels[mine] == group // EACH).all()
            close(told[group, :-1], own[mine].sum(0))
            assert float(told[group, -1]) == int(mine.sum())


def test_clipped_sums_with_next_to_no_noise(tmp_path: Path) -> None:
    """A sixteenth of the clip counts the row, and the rest is its embedding's."""
    options = RANDOM | LARGE | {"clip": 1.0}
    seen = train(tmp_path / "run", settings(options, **REPEATED))
    for name, party in seen.clients.items():
        groups, _ = places(seen, name)
        rows = clip_rows(embeddings(party), 15 / 16)
        (told,) = seen.values("noisy_class_sums", name)
        close(told[:, :-1], groups.sums(rows), 1e-2)
        close(told[:, -1] * 16, groups.sizes.float(), 1e-2)
        one, spread = seen.values("noise_scale", name)[0].tolist()
        assert (one, spread) == (1 / 16, pytest.approx(2e-9))


def test_the_server_tunes_on_means_of_known_classes(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings(RANDOM | {"control": True}))
    tuned = seen.tuned[0]
    classes = torch.arange(CLASSES * EACH) // EACH
    assert torch.equal(tuned.targets.argmax(1), classes) and tuned.targets.sum() == len(classes)
    for number, (name, party) in enumerate(seen.clients.items()):
        groups, _ = places(seen, name)
        own = embeddings(party)
        due = groups.sums(own) / groups.sizes.clamp(min=1)[:, None]
        close(tuned.inputs[:, number], due)


@pytest.mark.parametrize("options", [RANDOM, ALL_RANDOM], ids=["public", "all"])
def test_one_record_changes_what_is_told_within_the_clip(options: dict[str, Any]) -> None:
    """Its features and its label, before noise: by twice the clip in all, which is what the noise
    is made for. With trained private parts this is so only where the network is given."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(CLASSES, (ROWS,), generator=generator)
    x, seed = 9 * torch.randn(ROWS, WIDTH, generator=generator), derive(SEED, "groups", "")
    before = sums(x, class_places(labels, CLASSES, R, seed), 2.0)
    for row in range(ROWS):
        others, changed = labels.clone(), x.clone()
        others[row] = (labels[row] + 1 + row % 9) % CLASSES
        changed[row] = -5 * x[row]
        after = sums(changed, class_places(others, CLASSES, R, seed), 2.0)
        moved = (before - after).abs().sum(1)
        assert int((moved > 0).sum()) == 2
        assert int(moved.sum()) <= 2 * int(2.0 / step_of(2.0))
    assert in_steps(x, 2.0).abs().sum(1).float().mean() > 0.99 * 2.0 / step_of(2.0)
    assert FedEmb(**options, **LARGE).release.named == ("embedding",)


def test_a_changed_record_changes_no_other_rows_sums(tmp_path: Path) -> None:
    """Two runs that differ in one row of one client, all networks random: of what it tells in
    training, at most two groups differ. Trained private parts let it shape all groups."""
    changed = {}
    for title, options in {"all": ALL_RANDOM, "public": RANDOM}.items():
        told = []
        for number in range(2):
            x, y = torch.rand(80, 6, generator=torch.Generator().manual_seed(1)), torch.arange(80)
            x[7] = x[7] if number else 3.0
            parties: dict[str, Any] = {
                name: (x.numpy() * scale, (y % 4).numpy())
                for name, scale in {"a": 1.0, "b": 0.5}.items()
            }
            tree = settings(options | {"groups": 8}, evaluate_every=0)
            tree = {k: v for k, v in tree.items() if k not in ("data", "partition")}
            tree["data"] = {"standardise": False}
            seen = train(tmp_path / f"{title}{number}", tree, parties=parties)
            told.append(seen.values("class_sums", "a")[0])
        changed[title] = int(((told[0] - told[1]).abs() > 0).any(1).sum())
    assert changed == {"all": 1, "public": 8}


def test_a_spread_of_columns_is_no_part_of_a_record(tmp_path: Path) -> None:
    """Mean and spread of the columns come from all rows, and epsilon does not cover them."""
    tree = settings(ALL_RANDOM | LARGE)
    with pytest.raises(ConfigError, match="standardise = false"):
        colonnade.run(tree, out=tmp_path / "run")
    colonnade.run(settings(ALL_RANDOM, epochs=1), out=tmp_path / "unclaimed")


def test_what_is_claimed() -> None:
    (all_random,) = fedemb.caveats(FedEmb(**ALL_RANDOM, epsilon=2.0))
    (public,) = fedemb.caveats(FedEmb(**RANDOM, epsilon=2.0))
    assert "everything that one client tells of a row that is trained on" in all_random
    assert "rows that are evaluated" in all_random and "rows that are evaluated" in public
    assert "that the private part has learnt from" in public
    (open_labels,) = fedemb.caveats(FedEmb(**RANDOM))
    assert "the class of every group" in open_labels


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"public": "random"}, "need each other.*needs grouping = 'class'"),
        ({"private": "random"}, "private = 'random' needs public = 'random'"),
        ({"targets": "class"}, "need each other"),
        (RANDOM | {"groups": 0}, "and groups"),
        (RANDOM | {"noise": 1.0}, "neither noise nor generalise"),
        (RANDOM | {"setting": "hybrid", "match": "class"}, "omit combinations and match"),
        (ALL_RANDOM | {"rounds": 2}, "nothing to learn in a second round"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config.load(settings(wrong))


def test_clients_with_other_rows(tmp_path: Path) -> None:
    tree = settings(RANDOM | {"setting": "hybrid", "widen": True}, **_hybrid())
    seen = train(tmp_path / "run", tree)
    counts = {name: int(seen.values("class_sums", name)[0][:, -1].sum()) for name in seen.clients}
    assert counts == {name: len(p.splits["train"]) for name, p in seen.clients.items()}
    assert seen.tuned[0].inputs.shape == (CLASSES * EACH, 3, WIDTH)


def _hybrid() -> dict[str, Any]:
    return {"partition": {"kind": "hybrid", "parties": 3}}


@pytest.mark.parametrize("options", [RANDOM | {"rounds": 2}, ALL_RANDOM], ids=["public", "all"])
def test_resumed_and_predicted(options: dict[str, Any], tmp_path: Path) -> None:
    """Within a budget and with clips that were found: as one run that was not stopped, its budget
    spent once, and predictions as its evaluation."""
    options |= {"epsilon": 500.0, "delta": 0.0, "clip": "private"}
    tree = settings(options, checkpoint={"epochs": 1}, **REPEATED, **PLAIN)
    whole = train(tmp_path / "whole", tree)
    seen = stopped(tmp_path / "run", tree, "first")
    train(tmp_path / "run", tree, seen=seen, resume=tmp_path / "run")
    assert seen.result.weights_sha256 == whole.result.weights_sha256
    for name in seen.clients:
        assert seen.metrics("epsilon")[name] == pytest.approx(500.0, rel=1e-4)
        told = seen.values("noisy_class_sums", name)
        assert torch.equal(told[0], told[1])  # the first round's, before it was stopped and again
    trained = colonnade.load(tmp_path / "run")
    found, labels = trained.predict(), trained.labels()
    assert len(labels) == TEST
    for name in seen.clients:
        assert float((found[name].codes == labels).double().mean()) == seen.metrics()[name]


def test_one_process_per_party_ends_alike(tmp_path: Path) -> None:
    tree = settings(ALL_RANDOM | LARGE, **REPEATED, **PLAIN)
    here = train(tmp_path / "here", tree)
    apart = colonnade.run(tree, out=tmp_path / "apart", runtime="process")
    assert apart.weights_sha256 == here.result.weights_sha256


@pytest.mark.parametrize("spread", [0.0, 3.0, 1e6])
def test_counts_are_believed_as_far_as_noise_allows(spread: float) -> None:
    """The server divides by what the groups say of their own size; under noise by the mean of the
    class, which has less of it."""
    true = torch.tensor([80.0, 120.0, 90.0, 110.0])
    found = class_report._counts(true.clone(), 2, 1.0, spread)
    if not spread:
        assert torch.equal(found, true)
    elif spread == 3.0:
        assert ((found - 100).abs() < (true - 100).abs()).all() and (found != 100).all()
    else:
        close(found, torch.full((4,), 100.0), 1e-3)


def test_means_are_widened_as_far_as_noise_allows() -> None:
    generator = torch.Generator().manual_seed(2)
    classes = torch.arange(400) // 40
    plain = torch.randn(400, 30, generator=generator)
    assert class_report._signal(plain, classes, 0.0) == 1.0
    noise = torch.distributions.Laplace(0.0, 1.0).sample(plain.shape)
    assert class_report._signal(plain + noise, classes, 1.0) == pytest.approx(1 / 3, abs=0.05)
    assert class_report._signal(noise, classes, 1.5) == 0.0
    told = class_report.Told(plain, plain, None, {}, 0, 4000, "a", alike=2.5)
    assert told.rows_of_a_group == 2.5
    assert dataclasses.replace(told, alike=None).rows_of_a_group == 10
    assert forward({"0.weight": torch.eye(2), "0.bias": torch.ones(2)}, torch.ones(1, 2)).sum() == 4
