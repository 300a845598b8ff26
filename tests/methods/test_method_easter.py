"""EASTER against a hand-written loop, and what its messages show and hide."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import colonnade
from colonnade import assembly, config
from colonnade.errors import ConfigError, Diverged, MethodError
from colonnade.methods import easter
from colonnade.models import head, network
from colonnade.privacy import masking
from colonnade.privacy.masking import Masks, Moment
from colonnade.privacy.rows import scale
from colonnade.results.result import Result
from colonnade.role import identity
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule, make_optimizer, rate_factor
from colonnade.role.seeds import derive
from colonnade.runtime import local
from colonnade.runtime.drive import reproducible
from colonnade.task import Task
from colonnade.wire import Kind, Ledger, Message, Peer, Wire, ledger, store

ROWS, SIZE, EPOCHS, DIM = 150, 64, 2, 6
STEPS = -(-ROWS // SIZE)


def settings(options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Three parties with columns of the digits; no power of two, so that 1/C is no exact number."""
    base: dict[str, Any] = {
        "method": "easter",
        "seed": 5,
        "epochs": EPOCHS,
        "batch_size": SIZE,
        "batching": "papers",  # as in the hand-written loops
        "model": "mlp",
        "model_options": {"hidden": [12]},
        "data": {"name": "digits", "train_rows": ROWS, "test_rows": 60},
        "partition": {"kind": "columns", "parties": 3},
        "checkpoint": {"epochs": 0},
        "easter": {"dim": DIM} | (options or {}),
    }
    return base | changes


def one_step(options: dict[str, Any], *kinds: str, **changes: Any) -> dict[str, Any]:
    """A single batch of all rows, every message through the codec, the named Kinds kept."""
    return settings(
        options,
        epochs=1,
        batch_size=ROWS,
        evaluate_every=0,
        strict=True,
        record=list(kinds),
        **changes,
    )


def recorded(folder: Path, kind: str) -> dict[str, list[Tensor]]:
    """What each party sent of a Kind, in order; of masked values without their tags."""
    found: dict[str, list[Tensor]] = {}
    for file in sorted((folder / "record").glob(f"{kind}-*.safetensors")):
        for name, tensor in sorted(store.read_tensors(file).items()):
            found.setdefault(name.split("/")[1], []).append(tensor)
    return found


def saved(folder: Path, name: str) -> dict[str, dict[str, Tensor]]:
    weights: dict[str, dict[str, Tensor]] = store.load(folder / "weights" / name)["weights"]
    return weights


# ---- (1) the mathematics -----------------------------------------------------------------------


@dataclass
class Hand:
    """The same parties without messages: networks, optimisers, inputs."""

    names: list[str]
    recipes: list[Any]
    embed: list[nn.Module]
    decide: list[nn.Module]
    inputs: list[Tensor]
    labels: Tensor
    weight: list[float]
    share: list[float]


def by_hand(tree: dict[str, Any]) -> Hand:
    checked = config.load(tree)
    options = checked.options
    parties = list(assembly.from_catalogue(checked).parties.values())
    embed, decide, inputs = [], [], []
    for party in parties:
        torch.manual_seed(derive(5, "party", party.name))
        recipe = party.recipe
        body = network(recipe.model, party.shape, options.dim, **recipe.model_options)
        if options.normalise:
            body = nn.Sequential(body, nn.LayerNorm(options.dim))
        body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        embed.append(body)
        decide.append(head(recipe.model, options.dim, 10))
        assert party.preparation is not None
        inputs.append(party.preparation.to_float(party.splits["train"].x))
    labels = parties[0].splits["train"].y
    assert labels is not None
    names = [party.name for party in parties]
    given = [options.weights.get(name, 1.0) for name in names]
    weight = (
        [w / sum(given) for w in given] if options.aggregate == "weighted" else [1.0] * len(names)
    )
    share = [1 / len(names)] * len(names) if options.aggregate == "mean" else weight
    recipes = [party.recipe for party in parties]
    return Hand(names, recipes, embed, decide, inputs, labels, weight, share)


def aggregated(hand: Hand, embeddings: list[Tensor], kind: str) -> Tensor:
    total = torch.stack([w * e for w, e in zip(hand.weight, embeddings, strict=True)]).sum(0)
    return total / len(embeddings) if kind == "mean" else total


def hand_loss(scores: Tensor, labels: Tensor, options: Any) -> Tensor:
    if options.loss == "softmax":
        return F.cross_entropy(scores, labels)
    return F.binary_cross_entropy_with_logits(scores, F.one_hot(labels, scores.shape[1]).float())


def train_by_hand(hand: Hand, options: Any) -> list[list[Tensor]]:
    """One process, one graph per batch; the losses of every party in the last epoch."""
    torch.set_num_threads(1)
    optimizers = [
        make_optimizer(recipe, [*h.parameters(), *p.parameters()])
        for recipe, h, p in zip(hand.recipes, hand.embed, hand.decide, strict=True)
    ]
    history: list[list[Tensor]] = []
    for epoch in range(EPOCHS):
        seed = derive(5, "order", "train", epoch)
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
        history = [[] for _ in hand.names]
        for step, index in enumerate(order.split(SIZE)):
            for recipe, one in zip(hand.recipes, optimizers, strict=True):
                for group in one.param_groups:
                    factor = rate_factor(recipe, epoch + step / STEPS, EPOCHS)
                    group["lr"] = group["initial_lr"] * factor
                one.zero_grad()
            batch = [x[index].contiguous(memory_format=torch.channels_last) for x in hand.inputs]
            own = [h(x) for h, x in zip(hand.embed, batch, strict=True)]
            mean = aggregated(hand, own, options.aggregate).detach()
            if options.gradient in ("joint", "none"):
                used = [mean.clone().requires_grad_() for _ in own]
            else:  # E_used = stop(E) + (E_k - stop(E_k)) · dE/dE_k
                factors = hand.share if options.gradient == "own" else [1.0] * len(own)
                used = [mean + f * (e - e.detach()) for f, e in zip(factors, own, strict=True)]
            scores = [p(e) for p, e in zip(hand.decide, used, strict=True)]
            losses = [hand_loss(r, hand.labels[index], options) for r in scores]
            torch.stack(losses).sum().backward()
            if options.gradient == "joint":  # Σ_k dL_k/dE, in the order of the parties
                joint = torch.stack([e.grad for e in used if e.grad is not None]).sum(0)
                for e, share in zip(own, hand.share, strict=True):
                    e.backward(share * joint)
            for number, one in enumerate(optimizers):
                one.step()
                history[number].append(losses[number].detach())
    return history


WEIGHTS = {"party1": 2.0, "party3": 0.5}  # and 1 for party2: their sum is exact in any order
MIXED: dict[str, Any] = {  # every party with a network and an optimiser of its own
    "partition": {"kind": "strips", "parties": 3},
    "model_options": {},
    "parties": {
        "bank": {"optimizer": "sgd", "momentum": 0.0, "lr": 0.1},
        "shop": {"optimizer": "adagrad", "model_options": {"hidden": [5, 7]}},
        "clinic": {"optimizer": "adam", "lr": 0.003, "schedule": "constant", "model": "lenet"},
    },
}


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        *(
            ({"gradient": gradient, "aggregate": aggregate}, {})
            for gradient in ("own", "joint", "unit", "none")
            for aggregate in ("mean", "sum", "weighted")
        ),
        ({"normalise": True}, {}),
        ({"normalise": True, "gradient": "joint", "aggregate": "weighted"}, {}),
        ({"loss": "sigmoid"}, {}),
        ({}, {"model": "cnn", "model_options": {}, "partition": {"kind": "tiles"}}),
        ({"gradient": "joint"}, {"optimizer": "adam", "partition": {"kind": "tiles"}}),
        ({}, MIXED),
        ({"gradient": "joint", "normalise": True}, MIXED),
    ],
    ids=lambda value: "-".join(str(v) for v in value.values() if not isinstance(v, dict)),
)
def test_equals_a_hand_written_loop(
    options: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    """Losses and weights of every party to the last bit."""
    options = options | {"mask": "none"}
    if options.get("aggregate") == "weighted":
        options["weights"] = WEIGHTS
    tree = settings(options, evaluate_every=0, **changes)
    result = colonnade.run(tree, out=tmp_path / "run")
    hand = by_hand(tree)
    before = [{k: v.clone() for k, v in h.state_dict().items()} for h in hand.embed]
    losses = train_by_hand(hand, config.load(tree).options)
    for number, name in enumerate(hand.names):
        weights = saved(tmp_path / "run", name)
        for part, module in (("embedding", hand.embed[number]), ("decision", hand.decide[number])):
            assert weights[part].keys() == module.state_dict().keys()
            for key, value in module.state_dict().items():
                assert torch.equal(weights[part][key], value), (name, part, key)
        logged = result.history[-1]["parties"][name]["loss"]
        assert logged == float(torch.stack(losses[number]).double().mean())
        moved = any(not torch.equal(v, before[number][k]) for k, v in weights["embedding"].items())
        assert moved == (options.get("gradient") != "none")


@pytest.mark.parametrize("gradient", ["own", "joint"])
def test_one_step_follows_autograd_through_the_formula_of_the_mean(
    gradient: str, tmp_path: Path
) -> None:
    """E_used = stop(E) + (E_k − stop(E_k))/C, and the paper's Eq. 7 itself for the joint gradient.

    Close and not equal: division by C is not multiplication by 1/C, and autograd adds the heads'
    gradients up in an order of its own.
    """
    tree = one_step({"mask": "none", "gradient": gradient}, momentum=0.0, lr=1.0)
    colonnade.run(tree, out=tmp_path / "run")
    hand = by_hand(tree)
    seed = derive(5, "order", "train", 0)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
    own = [h(x[order]) for h, x in zip(hand.embed, hand.inputs, strict=True)]
    mean = torch.stack(own).sum(0) / 3
    used = [mean] * 3
    if gradient == "own":
        used = [mean.detach() + (e - e.detach()) / 3 for e in own]
    scores = [p(e) for p, e in zip(hand.decide, used, strict=True)]
    torch.stack([F.cross_entropy(r, hand.labels[order]) for r in scores]).sum().backward()
    for name, h, p in zip(hand.names, hand.embed, hand.decide, strict=True):
        weights = saved(tmp_path / "run", name)
        for part, module in (("embedding", h), ("decision", p)):
            for key, parameter in module.named_parameters():
                assert parameter.grad is not None
                step = parameter.detach() - weights[part][key]  # lr = 1
                assert float(step.abs().max()) > 1e-4
                torch.testing.assert_close(step, parameter.grad, rtol=1e-3, atol=3e-7)


# ---- (2) masks change nothing but what is seen -------------------------------------------------


def test_masked_runs_have_equal_weights_whatever_the_mask_and_the_ring(tmp_path: Path) -> None:
    digests = []
    for number, (mask, ring) in enumerate(itertools.product(("prg", "paper"), (64, 32))):
        tree = settings({"mask": mask, "ring": ring, "fraction": 16})
        digests.append(colonnade.run(tree, out=tmp_path / f"{number}").weights_sha256)
    assert all(digest == digests[0] for digest in digests)
    plain = colonnade.run(settings({"mask": "none"}), out=tmp_path / "plain")
    assert plain.weights_sha256 != digests[0]  # fixed point has been at work


@pytest.mark.parametrize(
    ("mask", "fraction", "parties"),
    [("prg", 6, 3), ("prg", 12, 5), ("prg", 24, 3), ("paper", 12, 3)],
)
def test_the_mean_of_masked_embeddings_is_right_to_half_a_unit_per_party(
    mask: str, fraction: int, parties: int, tmp_path: Path
) -> None:
    found = {}
    for name, options in (("none", {}), (mask, {"fraction": fraction})):
        tree = one_step(
            {"mask": name} | options,
            "global_embedding",
            partition={"kind": "columns", "parties": parties},
        )
        colonnade.run(tree, out=tmp_path / name)
        sent = recorded(tmp_path / name, "global_embedding")["party1"]
        assert len(sent) == parties - 1
        assert all(torch.equal(one, sent[0]) for one in sent)
        found[name] = sent[0].double()
    rounding = parties * 2.0**-24 * float(found["none"].abs().max())  # of the sums in float32
    bound = (parties - 1) * 2.0 ** -(fraction + 1) / parties
    error = (found[mask] - found["none"]).abs().max()
    assert float(error) <= bound + rounding
    if fraction < 24:
        assert float(error) > bound / 8  # the unit is the one that was asked for


# ---- (3) the messages --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "per_batch"),
    [
        ({}, 4),
        ({"mask": "none"}, 4),
        ({"gradient": "joint"}, 6),
        ({"gradient": "unit"}, 4),
        ({"stand_in": "mean"}, 4),
    ],
)
def test_messages_per_batch_and_passive_party(
    options: dict[str, Any], per_batch: int, tmp_path: Path
) -> None:
    result = colonnade.run(settings(options), out=tmp_path / "run")
    batches, passives = EPOCHS * STEPS, 2
    phases = result.wire["by_phase"]
    assert phases["train"]["messages"] == per_batch * passives * batches
    assert result.wire["rounds"] == per_batch * batches
    means = 1 if options.get("stand_in") == "mean" else 0  # of E_k, once per epoch
    assert phases["eval"]["messages"] == (3 + means) * passives * EPOCHS  # E_k, E, R_k
    setup = 0 if options.get("mask") == "none" else 2 + 2  # keys and signatures, up and down
    assert phases["setup"]["messages"] == setup * passives
    rows = list(ledger.read(tmp_path / "run" / "ledger.jsonl"))
    assert {r["kind"] for r in rows if r["phase"] == "setup"} == (
        {"public_keys", "signatures"} if setup else set()
    )
    assert not [r for r in rows if r["phase"] != "setup" and r["kind"] in ("public_keys",)]
    sent = {r["kind"] for r in rows if r["sender"] != "party1" and r["phase"] == "train"}
    embedding = "embedding" if options.get("mask") == "none" else "masked_embedding"
    joint = {"head_gradient"} if per_batch == 6 else set()
    assert sent == {embedding, "prediction"} | joint
    assert not [r for r in rows if "party1" not in (r["sender"], r["receiver"])]


def test_a_prediction_agrees_on_keys_anew_and_sends_no_logits(tmp_path: Path) -> None:
    colonnade.run(settings(), out=tmp_path / "run")
    trained = colonnade.load(tmp_path / "run")
    trained.predict()
    kinds = [row["kind"] for row in ledger.read(tmp_path / "run" / "ledger-predict.jsonl")]
    assert sorted(set(kinds)) == [
        "global_embedding",
        "masked_embedding",
        "public_keys",
        "signatures",
    ]
    assert len(kinds) == 2 * (4 + 2)


# ---- (4) heterogeneous parties -----------------------------------------------------------------


def test_four_networks_and_four_optimisers_train_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Party] = {}
    original = local.run

    def spy(parties: dict[str, Party], *arguments: Any, **named: Any) -> Any:
        kept.update({n: p for n, p in parties.items() if n not in kept})
        return original(parties, *arguments, **named)

    monkeypatch.setattr(local, "run", spy)
    parties = {
        "bank": {"model": "cnn", "optimizer": "sgd", "momentum": 0.0, "lr": 0.2},
        "shop": {"model": "mlp", "optimizer": "sgd", "momentum": 0.9, "lr": 0.05},
        "clinic": {"model": "lenet", "optimizer": "adagrad", "schedule": "constant", "lr": 0.01},
        "tower": {
            "model": "resnet8",
            "model_options": {"width": 0.25},
            "optimizer": "adam",
            "lr": 0.01,
        },
    }
    tree = {
        "method": "easter",
        "seed": 2,
        "epochs": 6,
        "batch_size": 32,
        "data": {"name": "mnist-sample", "train_rows": 480, "test_rows": 200},
        "partition": {"kind": "tiles"},
        "easter": {"dim": 32},
        "parties": parties,
    }
    result = colonnade.run(tree, out=tmp_path / "run")
    accuracies = result.metrics["test"]["per_party"]
    assert list(accuracies) == list(parties)
    assert min(accuracies.values()) > 0.5
    for row in result.history:  # every one's loss and accuracy, in every epoch
        assert all({"loss", "test_accuracy"} <= row["parties"][name].keys() for name in parties)
    first, last = result.history[0]["parties"], result.history[-1]["parties"]
    assert all(last[name]["loss"] < 0.8 * first[name]["loss"] for name in parties)

    shapes = {
        name: str(
            {k: tuple(v.shape) for k, v in saved(tmp_path / "run", name)["embedding"].items()}
        )
        for name in parties
    }
    assert len(set(shapes.values())) == 4
    assert all("decision" in saved(tmp_path / "run", name) for name in parties)
    assert {file.stem for file in (tmp_path / "run" / "weights").iterdir()} == set(parties)
    made: dict[str, Any] = {name: kept[name].keep("optimizer", dict) for name in parties}
    rates = {name: optimizer.param_groups[0] for name, optimizer in made.items()}
    assert [rates[name]["initial_lr"] for name in parties] == [0.2, 0.05, 0.01, 0.01]
    assert rates["clinic"]["lr"] == 0.01
    assert rates["bank"]["lr"] < 0.02  # the end of a cosine

    evaluated = kept["bank"].predictions["test"]["per_party"]
    predictions = colonnade.load(tmp_path / "run").predict()
    assert predictions.keys() == parties.keys() == evaluated.keys()
    for name, prediction in predictions.items():
        assert torch.equal(prediction.codes, evaluated[name].argmax(1))
    assert len({tuple(p.codes.tolist()) for p in predictions.values()}) > 1


# ---- (5), (8) what is refused ------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["prg", "paper"])
def test_two_parties_cannot_mask_and_are_told_what_to_do(mask: str, tmp_path: Path) -> None:
    tree = settings({"mask": mask}, partition={"kind": "columns", "parties": 2})
    with pytest.raises(MethodError, match=r"cannot hide the embeddings of 'party2'.*one_passive"):
        colonnade.run(tree, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"one_passive": True}, {"mask": "none"}])
def test_two_parties_may_do_without(options: dict[str, Any], tmp_path: Path) -> None:
    tree = one_step(
        options, "weakly_masked_embedding", "embedding", partition={"kind": "columns", "parties": 2}
    )
    result = colonnade.run(tree, out=tmp_path / "run")
    assert result.content["roles"] == {"party1": "active", "party2": "passive"}
    if "one_passive" in options:  # what it says: nothing is hidden
        plain = one_step({"mask": "none"}, "embedding", partition=tree["partition"])
        colonnade.run(plain, out=tmp_path / "plain")
        (embedding,) = recorded(tmp_path / "plain", "embedding")["party2"]
        (masked,) = recorded(tmp_path / "run", "weakly_masked_embedding")["party2"]
        assert torch.equal(masked, (embedding.double() * 2**24).round().long())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 0}, r"easter\.fraction = 0: from 1 to 56, of 64"),
        ({"fraction": 57}, r"easter\.fraction = 57: from 1 to 56, of 64"),
        ({"fraction": 25, "ring": 32}, r"easter\.fraction = 25: from 1 to 24, of 32"),
        ({"ring": 48}, r"easter\.ring = 48: must be one of 64, 32"),
        ({"mask": "xor"}, r"easter\.mask = 'xor': must be one of 'prg', 'paper', 'none'"),
        ({"dim": 0}, r"easter\.dim = 0: at least 1"),
        ({"weights": {"party1": 2.0}}, r"weights have no effect without aggregate = \"weighted\""),
        ({"aggregate": "weighted"}, r"aggregate = \"weighted\" needs weights"),
        ({"aggregate": "weighted", "weights": {"party1": 0.0}}, r"party1 = 0\.0: above 0"),
        ({"aggregate": "weighted", "weights": {"party1": -1.0}}, r"party1 = -1\.0: above 0"),
        ({"gradients": "own"}, r"no key 'gradients' in \[easter\]: did you mean 'gradient'"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        colonnade.run(settings(options), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_weight_for_nobody_is_refused(tmp_path: Path) -> None:
    tree = settings({"aggregate": "weighted", "weights": {"party1": 2.0, "partie2": 1.0}})
    with pytest.raises(
        ConfigError, match=r"no party 'partie2' in easter\.weights: did you mean 'party2'\?"
    ):
        colonnade.run(tree, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- (6), (7) what is shown and what is hidden -------------------------------------------------


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_the_gradient_shows_every_label_and_the_log_says_so(loss: str, tmp_path: Path) -> None:
    tree = one_step({"loss": loss}, "gradient")
    result = colonnade.run(tree, out=tmp_path / "run")
    assert result.history[0]["parties"]["party1"]["label_leak"] == 1.0
    assert "label_leak" not in result.history[0]["parties"]["party2"]
    seed = derive(5, "order", "train", 0)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
    labels = by_hand(tree).labels[order]
    for gradient in recorded(tmp_path / "run", "gradient")["party1"]:
        assert torch.equal(gradient.argmin(1), labels)


@pytest.mark.parametrize("ring", [64, 32])
def test_no_embedding_crosses_in_clear(ring: int, tmp_path: Path) -> None:
    """The masked messages beside the embeddings of the same run without masks."""

    def messages(mask: str, kind: str) -> dict[str, Tensor]:
        tree = one_step({"mask": mask, "dim": 64, "ring": ring, "fraction": 20}, kind)
        result = colonnade.run(tree, out=tmp_path / mask)
        kinds = set(result.wire["by_kind"])
        assert ("embedding" in kinds) == (mask == "none")
        return {name: sent[0] for name, sent in recorded(tmp_path / mask, kind).items()}

    def differences(values: Tensor) -> np.ndarray[Any, Any]:
        whole = values.numpy()
        return (whole[1:] - whole[:-1]).astype(np.float64).ravel()  # integers wrap as they should

    plain = messages("none", "embedding")
    assert plain.keys() == {"party2", "party3"}
    for mask, kind in (("prg", "masked_embedding"), ("paper", "weakly_masked_embedding")):
        sent = messages(mask, kind)
        assert sent.keys() == plain.keys()
        for name, values in sent.items():
            assert values.shape == plain[name].shape == (ROWS, 64)
            r = np.corrcoef(values.double().flatten(), plain[name].double().flatten())[0, 1]
            d = np.corrcoef(differences(values), differences(plain[name]))[0, 1]
            if mask == "prg":  # 9600 numbers: one standard deviation is 0.01
                assert abs(r) < 0.07
                assert abs(d) < 0.07
            else:
                assert d > 0.9999999


def test_both_passive_parties_of_three_can_work_out_the_active_ones_embedding(
    tmp_path: Path,
) -> None:
    """What masks do not promise, written down: C·E − E_1 − E_2 = E_0."""
    tree = one_step({"mask": "none"}, "embedding", "global_embedding")
    colonnade.run(tree, out=tmp_path / "run")
    (mean, _) = recorded(tmp_path / "run", "global_embedding")["party1"]
    others = [sent[0] for sent in recorded(tmp_path / "run", "embedding").values()]
    hand = by_hand(tree)
    seed = derive(5, "order", "train", 0)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
    own = hand.embed[0](hand.inputs[0][order]).detach()
    torch.testing.assert_close(3 * mean - others[0] - others[1], own, rtol=1e-4, atol=1e-5)


def test_an_active_party_that_cheats_can_silence_one_party_and_read_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What masks do not promise, written down: they hold against a curious party, no more.

    It chooses the E and the dL_k/dR_k that party2 gets: the first step makes all weights of p_2
    alike, the next ones push every unit of h_2 below zero. Then the sum is party3's embedding.
    """
    original_send, original_carry = easter.passive_send, local.Mailboxes.send
    original_total = Masks.total
    true: dict[tuple[str, Moment], Tensor] = {}
    sums: dict[Moment, Tensor] = {}

    def send(active: Any, part: Any, embedding: Tensor, moment: Moment) -> None:
        true[part.sum.me.name, moment] = embedding.clone()
        original_send(active, part, embedding, moment)

    def total(masks: Masks, messages: Any, moment: Moment, shape: Any) -> Tensor:
        sums[moment] = original_total(masks, messages, moment, shape)
        return sums[moment]

    def carry(mail: local.Mailboxes, message: Message, *given: Any) -> None:
        if (message.sender, message.receiver, message.phase) == ("party1", "party2", "train"):
            at, value = message.epoch * STEPS + message.step, message.value
            assert isinstance(value, Tensor)
            if message.kind is easter.GLOBAL and at == 0:
                message.value = torch.full_like(value, 100.0)
            elif message.kind is easter.GRADIENT:
                size = -0.01 if at == 0 else 0.01 * 4**at if at < 5 else 0.0
                message.value = torch.full_like(value, size)
        original_carry(mail, message, *given)

    monkeypatch.setattr(easter, "passive_send", send)
    monkeypatch.setattr(Masks, "total", total)
    monkeypatch.setattr(local.Mailboxes, "send", carry)
    tree = settings({"dim": 32}, model_options={"hidden": [32]}, schedule="constant", epochs=3)
    colonnade.run(tree, out=tmp_path / "run")
    first, last = Moment("train", 0, 0), Moment("train", 2, STEPS - 1)
    assert float((sums[first] - true["party3", first]).abs().max()) > 0.1
    assert float(true["party3", last].abs().max()) > 0.1
    torch.testing.assert_close(sums[last], true["party3", last], rtol=0, atol=1e-6)


# ---- nonce discipline of whole runs ------------------------------------------------------------


def test_stopped_and_resumed_runs_never_use_a_mask_for_two_plaintexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the middle of an epoch, twice, so that steps and evaluations are done again."""
    plaintexts: dict[tuple[str, bytes, bytes], bytes] = {}
    moments: list[tuple[str, Moment]] = []
    current: list[tuple[str, bytes]] = []
    mask, expand, rates = Masks.mask, masking._expand, Party._set_rates

    def masked(masks: Masks, values: Tensor, moment: Moment) -> dict[str, Tensor | bytes]:
        moments.append((masks._name, moment))
        current.append((masks._name, values.numpy().tobytes()))
        try:
            return mask(masks, values, moment)
        finally:
            current.pop()

    def expanded(secret: bytes, info: bytes) -> bytes:
        if current:  # not where the active party checks a tag
            name, values = current[-1]
            assert (name, secret, info) not in plaintexts
            plaintexts[name, secret, info] = values
        return expand(secret, info)

    monkeypatch.setattr(Masks, "mask", masked)
    monkeypatch.setattr(masking, "_expand", expanded)
    tree = settings(epochs=3, checkpoint={"epochs": 1})

    def go_on(stop: int, **place: Path) -> Result:
        count = 0

        def counted(party: Party, done: float) -> None:
            nonlocal count
            count += 1
            if count > stop:
                raise KeyboardInterrupt
            rates(party, done)

        monkeypatch.setattr(Party, "_set_rates", counted)
        return colonnade.run(tree, **place)

    with pytest.raises(KeyboardInterrupt):
        go_on(3 * STEPS + 5, out=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        go_on(3 * STEPS + 7, resume=tmp_path / "run")
    result = go_on(1000, resume=tmp_path / "run")
    assert result.content["status"] == "finished"
    assert len(moments) > len(set(moments)) == 2 * 3 * (STEPS + 1)  # some were masked again
    assert len(plaintexts) == 2 * len(moments)  # one partner and one tag for each


# ---- (9) values that no mask can hide ----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "lr"), [({}, 1e12), ({"ring": 32, "fraction": 24}, 50.0), ({"mask": "paper"}, 1e12)]
)
def test_a_diverging_run_stops_and_says_who_and_what_to_do(
    options: dict[str, Any], lr: float, tmp_path: Path
) -> None:
    tree = settings(options, lr=lr, epochs=30)
    with pytest.raises(
        Diverged, match=r"cannot be masked: with 2 passive parties.*Lower the learning"
    ) as e:
        colonnade.run(tree, out=tmp_path / "run")
    assert any(
        note.startswith(("party2 (passive)", "party3 (passive)")) for note in e.value.__notes__
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "Lower the learning rate" in result["error"]


@pytest.mark.parametrize("change", [lambda e: e.fill_(float("nan")), lambda e: e.mul_(1e30)])
def test_not_a_byte_of_an_embedding_leaves_that_cannot_be_masked(
    change: Callable[[Tensor], Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = easter.passive_send

    def spoilt(active: Any, part: Any, embedding: Tensor, moment: Moment) -> None:
        if part.sum.me.name == "party3":
            change(embedding)
        original(active, part, embedding, moment)

    monkeypatch.setattr(easter, "passive_send", spoilt)
    with pytest.raises(Diverged, match=r"cannot be masked"):
        colonnade.run(settings(), out=tmp_path / "run")
    rows = list(ledger.read(tmp_path / "run" / "ledger.jsonl"))
    assert not [r for r in rows if r["sender"] == "party3" and r["phase"] != "setup"]
    assert "global_embedding" not in {r["kind"] for r in rows}


# ---- (10) a party is absent --------------------------------------------------------------------

FOUR = {"kind": "columns", "parties": 4}


@pytest.mark.parametrize("mask", ["none", "prg"])
@pytest.mark.parametrize("stand_in", ["mean", "present"])
@pytest.mark.parametrize("aggregate", ["mean", "sum", "weighted"])
def test_what_stands_in_for_an_absent_party(
    aggregate: str, stand_in: str, mask: str, tmp_path: Path
) -> None:
    """E by hand from the saved networks, the mean from all that a party sent without masks."""
    options = {"aggregate": aggregate, "stand_in": stand_in, "mask": mask}
    options |= {"weights": WEIGHTS} if aggregate == "weighted" else {}
    tree = settings(options, partition=FOUR)
    result = colonnade.run(tree, out=tmp_path / "run")
    clear = settings(options | {"mask": "none"}, partition=FOUR, record=["embedding"])
    colonnade.run(clear | {"evaluate_every": 0}, out=tmp_path / "clear")
    sent = recorded(tmp_path / "clear", "embedding")
    means = {name: torch.cat(rows).mean(0) for name, rows in sent.items()}
    assert all(sum(map(len, rows)) == EPOCHS * ROWS for rows in sent.values())

    parties = assembly.from_catalogue(config.load(tree)).parties
    labels = parties["party1"].splits["test"].y
    hand = by_hand(tree)
    own, decide = {}, {}
    for name, h, p in zip(hand.names, hand.embed, hand.decide, strict=True):
        weights, party = saved(tmp_path / "run", name), parties[name]
        h.load_state_dict(weights["embedding"])
        p.load_state_dict(weights["decision"])
        assert party.preparation is not None
        with torch.no_grad():
            own[name] = h(party.preparation.to_float(party.splits["test"].x))
        decide[name] = p
    trained = colonnade.load(tmp_path / "run")
    for absent in hand.names[1:]:
        members = [name for name in hand.names if name != absent or stand_in == "mean"]
        given = [WEIGHTS.get(name, 1.0) if aggregate == "weighted" else 1.0 for name in members]
        divisor = {"mean": len(members), "sum": 1, "weighted": sum(given)}[aggregate]
        total = torch.zeros(60, DIM)
        for name, weight in zip(members, given, strict=True):
            if name == absent:  # what it sent was weighted already
                total += means[name] * (divisor if aggregate == "weighted" else 1)
            else:
                total += weight * own[name]
        found = trained.predict(absent=[absent])
        assert list(found) == [name for name in hand.names if name != absent]
        right = []
        for name, prediction in found.items():
            with torch.no_grad():
                wanted = decide[name](total / divisor).softmax(1)
            torch.testing.assert_close(prediction.probabilities, wanted, rtol=1e-3, atol=1e-5)
            right.append(float((prediction.codes == labels).double().mean()))
        assert result.metrics["test"]["absent"][absent] == pytest.approx(sum(right) / 3)


def test_an_absent_party_takes_no_part_in_keys_and_messages(tmp_path: Path) -> None:
    colonnade.run(settings(partition=FOUR), out=tmp_path / "run")
    colonnade.load(tmp_path / "run").predict(absent=["party3"])
    rows = list(ledger.read(tmp_path / "run" / "ledger-predict.jsonl"))
    assert not [r for r in rows if "party3" in (r["sender"], r["receiver"])]
    for kind in ("public_keys", "signatures"):
        shown = [r["shape"] for r in rows if r["kind"] == kind and r["sender"] == "party1"]
        assert [sorted(members) for members in shown] == [["party1", "party2", "party4"]] * 2
    assert "masked_embedding" in {r["kind"] for r in rows}


def test_with_one_passive_party_left_nothing_can_be_hidden(tmp_path: Path) -> None:
    result = colonnade.run(settings(), out=tmp_path / "run")
    assert "absent" not in result.metrics["test"]  # each would leave one
    trained = colonnade.load(tmp_path / "run")
    with pytest.raises(MethodError, match=r"cannot hide the embeddings of 'party2'.*one_passive"):
        trained.predict(absent=["party3"])
    alone = trained.predict(absent=["party2", "party3"])  # nobody has anything to hide
    assert list(alone) == ["party1"]
    assert (tmp_path / "run" / "ledger-predict.jsonl").read_bytes() == b""

    accepted = settings({"one_passive": True})
    result = colonnade.run(accepted, out=tmp_path / "accepted")
    assert list(result.metrics["test"]["absent"]) == ["party2", "party3"]
    colonnade.load(tmp_path / "accepted").predict(absent=["party3"])
    rows = list(ledger.read(tmp_path / "accepted" / "ledger-predict.jsonl"))
    kinds = {row["kind"] for row in rows if row["sender"] == "party2"}
    assert kinds == {"public_keys", "signatures", "weakly_masked_embedding"}


class _Tapped:
    """A wire that must not be used."""

    def put(self, receiver: str, kind: Kind, value: object) -> None:
        pytest.fail(f"'{kind.name}' left for {receiver}")


def test_every_role_refuses_by_itself_before_a_single_message() -> None:
    """Whatever the runtime has checked: the members may have changed since."""
    me = Party("a", "", Recipe(), Schedule(0, 1, 1), {}, None, Task.of(("x",)), torch.device("cpu"))
    wire, cfg = _Tapped(), easter.Easter()
    there, gone = Peer("b", wire), Peer("c", wire, present=False)
    with pytest.raises(MethodError, match="cannot hide the embeddings of 'a'"):
        easter.passive_share(me, there, [gone], cfg).send(None)
    with pytest.raises(MethodError, match="cannot hide the embeddings of 'b'"):
        easter.active_share(me, [there, gone], cfg).send(None)


def train_without(tree: dict[str, Any], absent: set[str]) -> dict[str, Party]:
    checked = config.load(tree)
    federation = assembly.from_catalogue(checked)
    there = {name: party for name, party in federation.parties.items() if name not in absent}
    for name, known in identity.simulated(list(there), "session").items():
        there[name].identity = known

    def start(party: Party, wire: Wire) -> Any:
        program = checked.found.method.roles[party.role].train
        return bind(program, party, federation.cast, wire, checked.options, absent)

    kinds = {kind.name: kind for kind in checked.found.method.kinds}
    with reproducible(checked.run.threads, False):
        local.run(there, start, local.Mailboxes(kinds, Ledger(None)))
    return there


QUARTERS = [[0, 0, 4, 4], [0, 4, 4, 4], [4, 0, 4, 4], [4, 4, 4, 4]]


@pytest.mark.parametrize("gradient", ["own", "joint"])
@pytest.mark.parametrize("aggregate", ["mean", "sum", "weighted"])
def test_training_without_a_party_is_training_of_the_others(
    aggregate: str, gradient: str, tmp_path: Path
) -> None:
    """With `present`, absent from the start: the same bits as a federation of those present."""
    options = {"stand_in": "present", "aggregate": aggregate, "gradient": gradient}
    options |= {"weights": WEIGHTS} if aggregate == "weighted" else {}
    names = ["party1", "party2", "party3", "party4"]

    def tree(keep: list[int]) -> dict[str, Any]:
        place = {"kind": "rectangles", "rectangles": [QUARTERS[i] for i in keep]}
        return settings(options, partition=place, parties={names[i]: {} for i in keep})

    there = train_without(tree([0, 1, 2, 3]), {"party4"})
    three = colonnade.run(tree([0, 1, 2]), out=tmp_path / "three")
    for name, party in there.items():
        for part, values in saved(tmp_path / "three", name).items():
            for key, value in values.items():
                assert torch.equal(party.kept.weights()[part][key], value), (name, part, key)
    assert [row["loss"] for row in there["party1"].history] == [
        row["parties"]["party1"]["loss"] for row in three.history
    ]


def test_training_goes_on_with_nothing_in_the_place_of_a_party_that_never_came() -> None:
    there = train_without(settings({"stand_in": "mean"}, partition=FOUR, epochs=4), {"party3"})
    means = {k: v for k, v in there["party1"].kept.weights().items() if k.startswith("mean of ")}
    assert list(means) == ["mean of party3", "mean of party2", "mean of party4"]
    assert not means["mean of party3"]["total"].any()
    assert means["mean of party2"]["total"].any()
    told, own = means["mean of party2"], there["party2"].kept.weights()["mean of party2"]
    assert int(own["rows"]) == 4 * ROWS
    assert torch.equal(told["total"].float(), (own["total"] / own["rows"]).float())
    losses = [row["loss"] for row in there["party1"].history]
    assert losses[-1] < losses[0]


# ---- (12) noise of which everybody adds a share ------------------------------------------------


def protected(tmp_path: Path, name: str, **more: Any) -> dict[str, Any]:
    how = {"embedding_epsilon": 8.0, "simulate_noise_seed": 3}
    tree = settings(partition=FOUR, record=["masked_embedding", "global_embedding"])
    tree = tree | {"protect": how} | more
    return dict(colonnade.run(tree, out=tmp_path / name).content)


def test_only_the_sum_carries_all_of_the_noise(tmp_path: Path) -> None:
    """What is opened without protection, against what is with it, in the first step."""
    content = protected(tmp_path, "noisy")
    told = content["privacy"]["parties"]["party2"]["sums"]
    assert told["share"] == pytest.approx(told["sigma"] / 2**0.5)  # three senders, one may collude
    assert content["privacy"]["parties"]["party1"]["sums"]["share"] == 0.0
    assert content["privacy"]["simulated"] is True
    noisy = recorded(tmp_path / "noisy", "global_embedding")["party1"][0]
    quiet = {"embedding_epsilon": 1e6, "simulate_noise_seed": 3}
    protected(tmp_path, "quiet", protect=quiet)
    clipped = recorded(tmp_path / "quiet", "global_embedding")["party1"][0]
    noise = 4 * (scale(told["sigma"], DIM) * noisy - clipped)  # E is the mean of four
    assert float(noise.std()) == pytest.approx(told["sigma"] * 1.5**0.5, rel=0.1)


def test_a_noisy_run_repeats_itself_only_with_a_seed_for_its_noise(tmp_path: Path) -> None:
    one, two = (protected(tmp_path, name) for name in ("one", "two"))
    assert one["weights_sha256"] == two["weights_sha256"]
    drawn = [
        protected(tmp_path, name, protect={"embedding_epsilon": 8.0})["weights_sha256"]
        for name in ("three", "four")
    ]
    assert drawn[0] != drawn[1]


def test_constant_masks_and_clear_means_are_refused_beside_noise(tmp_path: Path) -> None:
    how = {"protect": {"embedding_epsilon": 8.0}}
    for options, kind in (({"mask": "paper"}, "weakly_masked"), ({"stand_in": "mean"}, "mean_emb")):
        with pytest.raises(ConfigError, match=f"embedding_epsilon = 8: '{kind}.*easter"):
            colonnade.run(settings(options, partition=FOUR) | how, out=tmp_path / "run")


def test_so_few_passive_parties_are_named(tmp_path: Path) -> None:
    two = colonnade.run(settings(), out=tmp_path / "two")
    assert any("'party2' and 'party3', one that tells" in said for said in two.content["warnings"])
    tree = settings({"one_passive": True}, partition={"kind": "columns", "parties": 2})
    one = colonnade.run(tree, out=tmp_path / "one")
    assert any("'party2', is not hidden" in said for said in one.content["warnings"])
    four = colonnade.run(settings(partition=FOUR), out=tmp_path / "four")
    assert not any("hid" in said for said in four.content["warnings"])
