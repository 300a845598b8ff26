"""EASTER: every party trains a network of its own kind on the mean of everybody's embeddings.

Paper: "EASTER: Embedding Aggregation-based Heterogeneous Models Training in Vertical Federated
Learning". C = K + 1 parties, networks h_k (embedding) and p_k (decision) of any kind.

    once: every pair of parties agrees on a key, through the active party (privacy/keys.py)

    every passive party k                         the active party 0
    1. E_k = h_k(x_k), masked                →    1. E_0 = h_0(x_0)
                                             ←    2. E = (E_0 + Σ_k E_k) / C       (Eq. 7)
    3. R_k = p_k(E)                          →    3. R_0 = p_0(E)
                                             ←    4. L_k = loss(R_k, Y), dL_k/dR_k for every k
    5. back-propagate dL_k/dR_k through p_k, and with the factor dE/dE_k = 1/C through h_k; step

Four messages per batch and passive party. Every h_k is trained by its own head alone; with
`gradient = "joint"` the active party also gathers dL_k/dE and returns their sum (two more
messages), which makes it a split network with C heads.

Masks hide single embeddings from an active party that keeps to this protocol; with K = 2, one
passive party that colludes with it unmasks the other. Labels are not hidden: dL_k/dR_k shows them
to the passive parties, and `label_leak` says how many.

An absent party takes no part in keys, masks and messages, and C counts those who are there. With
`stand_in = "mean"` every passive party tells the mean of its E_k in clear after each epoch, and it
stands in for the E_k of an absent one. Over a network the same rows must never meet the same
weights once with and once without a party, in an evaluation or a step done again: the difference
of the two sums is its embedding, whatever the masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import ConfigError, MethodError, unknown
from colonnade.methods.parts.easter_messages import (
    GLOBAL,
    GRADIENT,
    HEAD_GRADIENT,
    JOINT_GRADIENT,
    KINDS,
    MEAN,
    PREDICTION,
    kind_of,
)
from colonnade.methods.parts.mean import Mean
from colonnade.methods.parts.participation import present
from colonnade.metrics.leakage import label_leak
from colonnade.models import head, network
from colonnade.privacy import keys
from colonnade.privacy.masking import Moment, Ring
from colonnade.privacy.secure_sum import SecureSum
from colonnade.role import stopping
from colonnade.role.batches import Batch
from colonnade.role.method import (
    About,
    Circumstances,
    Learning,
    Membership,
    Method,
    Role,
    active_and_passives,
)
from colonnade.role.party import Party
from colonnade.toml import Bounds
from colonnade.wire import Kind, Peer


@dataclass(frozen=True)
class Easter:
    """Options of EASTER."""

    mask: Literal["prg", "paper", "none"] = "prg"  # "paper": one constant per pair, hides little
    # What trains h_k: its own head, all heads, its own head without the factor 1/C, or nothing.
    gradient: Literal["own", "joint", "unit", "none"] = "own"
    aggregate: Literal["mean", "sum", "weighted"] = "mean"
    # By party, for "weighted"; else 1.
    weights: Mapping[str, Annotated[float, Bounds(above=0)]] = field(default_factory=dict)
    normalise: bool = False  # LayerNorm at the end of every h_k
    loss: Literal["softmax", "sigmoid"] = "softmax"  # "sigmoid": the two-class loss of Eq. 8
    dim: Annotated[int, Bounds(least=1)] = 128  # d, the width of every embedding
    ring: Literal[64, 32] = 64  # bits of a masked number
    fraction: int | None = None  # f, how many of them lie behind the point; None: 24, or 16 of 32
    one_passive: bool = False  # allow a federation of two, in which no mask can hide anything
    stand_in: Literal["present", "mean"] = "present"  # for an absent party: nobody, or its mean

    def __post_init__(self) -> None:
        if self.fraction is not None and not 1 <= self.fraction <= self.ring - 8:
            raise ValueError(
                f"fraction = {self.fraction}: from 1 to {self.ring - 8}, of {self.ring}"
            )
        if self.aggregate == "weighted" and not self.weights:
            raise ValueError('aggregate = "weighted" needs weights, such as { shop = 2.0 }')
        if self.weights and self.aggregate != "weighted":
            raise ValueError('weights have no effect without aggregate = "weighted"')


async def passive(me: Party, active: Peer, passives: list[Peer], cfg: Easter) -> None:
    if cfg.gradient == "none" and len(present(passives)) < len(passives):
        raise MethodError(
            "with gradient = 'none' embeddings never change, so every row would meet two sets of "
            "members under the same weights: such a run cannot go on without a party. Begin a new "
            "one, with another --out"
        )
    share = await passive_share(me, active, passives, cfg)
    embed, decide = models_of(me, cfg)
    mean = mean_of(me, me.name, cfg)
    optimizer = me.optimizer(embed, decide)
    for _ in me.epochs():
        for batch in me.batches():
            embedding = embed(batch.x)
            if cfg.stand_in == "mean":
                mean.add(embedding.detach())
            passive_send(active, share, embedding.detach(), Moment(*me.position))  # 1.
            shared = (await active.recv(GLOBAL)).requires_grad_()  # 2. wait for E
            prediction = decide(shared)
            active.send(PREDICTION, prediction.detach())  # 3. send R_k
            gradient = await active.recv(GRADIENT)  # 4. wait for dL_k/dR_k
            optimizer.zero_grad()
            prediction.backward(gradient)  # 5. through p_k …
            gradient = shared.grad  # dL_k/dE
            if cfg.gradient == "joint":
                active.send(HEAD_GRADIENT, gradient)
                gradient = await active.recv(JOINT_GRADIENT)
            back_propagate(embedding, gradient, share, cfg)  # … and through h_k
            optimizer.step()
        if cfg.stand_in == "mean":
            with me.evaluating():
                active.send(MEAN, share.weight * mean.value())  # 6.
        for split in me.evaluations:
            await passive_rows(me, active, share, cfg, split, send=True)
        await stopping.follow(me, active)


async def active(me: Party, passives: list[Peer], cfg: Easter) -> None:
    share = await active_share(me, passives, cfg)
    embed, decide = models_of(me, cfg)
    means = {peer: mean_of(me, peer.name, cfg) for peer in passives}
    passives = present(passives)
    optimizer = me.optimizer(embed, decide)
    for _ in me.epochs():
        for batch in me.batches():
            moment = Moment(*me.position)
            embedding = embed(batch.x)  # 1.
            shared = await active_mean(passives, share, embedding.detach(), moment, cfg)
            for peer in passives:
                peer.send(GLOBAL, shared.detach())  # 2. E, to everybody
            shared.requires_grad_()
            predictions = [decide(shared)]  # 3. R_0, and wait for every R_k
            for peer in passives:
                predictions.append((await peer.recv(PREDICTION)).requires_grad_())
            losses = [loss_of(me, r, batch, cfg) for r in predictions]  # 4. every L_k
            optimizer.zero_grad()
            torch.stack(losses).sum().backward()
            for peer, prediction in zip(passives, predictions[1:], strict=True):
                peer.send(GRADIENT, prediction.grad)
            gradient = shared.grad  # dL_0/dE
            if cfg.gradient == "joint":
                gradients = [gradient, *[await peer.recv(HEAD_GRADIENT) for peer in passives]]
                gradient = torch.stack(gradients).sum(0)
                for peer in passives:
                    peer.send(JOINT_GRADIENT, gradient)
            back_propagate(embedding, gradient, share, cfg)  # 5. through h_0
            optimizer.step()
            for name, loss in zip([me.name, *(p.name for p in passives)], losses, strict=True):
                me.log(of=name, loss=loss)
            # Once per epoch, of classes: it is the same in every batch. Of numbers all are known.
            if moment.step == 0 and passives and me.task.classes:
                me.log(label_leak=label_leak([r.grad for r in predictions[1:]], batch.labels))
        if cfg.stand_in == "mean":
            for peer in passives:
                means[peer].replace(await peer.recv(MEAN))  # 6.
        for split in me.evaluations:
            for name, logits in (await active_rows(me, passives, share, cfg, split)).items():
                me.score(split, logits, of=name)
        stopping.decide(me, passives)


async def passive_predict(
    me: Party, active: Peer, passives: list[Peer], cfg: Easter, split: str
) -> Tensor:
    share = await passive_share(me, active, passives, cfg)
    return await passive_rows(me, active, share, cfg, split, send=False)


async def active_predict(me: Party, passives: list[Peer], cfg: Easter, split: str) -> Tensor:
    share = await active_share(me, passives, cfg)
    rows = await active_rows(me, present(passives), share, cfg, split, receive=False)
    return rows[me.name]


async def passive_rows(
    me: Party, active: Peer, share: Share, cfg: Easter, split: str, send: bool
) -> Tensor:
    """R_k of all rows of a split; sent to the active party where it is to be scored."""
    embed, decide = models_of(me, cfg)
    logits = []
    with me.evaluating():
        for number, batch in enumerate(me.rows(split)):
            moment = Moment(f"eval/{split}", me.position[1], number)
            passive_send(active, share, embed(batch.x), moment)
            logits.append(decide(await active.recv(GLOBAL)))
            if send:
                active.send(PREDICTION, logits[-1])
    return torch.cat(logits)  # (rows, classes)


async def active_rows(
    me: Party, passives: list[Peer], share: Share, cfg: Easter, split: str, receive: bool = True
) -> dict[str, Tensor]:
    """R_0 of all rows of a split, and where they are sent, R_k of every passive party."""
    embed, decide = models_of(me, cfg)
    senders = passives if receive else []
    logits: dict[str, list[Tensor]] = {name: [] for name in (me.name, *(p.name for p in senders))}
    with me.evaluating():
        for number, batch in enumerate(me.rows(split)):
            moment = Moment(f"eval/{split}", me.position[1], number)
            shared = await active_mean(passives, share, embed(batch.x), moment, cfg)
            for peer in passives:
                peer.send(GLOBAL, shared)
            logits[me.name].append(decide(shared))
            for peer in senders:
                logits[peer.name].append(await peer.recv(PREDICTION))
    return {name: torch.cat(rows) for name, rows in logits.items()}


# ---- the steps ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """One party's share in the mean."""

    sum: SecureSum
    parties: int  # C, those that something stands in for included
    weight: float  # what E_k is multiplied by before it is sent
    derivative: float  # dE/dE_k, as h_k is trained with it
    absent: Tensor | None = None  # what stands in for all absent parties, (dim,)


async def passive_share(me: Party, active: Peer, passives: Sequence[Peer], cfg: Easter) -> Share:
    there, members = present(passives), members_of([active, *passives], cfg)
    check_hidden([me.name, *(peer.name for peer in there)], cfg)
    kind = kind_of(cfg.mask, len(there) + 1)
    total = SecureSum(me, kind)
    if cfg.mask != "none":
        total = await agree(me, active, active.name, there, kind, cfg)
    return Share(total, *weights_of(me, members, cfg))


async def active_share(me: Party, passives: Sequence[Peer], cfg: Easter) -> Share:
    there, members = present(passives), members_of(passives, cfg)
    check_hidden([peer.name for peer in there], cfg)
    kind = kind_of(cfg.mask, len(there))
    total = SecureSum(me, kind)
    for told in not_hidden(there, cfg):
        me.remark(told)
    if cfg.mask != "none" and there:
        total = await agree(me, None, me.name, there, kind, cfg)
    gone = [mean_of(me, peer.name, cfg).value() for peer in members if not peer.present]
    absent = torch.stack(gone).sum(0) if gone else None
    return Share(total, *weights_of(me, members, cfg), absent)


async def agree(
    me: Party, relay: Peer | None, active: str, others: Sequence[Peer], kind: Kind, cfg: Easter
) -> SecureSum:
    """A key for every pair; all parties sign that they mask alike."""
    return await SecureSum.agree(
        me,
        relay,
        others,
        purpose=f"easter mask={cfg.mask} ring={cfg.ring} fraction={ring_of(cfg, 1).fraction}",
        receiver=active,
        kind=kind,
        ring=lambda terms: ring_of(cfg, terms),
        constant=cfg.mask == "paper",
    )


def members_of(peers: Sequence[Peer], cfg: Easter) -> list[Peer]:
    """Those who have a share of E, by themselves or by what stands in for them."""
    return list(peers) if cfg.stand_in == "mean" else present(peers)


def check_hidden(passives: Sequence[str], cfg: Easter) -> None:
    """The sum over one passive party is its own embedding: only where that is accepted."""
    if len(passives) == 1 and cfg.mask != "none" and not cfg.one_passive:
        raise MethodError(
            f"mask = '{cfg.mask}' cannot hide the embeddings of '{passives[0]}': with one passive "
            "party their sum is the party's own. Add a party, or accept it with [easter] "
            "one_passive = true"
        )


def not_hidden(passives: Sequence[Peer], cfg: Easter) -> list[str]:
    """What masks do not hide with so few passive parties."""
    names = [f"'{peer.name}'" for peer in passives]
    if cfg.mask == "none" or len(names) > 2 or not names:
        return []
    if len(names) == 1:
        return [f"the only passive party, {names[0]}, is not hidden: the sum is its own embedding"]
    return [
        f"with two passive parties, {' and '.join(names)}, one that tells the active party its "
        "embeddings shows it the other's: masks hide them from a party alone"
    ]


def ring_of(cfg: Easter, passives: int) -> Ring:
    return Ring(cfg.ring, cfg.fraction or (24 if cfg.ring == 64 else 16), passives)


def weights_of(me: Party, others: Sequence[Peer], cfg: Easter) -> tuple[int, float, float]:
    """C, the weight of E_k, and dE/dE_k."""
    names = sorted([me.name, *(peer.name for peer in others)])  # one order, one sum, one rounding
    weight = 1.0
    if cfg.aggregate == "weighted":
        weight = cfg.weights.get(me.name, 1.0) / sum(cfg.weights.get(n, 1.0) for n in names)
    if cfg.gradient == "unit":
        return len(names), weight, 1.0
    return len(names), weight, weight / len(names) if cfg.aggregate == "mean" else weight


def passive_send(active: Peer, share: Share, embedding: Tensor, moment: Moment) -> None:
    """E_k with its weight, masked."""
    weighted = embedding if share.weight == 1.0 else share.weight * embedding
    share.sum.send(active, weighted, moment)


async def active_mean(
    passives: Sequence[Peer], share: Share, embedding: Tensor, moment: Moment, cfg: Easter
) -> Tensor:
    """E from the active party's own embedding and the sum over the passive ones, (batch, dim)."""
    weighted = embedding if share.weight == 1.0 else share.weight * embedding
    total = await share.sum.receive(passives, moment, own=weighted, shape=embedding.shape)
    if share.absent is not None:
        total = total + share.absent
    return total / share.parties if cfg.aggregate == "mean" else total


def back_propagate(embedding: Tensor, gradient: Tensor | None, share: Share, cfg: Easter) -> None:
    """h_k learns from dL/dE through its own share of E; with "none" it stays as it was drawn."""
    if cfg.gradient != "none":
        assert gradient is not None
        embedding.backward(share.derivative * gradient)


def loss_of(me: Party, prediction: Tensor, batch: Batch, cfg: Easter) -> Tensor:
    if cfg.loss == "softmax":
        return me.task.loss(prediction, batch)
    truth = F.one_hot(batch.labels, prediction.shape[1]).to(prediction.dtype)
    weights = None if batch.weights is None else batch.weights[:, None]
    return F.binary_cross_entropy_with_logits(prediction, truth, weights)


def models_of(me: Party, cfg: Easter) -> tuple[nn.Module, nn.Module]:
    """h_k and p_k: the party's network up to width d, and the decision layers of its family."""
    options = me.recipe.model_options

    def embedding() -> nn.Module:
        made = network(me.recipe.model, me.shape, cfg.dim, **options)
        return nn.Sequential(made, nn.LayerNorm(cfg.dim)) if cfg.normalise else made

    embed = me.keep("embedding", embedding)
    return embed, me.keep("decision", lambda: head(me.recipe.model, cfg.dim, me.task.outputs))


def mean_of(me: Party, passive: str, cfg: Easter) -> Mean:
    """What stands in for a passive party; kept with the weights, but no optimiser sees it."""
    return me.keep(f"mean of {passive}", lambda: Mean(cfg.dim))


def cast(parties: Sequence[str], holder: str, options: Easter) -> dict[str, str]:
    """Two parties are allowed only if the options accept that nothing is hidden."""
    roles = active_and_passives(parties, holder, options)
    check_hidden([name for name in parties if name != holder], options)
    if strangers := [name for name in options.weights if name not in parties]:
        where = "in easter.weights"
        raise ConfigError([unknown(name, parties, where, "party") for name in strangers])
    return roles


def active_sends(cfg: Easter, passives: int) -> list[Kind]:
    joint = [JOINT_GRADIENT] if cfg.gradient == "joint" else []
    return [GLOBAL, GRADIENT, *joint, *(keys.KINDS if cfg.mask != "none" else ())]


def passive_sends(cfg: Easter, passives: int) -> list[Kind]:
    joint = [HEAD_GRADIENT] if cfg.gradient == "joint" else []
    mean = [MEAN] if cfg.stand_in == "mean" else []
    agreed = keys.KINDS if cfg.mask != "none" else ()
    return [kind_of(cfg.mask, passives), PREDICTION, *joint, *mean, *agreed]


def check(known: Circumstances) -> None:
    if known.passives is not None:
        check_hidden(known.passives, known.options)
    if known.task == "regression" and known.options.loss == "sigmoid":
        raise ConfigError(
            [
                "easter.loss = 'sigmoid' is a loss of classes, and these labels are numbers: omit "
                "it, or set task if the labels are classes"
            ]
        )
    if known.on_lost not in ("", "continue") and known.options.stand_in == "mean":
        raise ConfigError(
            [
                "easter.stand_in = 'mean' tells each party's mean embedding, which only a run "
                'that goes on without a lost party needs: omit it, or set on_lost = "continue"'
            ]
        )


METHOD = Method(
    name="easter",
    summary="a network of its own kind at every party, trained on the masked mean embedding",
    options=Easter,
    roles={
        "active": Role(active, active_predict, sends=active_sends, every_epoch=True),
        "passive": Role(passive, passive_predict, sends=passive_sends, every_epoch=True),
    },
    kinds=(*KINDS, *keys.KINDS),
    cast=cast,
    membership=Membership(
        absent=True,
        sums=lambda options: options.mask != "none",
        signs=lambda options: options.mask != "none",
    ),
    check=check,
    learning=Learning(
        tasks=("binary", "multiclass", "regression"),
        stops="together",
        unprotected=lambda options: (
            "with loss = 'sigmoid' has a loss that is not corrected for answers; take softmax"
            if options.loss == "sigmoid"
            else ""
        ),
    ),
    about=About(
        title="EASTER",
        reference="EASTER: Embedding Aggregation-based Heterogeneous Models Training in Vertical "
        "FL",
    ),
)
