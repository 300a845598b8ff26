"""JoVe-FL against hand-written loops: what is shared, when, by whom, and what is not."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from interrupted import interrupt_after
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

import colonnade
from colonnade import assembly, config, data, methods
from colonnade.data import Moves
from colonnade.errors import ConfigError, DataError, DataMissing, MethodError
from colonnade.methods import jovefl
from colonnade.methods.jovefl import JoVeFL
from colonnade.methods.parts import participation
from colonnade.methods.parts.chains import Chain, models_of, why_judged
from colonnade.methods.parts.coded import ServerEnd
from colonnade.methods.parts.compression import Scalar
from colonnade.methods.parts.head_messages import GLOBAL, HEAD
from colonnade.methods.parts.scoring import logits_of
from colonnade.partition import cut
from colonnade.report import load_schema
from colonnade.results.result import Result
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.runtime import local
from colonnade.runtime.drive import reproducible
from colonnade.wire import Message, codec, ledger, store

SEED, ROWS, TEST, SIZE, EPOCHS = 5, 150, 60, 20, 3
Weights = dict[str, dict[str, Tensor]]

# Two views that overlap, of unequal size: 5×8 pixels at the top, 8×6 at the right.
VIEWS: dict[str, Any] = {"kind": "rectangles", "rectangles": [[0, 0, 5, 8], [0, 2, 8, 6]]}
HYBRID: dict[str, Any] = VIEWS | {"kind": "hybrid"}  # and no row in common
WHOLE: dict[str, Any] = {"kind": "rectangles", "rectangles": [[0, 0, 8, 8]]}  # one client
CUT: dict[str, Any] = {"cut": "stage2", "fit_size": 3}
NET: dict[str, Any] = {"model": "resnet8", "model_options": {"width": 0.25}}  # θ with BatchNorm
RESNET = NET | {"batch_size": 50}  # fewer steps: they take their time
MOVED = {"flip": True, "shift": 1}
HELD = {"validation": 0.2}


def settings(options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Two clients with views of the digits, 8×8; small MLPs unless the changes say otherwise."""
    rows = {"name": "digits", "train_rows": ROWS, "test_rows": TEST} | changes.pop("data", {})
    base: dict[str, Any] = {
        "method": "jovefl",
        "seed": SEED,
        "epochs": EPOCHS,
        "batch_size": SIZE,
        "batching": "papers",  # as in the hand-written loops
        "lr": 0.2,
        "model": "mlp",
        "model_options": {"hidden": [16]},
        "data": rows,
        "partition": VIEWS,
        "checkpoint": {"epochs": 0},
    }
    return base | {"jovefl": {"dim": 12} | (options or {})} | changes


def columns(parties: int) -> dict[str, Any]:
    return {"kind": "columns", "parties": parties}


@dataclass
class Seen:
    """A run, and what could be seen of it from all sides at once."""

    result: Result
    parties: dict[str, Party]
    messages: list[Message]  # as they were when they were sent

    @property
    def clients(self) -> dict[str, Party]:
        return {name: party for name, party in self.parties.items() if party.role == "client"}

    @property
    def server(self) -> Party:
        return self.parties["server"]

    def up(self, name: str = "") -> list[Message]:
        """Heads, without the last words."""
        heads = [m for m in self.messages if m.kind is HEAD and not told(m)["leaves"]]
        return [m for m in heads if not name or m.sender == name]

    def down(self, name: str = "") -> list[Message]:
        answers = [m for m in self.messages if m.kind is GLOBAL]
        return [m for m in answers if not name or m.receiver == name]

    def rounds(self) -> dict[int, dict[str, Message]]:
        """By number of the round, what came from whom."""
        heads = {(m.sender, told(m)["number"]): m for m in self.up()}
        found: dict[int, dict[str, Message]] = {}
        for answer in self.down():
            value = told(answer)
            here = found.setdefault(value["number"], {})
            here[answer.receiver] = heads[answer.receiver, value["to"]]
        return found

    def answers(self) -> dict[int, dict[str, Any]]:
        """By number of the round, what one of its clients was told."""
        return {told(m)["number"]: told(m) for m in self.down()}

    def accuracies(self, measure: str = "per_party", rows: str = "test") -> dict[str, float]:
        found: dict[str, float] = self.result.metrics[rows][measure]
        return found

    def weights(self, name: str) -> Weights:
        return saved(self.result.path, name)


def told(message: Message) -> dict[str, Any]:
    assert isinstance(message.value, dict)
    return message.value


def train(
    folder: Path,
    tree: dict[str, Any],
    watch: Callable[[pytest.MonkeyPatch], None] = lambda patch: None,
    **named: Any,
) -> Seen:
    """Run it, and keep the parties and copies of all messages."""
    parties: dict[str, Party] = {}
    messages: list[Message] = []
    run, send = local.run, local.Mailboxes.send

    def spied_run(members: dict[str, Party], *given: Any, **more: Any) -> Any:
        parties.update(members)
        return run(members, *given, **more)

    def spied_send(mail: local.Mailboxes, message: Message, *given: Any) -> None:
        messages.append(replace(message, value=copy.deepcopy(message.value)))
        send(mail, message, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "run", spied_run)
        patch.setattr(local.Mailboxes, "send", spied_send)
        watch(patch)
        result = colonnade.run(tree, out=folder, **named)
    return Seen(result, parties, messages)


def saved(folder: Path, name: str) -> Weights:
    weights: Weights = store.load(folder / "weights" / name)["weights"]
    return weights


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def close(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], rtol: float = 1e-4, atol: float = 1e-6
) -> None:
    assert one.keys() == other.keys()
    for key in one:
        torch.testing.assert_close(
            one[key].double(), other[key].double(), msg=key, rtol=rtol, atol=atol
        )


def copied(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def without_time(result: Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]


def fits_its_schema(result: Result) -> None:
    import jsonschema

    content = json.loads((result.path / "result.json").read_text())
    jsonschema.Draft202012Validator(load_schema()).validate(content)


def assembled(tree: dict[str, Any]) -> tuple[JoVeFL, dict[str, Party]]:
    """The options and the clients of a configuration, before anything has happened."""
    checked = config.load(tree)
    parties = assembly.from_catalogue(checked).parties
    return checked.options, {name: p for name, p in parties.items() if p.role == "client"}


# ---- the algorithm, once more --------------------------------------------------------------------


@dataclass
class Hand:
    """One client without messages."""

    embed: nn.Module
    head: nn.Module
    shared: nn.Module
    optimizers: list[torch.optim.SGD]  # of what is shared, and of the rest
    party: Party
    losses: list[Tensor]

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """An order of its own, drawn from seed, epoch and name; then the moves of the images."""
        schedule, rows = self.party.schedule, self.party.splits["train"]
        generator = torch.Generator().manual_seed(
            derive(schedule.seed, "order", "train", epoch, self.party.name)
        )
        order = torch.randperm(len(rows), generator=generator)
        assert rows.y is not None and self.party.preparation is not None
        x = rows.x[order]
        if x.dim() == 4:
            x = self.party.preparation.to_float(x)
            if schedule.flip or schedule.shift:
                moves = Moves.draw(len(rows), schedule.flip, schedule.shift, generator)
                x = moves.apply(x)
            x = x.contiguous(memory_format=torch.channels_last)
        size = schedule.batch_size
        yield from zip(x.split(size), rows.y[order].split(size), strict=True)


def by_hand(tree: dict[str, Any]) -> dict[str, Hand]:
    """JoVe-FL as a plain loop over plain networks; a mean of two is (a + b) / 2 to the last bit."""
    with reproducible(1, False):
        return _by_hand(*assembled(tree))


def _by_hand(options: JoVeFL, parties: dict[str, Party]) -> dict[str, Hand]:
    hands: dict[str, Hand] = {}
    for name, party in parties.items():
        embed, head = models_of(party, options)
        shared = nn.ModuleList([embed, head]) if options.share == "networks" else head
        hands[name] = Hand(embed, head, shared, [], party, [])
        hands[name].optimizers = [sgd(hands[name], True), sgd(hands[name], False)]
    rows = {name: len(hand.party.splits["train"]) for name, hand in hands.items()}
    count = {name: n if options.weighted else 1 for name, n in rows.items()}
    epochs = next(iter(parties.values())).schedule.epochs
    for epoch in range(epochs):
        anchors: dict[str, Tensor] = {}
        if epoch % options.every == 0 and options.share in ("heads", "networks"):
            anchors = average(hands, count, options)
        for hand in hands.values():
            hand.losses.clear()
            number = -(-len(hand.party.splits["train"]) // hand.party.schedule.batch_size)
            for step, (x, y) in enumerate(hand.batches(epoch)):
                done = epoch + step / number
                rate = 0.5 * (1.0 + math.cos(math.pi * (done / epochs)))
                loss = F.cross_entropy(hand.head(hand.embed(x)), y)
                hand.losses.append(loss.detach())
                hand.embed.zero_grad()
                hand.head.zero_grad()
                loss.backward()
                for key, parameter in hand.shared.named_parameters() if options.prox else ():
                    assert parameter.grad is not None
                    distance = parameter.detach() - anchors[key]
                    parameter.grad = parameter.grad.add(distance, alpha=options.prox)
                for optimizer in hand.optimizers:
                    optimizer.param_groups[0]["lr"] = 0.2 * rate
                    optimizer.step()
    return hands


def sgd(hand: Hand, shared: bool) -> torch.optim.SGD:
    """Fused, because that kernel rounds in its own way."""
    recipe = hand.party.recipe
    theirs = {id(p) for p in hand.shared.parameters()}
    both = [*hand.embed.parameters(), *hand.head.parameters(), nn.Parameter(torch.zeros(1))]
    return torch.optim.SGD(
        [p for p in both if (id(p) in theirs) is shared],
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def average(hands: dict[str, Hand], count: dict[str, int], options: JoVeFL) -> dict[str, Tensor]:
    """Every client gets the mean of all; what of BatchNorm's statistics is local stays."""
    share = {name: n / sum(count.values()) for name, n in count.items()}
    every = {name: hand.shared.state_dict() for name, hand in hands.items()}
    parameters = [key for key, _ in next(iter(hands.values())).shared.named_parameters()]
    mean: dict[str, Tensor] = {}
    for key, like in next(iter(every.values())).items():
        if key in parameters or options.batch_norm == "shared":
            exact = sum(share[name] * tree[key].double() for name, tree in every.items())
            value = torch.as_tensor(exact)
            mean[key] = (value if like.is_floating_point() else value.round()).to(like.dtype)
    for hand in hands.values():
        hand.shared.load_state_dict(mean, strict=False)
        if options.momentum == "reset":
            hand.optimizers[0] = sgd(hand, True)
    return {key: mean[key] for key in parameters}


def equals(seen: Seen, hands: dict[str, Hand]) -> None:
    """To the last bit: weights, statistics, the last losses."""
    for name, hand in hands.items():
        weights = seen.weights(name)
        assert same(weights["embedding"], hand.embed.state_dict()), name
        assert same(weights["head"], hand.head.state_dict()), name
        logged = seen.result.history[EPOCHS - 1]["parties"][name]["loss"]
        assert logged == float(torch.stack(hand.losses).double().mean())


ALONE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"every": 2}, {"momentum": 0.9, "weight_decay": 1e-3, "nesterov": True}),
    (CUT, RESNET | {"data": MOVED}),
    (CUT | {"batch_norm": "local", "fit": "none"}, RESNET | {"data": MOVED}),
    (CUT | {"batch_norm": "batch", "fit": "canvas"}, RESNET),
    ({"share": "networks"}, {"data": MOVED}),
    ({"deadline": 2.0, "contact": 5.0, "weighted": True, "stale": 1.0}, {}),
]


@pytest.mark.parametrize(("options", "changes"), ALONE, ids=str)
def test_one_client_is_a_plain_loop(
    options: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    """m = 1: the same bits with a server, without one, and in a loop without either."""
    tree = settings(options, partition=WHOLE, **changes)
    federated = train(tmp_path / "federated", tree)
    assert len(federated.down()) == math.ceil(EPOCHS / options.get("every", 1))
    own = {"share": "nothing", "same_start": options.get("share") == "networks"}
    single = train(tmp_path / "alone", tree | {"jovefl": tree["jovefl"] | own})
    assert not single.messages
    hands = by_hand(tree)
    equals(federated, hands)
    equals(single, hands)
    assert federated.accuracies() == single.accuracies()


TWO: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"partition": HYBRID, "data": MOVED}),
    ({"every": 2, "same_start": True, "hidden": [11, 7]}, {}),
    ({"momentum": "reset"}, {}),
    ({"prox": 0.5}, {}),
    ({"share": "nothing"}, {}),
    ({"share": "networks"}, {"partition": {"kind": "strips", "parties": 2}}),
    (CUT | {"share": "networks", "momentum": "reset"}, RESNET),
    (CUT, RESNET | {"data": MOVED}),
    (CUT | {"batch_norm": "local", "momentum": "reset"}, RESNET),
    (CUT | {"batch_norm": "batch", "fit": "resize"}, RESNET | {"partition": HYBRID}),
]


@pytest.mark.parametrize(("options", "changes"), TWO, ids=str)
def test_two_clients_equal_a_hand_written_loop(
    options: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    """To the last bit; "networks" is textbook FedAvg: one start, local epochs, the mean."""
    tree = settings(options, **changes)
    hands = by_hand(tree)
    seen = train(tmp_path / "run", tree)
    equals(seen, hands)
    heads = [hand.head.state_dict() for hand in hands.values()]
    assert not same(heads[0], heads[1])  # what is kept is θ_i after its own training


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("strategy", ["fedavg", "fednova"])
def test_three_clients_with_unequal_rows(strategy: str, weighted: bool, tmp_path: Path) -> None:
    """FedNova divides by what each client's steps can do, times their mean."""
    views = [[0, 0, 4, 8], [2, 0, 6, 8], [0, 0, 8, 4]]
    place = {"kind": "hybrid", "rectangles": views, "alpha": 1.0}
    options = {"strategy": strategy, "weighted": weighted}
    tree = settings(options, partition=place, momentum=0.5)
    seen = train(tmp_path / "run", tree)
    rows = {name: len(party.splits["train"]) for name, party in seen.clients.items()}
    assert len(set(rows.values())) == 3
    steps = {name: math.ceil(n / SIZE) for name, n in rows.items()}
    assert len(set(steps.values())) > 1
    if strategy == "fedavg":
        for name, hand in by_hand(tree).items():
            close(seen.weights(name)["head"], hand.head.state_dict())
            close(seen.weights(name)["embedding"], hand.embed.state_dict())
    # a_i: the j-th gradient of τ still counts 1 + ρ + … + ρ^(τ-j).
    reach = {name: sum(2 - 0.5**j for j in range(tau)) for name, tau in steps.items()}
    weight = {name: n if weighted else 1 for name, n in rows.items()}
    p = {name: w / sum(weight.values()) for name, w in weight.items()}
    answers = seen.answers()
    for number, heads in seen.rounds().items():
        sent = {n: doubled(told(m)["parameters"]) for n, m in heads.items()}
        wanted = {
            key: torch.stack([p[n] * sent[n][key] for n in sent]).sum(0) for key in sent["party1"]
        }
        if strategy == "fednova" and number > 1:
            old = doubled(answers[number - 1]["parameters"])
            tau = sum(p[n] * reach[n] for n in p)
            wanted = {
                key: old[key] + tau * sum(p[n] * (sent[n][key] - old[key]) / reach[n] for n in p)
                for key in old
            }
        close(answers[number]["parameters"], wanted, rtol=1e-5)
    assert len(answers) == EPOCHS


def doubled(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor.double() for key, tensor in tree.items()}


@pytest.mark.parametrize("strategy", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_the_server_may_remember(strategy: str, tmp_path: Path) -> None:
    """The options reach the strategy, whose formulas parts/test_aggregation.py checks."""
    options = {"strategy": strategy, "server_lr": 0.4, "server_momentum": 0.6}
    options |= {"server_beta2": 0.7, "server_epsilon": 0.05}
    seen = train(tmp_path / "run", settings(options))
    velocity: dict[str, Any] = {}
    squares: dict[str, Any] = {}
    answers = seen.answers()
    for number, heads in sorted(seen.rounds().items()):
        sent = [doubled(told(m)["parameters"]) for m in heads.values()]
        mean = {key: (sent[0][key] + sent[1][key]) / 2 for key in sent[0]}
        if number == 1:  # nothing was trained yet
            close(answers[1]["parameters"], mean, rtol=1e-6)
            continue
        old, wanted = doubled(answers[number - 1]["parameters"]), {}
        for key in old:
            delta = mean[key] - old[key]
            before, v = velocity.get(key, 0.0), squares.get(key, torch.zeros_like(delta))
            if strategy == "fedavgm":
                velocity[key] = 0.6 * before + delta
                wanted[key] = old[key] + 0.4 * velocity[key]
                continue
            velocity[key] = 0.6 * before + 0.4 * delta
            squares[key] = {
                "fedadagrad": v + delta**2,
                "fedadam": 0.7 * v + 0.3 * delta**2,
                "fedyogi": v - 0.3 * delta**2 * (v - delta**2).sign(),
            }[strategy]
            wanted[key] = old[key] + 0.4 * velocity[key] / (squares[key].sqrt() + 0.05)
        close(answers[number]["parameters"], wanted, rtol=1e-4, atol=1e-6)


# ---- a round ------------------------------------------------------------------------------------

THREE: dict[str, Any] = {
    "kind": "rectangles",
    "rectangles": [[0, 0, 4, 8], [2, 0, 6, 8], [0, 0, 8, 4]],
}


@dataclass
class Moment:
    """A client before and after it has agreed with the others."""

    name: str
    epoch: int
    embed: tuple[dict[str, Tensor], dict[str, Tensor]]
    head: tuple[dict[str, Tensor], dict[str, Tensor]]
    momentum: tuple[list[Tensor | None], list[Tensor | None]]  # of θ's parameters, then ξ's


def moments(found: list[Moment]) -> Callable[[pytest.MonkeyPatch], None]:
    def watch(patch: pytest.MonkeyPatch) -> None:
        original = jovefl.begin_epoch

        def velocities(chain: Chain) -> list[Tensor | None]:
            store = chain.optimizer.state
            embed, head = chain.layers
            parameters = [*head.parameters(), *embed.parameters()]
            found = [store[p].get("momentum_buffer") if p in store else None for p in parameters]
            return [None if buffer is None else buffer.clone() for buffer in found]

        async def begin(
            me: Party, servers: Any, chains: Any, cfg: JoVeFL, epoch: int, *total: Any
        ) -> None:
            chain = chains[0]
            embed, head = (copied(layer) for layer in chain.layers)
            momentum = velocities(chain)
            await original(me, servers, chains, cfg, epoch, *total)
            found.append(
                Moment(
                    me.name,
                    epoch,
                    (embed, copied(chain.layers[0])),
                    (head, copied(chain.layers[1])),
                    (momentum, velocities(chain)),
                )
            )

        patch.setattr(jovefl, "begin_epoch", begin)

    return watch


@pytest.mark.parametrize("kind", ["shared", "local", "batch"])
def test_after_a_round_all_heads_are_the_mean_of_all_and_embeddings_are_untouched(
    kind: str, tmp_path: Path
) -> None:
    """And which of BatchNorm's statistics cross, and which change."""
    found: list[Moment] = []
    tree = settings(CUT | {"batch_norm": kind}, partition=THREE, **RESNET)
    seen = train(tmp_path / "run", tree, moments(found))
    names = {key for key in found[0].head[0] if key.endswith(("mean", "var", "tracked"))}
    assert bool(names) is (kind != "batch")
    for epoch in range(EPOCHS):
        now = [moment for moment in found if moment.epoch == epoch]
        assert [moment.name for moment in now] == list(seen.clients)
        for moment in now:
            assert same(*moment.embed)
            for key, value in moment.head[1].items():
                if key not in names or kind == "shared":
                    assert torch.equal(value, now[0].head[1][key]), key
                elif epoch:
                    assert torch.equal(value, moment.head[0][key]), key  # its own
        if epoch and kind == "local":
            assert not torch.equal(
                *(m.head[1]["stage3.0.residual.1.running_mean"] for m in now[:2])
            )
    rounds, answers = seen.rounds(), seen.answers()
    assert len(rounds) == EPOCHS
    for number, heads in rounds.items():
        assert list(heads) == list(seen.clients)
        for part in ("parameters", "buffers"):
            sent = [told(message)[part] for message in heads.values()]
            wanted = {key: sum(tree[key].double() for tree in sent) / 3 for key in sent[0]}
            wanted = {
                key: value if sent[0][key].is_floating_point() else value.round()
                for key, value in wanted.items()
            }
            close(answers[number][part], wanted, rtol=1e-6)
        assert set(answers[number]["buffers"]) == (names if kind == "shared" else set())
    for message in seen.down():
        assert same(told(message)["parameters"], answers[told(message)["number"]]["parameters"])


@pytest.mark.parametrize("momentum", ["keep", "reset"])
def test_the_momentum_of_the_head_is_kept_or_reset(momentum: str, tmp_path: Path) -> None:
    found: list[Moment] = []
    train(tmp_path / "run", settings({"momentum": momentum}), moments(found))
    for moment in found:
        before, after = moment.momentum
        theta = len(moment.head[0])
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            if moment.epoch == 0:
                assert old is None
            elif momentum == "reset" and number < theta:
                assert old is not None and old.any() and new is not None and not new.any()
            else:
                assert old is not None and new is not None and torch.equal(old, new)


@pytest.mark.parametrize(("epochs", "every"), [(4, 1), (4, 2), (5, 2), (4, 3), (2, 5)])
def test_rounds_and_bytes(epochs: int, every: int, tmp_path: Path) -> None:
    found: list[Moment] = []
    tree = settings({"every": every}, epochs=epochs)
    seen = train(tmp_path / "run", tree, moments(found))
    rounds = math.ceil(epochs / every)
    wire = seen.result.wire
    assert wire["rounds"] == 2 * rounds
    assert wire["by_kind"]["global_head"]["messages"] == 2 * rounds
    assert wire["by_kind"]["head"]["messages"] == 2 * rounds + 2  # and that they leave
    assert wire["by_phase"]["train"]["messages"] == 4 * rounds
    numbers = 12 * 10 + 10  # of θ
    down = codec.size(seen.down()[0].value)
    assert 0 < down - 4 * numbers < 300  # names, sizes, and a few plain numbers
    assert wire["by_kind"]["global_head"]["bytes"] == 2 * rounds * down
    up = codec.size(seen.up()[0].value)
    leave = codec.size({"leaves": True})
    assert 0 < up - 4 * numbers < 300
    assert wire["by_kind"]["head"]["bytes"] == 2 * (rounds * up + leave)
    steps = math.ceil(ROWS / SIZE) * every  # between two rounds: what FedNova divides by
    work = sum((1 - 0.9**left) / (1 - 0.9) for left in range(1, steps + 1))
    assert [told(m)["work"] for m in seen.up()] == pytest.approx([work] * 2 * rounds)
    for moment in found:
        assert same(*moment.head) is (moment.epoch % every != 0 or moment.epoch == 0)
    rows = seen.result.history
    assert [row["epoch"] for row in rows] == list(range(1, epochs + 1))
    assert all("loss" in row["parties"][name] for row in rows for name in seen.clients)
    logged = [row["epoch"] for row in rows if "test_merged_accuracy" in row["parties"]["party1"]]
    assert logged == [1 + every * number for number in range(rounds)]


def test_the_accuracy_right_after_the_mean_is_reported_beside_the_own_one(tmp_path: Path) -> None:
    found: list[Moment] = []
    seen = train(tmp_path / "run", settings(), moments(found))
    options, clients = assembled(settings())
    for moment in found:
        party = clients[moment.name]
        embed, head = models_of(party, options)
        embed.load_state_dict(moment.embed[1])
        head.load_state_dict(moment.head[1])
        row = seen.result.history[moment.epoch]["parties"][moment.name]
        assert row["test_merged_accuracy"] == judged(party, embed, head, "test")[0]
    for name, party in clients.items():
        embed, head = models_of(party, options)
        embed.load_state_dict(seen.weights(name)["embedding"])
        head.load_state_dict(seen.weights(name)["head"])
        assert seen.accuracies()[name] == judged(party, embed, head, "test")[0]
    last = seen.result.history[-1]["parties"]
    assert seen.accuracies("merged") == {n: last[n]["test_merged_accuracy"] for n in clients}
    assert seen.accuracies("merged") != seen.accuracies()


def judged(me: Party, embed: nn.Module, head: nn.Module, rows: str) -> tuple[float, float]:
    """Accuracy and loss of copies of these networks."""
    embed, head = copy.deepcopy(embed).eval(), copy.deepcopy(head).eval()
    with torch.no_grad():
        logits = torch.cat([head(embed(batch.x)) for batch in me.rows(rows)])
    labels = me.splits[rows].y
    assert labels is not None
    right = int((logits.argmax(1) == labels).sum()) / len(labels)
    return right, float(F.cross_entropy(logits, labels))


# ---- how networks begin -------------------------------------------------------------------------

MIXED: dict[str, Any] = {
    "parties": {
        "deep": {"model": "resnet8", "model_options": {"width": 0.25}, "lr": 0.1},
        "flat": {"model": "mlp", "model_options": {"hidden": [20]}},
        "plain": {
            "model": "cnn",
            "model_options": {"width": 0.25},
            "optimizer": "adam",
            "lr": 0.01,
        },
    },
    "partition": THREE,
}


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {"partition": columns(3)}),  # 22, 21 and 21 pixels
        ({}, MIXED),
        ({"hidden": [9, 8]}, MIXED),
        ({"cut": "layer1"}, {"partition": columns(3)}),
        (CUT, RESNET | {"partition": THREE}),
        ({"adopt": "insured"}, {"partition": columns(3), "data": HELD}),
    ],
    ids=str,
)
def test_all_heads_begin_alike_and_embeddings_do_not(
    options: dict[str, Any], changes: dict[str, Any]
) -> None:
    cfg, clients = assembled(settings(options, **changes))
    pairs = [models_of(party, cfg) for party in clients.values()]
    heads = [head.state_dict() for _, head in pairs]
    assert len(heads) == 3
    assert all(same(heads[0], head) for head in heads)
    bodies = [embed.state_dict() for embed, _ in pairs]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        drawn = [key for key in bodies[one] if key.endswith("weight") and "norm" not in key]
        assert not any(
            torch.equal(bodies[one][key], bodies[other][key])
            for key in drawn
            if key in bodies[other] and bodies[one][key].unique().numel() > 1
        )
    for party, (embed, head) in zip(clients.values(), pairs, strict=True):
        for module, prefix in ((embed, "embedding"), (head, "head")):
            again = models_of(party, cfg, "alone ")[prefix == "head"]
            assert same(again.state_dict(), module.state_dict())  # the insurance begins so too
    anew = assembled(settings(options, **(changes | {"seed": SEED + 1})))[1]
    assert not same(models_of(anew[next(iter(anew))], cfg)[1].state_dict(), heads[0])


@pytest.mark.parametrize("options", [{"same_start": True}, {"share": "networks"}])
def test_also_embeddings_may_begin_alike(options: dict[str, Any]) -> None:
    cfg, clients = assembled(settings(options, partition={"kind": "strips", "parties": 2}))
    (one, _), (other, _) = (models_of(party, cfg) for party in clients.values())
    assert same(one.state_dict(), other.state_dict())


def test_making_a_network_leaves_the_random_numbers_alone() -> None:
    cfg, clients = assembled(settings())
    before = torch.get_rng_state()
    models_of(clients["party1"], cfg)
    assert torch.equal(torch.get_rng_state(), before)


# ---- the rate of all clients ---------------------------------------------------------------------

FALLING: dict[str, Any] = {"rate": "plateau", "patience": 1, "factor": 0.5, "reductions": 3}


def torchs_rates(
    signals: list[float], mode: Literal["min", "max"], patience: int, warmup: int
) -> list[float | None]:
    """By ReduceLROnPlateau: the factors of epoch 1, 2, …; None after the third reduction."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode=mode, factor=0.5, patience=patience, threshold=1e-4, eps=0.0
    )
    rates: list[float | None] = [1 / warmup if warmup else 1.0]
    for done, signal in enumerate(signals, start=1):
        scheduler.patience = patience if done >= warmup else 10**9
        scheduler.step(signal)
        scheduler.num_bad_epochs *= done >= warmup
        rate = float(optimizer.param_groups[0]["lr"])
        rates.append(None if rate <= 0.5**3 else (done + 1) / warmup if done < warmup else rate)
    return rates


@contextmanager
def rates_used(found: list[tuple[torch.optim.Optimizer, float]]) -> Iterator[None]:
    """The learning rate of every step of every optimiser."""

    def hook(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        found.append((optimizer, optimizer.param_groups[0]["lr"]))

    handle = register_optimizer_step_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("signal", "judge", "mode"),
    [
        ("accuracy", "validation", "max"),
        ("accuracy", "test", "max"),
        ("loss", "validation", "min"),
        ("mean_loss", "test", "min"),
    ],
)
def test_the_server_lowers_the_rate_of_all(
    signal: str, judge: str, mode: Literal["min", "max"], tmp_path: Path
) -> None:
    """From what the clients tell of the network they send: the lowest, or the mean."""
    truth: dict[tuple[str, int], tuple[float, float]] = {}

    def watch(patch: pytest.MonkeyPatch) -> None:
        original = jovefl.head_message

        def message(me: Party, chain: Chain, number: int, *given: Any) -> Any:
            truth[me.name, number] = judged(me, *chain.layers, judge)
            return original(me, chain, number, *given)

        patch.setattr(jovefl, "head_message", message)

    used: list[tuple[torch.optim.Optimizer, float]] = []
    tree = settings(
        FALLING | {"signal": signal, "judge": judge},
        epochs=30,
        warmup=2.0,
        data=HELD,
        evaluate_every=7,
    )
    with rates_used(used):
        seen = train(tmp_path / "run", tree, watch)
    signals: list[float] = []
    for number, heads in sorted(seen.rounds().items()):
        for name, message in heads.items():
            known = {k: v for k, v in told(message).items() if k in ("accuracy", "loss")}
            accuracy, loss = truth[name, number]
            assert known == (
                {} if number == 1 else pytest.approx({"accuracy": accuracy, "loss": loss})
            )
        if number > 1:
            every: list[float] = [told(m)[signal.removeprefix("mean_")] for m in heads.values()]
            signals.append(sum(every) / 2 if signal == "mean_loss" else min(every))
    wanted = torchs_rates(signals, mode, patience=1, warmup=2)
    found = [None if a["stop"] else a["rate"] for _, a in sorted(seen.answers().items())]
    assert found == pytest.approx(wanted)
    assert found[-1] is None and 5 < len(found) < 30 and 0.25 in found
    steps = math.ceil(ROWS * 0.8 / SIZE)
    for party in seen.clients.values():
        own = [
            rate for optimizer, rate in used if optimizer is party.keep("optimizer", lambda: None)
        ]
        assert own == pytest.approx([0.2 * rate for rate in found if rate for _ in range(steps)])


def test_the_last_reduction_ends_the_training_of_all(tmp_path: Path) -> None:
    """At once, with what each client has trained last."""
    tree = settings(FALLING | {"every": 2}, epochs=40, lr=1e-6, data=HELD, evaluate_every=3)
    seen = train(tmp_path / "run", tree)
    # Signals behind epochs 2, 4, 6, …: the first is the best; each of the next is two epochs worse.
    assert seen.result.content["status"] == "finished"
    assert seen.result.content["warnings"] == []
    rows = [row for row in seen.result.history if "party1" in row["parties"]]
    assert len(rows) == 8
    assert len(seen.answers()) == 5
    assert told(seen.down()[-1])["stop"] is True
    for name, party in seen.clients.items():
        assert len(party.history) == 8
        assert seen.accuracies()[name] == rows[-1]["parties"][name]["test_accuracy"]
    assert [m.sender for m in seen.messages if told(m).get("leaves")] == ["party1", "party2"]
    trained, truth = colonnade.load(seen.result.path), colonnade.load(seen.result.path).labels()
    for name, prediction in trained.predict().items():
        right = int((prediction.codes == truth).sum()) / len(truth)
        assert right == seen.accuracies()[name]
    for name in seen.clients:  # not the mean that came with the word to stop
        assert not same(seen.weights(name)["head"], seen.answers()[5]["parameters"])
    fits_its_schema(seen.result)


def test_without_communication_everybody_keeps_the_same_schedule_alone(tmp_path: Path) -> None:
    used: list[tuple[torch.optim.Optimizer, float]] = []
    tree = settings(FALLING | {"share": "nothing"}, epochs=30, warmup=3.0, data=HELD)
    with rates_used(used):
        seen = train(tmp_path / "run", tree)
    lengths = []
    for name, party in seen.clients.items():
        signals = [row["validation_accuracy"] for row in party.history]
        wanted = torchs_rates(signals, "max", patience=1, warmup=3)
        assert wanted[-1] is None and None not in wanted[:-1]
        lengths.append(len(signals))
        own = [
            rate for optimizer, rate in used if optimizer is party.keep("optimizer", lambda: None)
        ]
        steps = len(own) // len(signals)
        expected = [0.2 * rate for rate in wanted if rate for _ in range(steps)]
        assert own == pytest.approx(expected)
        assert seen.accuracies()[name] == party.history[-1]["test_accuracy"]
    assert lengths[0] != lengths[1] and max(lengths) < 30  # each ends when its own time has come


def test_in_async_mode_a_head_is_a_part_of_an_epoch(tmp_path: Path) -> None:
    """Warm-up over two epochs of three clients: six heads, whether they were trained or not."""
    tree = settings(
        {"mode": "async", "rate": "plateau"}, partition=THREE, warmup=2.0, data=HELD, epochs=4
    )
    seen = train(tmp_path / "run", tree)
    rates = [answer["rate"] for _, answer in sorted(seen.answers().items())]
    assert rates == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6] + [1.0] * 7)


def interrupt_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when all clients have left, and the server has not."""
    original = participation.gather

    async def gather(*given: Any) -> Any:
        heads = await original(*given)
        if not heads:
            raise KeyboardInterrupt
        return heads

    patch.setattr(participation, "gather", gather)


ENDING = {"rate": "plateau", "patience": 1, "factor": 0.5, "reductions": 2}
RESUMED: list[tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]] = [
    (ENDING | {"adopt": "insured"}, {"seed": 0}, (60, 0)),
    (ENDING | {"compress": "scalar", "prox": 0.1, "strategy": "fedyogi"}, {}, (60,)),
    (
        CUT | {"momentum": "reset", "absence": 0.3, "compress": "topk"},
        RESNET | {"epochs": 5, "partition": THREE},
        (31,),
    ),
]


@pytest.mark.parametrize(("options", "changes", "stops"), RESUMED, ids=str)
def test_resume_equals_uninterrupted(
    options: dict[str, Any], changes: dict[str, Any], stops: tuple[int, ...], tmp_path: Path
) -> None:
    """Also of a run that the server ends early; a stop at batch 0 is one at the very end."""
    rows = {"validation": 0.3, "train_rows": 200}
    usual = {"epochs": 20, "data": rows, "checkpoint": {"epochs": 1}}
    tree = settings(options, **(usual | changes))
    whole = colonnade.run(tree | {"checkpoint": {"epochs": 1}}, out=tmp_path / "whole")
    for stop in stops:
        folder = tmp_path / str(stop)
        with pytest.MonkeyPatch.context() as patch:
            interrupt_after(patch, stop) if stop else interrupt_at_the_end(patch)
            with pytest.raises(KeyboardInterrupt):
                colonnade.run(tree, out=folder)
        resumed = colonnade.run(tree, resume=folder)
        assert resumed.weights_sha256 == whole.weights_sha256
        assert resumed.metrics == whole.metrics
        assert without_time(resumed) == without_time(whole)
    trained = [row["parties"] for row in whole.history if "party1" in row["parties"]]
    if "rate" in options:
        assert len(trained) < 20
    if options.get("adopt") == "insured":
        assert "loss" in trained[-1]["party1"] and "loss_alone" not in trained[-1]["party1"]


# ---- never worse: the insurance ------------------------------------------------------------------

CHOOSING: dict[str, Any] = {"data": {"validation": 0.3, "train_rows": 200}, "epochs": 8, "seed": 7}


INSURED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"epochs": 12}),
    (CUT | {"every": 2, "prox": 0.05}, RESNET | {"epochs": 4, "data": CHOOSING["data"] | MOVED}),
    (ENDING, {"epochs": 20}),
    ({}, {"precision": "bfloat16"}),
]


@pytest.mark.parametrize(("options", "changes"), INSURED, ids=str)
def test_the_insurance_is_the_network_of_a_client_that_never_shares(
    options: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    tree = settings(options | {"adopt": "insured"}, **(CHOOSING | changes))
    seen = train(tmp_path / "run", tree)
    never = settings(options | {"share": "nothing"}, **(CHOOSING | changes))
    lonely = train(tmp_path / "alone", never)
    rows = seen.result.metrics
    for name in seen.clients:
        weights = seen.weights(name)
        for part in ("embedding", "head"):
            assert same(weights[f"alone {part}"], lonely.weights(name)[part])
        assert not same(weights["alone head"], weights["head"])
        assert seen.accuracies("alone")[name] == lonely.accuracies()[name]
        own = [row["loss_alone"] for row in seen.parties[name].history if "loss_alone" in row]
        assert own == [row["loss"] for row in lonely.parties[name].history]
    truth = colonnade.load(seen.result.path).labels()
    for name, prediction in colonnade.load(seen.result.path).predict().items():
        right = int((prediction.codes == truth).sum()) / len(truth)
        assert right == rows["test"]["per_party"][name]
    fits_its_schema(seen.result)


def test_an_insured_client_mixes_its_networks_as_its_validation_rows_prefer(
    tmp_path: Path,
) -> None:
    """By hand: five mixtures of probabilities, the one with the lowest loss."""
    tree = settings({"adopt": "insured"}, **(CHOOSING | {"epochs": 12}))
    seen = train(tmp_path / "run", tree)
    cfg = jovefl.JoVeFL(adopt="insured")
    chosen = []
    for name in seen.clients:
        me = seen.parties[name]
        shared, alone = (
            logits_of(me, "validation", *models_of(me, cfg, prefix)).softmax(1)
            for prefix in ("", "alone ")
        )
        labels = me.splits["validation"].y
        assert labels is not None
        at = torch.arange(len(labels))
        losses = {
            part: -float((part * shared + (1 - part) * alone)[at, labels].log().mean())
            for part in (0.0, 0.25, 0.5, 0.75, 1.0)
        }
        part = float(seen.weights(name)["mixture"]["part"])
        assert losses[part] == pytest.approx(min(losses.values()), abs=1e-6)
        assert seen.parties[name].history[-1]["mixture"] == part
        chosen.append(part)
    assert any(0 < part < 1 for part in chosen)


def test_the_insurance_does_not_change_what_is_shared(tmp_path: Path) -> None:
    tree = settings({"adopt": "insured"}, **(CHOOSING | {"epochs": 3}))
    insured = train(tmp_path / "insured", tree)
    plain = train(tmp_path / "plain", settings(**(CHOOSING | {"epochs": 3})))
    for one, other in zip(insured.up(), plain.up(), strict=True):
        assert same(told(one)["parameters"], told(other)["parameters"])
    assert insured.accuracies("shared") == plain.accuracies()


# ---- who takes part ------------------------------------------------------------------------------


def present(name: str, absence: float, epochs: int) -> list[int]:
    """The epochs, from 0, in which a client is there: one draw each, from seed and name."""
    draws = [
        torch.rand((), generator=torch.Generator().manual_seed(derive(SEED, "absence", name, e)))
        for e in range(epochs)
    ]
    return [epoch for epoch, draw in enumerate(draws) if float(draw) >= absence]


@pytest.mark.parametrize("deadline", [0.0, 0.5])
@pytest.mark.parametrize("stale", [0.0, 0.5, 2.0])
def test_who_is_absent_is_drawn_and_what_comes_late_counts_less(
    stale: float, deadline: float, tmp_path: Path
) -> None:
    options = {"absence": 0.3, "deadline": deadline, "stale": stale, "weighted": stale == 2.0}
    place = THREE | {"kind": "hybrid", "alpha": 3.0}
    seen = train(tmp_path / "run", settings(options, epochs=8, partition=place))
    there = {name: present(name, 0.3, 8) for name in seen.clients}
    for name, party in seen.clients.items():
        assert [m.epoch for m in seen.up(name)] == there[name]
        assert len(party.history) == 8 and all("loss" in row for row in party.history)
    rounds, answers, late = seen.rounds(), seen.answers(), 0
    assert {len(heads) for heads in rounds.values()} > {3}  # it has gone on without some
    if not deadline:  # the server draws as they do, and waits for those who will come
        wanted = [[n for n in there if epoch in there[n]] for epoch in range(8)]
        assert [list(heads) for heads in rounds.values()] == [names for names in wanted if names]
        assert seen.result.content["warnings"] == []
    for number, heads in rounds.items():
        share = {}
        for name, message in heads.items():
            behind = max(0, number - 1 - told(message)["base"])
            late += behind > 0
            share[name] = (1 + behind) ** -stale
            if options["weighted"]:
                share[name] *= len(seen.parties[name].splits["train"])
        sent = {name: doubled(told(m)["parameters"]) for name, m in heads.items()}
        mean = {
            key: torch.stack([share[n] * sent[n][key] for n in sent]).sum(0) / sum(share.values())
            for key in answers[number]["parameters"]
        }
        close(answers[number]["parameters"], mean, rtol=1e-5)
    assert late > 2
    for name in seen.clients:  # what it began from is the last that it was told
        bases = [told(m)["base"] for m in seen.up(name)]
        assert bases == [0, *(told(m)["number"] for m in seen.down(name))][: len(bases)]


def test_a_round_to_which_nobody_comes(tmp_path: Path) -> None:
    away = {"party1": [2, 4], "party2": [2]}
    seen = train(tmp_path / "run", settings({"away": away}, epochs=4))
    assert [list(heads) for heads in seen.rounds().values()] == [
        ["party1", "party2"],
        ["party1", "party2"],
        ["party2"],
    ]
    assert [told(m)["base"] for m in seen.up("party2")] == [0, 1, 2]
    assert [m.epoch for m in seen.up("party2")] == [0, 2, 3]


def test_the_same_seed_gives_the_same_absences_and_bits(tmp_path: Path) -> None:
    options = {"absence": 0.4, "deadline": 0.5, "quorum": 2, "compress": "scalar"}
    tree = settings(options, epochs=5, partition=THREE, data=HELD)
    first = train(tmp_path / "first", tree)
    again = train(tmp_path / "again", tree)
    strict = train(tmp_path / "strict", tree | {"strict": True})
    other = train(tmp_path / "other", tree | {"seed": SEED + 1})
    for seen in (again, strict):
        assert seen.result.weights_sha256 == first.result.weights_sha256
        assert seen.result.metrics == first.result.metrics
        assert [(m.sender, m.epoch, m.at) for m in seen.messages] == [
            (m.sender, m.epoch, m.at) for m in first.messages
        ]
    assert [(m.sender, m.epoch) for m in other.up()] != [(m.sender, m.epoch) for m in first.up()]


def test_a_timetable_of_absences(tmp_path: Path) -> None:
    away = {"party2": [2, 3], "party3": [1]}
    tree = settings({"away": away, "deadline": 0.5}, epochs=5, partition=THREE)
    seen = train(tmp_path / "run", tree)
    assert [m.epoch for m in seen.up("party1")] == [0, 1, 2, 3, 4]
    assert [m.epoch for m in seen.up("party2")] == [0, 3, 4]
    assert [m.epoch for m in seen.up("party3")] == [1, 2, 3, 4]
    assert list(seen.rounds()[1]) == ["party1", "party2"]


@pytest.mark.parametrize(("quorum", "sizes"), [(1, [3, 1, 3, 3]), (2, [3, 3, 3]), (3, [3, 3, 3])])
def test_without_a_quorum_the_server_waits(quorum: int, sizes: list[int], tmp_path: Path) -> None:
    """Two of three are away in the second epoch; those who leave are waited for no more."""
    options = {"away": {"party2": [2], "party3": [2]}, "deadline": 0.5, "quorum": quorum}
    seen = train(tmp_path / "run", settings(options, epochs=4, partition=THREE))
    assert [len(heads) for heads in seen.rounds().values()][: len(sizes)] == sizes
    assert seen.result.content["status"] == "finished"
    # Whoever was away is a head short: the rest of the rounds is for who is left.
    assert [len(seen.up(name)) for name in seen.clients] == [4, 3, 3]


COMPARED: dict[str, Any] = {
    "epochs": 10,
    "lr": 0.1,
    "partition": THREE,
    "model_options": {"hidden": [32]},
    "data": {"train_rows": 500, "test_rows": 300},
    "evaluate_every": 10,
}
NEAR = 0.05  # of the accuracy, at most, for each client


@pytest.fixture(scope="module")
def everybody(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """All clients, all rounds, all bits."""
    return train(tmp_path_factory.mktemp("all") / "run", settings({"dim": 24}, **COMPARED))


def near(seen: Seen, reference: Seen) -> None:
    for name, accuracy in reference.accuracies().items():
        assert accuracy > 0.75
        assert seen.accuracies()[name] > accuracy - NEAR, name


def test_who_misses_a_third_of_the_rounds_learns_as_well(everybody: Seen, tmp_path: Path) -> None:
    tree = settings({"dim": 24, "absence": 0.3, "deadline": 0.5}, **COMPARED)
    seen = train(tmp_path / "run", tree)
    assert len(seen.up()) < 0.8 * len(everybody.up())
    near(seen, everybody)


def test_nobody_waits_for_a_slow_client_in_async_mode(everybody: Seen, tmp_path: Path) -> None:
    slow = {"dim": 24, "pace": {"party1": 10.0}}
    tree = settings(slow | {"mode": "async"}, **COMPARED)
    seen = train(tmp_path / "run", tree)
    assert {name: party.progress.clock for name, party in seen.clients.items()} == {
        "party1": 100.0,
        "party2": 10.0,
        "party3": 10.0,
    }
    early = [m for m in seen.down() if m.at < 10.0]  # by the server's clock
    assert [sum(m.receiver == name for m in early) for name in seen.clients] == [1, 10, 10]
    assert len(seen.answers()) == len(seen.down()) == 30  # a round for every head
    again = train(tmp_path / "again", tree)
    assert again.result.weights_sha256 == seen.result.weights_sha256
    near(seen, everybody)
    waiting = train(tmp_path / "sync", settings(slow, **(COMPARED | {"epochs": 3})))
    assert [party.progress.clock for party in waiting.clients.values()] == [30.0, 21.0, 21.0]
    fits_its_schema(seen.result)


@pytest.mark.parametrize("stale", [0.5, 1.5])
def test_an_async_head_is_mixed_in_by_its_age(stale: float, tmp_path: Path) -> None:
    """θ ← (1 - α (1 + s)^-a) θ + α (1 + s)^-a θ_i, statistics too."""
    options = {"mode": "async", "mixing": 0.7, "stale": stale, "pace": {"party2": 2.5}}
    seen = train(tmp_path / "run", settings(CUT | options, partition=THREE, **RESNET))
    answers, ages = seen.answers(), set()
    for number, heads in seen.rounds().items():
        ((_, message),) = heads.items()
        ages.add(number - 1 - told(message)["base"])
        part = 0.7 * (number - told(message)["base"]) ** -stale
        for tree in ("parameters", "buffers"):
            new = told(message)[tree]
            wanted = doubled(new)
            if number > 1:
                old = doubled(answers[number - 1][tree])
                wanted = {key: (1 - part) * old[key] + part * wanted[key] for key in old}
            wanted = {k: v if new[k].is_floating_point() else v.round() for k, v in wanted.items()}
            close(answers[number][tree], wanted, rtol=1e-5)
    assert len(ages) > 3


def test_who_gets_no_answer_goes_on_alone_and_ignores_a_late_one(tmp_path: Path) -> None:
    """The server waits for party2, which takes ten times as long; party1 waits three seconds."""
    adopted: dict[str, list[int]] = {"party1": [], "party2": []}

    def watch(patch: pytest.MonkeyPatch) -> None:
        original = jovefl.adopt

        def adopt(me: Party, chain: Chain, answer: Any, cfg: JoVeFL) -> None:
            assert answer["to"] == me.state["sent"]
            adopted[me.name].append(answer["to"])
            original(me, chain, answer, cfg)

        patch.setattr(jovefl, "adopt", adopt)

    tree = settings({"contact": 3.0, "pace": {"party2": 10.0}}, epochs=4)
    seen = train(tmp_path / "run", tree, watch)
    assert adopted == {"party1": [1], "party2": [1, 2, 3, 4]}
    # An epoch and a wait, three times; the first answer came at once.
    assert [m.at for m in seen.up("party1")] == [0.0, 1.0, 5.0, 9.0]
    assert [(told(m)["to"], m.at) for m in seen.down("party1")] == [
        (1, 0.0),
        (2, 10.0),
        (3, 20.0),
        (4, 30.0),
    ]
    assert [told(m)["base"] for m in seen.up("party1")] == [0, 1, 1, 1]
    nothing = settings({"share": "nothing"}, epochs=4)
    alone = train(tmp_path / "alone", nothing)  # the first round changed nothing: all began alike
    for part in ("embedding", "head"):
        assert same(seen.weights("party1")[part], alone.weights("party1")[part])
    assert not same(seen.weights("party2")["head"], alone.weights("party2")["head"])


@pytest.mark.parametrize("options", [{}, {"deadline": 0.5}, {"mode": "async"}], ids=str)
def test_a_client_that_is_lost_for_good_ends_nothing(
    options: dict[str, Any], tmp_path: Path
) -> None:
    tree = settings(options, partition=THREE, epochs=4)
    seen = train(tmp_path / "run", tree, lose={"party2": 9})
    assert seen.result.content["status"] == "finished"
    assert [len(party.history) for party in seen.clients.values()] == [4, 2, 4]
    last = max(seen.rounds().values(), key=lambda heads: told(next(iter(heads.values())))["number"])
    assert "party2" not in last
    assert [len(seen.down(name)) for name in seen.clients] == [4, 3, 4]
    assert seen.accuracies().keys() == {"party1", "party2", "party3"}  # of what it reached


@pytest.mark.parametrize("options", [{}, {"contact": 2.0}, {"mode": "async"}], ids=str)
def test_without_a_server_everybody_goes_on_alone(options: dict[str, Any], tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings(options), lose={"server": 0})
    alone = train(tmp_path / "alone", settings({"share": "nothing"}))
    for name in alone.clients:
        for part in ("embedding", "head"):
            assert same(seen.weights(name)[part], alone.weights(name)[part])
    assert seen.accuracies() == alone.accuracies()


# ---- any number of clients -----------------------------------------------------------------------


def test_messages_bytes_and_memory_grow_with_the_number_of_clients(tmp_path: Path) -> None:
    """200 clients in one process: three messages each for one epoch, and one head at the server."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(8) % 2
    seen = {}
    for count in (20, 200):
        rows = {
            f"c{number:03d}": (torch.randn(8, 3, generator=generator) + y[:, None], y)
            for number in range(count)
        }
        tree = {"method": "jovefl", "epochs": 1, "batch_size": 4, "jovefl": {"dim": 4}}
        small = tree | {"model_options": {"hidden": []}, "checkpoint": {"epochs": 0}}
        seen[count] = train(tmp_path / str(count), small, parties=rows)
    few, many = (seen[count].result.wire for count in (20, 200))
    assert (few["messages"], many["messages"]) == (60, 600)
    assert many["bytes"] == 10 * few["bytes"]
    assert many["rounds"] == few["rounds"] == 2
    for kind in ("head", "global_head"):
        assert many["by_kind"][kind]["bytes"] == 10 * few["by_kind"][kind]["bytes"]
    sent = {(flow["bytes"], flow["messages"]) for flow in many["flows"]}
    assert len(sent) == 2  # the same for every client, up and down
    kept = {count: numbers_in(one.server.state) for count, one in seen.items()}
    assert kept == dict.fromkeys((20, 200), 4 * 2 + 2)
    assert len(seen[200].accuracies()) == 200


def numbers_in(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel()
    children = (
        tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    )
    return sum(numbers_in(child) for child in children)


# ---- compression ---------------------------------------------------------------------------------

COMPRESSED = [
    ({"compress": "float16"}, 2.0),
    ({"compress": "scalar", "bits": 8}, 1.0),
    ({"compress": "scalar", "bits": 4}, 0.5),
    ({"compress": "topk", "bits": 8}, 1.0 + 1 / 8),  # a quarter of the numbers, and a mask
]


@dataclass
class Up:
    """A head on its way: θ_i, what was left over before and after, what the server made of it."""

    theta: dict[str, Tensor]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    found: dict[str, Tensor]


@pytest.mark.parametrize(("options", "per_number"), COMPRESSED, ids=str)
def test_compressed_heads(
    options: dict[str, Any], per_number: float, everybody: Seen, tmp_path: Path
) -> None:
    ups: dict[tuple[str, int], Up] = {}

    def watch(patch: pytest.MonkeyPatch) -> None:
        message, hear = jovefl.head_message, ServerEnd.hear

        def spied_message(me: Party, chain: Chain, number: int, *given: Any) -> Any:
            before = dict(me.state.get("error", {}))
            value = message(me, chain, number, *given)
            after = dict(me.state.get("error", {}))
            ups[me.name, number] = Up(copied(chain.layers[1]), before, after, {})
            return value

        def spied_hear(end: ServerEnd, messages: Any) -> Any:
            trees = hear(end, messages)
            assert trees.keys() == messages.keys()
            for name, tree in trees.items():
                ups[name, messages[name]["number"]].found = tree
            return trees

        patch.setattr(jovefl, "head_message", spied_message)
        patch.setattr(ServerEnd, "hear", spied_hear)

    seen = train(tmp_path / "run", settings(options | {"dim": 24}, **COMPARED), watch)
    numbers = 24 * 10 + 10
    for messages in (seen.up(), seen.down()):
        sizes = [codec.size(m.value) for m in messages]
        full, rest = sizes[:3], sizes[3:]  # the first round tells everything
        assert all(0 < size - 4 * numbers < 300 for size in full)
        assert all(0 < size - per_number * numbers < 400 for size in rest)
        assert len(rest) == 27
    for number in (1, 2, 10):
        for name in seen.clients:
            up = ups[name, number]
            if number == 1:
                assert same(up.found, up.theta) and not up.after
                continue
            # Nothing is lost: what arrived and what is left over is what was to be told.
            for key, theta in up.theta.items():
                due = theta + up.before.get(key, torch.zeros_like(theta))
                torch.testing.assert_close(up.found[key] + up.after[key], due, rtol=0, atol=1e-5)
            assert any(left.any() for left in up.after.values())
    for name, party in seen.clients.items():
        known = seen.server.state["known"][name]
        assert known["number"] == party.state["base"] == 10
        assert same(known["parameters"], party.state["global"]["parameters"])
    if options["compress"] == "topk":  # a mean of which only a part arrives is caught up with
        head = seen.server.state["head"]["parameters"]
        for name in seen.clients:
            known = seen.server.state["known"][name]["parameters"]
            apart = max(float((head[k] - known[k]).abs().max()) for k in head)
            assert apart < 0.1
    near(seen, everybody)


def test_a_difference_to_what_is_no_longer_known_does_not_count(tmp_path: Path) -> None:
    """party2 gives up waiting, so that it misses the second answer and all later ones."""
    found: dict[tuple[str, int], bool] = {}

    def watch(patch: pytest.MonkeyPatch) -> None:
        original = ServerEnd.hear

        def spied(end: ServerEnd, messages: Any) -> Any:
            trees = original(end, messages)
            found.update({(n, told["number"]): n in trees for n, told in messages.items()})
            return trees

        patch.setattr(ServerEnd, "hear", spied)

    options = {"compress": "scalar", "contact": 3.0, "pace": {"party1": 5.0}}
    seen = train(tmp_path / "run", settings(options, epochs=4), watch)
    assert [told(m)["base"] for m in seen.up("party2")] == [0, 1, 1, 1]
    assert [found["party1", number] for number in (1, 2, 3, 4)] == [True] * 4
    assert [found["party2", number] for number in (1, 2, 3, 4)] == [True, True, False, False]
    # It is told the whole head again, and the others go on.
    assert ["parameters" in told(m) for m in seen.down("party2")] == [True, False, True, True]
    assert ["parameters" in told(m) for m in seen.down("party1")] == [True, False, False, False]


def test_no_dither_is_used_twice(tmp_path: Path) -> None:
    """Else errors would add up instead of cancelling out; both ends draw the same, once each."""
    drawn: list[int] = []
    used: list[int] = []

    def watch(patch: pytest.MonkeyPatch) -> None:
        there, back = Scalar.compress, Scalar.decompress

        def compress(coder: Scalar, x: Tensor, seed: int) -> Any:
            drawn.append(seed)
            return there(coder, x, seed)

        def decompress(coder: Scalar, message: Any, shape: Any, seed: int) -> Tensor:
            used.append(seed)
            return back(coder, message, shape, seed)

        patch.setattr(Scalar, "compress", compress)
        patch.setattr(Scalar, "decompress", decompress)

    train(tmp_path / "run", settings({"compress": "scalar"}, partition=THREE), watch)
    assert len(drawn) == 2 * 3 * 2 * (EPOCHS - 1)  # θ has two tensors; up and down, three clients
    assert len(set(drawn)) == len(drawn)
    assert sorted(used) == sorted(drawn * 2)


def test_a_server_without_memory_asks_for_whole_heads(tmp_path: Path) -> None:
    """Differences to what it has forgotten mean nothing: it says so, and whole heads come."""
    calls: list[int] = []

    def watch(patch: pytest.MonkeyPatch) -> None:
        hear = ServerEnd.hear

        def forgetful(end: ServerEnd, messages: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                for key in ("head", "known"):
                    end.memory.pop(key)
            return hear(end, messages)

        patch.setattr(ServerEnd, "hear", forgetful)

    seen = train(tmp_path / "run", settings({"compress": "scalar"}, epochs=5), watch)
    answers = [told(message) for message in seen.down()]
    clients = len(answers) // 5
    forgotten = [answer["forgotten"] for answer in answers]
    assert forgotten == [False] * 2 * clients + [True] * clients + [False] * 2 * clients
    whole = ["parameters" in told(message) for message in seen.up() if not told(message)["leaves"]]
    assert whole == [True] * clients + [False] * 2 * clients + [True] * clients + [False] * clients


def test_statistics_are_not_compressed(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings(CUT | {"compress": "scalar", "bits": 2}, **RESNET))
    rounds = seen.rounds()
    for number, answer in seen.answers().items():
        sent = [told(m)["buffers"] for m in rounds[number].values()]
        for key, value in answer["buffers"].items():
            wanted = (sent[0][key].double() + sent[1][key].double()) / 2
            torch.testing.assert_close(
                value.double(), wanted, rtol=1e-6, atol=0.5 * (value.dtype == torch.int64)
            )


# ---- views of unequal size -----------------------------------------------------------------------


@pytest.mark.parametrize("fit", ["pool", "resize", "canvas", "interpolate", "none"])
def test_views_of_unequal_size_fit_one_head(fit: str, tmp_path: Path) -> None:
    """5×8 and 8×6 pixels of 8×8; after stage2 a map has half their size, rounded up."""
    place = {"partition": HYBRID} if fit in ("pool", "canvas") else {}
    tree = settings(CUT | {"fit": fit}, epochs=2, **place, **RESNET)
    options, clients = assembled(tree)
    sizes = {
        "pool": [(3, 3), (3, 3)],
        "interpolate": [(3, 3), (3, 3)],
        "resize": [(4, 4), (4, 4)],
        "canvas": [(4, 4), (4, 4)],
        "none": [(3, 4), (4, 3)],
    }[fit]
    for (name, party), size in zip(clients.items(), sizes, strict=True):
        embed, head = models_of(party, options)
        (batch,) = party.rows("test")
        embed.eval(), head.eval()
        with torch.no_grad():
            maps = embed(batch.x)
            assert head(maps).shape == (TEST, 10)
        assert maps.shape == (TEST, 8, *size)  # 32 channels, a quarter of them
        layers = list(embed.children())
        if fit == "canvas":
            whole = torch.zeros(TEST, 1, 8, 8)
            view = {"party1": np.s_[..., :5, :], "party2": np.s_[..., :, 2:]}[name]
            whole[view] = batch.x
            assert torch.equal(layers[0](batch.x), whole)
        elif fit == "resize":
            large = F.interpolate(batch.x, size=(8, 8), mode="bilinear", align_corners=False)
            assert torch.equal(layers[0](batch.x), large)
        elif fit != "none":
            with torch.no_grad():
                before = nn.Sequential(*layers[:-1])(batch.x)
            wanted = (
                F.adaptive_avg_pool2d(before, 3)
                if fit == "pool"
                else F.interpolate(before, size=(3, 3), mode="bilinear", align_corners=False)
            )
            assert torch.equal(maps, wanted)
    seen = train(tmp_path / "run", tree)
    ids = [set(party.splits["train"].ids.tolist()) for party in seen.clients.values()]
    assert bool(ids[0] & ids[1]) is not bool(place)
    truth = colonnade.load(seen.result.path).labels()
    for name, prediction in colonnade.load(seen.result.path).predict().items():
        right = int((prediction.codes == truth).sum()) / len(truth)
        assert right == seen.accuracies()[name]


def test_a_table_can_be_cut_too(tmp_path: Path) -> None:
    """Behind layer1 of an MLP there is no map, and nothing has to fit."""
    tree = settings({"cut": "layer1"}, partition=columns(2), model_options={"hidden": [9, 8]})
    seen = train(tmp_path / "run", tree)
    weights = seen.weights("party1")
    assert [tuple(t.shape) for t in weights["head"].values()] == [(8, 9), (8,), (10, 8), (10,)]
    assert seen.answers()[1]["parameters"].keys() == weights["head"].keys()


def test_whole_images_may_be_moved_before_they_are_cut(tmp_path: Path) -> None:
    """Simulation only: then the pixels of a view come from beyond its border."""
    found: dict[str, list[Tensor]] = {}

    def watch(patch: pytest.MonkeyPatch) -> None:
        original = Party.batches

        def batches(me: Party, **named: Any) -> Iterator[Any]:
            for batch in original(me, **named):
                found.setdefault(me.name, []).append(batch.x.clone())
                yield batch

        patch.setattr(Party, "batches", batches)

    tree = settings({"whole": True}, epochs=1, data={"flip": True, "shift": 2})
    seen = train(tmp_path / "run", tree, watch)
    whole = data.load("digits", test=0.2, seed=derive(SEED, "data"))
    for name, party in seen.clients.items():
        generator = torch.Generator().manual_seed(derive(SEED, "order", "train", 0, name))
        rows = party.splits["train"]
        order = torch.randperm(ROWS, generator=generator)
        moves = Moves.draw(ROWS, True, 2, generator)
        places = {int(i): n for n, i in enumerate(whole.train.ids)}
        images = whole.train.x[[places[int(i)] for i in rows.ids]][order]
        assert party.preparation is not None and party.view is not None
        wanted = cut(moves.apply(party.preparation.to_float(images)), party.view.part)
        assert torch.equal(torch.cat(found[name]), wanted)
    with pytest.raises(ConfigError, match=r"whole = true moves whole images.*simulation"):
        colonnade.run(tree, out=tmp_path / "apart", runtime="process")


# ---- clients of different kinds ------------------------------------------------------------------


def test_any_embedding_networks_side_by_side(tmp_path: Path) -> None:
    found: list[Moment] = []
    tree = settings({"dim": 16, "hidden": [12]}, **MIXED, epochs=6, data={"train_rows": 300})
    seen = train(tmp_path / "run", tree, moments(found))
    for epoch in range(6):
        heads = [moment.head[1] for moment in found if moment.epoch == epoch]
        assert len(heads) == 3 and all(same(heads[0], head) for head in heads)
    assert all(accuracy > 0.3 for accuracy in seen.accuracies().values()), seen.accuracies()
    sizes = {name: numbers_in(seen.weights(name)["embedding"]) for name in seen.clients}
    assert len(set(sizes.values())) == 3
    fits_its_schema(seen.result)


def test_two_sensors_of_one_phone(tmp_path: Path) -> None:
    try:
        data.load("hapt")
    except DataMissing:
        pytest.skip("needs the data set 'hapt': set COLONNADE_DATA to its folder")
    tree = settings(
        {"dim": 16},
        data={"name": "hapt", "train_rows": 1500, "test_rows": 0},
        partition={"kind": "columns", "groups": {"moves": ["*Acc*"], "turns": ["*Gyro*"]}},
        lr=0.03,
    )
    seen = train(tmp_path / "run", tree)
    assert list(seen.clients) == ["moves", "turns"]
    widths = [party.shape[0] for party in seen.clients.values()]
    assert len(set(widths)) == 2 and min(widths) > 100
    assert all(accuracy > 0.4 for accuracy in seen.accuracies().values())  # of twelve activities
    assert same(*(told(m)["parameters"] for m in seen.down()[-2:]))


def digits_of(*classes: int, columns: slice, rows: slice) -> tuple[Any, Any]:
    """Some columns of some rows of some digits, as tables."""
    x, y = datasets.load_digits(return_X_y=True)
    chosen = np.isin(y, classes).nonzero()[0][rows]
    return x[chosen][:, columns].astype(np.float32), y[chosen]


def test_rows_of_their_own_and_labels_of_their_own(tmp_path: Path) -> None:
    """Different numbers of rows, different columns, different classes, nothing matched."""
    first = digits_of(0, 1, 2, columns=np.s_[:40], rows=np.s_[:150])
    second = digits_of(1, 2, 3, 4, columns=np.s_[10:64], rows=np.s_[:230])
    tree = {
        "method": "jovefl",
        "epochs": 6,
        "batch_size": 20,
        "lr": 0.1,
        "jovefl": {"dim": 12, "weighted": True},
        "data": {"validation": 0.1},
        "checkpoint": {"epochs": 0},
    }
    seen = train(tmp_path / "run", tree, parties={"drone1": first, "drone2": second})
    content = seen.result.content
    assert content["roles"] == {"drone1": "client", "drone2": "client", "server": "server"}
    assert content["data"]["classes"] == ["0", "1", "2", "3", "4"]
    assert seen.weights("drone1")["head"]["layer1.linear.weight"].shape == (5, 12)
    for name, (_, y) in (("drone1", first), ("drone2", second)):
        splits = seen.parties[name].splits
        assert sum(len(rows) for rows in splits.values()) == len(y)
        labels = [rows.y for rows in splits.values() if rows.y is not None]
        assert set(torch.cat(labels).tolist()) == set(y.tolist())
        assert [told(m)["rows"] for m in seen.up(name)] == [len(splits["train"])] * 6
        assert seen.accuracies()[name] > 0.8
    trained = colonnade.load(seen.result.path)
    alone = trained.predict({"drone2": second[0]})  # whoever has rows predicts, without the other
    assert list(alone) == ["drone2"]
    assert alone["drone2"].accuracy(second[1]) > 0.85
    both = trained.predict({"drone1": first[0][:7], "drone2": second[0][:9]})
    assert [len(p) for p in both.values()] == [7, 9]


def test_test_rows_of_their_own_and_labels_in_words(tmp_path: Path) -> None:
    words = np.array(["zero", "one", "two"])
    x, y = digits_of(0, 1, 2, columns=np.s_[:30], rows=np.s_[:120])
    other, z = digits_of(0, 2, columns=np.s_[30:], rows=np.s_[:90])
    tree = {"method": "jovefl", "epochs": 2, "batch_size": 20, "jovefl": {"dim": 8}}
    parties = {"a": (x[:80], words[y[:80]]), "b": (other[:50], words[z[:50]])}
    test = {"a": (x[80:], words[y[80:]]), "b": (other[50:], words[z[50:]])}
    seen = train(tmp_path / "run", tree, parties=parties, test=test)
    assert seen.result.content["data"]["classes"] == ["one", "two", "zero"]
    assert [len(p.splits["test"]) for p in seen.clients.values()] == [40, 40]
    silent = test | {"b": other[50:]}
    with pytest.raises(DataError, match="test of 'b' has no labels"):
        colonnade.run(tree, parties=parties, test=silent, out=tmp_path / "silent")


def test_in_memory_everybody_brings_labels_and_nothing_can_be_pooled(tmp_path: Path) -> None:
    x, y = digits_of(0, 1, columns=np.s_[:], rows=np.s_[:60])
    tree = {"method": "jovefl", "epochs": 1}
    with pytest.raises(DataError, match=r"drone2, drone3: no labels. In jovefl every party has"):
        colonnade.run(
            tree, parties={"drone1": (x, y), "drone2": x, "drone3": x}, out=tmp_path / "silent"
        )
    parties = {"drone1": (x, y), "drone2": (x, y)}
    pooled = tree | {"jovefl": {"share": "data"}}
    with pytest.raises(ConfigError, match=r"share = 'data' .* not matched, so they cannot be join"):
        colonnade.run(pooled, parties=parties, out=tmp_path / "pooled")
    with pytest.raises(ConfigError, match="in memory there is no whole image"):
        colonnade.run(tree | {"jovefl": {"whole": True}}, parties=parties, out=tmp_path / "whole")
    images = {name: (x.reshape(-1, 8, 8), y) for name in parties}
    for fit in ("canvas", "resize"):
        options = {"jovefl": {"cut": "stage2", "fit": fit}, **RESNET}
        with pytest.raises(ConfigError, match=f"fit = '{fit}' needs .* whole image, and 'drone1'"):
            colonnade.run(tree | options, parties=images, out=tmp_path / fit)


# ---- what the paper compares with ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        (CUT | {"fit": "canvas"}, RESNET | {"data": MOVED}),
        (CUT | {"fit": "resize", "whole": True}, RESNET | {"data": MOVED}),
        ({}, {"partition": {"kind": "columns", "parties": 3}}),
    ],
    ids=str,
)
def test_share_data_is_one_network_on_the_union_of_the_views(
    options: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    tree = settings(options | {"share": "data"}, **changes)
    seen = train(tmp_path / "run", tree)
    assert seen.result.content["roles"] == {"all": "client"}
    assert not seen.messages
    equals(seen, by_hand(tree))
    whole = data.load("digits", test=0.2, seed=derive(SEED, "data"))
    places = {int(i): n for n, i in enumerate(whole.train.ids)}
    rows = seen.parties["all"].splits["train"]
    images = whole.train.x[[places[int(i)] for i in rows.ids]].clone()
    if "partition" not in changes:
        images[:, :, 5:, :2] = 0  # the corner that nobody sees
        assert images.any(0).all(0)[:, 2:].sum() > 20
    assert torch.equal(rows.x, images.reshape(rows.x.shape))
    truth = colonnade.load(seen.result.path).labels()
    found = colonnade.load(seen.result.path).predict()["all"]
    assert int((found.codes == truth).sum()) / len(truth) == seen.accuracies()["all"]


def test_share_data_of_different_rows(tmp_path: Path) -> None:
    """Of every row only what its own client sees."""
    seen = train(tmp_path / "run", settings({"share": "data"}, partition=HYBRID, epochs=1))
    _, clients = assembled(settings(partition=HYBRID))
    everything = seen.parties["all"].splits["train"]
    at = {int(i): n for n, i in enumerate(everything.ids)}
    assert len(everything) == sum(len(p.splits["train"]) for p in clients.values()) == ROWS
    for party in clients.values():
        rows = party.splits["train"]
        chosen = [at[int(i)] for i in rows.ids]
        assert party.view is not None
        assert torch.equal(cut(everything.x[chosen], party.view.part), rows.x)
        beyond = everything.x[chosen].float().sum() - rows.x.float().sum()
        assert float(beyond) == 0


def test_share_nothing_has_no_server_and_sends_nothing(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings({"share": "nothing"}))
    assert seen.result.content["roles"] == {"party1": "client", "party2": "client"}
    assert seen.result.wire["messages"] == seen.result.wire["rounds"] == 0
    assert (seen.result.path / "ledger.jsonl").read_bytes() == b""
    assert "merged" not in seen.result.metrics["test"]
    declared = methods.find("jovefl").method
    for share, kinds in (
        ("nothing", []),
        ("data", []),
        ("heads", ["head"]),
        ("networks", ["head"]),
    ):
        options = JoVeFL(share=share)  # type: ignore[arg-type]
        assert [kind.name for kind in declared.sent_by("client", options, 0)] == kinds


# ---- what crosses --------------------------------------------------------------------------------

NUMBERS = {"leaves": bool, "number": int, "base": int, "rows": int, "work": float}
JUDGED = {"accuracy": float, "loss": float}
ANSWER = {"to": int, "number": int, "stop": bool, "rate": float, "forgotten": bool}


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        (CUT | ENDING | {"adopt": "insured"}, RESNET | {"data": HELD}),
        (CUT | {"compress": "topk", "batch_norm": "local"}, RESNET),
        ({"compress": "scalar", "mode": "async", "hidden": [7]}, {}),
        ({"share": "networks"}, {"partition": {"kind": "strips", "parties": 2}}),
    ],
    ids=str,
)
def test_nothing_but_heads_and_numbers_crosses(
    options: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    seen = train(tmp_path / "run", settings(options, **changes))
    cfg, clients = assembled(settings(options, **changes))
    embed, head = models_of(clients["party1"], cfg)
    shared = nn.ModuleList([embed, head]) if cfg.share == "networks" else head
    parameters = {name: p.shape for name, p in shared.named_parameters()}
    buffers = {name: b.shape for name, b in shared.named_buffers()}
    coded = {"values", "packed", "scale", "where"}
    for message in seen.messages:
        value = told(message)
        up = message.kind is HEAD
        assert (message.receiver if up else message.sender) == "server"
        assert (message.sender if up else message.receiver) in seen.clients
        if value.get("leaves"):
            assert value == {"leaves": True}
            continue
        plain = {k: v for k, v in value.items() if k not in ("parameters", "buffers", "coded")}
        judging = JUDGED if "adopt" in options and value["number"] > 1 else {}
        assert {k: type(v) for k, v in plain.items()} == (NUMBERS | judging if up else ANSWER)
        assert ("parameters" in value) is not ("coded" in value)
        told_shapes = {k: t.shape for k, t in value.get("parameters", {}).items()}
        assert told_shapes in ({}, parameters)
        for name, parts in value.get("coded", {}).items():
            assert name in parameters and set(parts) <= coded
            assert sum(t.numel() for t in parts.values()) <= math.prod(parameters[name]) + 2
        assert {k: t.shape for k, t in value["buffers"].items()} == (
            buffers if cfg.batch_norm == "shared" else {}
        )
    rows = list(ledger.read(seen.result.path / "ledger.jsonl"))
    assert [row["bytes"] for row in rows] == [codec.size(m.value) for m in seen.messages]
    assert "coded" in told(seen.down()[-1]) or "compress" not in options


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "changes", "error", "text"),
    [
        (
            CUT | {"cut": "stage9"},
            RESNET,
            ConfigError,
            r"no cut 'stage9'. The cuts are: stem, stag",
        ),
        (
            {"cut": "conv1", "fit_size": 3},
            {"model": "cnn", "model_options": {}},
            ConfigError,
            r"party 'party1': behind the cut 'conv1' cnn cannot take maps of 32×3×3",
        ),
        (
            CUT,
            {
                "parties": {
                    "sky": NET,
                    "sea": {"model": "resnet8", "model_options": {"width": 0.5}},
                }
            },
            MethodError,
            r"heads of 'sky' and 'sea' have different layers.*same model and width",
        ),
        (
            CUT,
            {"parties": {"sky": NET, "sea": NET | {"model": "resnet14"}}},
            MethodError,
            "heads of 'sky' and 'sea' have different layers",
        ),
        ({"share": "networks"}, {}, MethodError, "heads of 'party1' and 'party2' have different"),
        (
            ENDING,
            {},
            ConfigError,
            r"rate = 'plateau' decides by validation rows, and there are none",
        ),
        ({"adopt": "never"}, {}, ConfigError, "adopt = 'never': must be one of"),
        ({"adopt": "insured"}, {}, ConfigError, "adopt = 'insured' decides by validation rows"),
        (
            {"away": {"party9": [1]}, "pace": {"nobody": 2.0}, "deadline": 1.0},
            {},
            ConfigError,
            r"(?s)no client 'party9' in \[jovefl\]: .*no client 'nobody'",
        ),
        (
            {"pace": {"server": 2.0}},
            {},
            ConfigError,
            r"no client 'server' in \[jovefl\]: one of party1",
        ),
        ({"quorum": 3}, {}, ConfigError, "jovefl.quorum = 3: there are 2 clients"),
        ({"mode": "async", "strategy": "fedadam"}, {}, ConfigError, "strategy = 'fedadam' has no"),
        ({"mode": "async", "weighted": True}, {}, ConfigError, "weighted = True has no meaning"),
        ({"mode": "async", "deadline": 1.0}, {}, ConfigError, "deadline = 1.0 has no meaning"),
        (CUT | {"hidden": [4]}, RESNET, ConfigError, "hidden describes θ of .* not cut"),
        ({"whole": True}, {"runtime": "process"}, ConfigError, "only a simulation may do that"),
        ({"share": "data"}, {"runtime": "process"}, ConfigError, "puts all views in one place"),
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
    runtime = changes.get("runtime")
    changes = {k: v for k, v in changes.items() if k != "runtime"}
    with pytest.raises(error, match=text):
        colonnade.run(settings(options, **changes), out=tmp_path / "run", runtime=runtime)


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        *((key, 0) for key in ("dim", "fit_size", "every", "quorum", "patience", "reductions")),
        *((key, -0.1) for key in ("deadline", "contact", "stale", "prox")),
        *((key, 0.0) for key in ("server_lr", "server_epsilon", "mixing", "factor")),
        *((key, 1.0) for key in ("absence", "server_momentum", "server_beta2", "factor")),
        *((key, -0.1) for key in ("absence", "server_momentum", "server_beta2")),
        ("mixing", 1.1),
        ("bits", 0),
        ("bits", 9),
        ("hidden", [8, 0]),
        ("pace", {"party1": 0.0}),
        ("share", "everything"),
        ("strategy", "fedsgd"),
    ],
)
def test_options_out_of_range(option: str, bad: Any) -> None:
    with pytest.raises(ConfigError, match=rf"jovefl\.{option} = "):
        config.load(settings({option: bad}))


def test_one_client_is_enough() -> None:
    """Any number of clients, one too; and what is not needed is not asked for."""
    cast = methods.find("jovefl").method.cast
    assert cast(["a"], "a", JoVeFL()) == {"a": "client", "server": "server"}
    assert cast(["a", "server"], "a", JoVeFL()) == {"a": "client", "server": "server"}
    assert cast(["a", "b"], "a", JoVeFL(share="nothing", quorum=9)) == {
        "a": "client",
        "b": "client",
    }
    alone = settings({"share": "nothing", "adopt": "insured"})  # insured against nothing
    assert not why_judged(config.load(alone).options)


def test_a_network_that_cannot_be_cut(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, out):\n"
        "        super().__init__()\n"
        "        self.flat = nn.Flatten()\n"
        "        self.last = nn.Linear(shape[0] * shape[1] * shape[2], out)\n"
        "    def forward(self, x):\n"
        "        return self.last(self.flat(x))\n"
    )
    own: dict[str, Any] = {"model": f"{tmp_path / 'net.py'}:Net", "model_options": {}}
    with pytest.raises(
        ConfigError, match=r"cut = 'flat': only an nn.Sequential has cuts, not .*Net"
    ):
        colonnade.run(settings({"cut": "flat"}, **own), out=tmp_path / "cut")
    whole = train(tmp_path / "whole", settings(epochs=1, **own))  # without a cut it may be anything
    assert whole.weights("party1")["embedding"].keys() == {"last.weight", "last.bias"}


def test_a_failing_run_says_whose_heads_do_not_fit(tmp_path: Path) -> None:
    """Also in result.json, for whoever finds the folder later."""
    with pytest.raises(MethodError):
        colonnade.run(settings({"share": "networks"}), out=tmp_path / "run")
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert content["status"] == "failed"
    assert "'party1' and 'party2'" in content["error"]


def test_attendance_is_the_share_of_rounds_in_contact(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", settings({"away": {"party1": [2, 3]}}, epochs=4))
    found = seen.result.metrics["test"]["attendance"]
    assert found.pop("party1") == 0.5
    assert set(found.values()) == {1.0}


def test_a_server_to_whom_nobody_ever_speaks_says_so(tmp_path: Path) -> None:
    tree = settings({}, epochs=2)
    names = train(tmp_path / "known", tree).result.content["parties"]
    tree["jovefl"]["away"] = {name: [1, 2] for name in names if name != "server"}
    with pytest.raises(MethodError, match="no client ever sent a head"):
        colonnade.run(tree, out=tmp_path / "run")
