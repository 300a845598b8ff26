"""FedEmb: a server joins the clients' upper networks, and tunes them on aggregated embeddings.

Paper: "FedEmb: A Vertical and Hybrid Federated Learning Algorithm using Network and Feature
Embedding Aggregation". Client m has features and labels of its own; its network g_m is cut into a
private part and a public one.

    every client m, in each round                         the server
    1. train g_m on its own rows
    2. l_m, o_m = embeddings and outputs of all its
       rows, as means of groups, generalised or noisy
    3. l_m, o_m, the public part                     →    3. u = all public parts side by side
                                                             L = all l_m joined row by row
                                                          4. tune u to map L to what all o_m say
    5. its public part := its block of u             ←    5. every block

`setting = "vertical"`: all clients hold the same rows, so row r of l_m is the same group at each.
"hybrid": other rows at each; the server joins groups at random, in `combinations` fixed ways.

The blocks' common output is the sum of the clients' outputs. So with targets "mse", no groups and
no noise, u is right before it is tuned: there is nothing to learn (`tuning_loss_before` is 0).
`widen`, ours, makes rows out of the means of one class again, and there is: see `widened`.

Means, generalisation and Laplace noise are **no guarantee** of anything, and that noise follows
from the run's seed, which the server knows. `epsilon` clips, sets the noise by the sensitivity,
draws it from a secret, accounts for every round, and stops when the budget is spent. The public
part is sent as it is, in all modes. With targets "proportions" labels leave the clients.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import ConfigError, MethodError
from colonnade.models import cuts, network, split
from colonnade.models.joined import (
    Connect,
    Joined,
    dense_layers,
    from_first_linear,
    part_of,
    take_back,
)
from colonnade.privacy.budget import Budget, release
from colonnade.privacy.grouping import (
    Grouping,
    class_groups,
    kmeans_groups,
    published,
    random_groups,
    single_groups,
)
from colonnade.privacy.noise import SECRET_BYTES, generalise, laplace, ppm
from colonnade.role.method import About, Membership, Method, Prologue, Role, RowRules
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.wire import Kind, Peer

MEMBERSHIP = Kind("membership", ("rows",), reveals="which rows are alike", dtype="int64")
EMBEDDINGS = Kind("group_embeddings", ("groups", "width"), reveals="l_m: features, by group")
OUTPUTS = Kind("group_outputs", ("groups", "classes"), reveals="o_m: labels, by group")
NOISY_EMBEDDINGS = Kind(
    "noisy_embeddings",
    ("groups", "width"),
    reveals="l_m within (ε, δ) for each row's vector; not what the networks learnt from it",
    randomised=True,
)
NOISY_OUTPUTS = Kind(
    "noisy_outputs",
    ("groups", "classes"),
    reveals="o_m within (ε, δ) for each row's vector; not what the networks learnt from it",
    randomised=True,
)
PROPORTIONS = Kind("proportions", ("groups", "classes"), reveals="the labels of every group")
PUBLIC = Kind(
    "public_part",
    None,
    reveals="what the public part has learnt; with widen also the number of rows",
    dtype="any",
)
READY = Kind("ready", (), reveals="that a checkpoint holds the sender's secret", dtype="int64")
BLOCK = Kind("block", None, reveals="what all public parts have learnt together")
ROWS = Kind("row_count", None, reveals="how many rows will be evaluated", dtype="any")
EMBEDDING = Kind("embedding", ("batch", "width"), reveals="evaluated rows, through f_m")
SCORES = Kind("scores", None, reveals="what u makes of the evaluated rows")
SERVER, LOCAL = "server", "local"


@dataclass(frozen=True)
class FedEmb:
    """Options of FedEmb. `epochs` of the run are those of the first round."""

    setting: Literal["vertical", "hybrid"] = "vertical"
    cut: str = ""  # the private part ends after this layer; empty: in the middle
    rounds: int = 1  # J
    later_epochs: int = 2  # of every round but the first
    return_blocks: bool = True
    # ---- what leaves a client
    groups: int = 600  # R; 0: every row by itself
    grouping: Literal["random", "kmeans", "class"] = "random"
    generalise: float = 0.0  # the share of groups whose values become one
    noise: float = 0.0  # b of Laplace noise; without epsilon it guarantees nothing
    epsilon: float = 0.0  # of all rounds together; 0: no guarantee
    delta: float = 1e-6
    clip: float = 10.0  # epsilon: the largest L1 norm of a row of l_m and of o_m
    # ---- the server
    targets: Literal["mse", "soft", "hard", "proportions"] = "mse"
    combinations: int = 1  # T, hybrid
    match: Literal["random", "class"] = "random"  # hybrid: which groups are joined
    widen: bool = False  # pull the means of a class as far apart as its rows are
    server_epochs: int = 5
    server_lr: float = 1e-4
    server_schedule: Literal["constant", "cosine"] = "constant"  # cosine: falls to 0
    server_batch: int = 128
    connect: Connect = "dense"  # α
    rank: int = 16
    fan_in: int = 16
    connect_start: float = 0.0  # standard deviation of α at first
    control: bool = False  # also tune a u with new random weights, for comparison

    def __post_init__(self) -> None:
        wrong = []
        for key in ("rounds", "later_epochs", "combinations", "server_batch", "rank", "fan_in"):
            if getattr(self, key) < 1:
                wrong.append(f"{key} = {getattr(self, key)}: at least 1")
        for key in ("groups", "server_epochs", "noise", "epsilon", "connect_start"):
            if not 0 <= getattr(self, key) < float("inf"):
                wrong.append(f"{key} = {getattr(self, key)}: at least 0")
        for key in ("server_lr", "clip"):
            if not 0 < getattr(self, key) < float("inf"):
                wrong.append(f"{key} = {getattr(self, key)}: a number above 0")
        for key in ("delta", "generalise"):
            if not 0 <= getattr(self, key) < 1:
                wrong.append(f"{key} = {getattr(self, key)}: from 0 up to, not including, 1")
        if self.epsilon and self.noise:
            wrong.append("epsilon sets the noise by itself: leave noise out")
        if self.epsilon and self.targets == "proportions":
            wrong.append("targets = 'proportions' tells labels, which epsilon does not cover")
        if self.setting == "vertical" and (self.combinations > 1 or self.match == "class"):
            wrong.append("combinations and match are for setting = 'hybrid'")
        alike = self.grouping == "class" and (self.setting == "vertical" or self.match == "class")
        if self.widen and not (alike and self.targets in ("hard", "proportions")):
            wrong.append(
                "widen needs means of one class each, and their class: grouping = 'class', "
                "targets = 'hard' or 'proportions' and, if hybrid, match = 'class'"
            )
        if wrong:
            raise ValueError("; ".join(wrong))


async def client(me: Party, server: Peer, clients: list[Peer], cfg: FedEmb) -> None:
    if cfg.epsilon and not me.schedule.checkpoint_epochs:
        raise ConfigError(
            [
                "epsilon needs checkpoints, [checkpoint] epochs = 1: else a resumed run would "
                "release everything once more"
            ]
        )
    private, public = models_of(me, cfg)
    optimizer = me.optimizer(private, public)

    def learn() -> None:  # 1.
        for batch in me.batches(shared=False):
            loss = F.cross_entropy(public(private(batch.x)), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            me.log(loss=loss)

    for _ in me.epochs(LOCAL):
        learn()
    if cfg.epsilon:
        for _ in me.epochs("secret", 1):
            me.state["secret"] = secrets.token_bytes(SECRET_BYTES).hex()
        for _ in me.epochs("ready", 1):  # who is thrown back from now on still has its secret
            server.send(READY, torch.tensor(1))
            await server.recv(READY)
    for epoch in me.epochs(count=epochs_of(cfg)):
        if epoch:
            learn()
        if epoch % cfg.later_epochs:
            continue
        due = me.evaluations
        for rows in due:
            me.score(rows, own_logits(me, private, public, rows), measure="alone")
        await tell(me, server, clients, private, public, cfg)  # 2. and 3.
        block: Any = await server.recv(BLOCK)  # 5.
        if cfg.return_blocks:
            take_back(public, block)
        for rows in due:
            me.score(rows, own_logits(me, private, public, rows), measure="returned")
            for measure, logits in (await client_rows(me, server, private, rows)).items():
                me.score(rows, logits, measure=measure)


async def server(me: Party, clients: list[Peer], cfg: FedEmb) -> None:
    for phase, count in ((LOCAL, None), ("secret", int(cfg.epsilon > 0))):
        for _ in me.epochs(phase, count):
            pass  # so that all have checkpoints at the same places
    for _ in me.epochs("ready", int(cfg.epsilon > 0)):
        for peer in clients:
            await peer.recv(READY)
        for peer in clients:
            peer.send(READY, torch.tensor(1))
    for epoch in me.epochs(count=epochs_of(cfg)):
        if epoch % cfg.later_epochs:
            continue
        told = [await heard(peer, cfg) for peer in clients]  # 3.
        check_alike(clients, told, cfg)
        networks = server_networks(me, told, cfg)
        inputs, targets = joined_rows(me, told, cfg)
        me.log(tuning_loss_before=loss_of(networks["per_party"], inputs, targets, cfg))
        for name, joined in networks.items():
            if name != "late_fusion":
                before = {key: tensor.clone() for key, tensor in joined.state_dict().items()}
                after = tune(me, joined, inputs, targets, cfg)  # 4.
                if not after.isfinite():
                    joined.load_state_dict(before)
                    me.remark(
                        "the server's tuning has diverged, and what came of it was thrown away: "
                        "try a smaller server_lr, or less noise"
                    )
                if name == "per_party":
                    me.log(tuning_loss=after)
        for number, peer in enumerate(clients):
            peer.send(BLOCK, networks["per_party"].block(number))  # 5.
        for _ in range(told[0].evaluations):
            await server_rows(me, clients, networks)


async def client_predict(me: Party, server: Peer, cfg: FedEmb, split: str) -> Tensor:
    private, _ = models_of(me, cfg)
    return (await client_rows(me, server, private, split))["per_party"]


async def server_predict(me: Party, clients: list[Peer], cfg: FedEmb, split: str) -> None:
    await server_rows(me, clients, {"per_party": joined_of(me, None, len(clients), cfg)})


async def client_rows(me: Party, server: Peer, private: nn.Module, split: str) -> dict[str, Tensor]:
    """What the server's networks make of all rows of a split, by the name of the network."""
    found: dict[str, list[Tensor]] = {}
    with me.evaluating():
        server.send(ROWS, {"rows": len(me.splits[split])})
        for batch in me.rows(split):
            server.send(EMBEDDING, private(batch.x))
            answer: Any = await server.recv(SCORES)
            for name, logits in answer.items():
                found.setdefault(name, []).append(logits)
    return {name: torch.cat(parts) for name, parts in found.items()}


async def server_rows(me: Party, clients: Sequence[Peer], networks: Mapping[str, Joined]) -> None:
    """The server's side of one evaluation or prediction."""
    with me.evaluating():
        counts = {peer.name: (await peer.recv(ROWS))["rows"] for peer in clients}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
            raise MethodError(
                f"rows that are evaluated together must be the same at all clients: {listed}. Give "
                "each its columns of the same rows; without test rows train with evaluate_every = 0"
            )
        left = next(iter(counts.values()))
        while left > 0:
            batch = torch.stack([await peer.recv(EMBEDDING) for peer in clients], 1)
            scores = {name: joined(batch) for name, joined in networks.items()}
            for peer in clients:
                peer.send(SCORES, scores)
            left -= len(batch)


# ---- what leaves a client ------------------------------------------------------------------------


async def tell(
    me: Party,
    server: Peer,
    clients: Sequence[Peer],
    private: nn.Module,
    public: nn.Module,
    cfg: FedEmb,
) -> None:
    """2. and 3.: means over groups, protected as far as the options say, and the public part."""
    with me.evaluating():
        embeddings = torch.cat([private(batch.x) for batch in me.rows("train")])
        outputs = public(embeddings)
        if cfg.targets == "soft":
            outputs = outputs.softmax(1)
    groups = await grouping_of(me, clients, embeddings, cfg)
    warn(me, groups, public, cfg)
    told = [protected(me, values, groups, cfg) for values in (embeddings, outputs)]
    terms = [ppm(*pair, groups) for pair in zip((embeddings, outputs), told, strict=True)]
    me.figure(ppm_embedding=terms[0], ppm_output=terms[1], ppm=torch.stack(terms).min())
    server.send(NOISY_EMBEDDINGS if cfg.epsilon else EMBEDDINGS, told[0])
    server.send(NOISY_OUTPUTS if cfg.epsilon else OUTPUTS, told[1])
    if cfg.targets == "proportions":
        labels = me.splits["train"].y
        assert labels is not None
        server.send(PROPORTIONS, groups.means(F.one_hot(labels, len(me.classes)).float()))
    count = {"rows": len(embeddings)} if cfg.widen else {}
    server.send(PUBLIC, {"part": part_of(public), "evaluations": len(me.evaluations), **count})


def warn(me: Party, groups: Grouping, public: nn.Module, cfg: FedEmb) -> None:
    rows = len(groups.membership)
    if groups.groups == rows:
        me.remark(f"every row is told by itself: {rows:,} rows, groups = {cfg.groups}")
    if cfg.targets == "mse" and len(dense_layers(public)) == 1:
        me.remark(
            "behind the cut stands one linear layer: means pass through it unchanged, and with "
            "targets = 'mse' there is nothing to tune. Give the networks more layers, or cut before"
        )


async def grouping_of(
    me: Party, clients: Sequence[Peer], embeddings: Tensor, cfg: FedEmb
) -> Grouping:
    """Which rows are told as one: settled in the first round, alike at all clients if vertical."""
    if "membership" not in me.state:
        me.state["membership"] = (await new_grouping(me, clients, embeddings, cfg)).membership
    return published(me.state["membership"], len(embeddings))


async def new_grouping(
    me: Party, clients: Sequence[Peer], embeddings: Tensor, cfg: FedEmb
) -> Grouping:
    rows, vertical = len(embeddings), cfg.setting == "vertical"
    seed = derive(me.schedule.seed, "groups", "" if vertical else me.name)
    if not cfg.groups:
        return single_groups(rows)
    if cfg.grouping == "random":
        return random_groups(rows, cfg.groups, seed)
    if cfg.grouping == "class":
        labels = me.splits["train"].y
        assert labels is not None
        return class_groups(labels, cfg.groups, seed)
    if not vertical:
        return kmeans_groups(embeddings, cfg.groups, seed)
    # One client's groups are everybody's.
    first = min([me.name, *(peer.name for peer in clients)])
    if me.name != first:
        leader = next(peer for peer in clients if peer.name == first)
        return published(await leader.recv(MEMBERSHIP), rows)
    found = kmeans_groups(embeddings, cfg.groups, seed)
    for peer in clients:
        peer.send(MEMBERSHIP, found.membership)
    return found


def protected(me: Party, values: Tensor, groups: Grouping, cfg: FedEmb) -> Tensor:
    """What is told of all rows, (groups, …): means, with noise, generalised."""
    if cfg.epsilon:
        told = released(me, values, groups, cfg)
    else:
        told = groups.means(values)
        if cfg.noise:
            number = me.state["noises"] = me.state.get("noises", 0) + 1
            seed = derive(me.schedule.seed, "noise", me.name, number)
            told = laplace(told, cfg.noise, torch.Generator().manual_seed(seed))
    return generalise(told, cfg.generalise) if cfg.generalise else told


def released(me: Party, values: Tensor, groups: Grouping, cfg: FedEmb) -> Tensor:
    """Clipped, averaged and noised within the budget; raises BudgetSpent when that is over."""
    budget = Budget(cfg.epsilon, cfg.delta, me.state.setdefault("released", []))
    if "share" not in me.state:  # embeddings and outputs of every round
        me.state["share"] = budget.share(2 * cfg.rounds)
    secret = bytes.fromhex(me.state["secret"])
    told = release(values, groups, cfg.clip, me.state["share"], budget, secret)
    me.figure(epsilon=budget.spent)
    return told


# ---- the server ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What one client sent in a round."""

    embeddings: Tensor  # (groups, width)
    outputs: Tensor  # (groups, classes)
    proportions: Tensor | None  # (groups, classes)
    part: Mapping[str, Tensor]
    evaluations: int
    rows: int = 0  # of which it told the means, if it said so


async def heard(peer: Peer, cfg: FedEmb) -> Told:
    embeddings = await peer.recv(NOISY_EMBEDDINGS if cfg.epsilon else EMBEDDINGS)
    outputs = await peer.recv(NOISY_OUTPUTS if cfg.epsilon else OUTPUTS)
    proportions = await peer.recv(PROPORTIONS) if cfg.targets == "proportions" else None
    public: Any = await peer.recv(PUBLIC)
    counts = public["evaluations"], public.get("rows", 0)
    return Told(embeddings, outputs, proportions, public["part"], *counts)


def check_alike(clients: Sequence[Peer], told: Sequence[Told], cfg: FedEmb) -> None:
    for peer, one in zip(clients, told, strict=True):
        shapes = {name: tuple(tensor.shape) for name, tensor in one.part.items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in told[0].part.items()}:
            raise MethodError(
                f"the public parts of '{clients[0].name}' and '{peer.name}' have different layers: "
                "behind the cut all clients need the same widths"
            )
        if cfg.setting == "vertical" and len(one.embeddings) != len(told[0].embeddings):
            raise MethodError(
                f"'{clients[0].name}' sent {len(told[0].embeddings)} groups and '{peer.name}' "
                f"{len(one.embeddings)}: setting = 'vertical' needs the same rows at all clients"
            )


def server_networks(me: Party, told: Sequence[Told], cfg: FedEmb) -> dict[str, Joined]:
    """u with the new public parts; the same before it is tuned; and one that knows nothing."""
    made = {"per_party": joined_of(me, told[0], len(told), cfg)}
    made["late_fusion"] = fusion = Joined(len(told), widths_of(told[0].part), "none").to(me.device)
    if cfg.control:
        seed = derive(me.schedule.seed, "control", me.position[1])
        made["control"] = new_joined(widths_of(told[0].part), len(told), cfg).to(me.device)
        made["control"].draw(torch.Generator().manual_seed(seed))
    for number, one in enumerate(told):
        made["per_party"].load(number, one.part)
        fusion.load(number, one.part)
    return made


def joined_of(me: Party, told: Told | None, count: int, cfg: FedEmb) -> Joined:
    """u, kept from round to round, and with it α; for prediction as it was saved."""
    if told is not None:
        me.state["widths"] = widths_of(told.part)
    widths = me.state.get("widths") or saved_widths(me)
    return me.keep("joined", lambda: new_joined(widths, count, cfg))


def new_joined(widths: Sequence[int], count: int, cfg: FedEmb) -> Joined:
    start = cfg.connect_start
    return Joined(count, widths, cfg.connect, rank=cfg.rank, fan_in=cfg.fan_in, start=start)


def widths_of(part: Mapping[str, Tensor]) -> list[int]:
    layers = [part[f"{number}.weight"] for number in range(len(part) // 2)]
    return [layers[0].shape[1], *(layer.shape[0] for layer in layers)]


def saved_widths(me: Party) -> list[int]:
    weights = me.kept.weights()["joined"]
    layers = [
        weights[f"weights.{n}"] for n in range(sum(k.startswith("weights.") for k in weights))
    ]
    return [layers[0].shape[2], *(layer.shape[1] for layer in layers)]


def joined_rows(me: Party, told: Sequence[Told], cfg: FedEmb) -> tuple[Tensor, Tensor]:
    """L, (rows, clients, width), and what u should make of it, (rows, classes)."""
    if cfg.setting == "vertical":
        orders = [torch.arange(len(one.embeddings)) for one in told]
    else:
        orders = matched(me, told, cfg)
    pairs = [(one, order.to(me.device)) for one, order in zip(told, orders, strict=True)]
    inputs = torch.stack([one.embeddings[order] for one, order in pairs], 1)
    targets = targets_of(pairs, cfg)
    if cfg.widen:
        sizes = torch.tensor([one.rows / len(one.embeddings) for one in told])
        if sizes.max() == 1 or targets.argmax(1).bincount().max() == 1:
            me.remark(
                "widen has changed nothing: it needs several groups of a class, of several rows. "
                "Choose groups between the numbers of classes and rows"
            )
        inputs = widened(inputs, targets, sizes.to(me.device))
    return inputs, targets


def targets_of(pairs: Sequence[tuple[Told, Tensor]], cfg: FedEmb) -> Tensor:
    if cfg.targets == "proportions":
        known = [(one.proportions, order) for one, order in pairs]
        return torch.stack([p[order] for p, order in known if p is not None], 1).mean(1)
    outputs = torch.stack([one.outputs[order] for one, order in pairs], 1)
    if cfg.targets == "soft":
        return outputs.mean(1).clamp(min=0.0)
    total = outputs.sum(1)
    if cfg.targets == "hard":
        return F.one_hot(total.argmax(1), total.shape[1]).float()
    return total


def widened(means: Tensor, targets: Tensor, sizes: Tensor) -> Tensor:
    """Means of groups, (groups, clients, width), as far apart as rows of their class are.

    Means of k rows of a class lie about its middle as the rows do, but √k times nearer to it. √k
    times farther out they vary like rows, and so does what clients see of the same rows together:
    of this the sum of the clients' outputs knows nothing.
    """
    classes = targets.argmax(1)
    of_class = F.one_hot(classes, targets.shape[1]).to(means.dtype)
    middles = torch.einsum("gc,gmw->cmw", of_class, means)
    middles /= of_class.sum(0).clamp(min=1)[:, None, None]
    middle = middles[classes]
    return middle + sizes.sqrt()[:, None] * (means - middle)


def matched(me: Party, told: Sequence[Told], cfg: FedEmb) -> list[Tensor]:
    """Which groups of different clients are joined: fixed for all rounds, `combinations` times."""
    rows = min(len(one.embeddings) for one in told)
    orders: list[list[Tensor]] = [[] for _ in told]
    if cfg.match == "class":  # as they looked to their own clients in the first round
        looks = me.state.setdefault("looks", [one.outputs.argmax(1).cpu() for one in told])
        counts = torch.stack([look.bincount(minlength=told[0].outputs.shape[1]) for look in looks])
        shared = counts.min(0).values  # so many of a class are there at all clients
    for turn in range(cfg.combinations):
        for number, one in enumerate(told):
            seed = derive(me.schedule.seed, "match", turn, number)
            order = torch.randperm(
                len(one.embeddings), generator=torch.Generator().manual_seed(seed)
            )
            if cfg.match == "class":  # class by class; what nobody can match comes last
                look, by_class = looks[number][order].sort(stable=True)
                place = torch.arange(len(look)) - (counts[number].cumsum(0) - counts[number])[look]
                alike = place < shared[look]
                order = order[torch.cat([by_class[alike], by_class[~alike]])]
            orders[number].append(order[:rows])
    return [torch.cat(order) for order in orders]


def tune(me: Party, joined: Joined, inputs: Tensor, targets: Tensor, cfg: FedEmb) -> Tensor:
    """4. A new optimiser in every round; returns the loss afterwards."""
    optimizer = torch.optim.Adam(joined.parameters(), lr=cfg.server_lr, fused=True)
    seed = derive(me.schedule.seed, "tuning", me.position[1])
    generator = torch.Generator().manual_seed(seed)
    steps = cfg.server_epochs * -(-len(inputs) // cfg.server_batch)
    done = 0
    for _ in range(cfg.server_epochs):
        order = torch.randperm(len(inputs), generator=generator).to(me.device)
        for rows in order.split(cfg.server_batch):
            if cfg.server_schedule == "cosine":
                optimizer.param_groups[0]["lr"] = cfg.server_lr * (1 + cos(pi * done / steps)) / 2
            done += 1
            loss = loss_of(joined, inputs[rows], targets[rows], cfg)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return loss_of(joined, inputs, targets, cfg)


def loss_of(joined: Joined, inputs: Tensor, targets: Tensor, cfg: FedEmb) -> Tensor:
    scores = joined(inputs)
    return F.mse_loss(scores, targets) if cfg.targets == "mse" else F.cross_entropy(scores, targets)


# ---- networks and rounds -------------------------------------------------------------------------


def models_of(me: Party, cfg: FedEmb) -> tuple[nn.Module, nn.Module]:
    """The private and the public part of g_m."""

    def part(which: int) -> nn.Module:
        options = {**me.recipe.model_options, "activated": False}
        whole = network(me.recipe.model, me.shape, len(me.classes), **options)
        if not isinstance(whole, nn.Sequential) or not cuts(whole):
            raise ConfigError([f"'{me.name}': {me.recipe.model} cannot be cut in two"])
        places = cuts(whole)
        bottom, top = split(whole, cfg.cut or places[(len(places) - 1) // 2])
        before, public = from_first_linear(top)
        dense_layers(public)
        return public if which else nn.Sequential(*bottom, *before)

    return me.keep("private", lambda: part(0)), me.keep("public", lambda: part(1))


def own_logits(me: Party, private: nn.Module, public: nn.Module, split: str) -> Tensor:
    with me.evaluating():
        return torch.cat([public(private(batch.x)) for batch in me.rows(split)])


def epochs_of(cfg: FedEmb) -> int:
    """Of all rounds after the local phase: the first needs none, and ends the first epoch."""
    return 1 + (cfg.rounds - 1) * cfg.later_epochs


def cast(parties: Sequence[str], holder: str, options: FedEmb) -> dict[str, str]:
    clients = {name: "client" for name in parties if name != SERVER}
    if len(clients) < 2:
        raise MethodError(
            f"fedemb joins the networks of at least two clients; here: {len(clients)}"
            + (f" beside '{SERVER}', which is the one that brings nothing" * (SERVER in parties))
        )
    return clients | {SERVER: "server"}


def client_sends(cfg: FedEmb, _: int) -> list[Kind]:
    told = [PUBLIC, ROWS, EMBEDDING]
    told += [READY, NOISY_EMBEDDINGS, NOISY_OUTPUTS] if cfg.epsilon else [EMBEDDINGS, OUTPUTS]
    told += [PROPORTIONS] if cfg.targets == "proportions" else []
    shared = cfg.grouping == "kmeans" and cfg.setting == "vertical" and cfg.groups
    return told + ([MEMBERSHIP] if shared else [])


def server_sends(cfg: FedEmb, _: int) -> list[Kind]:
    return [BLOCK, SCORES] + ([READY] if cfg.epsilon else [])


def caveats(cfg: FedEmb) -> list[str]:
    asked = [f"{key} = {getattr(cfg, key)}" for key in ("noise", "generalise") if getattr(cfg, key)]
    said = []
    if cfg.grouping == "class" and cfg.groups:
        said.append("labels decide who is in a group: the server can tell the class of every group")
    if cfg.targets == "proportions":
        said.append(
            "labels leave the clients: targets = 'proportions' tells the server those of "
            + ("groups" if cfg.groups else "every row")
        )
    elif cfg.epsilon:
        said.append(
            f"epsilon = {cfg.epsilon} covers what one client tells of each row's vectors (what M "
            "clients tell of the same person: M times that at worst); not the public part of the "
            "networks, not who is in a group, not rows that are evaluated"
        )
    elif asked:
        said.append(
            f"no guarantee: nothing follows from [fedemb] {' and '.join(asked)} for anybody's "
            "privacy. epsilon would give one"
        )
    if cfg.clip != FedEmb.clip and not cfg.epsilon:
        said.append(f"clip = {cfg.clip} clips nothing: it goes with epsilon")
    return said


METHOD = Method(
    name="fedemb",
    summary="upper networks joined at a server, and tuned on aggregated embeddings",
    options=FedEmb,
    roles={
        "client": Role(client, client_predict, sends=client_sends),
        "server": Role(server, server_predict, features=False, rows=False, sends=server_sends),
    },
    kinds=(
        MEMBERSHIP,
        EMBEDDINGS,
        OUTPUTS,
        NOISY_EMBEDDINGS,
        NOISY_OUTPUTS,
        PROPORTIONS,
        PUBLIC,
        READY,
        BLOCK,
        ROWS,
        EMBEDDING,
        SCORES,
    ),
    cast=cast,
    rows=RowRules(
        aligned=lambda options: options.setting == "vertical",
        tested_together=lambda options: True,
        own_labels=True,
    ),
    membership=Membership(hub="server"),
    start=Prologue(LOCAL, ("cut",)),
    about=About(
        title="FedEmb",
        reference="FedEmb: A Vertical and Hybrid Federated Learning Algorithm",
        caveats=caveats,
    ),
)
