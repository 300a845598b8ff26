"""FedEmb: a server joins the clients' upper networks, and tunes them on aggregated embeddings.

Paper: "FedEmb: A Vertical and Hybrid Federated Learning Algorithm using Network and Feature
Embedding Aggregation". Client m has features and labels of its own. Its network g_m = f_m^S ∘ f_m^L
(Eq. 1) is cut into a private part f_m^L and a public one f_m^S; θ_m, here o_m, are its outputs. The
server's network u (Eq. 2) has all public parts side by side, and weights α that connect them.

    in each of J rounds, every client m                  the server
     1. train g_m on its own rows
     2. l_m = f_m^L(x), o_m = g_m(x), of all its rows
     3. means of both over groups, set in round 1
     4. generalise (Algorithm 2) or add noise; PPM (Eq. 4)
     5. l_m, o_m, the weights of f_m^S              →     6. L = [l_1; …; l_M], Θ = Σ_m o_m
                                                          7. u = all f_m^S with the last round's α
                                                          8. train u to map L to Θ; keep α
    10. f_m^S := its block of u                     ←     9. every block of u

`setting = "vertical"`: all clients hold the same rows, so row r of l_m is the same group at each.
"hybrid": each holds different rows; the server joins groups at random, in `combinations` ways.

The blocks' common output is the sum of the clients' outputs. So with targets "mse", no groups and
no noise, u is right before it is tuned: there is nothing to learn (`tuning_loss_before` is 0).
`widen`, which is ours, makes the means of a class vary as its rows do, and then there is.

Steps 3 and 4 are privacy/release.py. Without `epsilon` they are **no guarantee** of anything. With
it, noise is set by the sensitivity, and a run stops when the budget is spent. Weights are sent as
they are, and with targets "proportions" labels leave the clients. `public = "random"`, which is
ours: f_m^S is drawn from the seed, at both ends, and stays; in steps 3 to 5 a client tells sums of
l_m over the rows of a class, and no weights, and nothing returns. `private = "random"`: f_m^L is
drawn, too, so `epsilon` covers whole records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import MethodError
from colonnade.methods.parts import class_report, client_report, joint_scores
from colonnade.methods.parts.class_report import received, send_sums, told_kinds
from colonnade.methods.parts.client_report import Told, label_proportions
from colonnade.methods.parts.contradictions import caveats, contradictions, unprotected
from colonnade.methods.parts.halves import halves_of, warn_of_linear
from colonnade.methods.parts.joint_scores import score_alone, score_for, score_jointly, scored
from colonnade.methods.parts.matching import alike, matched, side_by_side
from colonnade.methods.parts.options import Above0, Count, CountOr0, Share, Size, group
from colonnade.methods.parts.trees import check_weights
from colonnade.methods.parts.tuning import TUNING_NUMBERS, tuned
from colonnade.methods.parts.widening import widen
from colonnade.models import joined as joining
from colonnade.models.joined import Connect, Joined
from colonnade.privacy import release
from colonnade.privacy.release import Release
from colonnade.role.method import About, Learning, Membership, Method, Prologue, Role, RowRules
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.toml import check_bounds
from colonnade.wire import Kind, Peer

BLOCK = Kind("block", None, reveals="what all public parts have learnt together", carries="models")
SERVER, LOCAL = "server", "local"


@dataclass(frozen=True)
class FedEmb:
    """Options of FedEmb. `epochs` of the run are those of the first round."""

    setting: Literal["vertical", "hybrid"] = "vertical"
    cut: str = ""  # f_m^L ends after this layer; empty: in the middle
    rounds: Count = 1  # J
    later_epochs: Count = 2  # of every round but the first
    return_blocks: bool = True
    public: Literal["trained", "random"] = "trained"  # f_m^S; random: no weights leave
    private: Literal["trained", "random"] = "trained"  # f_m^L; random: needs a random f_m^S
    # ---- what leaves a client
    groups: CountOr0 = 600  # R; 0: every row by itself
    grouping: Literal["random", "kmeans", "class"] = "random"
    generalise: Share = 0.0  # ε of Algorithm 2: the share of groups whose values become one
    noise: Size = 0.0  # b of Laplace noise; without epsilon it guarantees nothing
    epsilon: Size = 0.0  # of all rounds together; 0: no guarantee
    delta: Share = 1e-6
    clip: Above0 | Literal["private"] = 10.0  # epsilon: the largest L1 norm of a row
    clip_embedding: Size | Literal["private"] = 0.0  # of l_m; 0: clip
    clip_output: Size | Literal["private"] = 0.0  # of o_m; 0: clip
    clip_share: Share = 0.1  # of epsilon, to find the clips that are "private"
    # ---- the server
    targets: Literal["mse", "soft", "hard", "proportions", "class"] = "mse"
    combinations: Count = 1  # T, hybrid
    match: Literal["random", "class"] = "random"  # hybrid: which groups are joined
    widen: bool = False  # pull the means of a class as far apart as its rows are
    server_epochs: CountOr0 = 5
    server_lr: Above0 = 1e-4
    server_schedule: Literal["constant", "cosine"] = "constant"  # cosine: falls to 0
    server_batch: Count = 128
    connect: Connect = "dense"  # α
    rank: Count = 16
    fan_in: Count = 16
    connect_start: Size = 0.0  # standard deviation of α at first
    control: bool = False  # also tune a u with new random weights, for comparison

    def __post_init__(self) -> None:
        check_bounds(self)
        if wrong := contradictions(self):
            raise ValueError("; ".join(wrong))

    @property
    def release(self) -> Release:
        """How l_m and o_m, of all rounds, may leave a client."""
        named = ("embedding",) if self.public == "random" else ("embedding", "output")
        planned = len(named) * self.rounds
        alike = self.setting == "vertical"
        return group(self, Release, alike=alike, named=named, planned=planned)

    @property
    def epochs(self) -> int:
        """Of all rounds after the local phase: the first ends the first epoch."""
        return 1 + (self.rounds - 1) * self.later_epochs

    @property
    def reported(self) -> dict[str, bool]:
        """What a client's report has in it."""
        labelled, weights = self.targets == "proportions", self.public == "trained"
        return {"noisy": self.epsilon > 0, "labelled": labelled, "weights": weights}


async def client(me: Party, server: Peer, clients: list[Peer], cfg: FedEmb) -> None:
    cfg.release.check(me, records=cfg.private == "random")
    private, public = models_of(me, cfg)
    learns = [private] * (cfg.private == "trained") + [public] * (cfg.public == "trained")
    optimizer = me.optimizer(*learns) if learns else None

    def learn() -> None:  # 1.
        if optimizer is None:
            return
        for batch in me.batches(shared=False):
            loss = me.task.loss(public(private(batch.x)), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            me.log(loss=loss)

    for _ in me.epochs(LOCAL):
        learn()
    await cfg.release.prepare(me, server)
    for epoch in me.epochs(count=cfg.epochs):
        if epoch:
            learn()
        if epoch % cfg.later_epochs:
            continue
        if learns:
            score_alone(me, private, public, measure="alone")
        await tell(me, server, clients, private, public, cfg)  # 2. to 5.
        if cfg.public == "trained":
            block: Any = await server.recv(BLOCK)
            check_weights(server.name, BLOCK.name, block, joining.part_of(public))
            if cfg.return_blocks:
                joining.take_back(public, block)  # 10.
            score_alone(me, private, public, measure="returned")
        await score_jointly(me, server, private, cfg.release)


async def tell(
    me: Party, server: Peer, others: list[Peer], private: nn.Module, public: nn.Module, cfg: FedEmb
) -> None:
    with me.evaluating():  # 2.
        embeddings = torch.cat([private(batch.x) for batch in me.rows("train")])  # (rows, width)
        outputs = public(embeddings)  # (rows, classes)
        if cfg.targets == "soft":
            outputs = outputs.softmax(1)
    if cfg.public == "random":
        sums = cfg.release.of_classes(me, embeddings)  # 3., 4.
        send_sums(me, server, sums, public, noisy=cfg.epsilon > 0)  # 5.
        return
    values = {"embedding": embeddings, "output": outputs}
    groups, (l_m, o_m) = await cfg.release.of(me, others, **values)  # 3., 4.
    if cfg.targets == "mse":
        warn_of_linear(me, public)
    proportions = label_proportions(me, groups) if cfg.targets == "proportions" else None
    counts = len(me.evaluations), len(embeddings) if cfg.widen else 0
    told = Told(l_m, o_m, proportions, joining.part_of(public), *counts)
    told.send(server, noisy=cfg.epsilon > 0)  # 5.


async def server(me: Party, clients: list[Peer], cfg: FedEmb) -> None:
    for _ in me.epochs(LOCAL):
        pass  # so that all have checkpoints at the same places
    await cfg.release.all_prepared(me, clients)
    for epoch in me.epochs(count=cfg.epochs):
        if epoch % cfg.later_epochs:
            continue
        told = [await received(me, peer, **cfg.reported) for peer in clients]
        joining.check_alike({one.sender: one.part for one in told})
        inputs, targets = joined_rows(me, told, cfg)  # 6.
        networks = server_networks(me, told, cfg)  # 7.
        me.log(tuning_loss_before=loss_of(networks["per_party"], inputs, targets, cfg))
        me.log(tuning_loss=tune(me, networks["per_party"], inputs, targets, cfg))  # 8.
        if cfg.control:
            tune(me, networks["control"], inputs, targets, cfg)
        for number, peer in enumerate(clients if cfg.public == "trained" else []):
            peer.send(BLOCK, networks["per_party"].block(number))  # 9.
        for _ in range(told[0].evaluations):
            await score_for(me, clients, networks)


async def client_predict(me: Party, server: Peer, cfg: FedEmb, split: str) -> Tensor:
    private, _ = models_of(me, cfg)
    return (await scored(me, server, private, split, cfg.release))["per_party"]


async def server_predict(me: Party, clients: list[Peer], cfg: FedEmb, split: str) -> None:
    size = len(clients), joining.saved_widths(me.kept.weights()["joined"])
    joined = me.keep("joined", lambda: new_joined(*size, cfg))
    await score_for(me, clients, {"per_party": joined})


# ---- the server's steps --------------------------------------------------------------------------


def joined_rows(me: Party, told: Sequence[Told], cfg: FedEmb) -> tuple[Tensor, Tensor]:
    """6. L, (rows, clients, width), and Θ, what u should make of it, (rows, classes)."""
    counts = [len(one.embeddings) for one in told]
    if cfg.setting == "vertical" or cfg.public == "random":
        orders = alike([one.sender for one in told], counts)
    else:
        looks = None
        if cfg.match == "class":  # as they looked to their own clients in the first round
            looks = me.state.setdefault("looks", [one.outputs.argmax(1).cpu() for one in told])
        orders = matched(counts, cfg.combinations, me.schedule.seed, looks)
    inputs = side_by_side([one.embeddings for one in told], orders)
    outputs = side_by_side([one.outputs for one in told], orders)
    total = outputs.sum(1)  # Σ_m o_m
    known = [one.proportions for one in told if one.proportions is not None]
    targets = {
        "mse": lambda: total,
        "soft": lambda: outputs.mean(1).clamp(min=0.0),
        "hard": lambda: F.one_hot(total.argmax(1), total.shape[1]).float(),
        "proportions": lambda: side_by_side(known, orders).mean(1),
    }[cfg.targets if cfg.targets != "class" else "proportions"]()
    if cfg.widen:
        inputs = widen(me, inputs, targets, [one.rows_of_a_group for one in told])
    return inputs, targets


def server_networks(me: Party, told: Sequence[Told], cfg: FedEmb) -> dict[str, Joined]:
    """7. u with the new public parts; the same before it is tuned; and one that knows nothing."""
    parts = [one.part for one in told]
    size = len(parts), joining.widths_of(parts[0])
    joined = me.keep("joined", lambda: new_joined(*size, cfg))  # and with it α, from round to round
    made = {"per_party": joined.load_all(parts)}
    made["late_fusion"] = Joined(*size, "none").to(me.device).load_all(parts)
    if cfg.control:
        seed = derive(me.schedule.seed, "control", me.position[1])
        made["control"] = new_joined(*size, cfg).to(me.device)
        made["control"].draw(torch.Generator().manual_seed(seed))
    return made


def new_joined(count: int, widths: Sequence[int], cfg: FedEmb) -> Joined:
    start = cfg.connect_start
    return Joined(count, widths, cfg.connect, rank=cfg.rank, fan_in=cfg.fan_in, start=start)


def tune(me: Party, joined: Joined, inputs: Tensor, targets: Tensor, cfg: FedEmb) -> Tensor:
    """8. With a new optimiser in every round; returns the loss afterwards."""
    return tuned(
        me,
        joined,
        inputs,
        targets,
        lambda module, x, y: loss_of(module, x, y, cfg),
        epochs=cfg.server_epochs,
        lr=cfg.server_lr,
        batch=cfg.server_batch,
        cosine=cfg.server_schedule == "cosine",
    )


def loss_of(joined: nn.Module, inputs: Tensor, targets: Tensor, cfg: FedEmb) -> Tensor:
    scores = joined(inputs)
    return F.mse_loss(scores, targets) if cfg.targets == "mse" else F.cross_entropy(scores, targets)


# ---- the method ----------------------------------------------------------------------------------


def models_of(me: Party, cfg: FedEmb) -> tuple[nn.Module, nn.Module]:
    """f_m^L and f_m^S."""
    return halves_of(me, cfg.cut, cfg.private, cfg.public)


def cast(parties: Sequence[str], holder: str, options: FedEmb) -> dict[str, str]:
    clients = {name: "client" for name in parties if name != SERVER}
    if len(clients) < 2:
        beside = f" beside '{SERVER}', which is the one that brings nothing" * (SERVER in parties)
        here = f"{len(clients)}{beside}"
        raise MethodError(f"fedemb joins the networks of at least two clients; here: {here}")
    options.release.require()
    return clients | {SERVER: "server"}


def client_sends(cfg: FedEmb, _: int) -> list[Kind]:
    scoring = [joint_scores.ROWS, joint_scores.EMBEDDING]
    return [*told_kinds(**cfg.reported), *scoring, *cfg.release.kinds]


def client_trains(cfg: FedEmb, epochs: int) -> dict[str, int]:
    """What the optimiser of f_m^L and f_m^S does: the local phase, and between two rounds."""
    return {"optimizer": epochs + cfg.epochs - 1}


def server_sends(cfg: FedEmb, _: int) -> list[Kind]:
    blocks = [BLOCK] * (cfg.public == "trained")
    return [*blocks, joint_scores.SCORES] + [release.READY] * (cfg.epsilon > 0)


METHOD = Method(
    name="fedemb",
    summary="upper networks joined at a server, and tuned on aggregated embeddings",
    options=FedEmb,
    roles={
        "client": Role(client, client_predict, sends=client_sends, trains=client_trains),
        "server": Role(server, server_predict, features=False, rows=False, sends=server_sends),
    },
    kinds=(BLOCK, *client_report.KINDS, *class_report.KINDS, *release.KINDS, *joint_scores.KINDS),
    cast=cast,
    rows=RowRules(
        aligned=lambda options: options.setting == "vertical",
        tested_together=lambda options: True,
        own_labels=True,
    ),
    membership=Membership(hub="server"),
    start=Prologue(LOCAL, ("cut", "public", "private")),
    learning=Learning(unprotected=unprotected),
    about=About(
        title="FedEmb",
        reference="FedEmb: A Vertical and Hybrid Federated Learning Algorithm",
        caveats=caveats,
        measures=joint_scores.MEASURES,
        numbers=release.NUMBERS | TUNING_NUMBERS,
    ),
)
