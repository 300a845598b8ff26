"""Hetero-NN: a split network whose interactive layer works on ciphertexts.

After FATE's component of that name, the comparator of the FedEmb paper. The active party is FATE's
guest B, every passive party m a host. The interactive layer z = Σ_m W_m α_m + b lies at the active
party alone; of W_m it holds the true weights less a mask ε_acc, which only party m knows. [·] is
encrypted with the key of party m, who alone can open it; η is the rate at which W_m is trained.

    once: every passive party draws a key pair and sends the public half

    every passive party m, in turn                the active party 0
    1. α_m = bottom_m(x_m), send [α_m]       →    1. α_0 = bottom_0(x_0), where it has features
                                             ←    2. [W_m α_m + ε_B], ε_B fresh
    3. open it, add ε_acc α_m                →    3. take ε_B away, z = b + W_0 α_0 + Σ_m W_m α_m
                                                  4. logits = top(relu(z)); back-propagate to
                                                     δ = dL/dz; step of top, b, W_0 and bottom_0
                                             ←    5. [δᵀα_m + ε_B], and η
    6. open it, add ε_m/η, ε_m fresh;
       send that and [ε_acc]; ε_acc += ε_m   →    6. [δ (W_m + ε_acc)], the error, back to m
    7. open it, back-propagate, step         ←    7. take ε_B away, W_m -= η (δᵀα_m + ε_m/η)

Seven messages per batch and passive party; prediction is steps 1 to 3. The active party serves the
passive ones one after another, as FATE does: 4m + 2 waits per batch with m of them, and six with
`in_turn = false`, for the same numbers. Numerically it is split learning with SGD for the W_m.

With `encryption = "none"`, the default, the same arithmetic runs on plain numbers, masks included:
**nothing is protected**, [α_m] is α_m, and the ledger says so. With "paillier" the active party
still learns every W_m α_m and its own δ, and party m its dL/dα_m, which shows the labels: the layer
hides α_m, W_m and δ, not what follows from them. W_m is hidden by real numbers of the size `mask`,
so only statistically; its first value is the active party's own draw, so from the first batch a
layer with width ≥ dim lets it solve for α_m.

A party that breaks the rules gets more. Whatever the active one sends in step 2 is opened for it. A
passive one reads δ, and in time W_m, from step 7, if it encrypts other numbers than ε_acc; from
steps 2 and 5 it gets nothing, whatever it packs, if its n was made as it should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.methods.parts import interactive_messages as messages
from colonnade.methods.parts.options import chosen
from colonnade.models import network
from colonnade.models.interactive import AccumulatedMask, MaskedWeight, OwnLayer
from colonnade.models.mlp import mlp
from colonnade.privacy import homomorphic
from colonnade.privacy.homomorphic import Holder, Multiplier, noise, rounded
from colonnade.role import stopping
from colonnade.role.method import About, Learning, Method, Role, active_and_passives
from colonnade.role.party import Party
from colonnade.toml import Bounds, check_bounds
from colonnade.wire import Kind, Peer

SAFE_BITS = 2048
Width = Annotated[int, Bounds(least=1)]


@dataclass(frozen=True)
class HeteroNN:
    """Options of Hetero-NN."""

    encryption: str = "none"  # or "paillier"; "none" protects nothing
    key_bits: Annotated[int, Bounds(least=512)] = 2048  # of n; FATE's 1024 are too few today
    short_key: bool = False  # allow fewer than 2048, which can be broken: for tests alone
    fraction: Annotated[int, Bounds(least=8, most=32)] = 23  # bits behind the point; as in FATE
    fixed_point: bool = False  # encryption = "none": round as the encoding for Paillier does
    # A step's ε_m is uniform between -mask and mask.
    mask: Annotated[float, Bounds(least=0, most=1024)] = 1.0
    # η of every W_m, times the schedule of the active party.
    lr: Annotated[float, Bounds(above=0)] = 0.05
    in_turn: bool = True  # serve passive parties one after another; false: all at once
    dim: Width = 128  # width of every α_m
    width: Width = 128  # of z
    hidden: tuple[int, ...] = ()  # hidden layers of the top

    def __post_init__(self) -> None:
        chosen(self, "encryption", homomorphic.SCHEMES, homomorphic.REMOVED)
        check_bounds(self)
        wrong = []
        least = 512 if self.short_key else SAFE_BITS  # shorter keys can be broken
        if self.key_bits % 64 or self.key_bits < least:
            wrong.append(f"key_bits = {self.key_bits}: a multiple of 64 from {least}")
        if any(width < 1 for width in self.hidden):
            wrong.append(f"hidden = {list(self.hidden)}: widths of at least 1")
        if self.fixed_point and not self.clear:
            wrong.append('fixed_point has an effect with encryption = "none" only')
        if self.mask == 0 and not self.clear:
            wrong.append("mask = 0 would show the active party every W_m")
        if wrong:
            raise ValueError("; ".join(wrong))

    @property
    def clear(self) -> bool:
        return self.encryption == "none"

    @property
    def kinds(self) -> messages.Kinds:
        return messages.CLEAR if self.clear else messages.ENCRYPTED


async def passive(me: Party, active: Peer, cfg: HeteroNN) -> None:
    holder, kinds = passive_key(me, active, cfg), cfg.kinds
    bottom, accumulated = bottom_of(me, cfg), accumulated_of(me, cfg)
    optimizer = me.optimizer(bottom)
    for _ in me.epochs():
        for batch in me.batches():
            embedding = bottom(batch.x)
            alpha = number(embedding.detach(), cfg)  # float64 (batch, dim)
            await passive_forward(me, active, holder, alpha, cfg)  # 1. to 3.
            message = await active.recv(kinds.gradient)  # 5. wait for [δᵀα + ε_B]
            fresh = noise((cfg.dim, cfg.width), cfg.mask, cfg.fraction, seeded=cfg.clear)
            fresh = fresh.to(me.device)  # ε_m
            with me.timing("interactive layer"):
                product, rate = messages.gradient_of(message, active.name, cfg.lr)
                masked = holder.open(product, (cfg.dim, cfg.width), fresh / rate)  # 6. + ε_m/η
                packed = holder.pack(accumulated.total)
            active.send(kinds.masked_gradient, masked)
            active.send(kinds.noise, packed)  # [ε_acc], as it was when W_m was used
            accumulated.total.add_(fresh)
            error = await active.recv(kinds.error)
            with me.timing("interactive layer"):
                gradient = holder.read(error, (cfg.dim, len(batch))).T.to(me.device)
            optimizer.zero_grad()
            embedding.backward(gradient.to(embedding.dtype))  # 7. back-propagate, step
            optimizer.step()
        for split in me.evaluations:
            await passive_rows(me, active, holder, cfg, split)
        await stopping.follow(me, active)


async def active(me: Party, passives: list[Peer], cfg: HeteroNN) -> None:
    layer, top, kinds = layer_of(me, cfg), top_of(me, cfg), cfg.kinds
    hosts = await hosts_of(me, passives, cfg)
    bottoms = [bottom_of(me, cfg)] if me.has_features else []
    optimizer = me.optimizer(*bottoms, layer, top)
    for _ in me.epochs():
        for batch in me.batches():
            packed = [await host.peer.recv(kinds.embedding) for host in hosts]  # 1.
            products = await active_forward(me, hosts, packed, len(batch), cfg)  # 2., 3.
            z = (layer([bottom(batch.x) for bottom in bottoms]) + products).requires_grad_()
            z.retain_grad()
            loss = me.task.loss(top(F.relu(z)), batch)
            optimizer.zero_grad()
            loss.backward()  # 4. to δ
            assert z.grad is not None
            delta = number(z.grad, cfg)  # float64 (batch, width)
            optimizer.step()
            recipe = optimizer.param_groups[0]  # η falls as the rates of the recipe do
            rate = float(cfg.lr * recipe["lr"] / recipe["initial_lr"])
            for some in turns(list(zip(hosts, packed, strict=True)), cfg):
                await active_backward(me, some, delta, rate, cfg)  # 5. to 7.
            me.log(loss=loss)
        for split in me.evaluations:
            me.score(split, await active_rows(me, hosts, cfg, split))
        stopping.decide(me, passives)


async def passive_predict(me: Party, active: Peer, cfg: HeteroNN, split: str) -> None:
    await passive_rows(me, active, passive_key(me, active, cfg), cfg, split)


async def active_predict(me: Party, passives: list[Peer], cfg: HeteroNN, split: str) -> Tensor:
    return await active_rows(me, await hosts_of(me, passives, cfg), cfg, split)


async def passive_rows(me: Party, active: Peer, holder: Holder, cfg: HeteroNN, split: str) -> None:
    bottom = bottom_of(me, cfg)
    with me.evaluating():
        for batch in me.rows(split):
            alpha = number(bottom(batch.x), cfg)
            await passive_forward(me, active, holder, alpha, cfg)


async def active_rows(me: Party, hosts: Sequence[Host], cfg: HeteroNN, split: str) -> Tensor:
    layer, top, kinds = layer_of(me, cfg), top_of(me, cfg), cfg.kinds
    bottoms = [bottom_of(me, cfg)] if me.has_features else []
    logits = []
    with me.evaluating():
        for batch in me.rows(split):
            packed = [await host.peer.recv(kinds.embedding) for host in hosts]
            products = await active_forward(me, hosts, packed, len(batch), cfg)
            z = layer([bottom(batch.x) for bottom in bottoms]) + products
            logits.append(top(F.relu(z)))
    return torch.cat(logits)  # (rows, classes)


# ---- the steps -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """A passive party m, as the active one deals with it."""

    peer: Peer
    multiplier: Multiplier  # for products with what m has encrypted
    held: MaskedWeight  # W_m - ε_acc


def passive_key(me: Party, active: Peer, cfg: HeteroNN) -> Holder:
    """A fresh key pair, also after a resume; the private half is in no message and no file."""
    with me.timing("interactive layer"):
        holder = homomorphic.holder(cfg.encryption, me.name, cfg.key_bits, cfg.fraction)
    if not cfg.clear:
        active.send(messages.PUBLIC_KEY, holder.public)
    return holder


async def hosts_of(me: Party, passives: Sequence[Peer], cfg: HeteroNN) -> list[Host]:
    found = []
    for peer in passives:
        public = torch.empty(0) if cfg.clear else await peer.recv(messages.PUBLIC_KEY)
        scheme = cfg.encryption, public, peer.name, cfg.key_bits, cfg.fraction
        name = f"masked weight of {peer.name}"
        held = me.keep(name, lambda: MaskedWeight(cfg.dim, cfg.width))
        found.append(Host(peer, homomorphic.multiplier(*scheme), held))
    return found


async def passive_forward(
    me: Party, active: Peer, holder: Holder, alpha: Tensor, cfg: HeteroNN
) -> None:
    """1. [α], 3. what the active party made of it, opened, with ε_acc α."""
    kinds, accumulated = cfg.kinds, accumulated_of(me, cfg)
    with me.timing("interactive layer"):
        packed = holder.pack(alpha)
    active.send(kinds.embedding, packed)
    product = await active.recv(kinds.product)
    with me.timing("interactive layer"):
        opened = holder.open(product, (len(alpha), cfg.width), alpha @ accumulated.total)
    active.send(kinds.output, opened)


async def active_forward(
    me: Party, hosts: Sequence[Host], packed: Sequence[Tensor], rows: int, cfg: HeteroNN
) -> Tensor:
    """2. and 3.: Σ_m W_m α_m, (rows, width)."""
    kinds = cfg.kinds
    total = torch.zeros(rows, cfg.width, dtype=torch.float64, device=me.device)
    for some in turns(list(zip(hosts, packed, strict=True)), cfg):
        masks = []
        for host, message in some:
            weight = number(host.held.weight, cfg)
            with me.timing("interactive layer"):
                masks.append(host.multiplier.mask((rows, cfg.width)))  # ε_B
                product = host.multiplier.multiply(message, (rows, cfg.dim), weight, mask=masks[-1])
            host.peer.send(kinds.product, product)
        for (host, _), mask in zip(some, masks, strict=True):
            opened = await host.peer.recv(kinds.output)
            messages.check_shape(opened, (rows, cfg.width), host.peer.name, kinds.output)
            total += host.multiplier.unmask(opened, mask).to(me.device)
    return total.float()


async def active_backward(
    me: Party, some: Sequence[tuple[Host, Tensor]], delta: Tensor, rate: float, cfg: HeteroNN
) -> None:
    """5. to 7.: the gradient of W_m, which only comes back masked, and the error for party m."""
    kinds, masks, shape = cfg.kinds, [], (cfg.dim, cfg.width)
    for host, message in some:
        with me.timing("interactive layer"):
            masks.append(host.multiplier.mask(shape))  # ε_B
            product = host.multiplier.multiply(
                message, (len(delta), cfg.dim), delta, mask=masks[-1], transposed=True
            )
        host.peer.send(kinds.gradient, {"product": product, "rate": rate})
    for (host, _), mask in zip(some, masks, strict=True):
        opened = await host.peer.recv(kinds.masked_gradient)
        messages.check_shape(opened, shape, host.peer.name, kinds.masked_gradient)
        accumulated = await host.peer.recv(kinds.noise)
        weight = host.held.weight
        with me.timing("interactive layer"):
            known = number(weight, cfg) @ delta.T  # (dim, batch)
            error = host.multiplier.multiply(accumulated, shape, delta.T, plus=known)
            gradient = host.multiplier.unmask(opened, mask).to(me.device)
        host.peer.send(kinds.error, error)
        weight.sub_(rate * gradient)  # 7. plain SGD: nobody here could keep a momentum of δᵀα_m


def turns(served: list[tuple[Host, Tensor]], cfg: HeteroNN) -> list[list[tuple[Host, Tensor]]]:
    """Those who are served before anybody is waited for."""
    return [[one] for one in served] if cfg.in_turn else [served]


def number(values: Tensor, cfg: HeteroNN) -> Tensor:
    """As it goes into a product: float64, in fixed point where the scheme works in that."""
    if cfg.encryption == "paillier" or cfg.fixed_point:
        return rounded(values, cfg.fraction)
    return values.double()


# ---- networks, and the method --------------------------------------------------------------------


def bottom_of(me: Party, cfg: HeteroNN) -> nn.Module:
    """The party's own network, up to α_k of width `dim`."""
    return me.keep(
        "bottom", lambda: network(me.recipe.model, me.shape, cfg.dim, **me.recipe.model_options)
    )


def top_of(me: Party, cfg: HeteroNN) -> nn.Module:
    return me.keep(
        "top", lambda: mlp((cfg.width,), me.task.outputs, hidden=cfg.hidden, activated=False)
    )


def layer_of(me: Party, cfg: HeteroNN) -> OwnLayer:
    return me.keep("layer", lambda: OwnLayer(cfg.dim, cfg.width, me.has_features))


def accumulated_of(me: Party, cfg: HeteroNN) -> AccumulatedMask:
    return me.keep("accumulated mask", lambda: AccumulatedMask(cfg.dim, cfg.width))


def cast(parties: Sequence[str], holder: str, options: HeteroNN) -> dict[str, str]:
    """Refuse before anything runs where the scheme's library is missing."""
    homomorphic.require(options.encryption)
    return active_and_passives(parties, holder, options)


def active_sends(cfg: HeteroNN, passives: int) -> list[Kind]:
    return cfg.kinds.from_active


def passive_sends(cfg: HeteroNN, passives: int) -> list[Kind]:
    return [messages.PUBLIC_KEY] * (not cfg.clear) + cfg.kinds.from_passive


def caveats(cfg: HeteroNN) -> list[str]:
    plain = "encryption = 'none' hides nothing: this is Hetero-NN's arithmetic on plain numbers"
    short = f"key_bits = {cfg.key_bits} can be broken: take {SAFE_BITS} or more"
    return [plain] if cfg.clear else [short] * (cfg.key_bits < SAFE_BITS)


METHOD = Method(
    name="heteronn",
    summary="split learning through FATE's interactive layer; unprotected unless encryption is set",
    options=HeteroNN,
    roles={
        "active": Role(
            active, active_predict, features=False, sends=active_sends, every_epoch=True
        ),
        "passive": Role(passive, passive_predict, sends=passive_sends, every_epoch=True),
    },
    kinds=messages.KINDS,
    cast=cast,
    learning=Learning(
        tasks=("binary", "multiclass", "regression"),
        stops="together",
        unprotected=lambda options: "",
    ),
    about=About(
        title="Hetero-NN",
        trained="a split network with FATE's interactive layer",
        reference="FATE, Hetero-NN (FederatedAI/FATE); Zhang et al., arXiv:2007.06849",
        caveats=caveats,
        repeats=lambda cfg: cfg.encryption == "none",
    ),
)
