"""FedEmb against hand computations: what crosses, what u is tuned to, what comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from fedemb_runs import (
    CLASSES,
    EVERY_ROW,
    HYBRID,
    REPEATED,
    ROWS,
    SEED,
    TEST,
    UP,
    WIDE,
    WIDTH,
    R,
    apart,
    as_part,
    close,
    columns,
    embeddings,
    forward,
    in_memory,
    means,
    same,
    settings,
    stopped,
    train,
    without_time,
)
from sklearn import datasets
from torch import Tensor
from torch.nn import functional as F

import colonnade
from colonnade import assembly, config, data, methods
from colonnade.errors import ColonnadeError, ConfigError, DataError, MethodError
from colonnade.methods import fedemb
from colonnade.methods.fedemb import FedEmb
from colonnade.methods.parts import client_report
from colonnade.methods.parts.client_report import Told
from colonnade.models.joined import Joined, part_of
from colonnade.privacy import release
from colonnade.report import load_schema
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.runtime.drive import reproducible
from colonnade.wire import ledger

pytestmark = pytest.mark.usefixtures("quick_runs")


# ---- 1. what every client trains -----------------------------------------------------------------


def test_a_client_trains_by_itself_as_a_plain_loop(tmp_path: Path) -> None:
    """Its own order of its own rows, cross-entropy on its labels, `epochs` + later ones."""
    options = {"rounds": 2, "later_epochs": 2, "return_blocks": False}
    tree = settings(options, epochs=2)
    seen = train(tmp_path / "run", tree)
    for name, party in assembly.from_catalogue(config.load(tree)).parties.items():
        if name == "server":
            continue
        private, public = seen.starts[name]
        plain = party.optimizer(private, public)
        with reproducible(1, False):
            party.progress.skip_to("train", 1, 0)  # in its first epoch, nothing is trained
            for phase, count in (("local", 2), ("train", 3)):
                for _ in party.epochs(phase, count):
                    for batch in party.batches(shared=False):
                        plain.zero_grad()
                        F.cross_entropy(public(private(batch.x)), batch.labels).backward()
                        plain.step()
        assert same(seen.weights(name)["private"], private.state_dict())
        assert same(seen.weights(name)["public"], public.state_dict())
        assert same(seen.parts(name)[-1], part_of(public))


# ---- 2. to 5. and 9. what crosses ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "changes", "up", "once"),
    [
        ({}, {}, UP, []),
        ({"rounds": 3, "return_blocks": False}, {}, UP, []),
        ({"rounds": 2, "groups": 1000}, {}, UP, []),
        ({"groups": 0, "targets": "proportions"}, {}, [*UP[:2], "proportions", UP[2]], []),
        ({"rounds": 2, "grouping": "class", "targets": "soft"}, {}, UP, []),
        ({"rounds": 2, "grouping": "kmeans"}, {}, UP, ["membership"]),
        ({"rounds": 2, "grouping": "kmeans", "groups": 0}, {}, UP, []),
        ({"setting": "hybrid", "grouping": "kmeans", "rounds": 2}, HYBRID, UP, []),
        (
            {"epsilon": 4.0, "delta": 0.0, "rounds": 2},
            {},
            ["noisy_embeddings", "noisy_outputs", "public_part"],
            ["ready"],
        ),
    ],
    ids=str,
)
def test_what_crosses(
    options: dict[str, Any],
    changes: dict[str, Any],
    up: list[str],
    once: list[str],
    tmp_path: Path,
) -> None:
    tree = settings(options, evaluate_every=0, **changes)
    seen = train(tmp_path / "run", tree)
    rounds = options.get("rounds", 1)
    assert seen.result.wire["by_phase"]["setup"]["messages"] == 0
    assert seen.result.wire["by_phase"]["eval"]["messages"] == 0
    for name, party in seen.clients.items():
        rows = len(party.splits["train"])
        groups = min(options.get("groups", R) or rows, rows)
        sent = [m for m in seen.messages if m.sender == name and m.kind.name not in once]
        assert [m.kind.name for m in sent] == up * rounds
        got = [m for m in seen.messages if m.receiver == name and m.kind.name not in once]
        assert [(m.kind.name, m.sender) for m in got] == [("block", "server")] * rounds
        assert {m.receiver for m in sent} == {"server"}
        assert {m.phase for m in sent + got} == {"train"}
        for kind, width in ((up[0], WIDTH), (up[1], CLASSES), ("proportions", CLASSES)):
            assert all(v.shape == (groups, width) for v in seen.values(kind, name))
        shapes = {"0.weight": (10, WIDTH), "0.bias": (10,), "1.weight": (10, 10), "1.bias": (10,)}
        for value in seen.values("public_part", name):
            assert value.keys() == {"part", "evaluations"} and value["evaluations"] == 0
            assert {k: tuple(t.shape) for k, t in value["part"].items()} == shapes
        for block in seen.values("block", name):
            assert {k: tuple(t.shape) for k, t in block.items()} == shapes
    members = [m for m in seen.messages if m.kind is release.MEMBERSHIP]
    expected = [("party1", "party2"), ("party1", "party3")] if "membership" in once else []
    assert [(m.sender, m.receiver) for m in members] == expected
    declared = methods.find("fedemb").method.sent_by("client", config.load(tree).options, 0)
    evaluating = {"row_count", "embedding"}
    assert {kind.name for kind in declared} == {*up, *once} | evaluating
    before = {"membership": 1, "ready": 2}  # steps, once
    assert seen.result.wire["rounds"] == 2 * rounds + sum(before[kind] for kind in once)


@pytest.mark.parametrize(("count", "rounds"), [(2, 3), (4, 1), (8, 2)])
def test_two_steps_per_round_however_many_clients(count: int, rounds: int, tmp_path: Path) -> None:
    """The paper: 2, where a split network with encryption takes 2m + 2."""
    for grouping, more in (("random", 0), ("kmeans", 1)):
        options = {"rounds": rounds, "grouping": grouping, "server_epochs": 0}
        tree = settings(options, partition=columns(count))
        result = train(tmp_path / grouping, tree).result
        assert result.wire["rounds"] == 2 * rounds + more
        assert result.wire["by_phase"]["train"]["messages"] == (
            4 * rounds * count + more * (count - 1)
        )


# ---- 6. to 8. u ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "connect"), [(2, "none"), (5, "none"), (3, "dense"), (2, "low-rank"), (3, "sparse")]
)
def test_untuned_u_is_the_sum_of_the_clients_outputs(
    count: int, connect: str, tmp_path: Path
) -> None:
    """Nothing is aggregated and α is 0: targets "mse" are met before anything is tuned."""
    options = {"groups": 0, "connect": connect, "server_epochs": 0, "rounds": 2}
    seen = train(tmp_path / "run", settings(options, partition=columns(count)))
    assert max(seen.logged("tuning_loss_before")) < 1e-12
    assert max(seen.logged("tuning_loss")) < 1e-12
    total = torch.zeros(TEST, CLASSES)
    for number, (name, party) in enumerate(seen.clients.items()):
        assert same(seen.values("block", name)[-1], seen.parts(name)[-1])
        assert same(as_part(seen.weights(name)["public"]), seen.parts(name)[-1])
        assert same(seen.block(number), seen.parts(name)[-1])
        total = total + forward(seen.parts(name)[-1], embeddings(party, "test"))
        assert seen.metrics("alone")[name] == seen.metrics("returned")[name]
    for name, party in seen.clients.items():
        scores = seen.values("scores", name)[-1]
        close(scores["per_party"], total)
        close(scores["late_fusion"], total)
        found = party.predictions["test"]
        close(found["per_party"][name], found["late_fusion"][name])
        labels = party.splits["test"].y
        assert labels is not None
        assert seen.metrics()[name] == float((total.argmax(1) == labels).double().mean())


def test_where_the_sum_is_the_target_tuning_changes_nothing() -> None:
    """In numbers that are exact in binary; else Adam makes whole steps of rounding errors."""
    generator = torch.Generator().manual_seed(0)

    def exact(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=generator) / 8

    joined = Joined(2, [4, 6, 3], "none")
    parts = [
        {"0.weight": exact(6, 4), "0.bias": exact(6), "1.weight": exact(3, 6), "1.bias": exact(3)}
        for _ in range(2)
    ]
    for number, part in enumerate(parts):
        joined.load(number, part)
    told = [Told(x := exact(30, 4), forward(part, x), None, part, 0) for part in parts]
    me = cast(Party, SimpleNamespace(**ME, device=torch.device("cpu"), position=("train", 0, 0)))
    cfg = FedEmb(server_lr=0.1, server_batch=8)
    inputs, targets = fedemb.joined_rows(me, told, cfg)
    assert float(fedemb.tune(me, joined, inputs, targets, cfg)) == 0
    assert all(same(joined.block(number), part) for number, part in enumerate(parts))
    told[0] = replace(told[0], outputs=told[0].outputs + 1)
    inputs, targets = fedemb.joined_rows(me, told, cfg)
    before = float(fedemb.loss_of(joined, inputs, targets, cfg).detach())
    assert 0 < float(fedemb.tune(me, joined, inputs, targets, cfg)) < before
    assert not same(joined.block(0), parts[0])


ME: dict[str, Any] = {"schedule": SimpleNamespace(seed=SEED)}


def test_in_a_run_rounding_errors_move_it_by_no_more_than_the_steps(tmp_path: Path) -> None:
    options = EVERY_ROW | {"server_lr": 1e-6, "server_batch": 50, "server_epochs": 2}
    seen = train(tmp_path / "run", settings(options))
    assert seen.logged("tuning_loss_before")[0] < 1e-12
    assert seen.logged("tuning_loss")[0] < 1e-8
    for name in seen.clients:
        for key, tensor in seen.values("block", name)[0].items():
            assert float((tensor - seen.parts(name)[0][key]).abs().max()) <= 6.1e-6


@pytest.mark.parametrize("setting", ["vertical", "hybrid"])
@pytest.mark.parametrize("targets", ["mse", "soft", "hard", "proportions"])
def test_what_u_is_tuned_to(targets: str, setting: str, tmp_path: Path) -> None:
    options = {"targets": targets, "setting": setting, "noise": 0.1}
    tree = settings(options, **(HYBRID if setting == "hybrid" else {}))
    seen = train(tmp_path / "run", tree)
    tuned = seen.tuned[0]
    told = [seen.values("group_embeddings", name)[0] for name in seen.clients]
    assert tuned.inputs.shape == (R, 3, WIDTH)
    orders = [places(tuned.inputs[:, n], one) for n, one in enumerate(told)]
    vertical = [torch.equal(order, torch.arange(R)) for order in orders]
    assert vertical == [setting == "vertical"] * 3
    outputs = [
        seen.values("group_outputs", name)[0][order]
        for name, order in zip(seen.clients, orders, strict=True)
    ]
    total = outputs[0] + outputs[1] + outputs[2]
    wanted = total
    if targets == "soft":
        wanted = (total / 3).clamp(min=0)
    elif targets == "hard":
        wanted = torch.eye(CLASSES)[total.argmax(1)]
    elif targets == "proportions":
        counted = []
        for (name, party), order in zip(seen.clients.items(), orders, strict=True):
            labels = party.splits["train"].y
            assert labels is not None
            shares = means(torch.eye(CLASSES)[labels], party.state["membership"])
            close(seen.values("proportions", name)[0], shares)
            counted.append(shares[order])
        wanted = (counted[0] + counted[1] + counted[2]) / 3
    close(tuned.targets, wanted)
    assert float((wanted - total).abs().max()) == 0 or targets != "mse"


@pytest.mark.parametrize("setting", ["vertical", "hybrid"])
def test_widened_means_of_a_class(setting: str, tmp_path: Path) -> None:
    """√k times as far from the middle of their class; the same for every client's own k."""
    options = WIDE | {"setting": setting, "targets": "proportions"}
    options |= {"match": "class"} if setting == "hybrid" else {}
    tree = settings(options, **(HYBRID if setting == "hybrid" else {}))
    seen = train(tmp_path / "run", tree)
    plain = train(tmp_path / "plain", {**tree, "fedemb": tree["fedemb"] | {"widen": False}})
    tuned, before = seen.tuned[0], plain.tuned[0]
    assert torch.equal(tuned.targets, before.targets)
    classes = tuned.targets.argmax(1)
    moved = 0
    for number, (name, party) in enumerate(seen.clients.items()):
        rows = len(party.splits["train"])
        assert seen.values("public_part", name)[0]["rows"] == rows
        assert "rows" not in plain.values("public_part", name)[0]
        factor = (rows / len(seen.values("group_embeddings", name)[0])) ** 0.5
        assert factor > 1.4
        for group, label in enumerate(classes.tolist()):
            middle = before.inputs[classes == label, number].mean(0)
            away = before.inputs[group, number] - middle
            close(tuned.inputs[group, number], middle + factor * away, 1e-4)
            moved += float(away.abs().max()) > 1e-3
    assert moved > R  # of 3 R; a class of one group has nothing to vary


def places(chosen: Tensor, rows: Tensor) -> Tensor:
    """Which of the rows each chosen one is."""
    equal = (chosen[:, None] == rows[None]).all(2)
    assert bool((equal.sum(1) == 1).all())
    return equal.int().argmax(1)


@pytest.mark.parametrize(
    ("targets", "connect"),
    [
        ("mse", "dense"),
        ("mse", "none"),
        ("soft", "dense"),
        ("hard", "none"),
        ("proportions", "dense"),
    ],
)
def test_tuning_as_a_plain_loop(targets: str, connect: str, tmp_path: Path) -> None:
    """`server_epochs` of Adam over all rows, everything learns; and the losses that are told."""
    options = {"targets": targets, "connect": connect, "server_epochs": 4, "connect_start": 0.1}
    seen = train(tmp_path / "run", settings(options))
    tuned = seen.tuned[0]
    hand = Joined(3, [WIDTH, 10, CLASSES], cast(Any, connect))
    hand.load_state_dict(tuned.before)

    def loss() -> Tensor:
        scores: Tensor = hand(tuned.inputs)
        if targets == "mse":
            return (scores - tuned.targets).square().mean()
        return -(tuned.targets * scores.log_softmax(1)).sum(1).mean()

    with torch.no_grad():
        assert seen.logged("tuning_loss_before") == [pytest.approx(float(loss()), rel=1e-4)]
    adam = torch.optim.Adam(hand.parameters(), lr=0.01)
    for _ in range(4):
        adam.zero_grad()
        loss().backward()
        adam.step()
    for key, value in hand.state_dict().items():
        close(tuned.after[key], value, 2e-4)
        assert not torch.equal(tuned.before[key], tuned.after[key])
    with torch.no_grad():
        assert seen.logged("tuning_loss") == [pytest.approx(float(loss()), rel=1e-2)]


def test_the_rate_of_tuning_may_fall(tmp_path: Path) -> None:
    options = {"server_epochs": 4, "connect_start": 0.1, "server_schedule": "cosine"}
    tuned = train(tmp_path / "run", settings(options)).tuned[0]
    hand = Joined(3, [WIDTH, 10, CLASSES], "dense")
    hand.load_state_dict(tuned.before)
    adam = torch.optim.Adam(hand.parameters())
    for rate in (0.01, 0.01 * (1 + 0.5**0.5) / 2, 0.005, 0.01 * (1 - 0.5**0.5) / 2):
        adam.param_groups[0]["lr"] = rate
        adam.zero_grad()
        (hand(tuned.inputs) - tuned.targets).square().mean().backward()
        adam.step()
    for key, value in hand.state_dict().items():
        close(tuned.after[key], value, 2e-4)


def test_rows_are_tuned_in_batches_in_a_new_order(tmp_path: Path) -> None:
    batches: list[Tensor] = []

    def watch(patch: pytest.MonkeyPatch) -> None:
        original = fedemb.loss_of

        def loss_of(joined: Joined, inputs: Tensor, targets: Tensor, cfg: FedEmb) -> Tensor:
            batches.append(inputs)
            return original(joined, inputs, targets, cfg)

        patch.setattr(fedemb, "loss_of", loss_of)

    options = {"server_batch": 8, "server_epochs": 3, "rounds": 2}
    train(tmp_path / "run", settings(options), watch)
    assert [len(b) for b in batches] == [R, *[8, 8, 4] * 3, R] * 2
    orders = [
        places(torch.cat(batches[start : start + 3])[:, 0], batches[whole][:, 0]).tolist()
        for whole in (0, 11)
        for start in range(whole + 1, whole + 10, 3)
    ]
    assert all(sorted(order) == list(range(R)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6


# ---- hybrid: which groups are joined -------------------------------------------------------------


@pytest.mark.parametrize("match", ["random", "class"])
def test_groups_are_joined_in_the_same_ways_in_all_rounds(match: str, tmp_path: Path) -> None:
    options = {"setting": "hybrid", "combinations": 3, "rounds": 3, "match": match}
    seen = train(tmp_path / "run", settings(options, **HYBRID))
    assert [tuned.inputs.shape for tuned in seen.tuned] == [(3 * R, 3, WIDTH)] * 3
    for number, name in enumerate(seen.clients):
        told = seen.values("group_embeddings", name)
        orders = [
            places(tuned.inputs[:, number], one)
            for tuned, one in zip(seen.tuned, told, strict=True)
        ]
        assert all(torch.equal(order, orders[0]) for order in orders)
        turns = orders[0].split(R)
        assert all(sorted(turn.tolist()) == list(range(R)) for turn in turns)
        assert len({tuple(turn.tolist()) for turn in turns}) == 3
    first, second = (
        places(seen.tuned[0].inputs[:, n], seen.values("group_embeddings", name)[0])
        for n, name in enumerate(["party1", "party2"])
    )
    assert not torch.equal(first, second)


def test_groups_are_matched_by_what_they_looked_like_at_first() -> None:
    """Later their clients may have changed their minds: they stay with each other."""
    looks = torch.arange(12) % CLASSES
    part = {"0.weight": torch.zeros(CLASSES, 1), "0.bias": torch.zeros(CLASSES)}
    outputs = F.one_hot(looks, CLASSES).float()
    groups = torch.arange(12.0)[:, None]
    told = [Told(groups, outputs, None, part, 0), Told(groups, outputs.flip(0), None, part, 0)]
    me = cast(Party, SimpleNamespace(**ME, state={}, device=torch.device("cpu")))
    cfg = FedEmb(setting="hybrid", match="class", combinations=2)
    first, _ = fedemb.joined_rows(me, told, cfg)
    later, _ = fedemb.joined_rows(me, [replace(one, outputs=-one.outputs) for one in told], cfg)
    assert torch.equal(first, later)
    assert torch.equal(looks[first[:, 0, 0].long()], looks.flip(0)[first[:, 1, 0].long()])


def test_the_smallest_client_says_how_many_groups_are_joined(tmp_path: Path) -> None:
    parties, test = apart((60, 90))
    tree = in_memory({"setting": "hybrid", "groups": 0, "combinations": 2})
    seen = train(tmp_path / "run", tree, parties=parties, test=test)
    assert [len(p.splits["train"]) for p in seen.clients.values()] == [60, 90]
    assert seen.tuned[0].inputs.shape[:2] == (120, 2)


# ---- several rounds ------------------------------------------------------------------------------


def test_rounds_and_epochs(tmp_path: Path) -> None:
    """The first round has `epochs` of them, before it; every other one `later_epochs`."""
    seen = train(tmp_path / "run", settings({"rounds": 3, "later_epochs": 2}, epochs=3))
    history = [row["parties"] for row in seen.result.history]
    assert [row["phase"] for row in seen.result.history] == ["local"] * 3 + ["train"] * 5
    assert ["loss" in row["party1"] for row in history] == [n != 4 for n in range(1, 9)]
    assert ["server" in row for row in history] == [n in (4, 6, 8) for n in range(1, 9)]
    assert ["ppm" in row["party2"] for row in history] == [n in (4, 6, 8) for n in range(1, 9)]
    assert seen.parties["party1"].progress.steps == 7 * 5
    assert [m.epoch for m in seen.messages if m.kind is client_report.PUBLIC][::3] == [0, 2, 4]
    alone = ["test_alone_accuracy" in row["party1"] for row in history]
    assert alone == ["server" in row for row in history]


@pytest.mark.parametrize("connect", ["dense", "low-rank", "sparse"])
def test_connections_are_carried_over_and_blocks_are_new(connect: str, tmp_path: Path) -> None:
    options = {"rounds": 3, "connect": connect}
    seen = train(tmp_path / "run", settings(options))
    links = [key for key in seen.tuned[0].before if key.startswith("links")]
    learnt = "links.0.up" if connect == "low-rank" else "links.0.alpha"
    assert not seen.tuned[0].before[learnt].any()
    assert seen.tuned[0].after[learnt].any()
    assert not torch.equal(seen.tuned[0].after[learnt], seen.tuned[1].after[learnt])
    for one, other in zip(seen.tuned, seen.tuned[1:], strict=False):
        assert all(torch.equal(one.after[key], other.before[key]) for key in links)
    for number, name in enumerate(seen.clients):
        sent, returned = seen.parts(name), seen.values("block", name)
        assert len({tuple(part["0.bias"].tolist()) for part in [*sent, *returned]}) == 6
        for tuned, part, block in zip(seen.tuned, sent, returned, strict=True):
            assert torch.equal(tuned.before["weights.0"][number], part["0.weight"])
            assert torch.equal(tuned.before["biases.1"][number], part["1.bias"])
            assert torch.equal(tuned.after["weights.1"][number], block["1.weight"])
            assert torch.equal(tuned.after["biases.0"][number], block["0.bias"])


def test_a_returned_block_is_the_clients_public_part(tmp_path: Path) -> None:
    """After the last round the server and the clients have saved the same."""
    seen = train(tmp_path / "run", settings({"rounds": 2}))
    for number, name in enumerate(seen.clients):
        own = as_part(seen.weights(name)["public"])
        assert same(own, seen.block(number))
        assert same(own, seen.values("block", name)[-1])
        assert not same(own, seen.parts(name)[-1])


def test_return_blocks(tmp_path: Path) -> None:
    """Without it the clients are as if there were no server; with it they are not."""
    kept = train(tmp_path / "kept", settings({"rounds": 2, "return_blocks": False}))
    taken = train(tmp_path / "taken", settings({"rounds": 2}))
    idle = train(tmp_path / "idle", settings({"rounds": 2, "server_epochs": 0}))
    for number, name in enumerate(kept.clients):
        assert kept.result.weights_sha256[name] == idle.result.weights_sha256[name]
        assert same(as_part(kept.weights(name)["public"]), kept.parts(name)[-1])
        assert not same(kept.block(number), kept.parts(name)[-1])
        assert kept.metrics("returned")[name] == kept.metrics("alone")[name]
        assert same(kept.parts(name)[0], taken.parts(name)[0])
        assert not same(kept.parts(name)[1], taken.parts(name)[1])
        assert kept.result.weights_sha256[name] != taken.result.weights_sha256[name]


# ---- evaluation and prediction -------------------------------------------------------------------


@pytest.mark.parametrize("connect", ["dense", "low-rank", "sparse", "none"])
def test_prediction_repeats_the_joint_evaluation(connect: str, tmp_path: Path) -> None:
    options = {"connect": connect, "connect_start": 0.5, "rounds": 2, "control": True}
    seen = train(tmp_path / "run", settings(options, data={"validation": 0.1}))
    found = colonnade.load(seen.result.path).predict()
    assert list(found) == list(seen.clients)
    labels = colonnade.load(seen.result.path).labels()
    joint = (
        seen.tuned[-2]
        .joined(torch.stack([embeddings(p, "test") for p in seen.clients.values()], 1))
        .argmax(1)
    )
    for name, party in seen.clients.items():
        predictions = party.predictions["test"]
        assert torch.equal(found[name].codes, predictions["per_party"][name].argmax(1))
        assert torch.equal(predictions["per_party"][name].argmax(1), joint)
        assert float((found[name].codes == labels).double().mean()) == seen.metrics()[name]
        public = party.kept.modules()["public"](embeddings(party, "test"))
        assert torch.equal(predictions["returned"][name], public)
        before = forward(seen.parts(name)[-1], embeddings(party, "test"))
        assert torch.equal(predictions["alone"][name], before)
    measures = {"per_party", "alone", "returned", "late_fusion", "control"}
    for split in ("test", "validation"):
        assert measures < seen.result.metrics[split].keys()
    import jsonschema

    content = json.loads((seen.result.path / "result.json").read_text())
    jsonschema.Draft202012Validator(load_schema()).validate(content)


def test_ways_to_connect_differ(tmp_path: Path) -> None:
    found = {
        connect: train(tmp_path / connect, settings({"connect": connect, "rank": 3, "fan_in": 5}))
        for connect in ("dense", "low-rank", "sparse", "none")
    }
    blocks = [seen.block(0)["0.weight"] for seen in found.values()]
    for number, one in enumerate(blocks):
        assert not any(torch.equal(one, other) for other in blocks[:number])
    shapes = {
        connect: {k: tuple(v.shape) for k, v in seen.tuned[0].after.items() if "links" in k}
        for connect, seen in found.items()
    }
    assert shapes == {
        "dense": {"links.0.alpha": (3 * 10, 3 * WIDTH)},
        "low-rank": {"links.0.up": (3, 10, 3), "links.0.down": (3, 3, WIDTH)},
        "sparse": {"links.0.alpha": (3, 10, 5), "links.0.heard": (150,)},
        "none": {},
    }
    start = train(tmp_path / "start", settings({"connect_start": 0.3}))
    assert float(start.tuned[0].before["links.0.alpha"].std()) == pytest.approx(0.3, rel=0.15)
    assert (
        start.logged("tuning_loss_before")[0] > 10 * found["dense"].logged("tuning_loss_before")[0]
    )


def test_the_control_knows_nothing_and_changes_nothing(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", settings({"rounds": 2}))
    seen = train(tmp_path / "control", settings({"rounds": 2, "control": True}))
    assert "control" not in plain.result.metrics["test"]
    assert seen.metrics("control").keys() == seen.clients.keys()
    assert seen.weights("server").keys() == {"joined"}
    assert same(seen.weights("server")["joined"], plain.weights("server")["joined"])
    for name in seen.clients:
        assert seen.result.weights_sha256[name] == plain.result.weights_sha256[name]
    assert len(seen.tuned) == 4
    drawn = [seen.tuned[number].before["weights.0"] for number in (1, 3)]
    assert not torch.equal(*drawn)
    for round_, weights in enumerate(drawn):
        assert float(weights.abs().max()) <= WIDTH**-0.5
        assert float(weights.std()) == pytest.approx((WIDTH * 3) ** -0.5, rel=0.1)
        assert torch.equal(seen.tuned[2 * round_].inputs, seen.tuned[2 * round_ + 1].inputs)
    for name, party in seen.clients.items():
        with torch.no_grad():
            joint = torch.stack([embeddings(p, "test") for p in seen.clients.values()], 1)
            scores = seen.tuned[3].joined(joint)
        assert torch.equal(party.predictions["test"]["control"][name], scores)


def test_a_tuning_that_diverges_is_thrown_away(tmp_path: Path) -> None:
    options = {"server_lr": 1e12, "server_epochs": 20}
    seen = train(tmp_path / "run", settings(options))
    (warned,) = (w for w in seen.result.content["warnings"] if "has diverged" in w)
    assert "smaller server_lr" in warned
    assert seen.metrics("per_party") == seen.metrics("late_fusion")
    assert seen.metrics("returned") == seen.metrics("alone")
    assert same(seen.weights("server")["joined"], seen.tuned[0].before)


def test_evaluation_follows_the_schedule(tmp_path: Path) -> None:
    """At the ends of those rounds that fall on an epoch to evaluate; and at the very end."""
    seen = train(tmp_path / "run", settings({"rounds": 5}, evaluate_every=2, epochs=2))
    joint = ["test_accuracy" in row["parties"]["party1"] for row in seen.result.history]
    assert joint == [False, False, False, True, False, True, True]
    assert [v["evaluations"] for v in seen.values("public_part", "party1")] == [0, 1, 0, 1, 1]


def test_runs_that_begin_alike_share_their_local_training(tmp_path: Path) -> None:
    """Also under other options than those that it was trained under; to the same bits."""
    told = {"groups": 10, "rounds": 2, "noise": 0.5}
    plain = train(tmp_path / "plain", settings(told, epochs=2, **REPEATED))
    begun = settings({}, epochs=2, **REPEATED)
    first = train(tmp_path / "first", begun, starts=tmp_path / "starts")
    assert len(list((tmp_path / "starts").iterdir())) == 1
    trained: list[str] = []

    def watch(patch: pytest.MonkeyPatch) -> None:
        batches = Party.batches

        def spied(me: Party, **named: Any) -> Any:
            trained.append(me.position[0])
            return batches(me, **named)

        patch.setattr(Party, "batches", spied)

    alike = settings(told, epochs=2, **REPEATED)
    shared = train(tmp_path / "run", alike, watch, starts=tmp_path / "starts")
    assert set(trained) == {"train"}
    assert shared.result.weights_sha256 == plain.result.weights_sha256
    assert shared.result.weights_sha256 != first.result.weights_sha256
    assert shared.result.metrics == plain.result.metrics
    assert shared.result.wire["by_kind"] == plain.result.wire["by_kind"]
    before = [row["parties"]["party1"]["loss"] for row in plain.result.history[:2]]
    assert [row["parties"]["party1"]["loss"] for row in shared.result.history[:2]] == before
    others: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"cut": "layer1"}, {}),
        ({}, {"epochs": 1}),
        ({}, {"lr": 0.02}),
        ({}, {"seed": SEED + 1}),
    ]
    for number, (options, change) in enumerate(others, start=2):
        tree = settings(options, **({"epochs": 2} | REPEATED | change))
        train(tmp_path / f"other{number}", tree, starts=tmp_path / "starts")
        assert len(list((tmp_path / "starts").iterdir())) == number


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"epsilon": 4.0},
            "epsilon = 4.0 covers what one client releases of each row's vectors (for M",
        ),
        ({"targets": "proportions"}, "labels leave the clients: targets = 'proportions'"),
        ({"grouping": "class"}, "labels decide who is in a group: the server can infer the class"),
        ({"targets": "hard", "groups": 0}, "every row is released by itself: 130 rows, groups = 0"),
        ({"groups": 131}, "every row is released by itself: 130 rows, groups = 131"),
        ({"cut": "layer3"}, "one linear layer follows the cut: means pass through it"),
    ],
)
def test_what_else_must_be_said(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings(options))
    (warning,) = seen.result.content["warnings"]
    assert warning.startswith(said)
    if "epsilon" in options:  # of all releases, not their mean
        spent = seen.result.metrics["test"]["epsilon"]["party1"]
        assert seen.result.history[-1]["parties"]["party1"]["epsilon"] == spent
        assert spent == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize(("groups", "said"), [(10, True), (0, True), (40, False)])
def test_a_widening_that_changes_nothing_is_told(groups: int, said: bool, tmp_path: Path) -> None:
    """Of one group of each class, or of single rows."""
    options = WIDE | {"groups": groups, "targets": "proportions"}
    seen = train(tmp_path / "run", settings(options))
    warned = [w for w in seen.result.content["warnings"] if w.startswith("widen has changed")]
    assert len(warned) == said


# ---- networks ------------------------------------------------------------------------------------

STRIPS: dict[str, Any] = {"partition": {"kind": "strips", "parties": 2}}


@pytest.mark.parametrize(
    ("cut", "model", "model_options", "width"),
    [
        ("conv2", "cnn", {"width": 0.25}, 16 * 2 * 1),
        ("", "cnn", {"width": 0.25}, 16 * 2 * 1),
        ("stage3", "resnet8", {"width": 0.25}, 16),
        ("layer1", "mlp", {"hidden": [16, 12, 10]}, 16),
        ("layer3", "mlp", {"hidden": [16, 12, 10]}, 10),
        ("", "mlp", {"hidden": [16, 12, 10, 8]}, 12),
        ("", "mlp", {"hidden": [9]}, 9),
    ],
)
def test_other_networks(
    cut: str, model: str, model_options: dict[str, Any], width: int, tmp_path: Path
) -> None:
    """Pooling and flattening behind the cut still belong to the private part."""
    more = {"model": model, "model_options": model_options}
    seen = train(tmp_path / "run", settings({"cut": cut}, **STRIPS, **more))
    whole = torch.randn(4, *seen.parties["party1"].shape)
    private, public = seen.starts["party1"]
    assert private(whole).shape == (4, width)
    assert public(private(whole)).shape == (4, CLASSES)
    for name, party in seen.clients.items():
        sent = seen.values("group_embeddings", name)[0]
        close(sent, means(embeddings(party), party.state["membership"]))
    found = colonnade.load(seen.result.path).predict()
    for name, party in seen.clients.items():
        assert torch.equal(
            found[name].codes, party.predictions["test"]["per_party"][name].argmax(1)
        )


@pytest.mark.parametrize("options", [{}, WIDE | {"match": "class"}], ids=["paper", "widened"])
def test_skewed_classes_and_shared_columns(options: dict[str, Any], tmp_path: Path) -> None:
    """Every client has the classes in other shares, and half of its columns are the next one's."""
    place = {"kind": "hybrid", "parties": 3, "alpha": 0.3, "column_overlap": 0.5}
    rows = {"train_rows": 1200, "test_rows": 300}
    tree = settings(options | {"setting": "hybrid"}, partition=place, data=rows, epochs=10)
    seen = train(tmp_path / "run", tree)
    labels = [party.splits["train"].y for party in seen.clients.values()]
    counts = torch.stack([y.bincount(minlength=CLASSES) for y in labels if y is not None])
    assert int(counts.max()) > 2.5 * float(counts.float().mean())
    assert sum(prod(party.shape) for party in seen.clients.values()) > 64  # digits have 64
    for name, party in seen.clients.items():
        sent = seen.values("group_embeddings", name)[0]
        close(sent, means(embeddings(party), party.state["membership"]))
    assert seen.tuned[0].inputs.isfinite().all()
    assert seen.result.metrics["test"]["accuracy"] > 0.3  # chance: 0.1


def test_validation_rows_are_those_of_all(tmp_path: Path) -> None:
    """As test rows are: each client has its columns of them, and none trains on any."""
    place = {"kind": "hybrid", "parties": 3}
    tree = settings({"setting": "hybrid"}, partition=place, data={"validation": 0.2})
    seen = train(tmp_path / "run", tree)
    rows = [party.splits["validation"] for party in seen.clients.values()]
    assert all(torch.equal(own.ids, rows[0].ids) for own in rows)
    assert all(len(own) == round(0.2 * ROWS) for own in rows)
    shown = torch.cat([own.x.flatten(1) for own in rows], 1)  # each one's columns, side by side
    whole = data.load("digits", seed=derive(SEED, "data")).train.x.flatten(1)
    assert {tuple(x) for x in shown.tolist()} <= {tuple(x) for x in whole.tolist()}
    trained = torch.cat([party.splits["train"].ids for party in seen.clients.values()])
    told = [*trained.tolist(), *rows[0].ids.tolist()]
    assert len(told) == len(set(told)) == ROWS
    found = seen.result.metrics["validation"]
    joint = torch.stack([embeddings(p, "validation") for p in seen.clients.values()], 1)
    with torch.no_grad():
        scores = seen.tuned[0].joined(joint)
    labels = rows[0].y
    assert labels is not None
    assert found["accuracy"] == pytest.approx(float((scores.argmax(1) == labels).float().mean()))


def test_private_parts_may_differ(tmp_path: Path) -> None:
    parties = {
        "deep": {"model": "mlp", "model_options": {"hidden": [30, WIDTH, 10]}},
        "flat": {"model": "mlp", "model_options": {"hidden": [WIDTH, 10]}, "lr": 0.02},
    }
    seen = train(tmp_path / "run", settings(partition=columns(2), parties=parties))
    assert seen.weights("deep")["private"].keys() > seen.weights("flat")["private"].keys()
    assert seen.weights("server")["joined"]["weights.0"].shape == (2, 10, WIDTH)


def of_widths(*hidden: list[int]) -> dict[str, Any]:
    parties = {
        f"client{n}": {"model": "mlp", "model_options": {"hidden": h}} for n, h in enumerate(hidden)
    }
    return {"partition": columns(len(hidden)), "parties": parties}


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "changes", "error", "text"),
    [
        ({"cut": "layer9"}, {}, ConfigError, "no cut 'layer9'. The cuts are: layer1, layer2, lay"),
        (
            {},
            {"model_options": {"hidden": [8, 8], "activation": "tanh"}},
            ConfigError,
            "Linear, Tanh, Linear follow the cut: .*linear layers with ReLUs.*Cut later",
        ),
        ({}, {"model_options": {"hidden": []}}, ConfigError, "'party1': mlp cannot be cut in two"),
        (
            {"cut": "layer1"},
            of_widths([16, 12], [16, 12], [16, 14]),
            MethodError,
            "public parts of 'client0' and 'client2' have different layers.*same widths",
        ),
        (
            {"cut": "layer1"},
            of_widths([16, 12], [14, 12]),
            MethodError,
            "public parts of 'client0' and 'client1'",
        ),
        (
            {"cut": "layer1"},
            of_widths([16, 12], [16, 12, 12]),
            MethodError,
            "public parts of 'client0' and 'client1'",
        ),
        ({}, HYBRID, DataError, "different numbers of rows: 'party1' 44, 'party2' 43"),
        (
            {},
            HYBRID | {"data": {"train_rows": 150}},
            DataError,
            "'party1' and 'party2' hold different rows",
        ),
        ({}, {"partition": columns(1)}, ColonnadeError, "at least two clients; here: 1"),
        (
            {},
            {"partition": columns(2), "parties": {"server": {}, "b": {}}},
            ColonnadeError,
            "at least two clients; here: 1",
        ),
    ],
    ids=str,
)
def test_what_is_refused(
    options: dict[str, Any],
    changes: dict[str, Any],
    error: type[Exception],
    text: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=f"(?s){text}"):
        colonnade.run(settings(options, **changes), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        *(
            ({key: 0}, rf"{key} = 0: at least 1")
            for key in ("rounds", "later_epochs", "combinations", "server_batch", "rank", "fan_in")
        ),
        *(({key: -1}, rf"{key} = -1: at least 0") for key in ("groups", "server_epochs")),
        *(
            ({key: -0.5}, rf"{key} = -0.5: at least 0")
            for key in ("noise", "epsilon", "connect_start")
        ),
        *(
            ({key: value}, rf"{key} = {value}: above 0")
            for key in ("server_lr", "clip")
            for value in (0.0, -1.0)
        ),
        *(({"delta": value}, rf"delta = {value}: at least 0 and below 1") for value in (-0.1, 1.0)),
        *(
            ({"generalise": value}, rf"generalise = {value}: at least 0 and below 1")
            for value in (-0.1, 1.0)
        ),
        ({"epsilon": 1.0, "noise": 1.0}, "epsilon sets the noise by itself"),
        ({"epsilon": 1.0, "targets": "proportions"}, "tells labels, which epsilon does not cover"),
        ({"combinations": 2}, "combinations and match are for setting = 'hybrid'"),
        ({"match": "class"}, "combinations and match are for setting = 'hybrid'"),
        *(
            (WIDE | wrong, "widen needs means of one class each")
            for wrong in (
                {"grouping": "random"},
                {"grouping": "kmeans"},
                {"targets": "mse"},
                {"targets": "soft"},
                {"setting": "hybrid"},
            )
        ),
    ],
    ids=str,
)
def test_options_out_of_range(bad: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FedEmb(**bad)
    with pytest.raises(ConfigError, match=text):
        config.load(settings(bad))


def test_all_mistakes_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)noise = -1.*clip = 0.*delta = 2"):
        config.load(settings({"noise": -1.0, "clip": 0.0, "delta": 2.0}))
    with pytest.raises(ValueError, match=r"epsilon sets the noise.*combinations and.*widen needs"):
        FedEmb(noise=1.0, epsilon=1.0, combinations=2, widen=True)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("key", ["noise", "epsilon", "connect_start", "server_lr", "clip"])
def test_numbers_are_finite(key: str, bad: float) -> None:
    wrong: dict[str, Any] = {key: bad}
    with pytest.raises(ValueError, match=f"{key} = {bad}: a"):
        FedEmb(**wrong)
    with pytest.raises(ConfigError, match=f"{key} = {bad}"):
        config.load(settings(wrong))


@pytest.mark.parametrize(
    "good",
    [
        {"groups": 0, "server_epochs": 0, "delta": 0.0, "generalise": 0.99},
        {"setting": "hybrid", "combinations": 2, "match": "class"},
        {"epsilon": 1.0, "targets": "soft", "generalise": 0.5},
        {"noise": 1.0, "targets": "proportions"},
        WIDE,
        WIDE | {"targets": "proportions"},
        WIDE | {"setting": "hybrid", "match": "class"},
    ],
    ids=str,
)
def test_options_within_range(good: dict[str, Any]) -> None:
    assert config.load(settings(good)).options == FedEmb(**settings(good)["fedemb"])


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("setting", "horizontal"),
        ("grouping", "kmedoids"),
        ("targets", "sum"),
        ("match", "label"),
        ("connect", "full"),
    ],
)
def test_choices(option: str, bad: str) -> None:
    with pytest.raises(ConfigError, match=rf"fedemb\.{option}"):
        config.load(settings({option: bad}))


# ---- rows of their own ---------------------------------------------------------------------------


def test_own_rows(tmp_path: Path) -> None:
    parties, test = apart((60, 90))
    with pytest.raises(DataError, match=r"different numbers of rows: 'c0' 60, 'c1' 90\. This meth"):
        colonnade.run(in_memory(), parties=parties, test=test, out=tmp_path / "vertical")
    tree = in_memory({"setting": "hybrid", "grouping": "class"}, epochs=8)
    seen = train(tmp_path / "hybrid", tree, parties=parties, test=test)
    assert seen.metrics()["c0"] == seen.metrics()["c1"] > 0.3
    trained = colonnade.load(seen.result.path)
    found = trained.predict({name: rows[0] for name, rows in test.items()})
    for name, party in seen.clients.items():
        assert torch.equal(
            found[name].codes, party.predictions["test"]["per_party"][name].argmax(1)
        )
    uneven = {"c0": test["c0"][0][:7], "c1": test["c1"][0][:9]}
    with pytest.raises(ColonnadeError, match=r"(?s)'c0'.* 7.*'c1'.* 9"):
        trained.predict(uneven)


@pytest.mark.parametrize("setting", ["vertical", "hybrid"])
def test_evaluated_rows_are_those_of_all(setting: str, tmp_path: Path) -> None:
    """Told before anything is trained."""
    parties, test = apart((80, 80), (40, 30))
    x, y = datasets.load_digits(return_X_y=True)
    if setting == "vertical":  # which needs the same training rows, too
        parties = {"c0": (x[:80, :32], y[:80]), "c1": (x[:80, 32:], y[:80])}

    def refused(text: str, **given: Any) -> None:
        tree = in_memory({"setting": setting})
        with pytest.raises(DataError, match=text):
            colonnade.run(tree, out=tmp_path / "run", **{"parties": parties, "test": test} | given)
        assert not (tmp_path / "run").exists()

    refused("different numbers of rows in test: 'c0' 40, 'c1' 30")
    rows, labels = test["c0"]
    for moved in (1, 39):
        turned = (np.roll(rows, moved, axis=0), np.roll(labels, moved))
        count = int((turned[1] != labels).sum())
        text = f"the labels of 'c0' and 'c1' differ in {count} of 40 rows in test"
        refused(text, test={"c0": (rows, labels), "c1": turned})
    if setting == "vertical":
        other = {"c1": (x[:80, 32:], y[:80][::-1])}
        refused(
            r"the labels of 'c0' and 'c1' differ in \d+ of 80 rows\. They", parties=parties | other
        )
    else:
        refused(
            r"each party brings different rows: give test = \{…\}, the same rows in the same",
            test=None,
        )
        validated = in_memory({"setting": setting}) | {"data": {"validation": 0.2}}
        with pytest.raises(DataError, match=r"data.validation = 0.2: fedemb tests all"):
            colonnade.run(validated, parties=parties, test=dict.fromkeys(test, test["c0"]))
        tree = in_memory({"setting": setting}, evaluate_every=0)
        result = colonnade.run(tree, parties=parties, out=tmp_path / "run")
        held = result.content["data"]
        assert (held["train_rows"], held["test_rows"], result.accuracy) == (80, 0, None)


def test_own_files_of_other_rows_are_not_tested_together(tmp_path: Path) -> None:
    x, y = datasets.load_digits(return_X_y=True)
    for name, part, some in (("a", x[:, :32], slice(0, 200)), ("b", x[:, 32:], slice(200, 400))):
        lines = [f"{i},{y[i]}," + ",".join(map(str, part[i])) for i in range(some.start, some.stop)]
        head = ",".join(["id", "y", *(f"c{n}" for n in range(32))])
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *lines]))
    tree = in_memory({"setting": "hybrid"})
    file = {"id": "id", "label": "y"}
    tree["parties"] = {n: file | {"data": str(tmp_path / f"{n}.csv")} for n in ("a", "b")}
    text = "brings different rows: set evaluate_every = 0, and score files of the same rows by col"
    with pytest.raises(ConfigError, match=text):
        colonnade.run(tree, out=tmp_path / "run")
    result = colonnade.run(tree | {"evaluate_every": 0}, out=tmp_path / "run")
    held = result.content["data"]
    assert (held["train_rows"], held["test_rows"]) == (200, 0)  # none is kept for nothing
    with pytest.raises(ConfigError, match=text):  # also of a party of its own
        assembly.from_file(tmp_path / "a.csv", "a", config.load(tree), labelled=True)
    both = {n: tmp_path / f"both_{n}.csv" for n in ("a", "b")}
    for name, part in (("a", x[:, :32]), ("b", x[:, 32:])):
        lines = [f"{i}," + ",".join(map(str, part[i])) for i in range(500, 540)]
        both[name].write_text("\n".join([",".join(["id", *(f"c{n}" for n in range(32))]), *lines]))
    trained = colonnade.load(result.path)
    with pytest.raises(DataError, match="kept no test rows"):
        trained.predict()
    found = trained.predict(trained.read_files(both))
    assert len(found["a"]) == 40 and torch.equal(found["a"].codes, found["b"].codes)


# ---- resume --------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 7, 12, 17, 29])  # of 3 clients, 2 epochs, 5 batches
def test_a_client_that_was_stopped_while_alone_goes_on_where_it_was(
    batches: int, tmp_path: Path
) -> None:
    """Clients train one after the other in one process: who was done is not trained again."""
    tree = settings(epochs=2, checkpoint={"epochs": 1})
    seen = stopped(tmp_path / "run", tree, "training", batches)
    trained = 0

    def watch(patch: pytest.MonkeyPatch) -> None:
        rates = Party._set_rates

        def counted(*given: Any) -> Any:
            nonlocal trained
            trained += 1
            return rates(*given)

        patch.setattr(Party, "_set_rates", counted)

    again = train(tmp_path / "run", tree, watch, seen, resume=tmp_path / "run")
    assert trained == 30 - batches // 5 * 5
    whole = train(tmp_path / "whole", tree)
    assert again.result.weights_sha256 == whole.result.weights_sha256
    assert without_time(again.result) == without_time(whole.result)


@pytest.mark.parametrize("place", ["training", "tuning"])
@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (
            {"grouping": "kmeans", "connect": "low-rank", "connect_start": 0.1, "control": True},
            {},
        ),
        (
            {"setting": "hybrid", "match": "class", "combinations": 2, "connect": "sparse"},
            {"partition": {"kind": "hybrid", "parties": 3}, "data": {"train_rows": 390}},
        ),
    ],
    ids=str,
)
def test_resume_equals_uninterrupted(
    options: dict[str, Any], changes: dict[str, Any], place: str, tmp_path: Path
) -> None:
    more = {"checkpoint": {"epochs": 1, "steps": 3}, **REPEATED}
    tree = settings(options | {"rounds": 3, "noise": 0.3}, **changes, **more)
    whole = colonnade.run(tree, out=tmp_path / "whole")
    stopped(tmp_path / "run", tree, place)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "stopped"
    resumed = colonnade.run(tree, resume=tmp_path / "run")
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.metrics == whole.metrics
    assert without_time(resumed) == without_time(whole)


# ---- one process per party -----------------------------------------------------------------------


def test_one_process_per_party(tmp_path: Path) -> None:
    options = {"setting": "hybrid", "match": "class", "rounds": 2, "noise": 0.1}
    tree = settings(options, partition={"kind": "hybrid", "parties": 2}, **REPEATED)
    together = colonnade.run(tree, out=tmp_path / "together")
    apart = colonnade.run(tree, out=tmp_path / "apart", runtime="process")
    assert apart.weights_sha256 == together.weights_sha256
    assert apart.metrics == together.metrics
    for part in ("bytes", "messages", "rounds", "by_kind", "by_party"):
        assert apart.wire[part] == together.wire[part]


def test_a_ledger_row_for_every_message(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings({"grouping": "kmeans"}))
    rows = list(ledger.read(seen.result.path / "ledger.jsonl"))
    assert [(r["sender"], r["receiver"], r["kind"]) for r in rows] == [
        (m.sender, m.receiver, m.kind.name) for m in seen.messages
    ]
    assert {r["phase"] for r in rows if r["kind"] in ("row_count", "embedding", "scores")} == {
        "eval"
    }
