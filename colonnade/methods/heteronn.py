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
layer with width ≥ dim lets it solve for α_m. An active party that breaks the rules gets more:
whatever it sends in step 2 is opened for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.errors import Untrusted
from colonnade.models import network
from colonnade.models.mlp import mlp
from colonnade.privacy import homomorphic
from colonnade.privacy.homomorphic import Holder, Multiplier, noise, rounded
from colonnade.role.method import About, Method, Role, active_and_passives
from colonnade.role.party import Party
from colonnade.wire import Kind, Peer

PUBLIC_KEY = Kind(
    "public_key",
    ("bytes",),
    reveals="nothing: a fresh public key",
    dtype="uint8",
    randomised=True,
    host=True,
)


@dataclass(frozen=True)
class Kinds:
    """The messages of a batch, in their order."""

    embedding: Kind  # 1. passive → active
    product: Kind  # 2. active → passive
    output: Kind  # 3. passive → active
    gradient: Kind  # 5. active → passive
    masked_gradient: Kind  # 6. passive → active, with
    noise: Kind  # 6.
    error: Kind  # 7. active → passive


OUTPUT = "the sender's features, through W_m α_m"
MASKED = "δᵀα_m within a mask of the size ε_m/η"
CLEAR = Kinds(  # encryption = "none"; the ledger does not call protected what is not
    embedding=Kind(
        "embedding",
        ("batch", "dim"),
        reveals="the sender's features, through α_m: nothing is encrypted",
        dtype="float64",
    ),
    product=Kind(
        "product", ("batch", "width"), reveals="W_m α_m within masks of size 1", dtype="float64"
    ),
    output=Kind("output", ("batch", "width", "words"), reveals=OUTPUT, dtype="float64"),
    gradient=Kind(
        "gradient",
        None,  # {"product": (dim, width), "rate": η}
        reveals="δ, through δᵀα_m within masks of size 1: nothing is encrypted",
        dtype="float64",
    ),
    masked_gradient=Kind(
        "masked_gradient", ("dim", "width", "words"), reveals=MASKED, dtype="float64"
    ),
    noise=Kind(
        "noise",
        ("dim", "width"),
        reveals="the mask of W_m, and so W_m itself: nothing is encrypted",
        dtype="float64",
    ),
    error=Kind(
        "error",
        ("dim", "batch"),
        reveals="the labels, through dL/dα_m",
        dtype="float64",
    ),
)
SEALED = Kind(
    "encrypted_embedding",
    ("bytes",),
    reveals="the number of rows; without the sender's key, no more",
    dtype="uint8",
    randomised=True,
    host=True,
)
ENCRYPTED = Kinds(
    embedding=SEALED,
    product=replace(SEALED, name="encrypted_product", reveals="W_m α_m within the mask ε_B"),
    output=replace(
        SEALED,
        name="opened_output",
        shape=("batch", "width", "words"),
        reveals=OUTPUT,
        dtype="any",
    ),
    gradient=replace(
        SEALED,
        name="encrypted_gradient",
        shape=None,  # {"product": bytes of (dim, width), "rate": η}
        reveals="δᵀα_m within the mask ε_B",
    ),
    masked_gradient=replace(
        SEALED,
        name="opened_gradient",
        shape=("dim", "width", "words"),
        reveals=MASKED,
        dtype="any",
    ),
    noise=replace(
        SEALED, name="encrypted_noise", reveals="without the sender's key, nothing: the mask of W_m"
    ),
    error=replace(
        SEALED, name="encrypted_error", reveals="the labels, to the receiver, through dL/dα_m"
    ),
)


@dataclass(frozen=True)
class HeteroNN:
    """Options of Hetero-NN."""

    encryption: str = "none"  # or "paillier"; "none" protects nothing
    key_bits: int = 2048  # of Paillier's n; FATE takes 1024, which is too short today
    fraction: int = 23  # bits behind the point of a number in fixed point (FATE's default)
    fixed_point: bool = False  # encryption = "none": round as the encoding for Paillier does
    mask: float = 1.0  # a step's ε_m is uniform between -mask and mask
    lr: float = 0.05  # η of every W_m, times the schedule of the active party
    in_turn: bool = True  # serve passive parties one after another; false: all at once
    dim: int = 128  # width of every α_m
    width: int = 128  # of z
    hidden: tuple[int, ...] = ()  # hidden layers of the top

    def __post_init__(self) -> None:
        if self.encryption == "ckks":
            raise ValueError(
                'encryption = "ckks" was removed: it was there for its cost, not for its '
                'protection. Take "paillier", which protects embeddings and is far slower, or '
                '"none", which is the same arithmetic and protects nothing'
            )
        if self.encryption not in ("none", "paillier"):
            raise ValueError(f'encryption = "{self.encryption}": one of "none", "paillier"')
        if self.key_bits < 512 or self.key_bits % 64:
            raise ValueError(f"key_bits = {self.key_bits}: at least 512, a multiple of 64")
        if not 8 <= self.fraction <= 32:
            raise ValueError(f"fraction = {self.fraction}: from 8 to 32")
        if self.fixed_point and self.encryption != "none":
            raise ValueError('fixed_point has no effect but with encryption = "none"')
        if not 0 <= self.mask <= 1024:
            raise ValueError(f"mask = {self.mask}: from 0 to 1024")
        if self.mask == 0 and self.encryption != "none":
            raise ValueError("mask = 0 would show the active party every W_m")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr = {self.lr}: above 0")
        if self.dim < 1:
            raise ValueError(f"dim = {self.dim}: at least 1")
        if self.width < 1:
            raise ValueError(f"width = {self.width}: at least 1")
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden = {list(self.hidden)}: widths of at least 1")


async def passive(me: Party, active: Peer, cfg: HeteroNN) -> None:
    holder, kinds = passive_key(me, active, cfg), kinds_of(cfg)
    bottom, accumulated = bottom_of(me, cfg), accumulated_of(me, cfg)
    optimizer = me.optimizer(bottom)
    for _ in me.epochs():
        for batch in me.batches():
            embedding = bottom(batch.x)
            alpha = number(embedding.detach(), cfg)  # float64 (batch, dim)
            await passive_forward(me, active, holder, alpha, cfg)  # 1. to 3.
            message = await active.recv(kinds.gradient)  # 5. wait for [δᵀα + ε_B]
            fresh = noise((cfg.dim, cfg.width), cfg.mask, cfg.fraction, seeded=clear(cfg))
            fresh = fresh.to(me.device)  # ε_m
            with me.timing("interactive layer"):
                product, rate = gradient_of(message, active.name, cfg)
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


async def active(me: Party, passives: list[Peer], cfg: HeteroNN) -> None:
    multipliers, kinds = await active_keys(passives, cfg), kinds_of(cfg)
    layer, top = layer_of(me, cfg), top_of(me, cfg)
    masked = {peer: masked_of(me, peer.name, cfg) for peer in passives}
    bottoms = [bottom_of(me, cfg)] if me.has_features else []
    optimizer = me.optimizer(*bottoms, layer, top)
    for _ in me.epochs():
        for batch in me.batches():
            packed = [await peer.recv(kinds.embedding) for peer in passives]  # 1.
            products = await active_forward(
                me, passives, multipliers, packed, len(batch), cfg
            )  # 2., 3.
            z = (layer([bottom(batch.x) for bottom in bottoms]) + products).requires_grad_()
            z.retain_grad()
            loss = F.cross_entropy(top(F.relu(z)), batch.labels)
            optimizer.zero_grad()
            loss.backward()  # 4. to δ
            assert z.grad is not None
            delta = number(z.grad, cfg)  # float64 (batch, width)
            optimizer.step()
            rate = rate_of(optimizer, cfg)
            for some in turns(list(zip(passives, multipliers, packed, strict=True)), cfg):
                await active_backward(me, some, masked, delta, rate, cfg)  # 5. to 7.
            me.log(loss=loss)
        for split in me.evaluations:
            me.score(split, await active_rows(me, passives, multipliers, cfg, split))


async def passive_predict(me: Party, active: Peer, cfg: HeteroNN, split: str) -> None:
    await passive_rows(me, active, passive_key(me, active, cfg), cfg, split)


async def active_predict(me: Party, passives: list[Peer], cfg: HeteroNN, split: str) -> Tensor:
    return await active_rows(me, passives, await active_keys(passives, cfg), cfg, split)


async def passive_rows(me: Party, active: Peer, holder: Holder, cfg: HeteroNN, split: str) -> None:
    bottom = bottom_of(me, cfg)
    with me.evaluating():
        for batch in me.rows(split):
            alpha = number(bottom(batch.x), cfg)
            await passive_forward(me, active, holder, alpha, cfg)


async def active_rows(
    me: Party, passives: list[Peer], multipliers: list[Multiplier], cfg: HeteroNN, split: str
) -> Tensor:
    layer, top, kinds = layer_of(me, cfg), top_of(me, cfg), kinds_of(cfg)
    bottoms = [bottom_of(me, cfg)] if me.has_features else []
    logits = []
    with me.evaluating():
        for batch in me.rows(split):
            packed = [await peer.recv(kinds.embedding) for peer in passives]
            products = await active_forward(me, passives, multipliers, packed, len(batch), cfg)
            z = layer([bottom(batch.x) for bottom in bottoms]) + products
            logits.append(top(F.relu(z)))
    return torch.cat(logits)  # (rows, classes)


# ---- the steps -----------------------------------------------------------------------------------


def passive_key(me: Party, active: Peer, cfg: HeteroNN) -> Holder:
    """A fresh key pair, also after a resume; the private half is in no message and no file."""
    with me.timing("interactive layer"):
        holder = homomorphic.holder(cfg.encryption, me.name, cfg.key_bits, cfg.fraction)
    if not clear(cfg):
        active.send(PUBLIC_KEY, holder.public)
    return holder


async def active_keys(passives: Sequence[Peer], cfg: HeteroNN) -> list[Multiplier]:
    return [
        homomorphic.multiplier(
            cfg.encryption,
            torch.empty(0) if clear(cfg) else await peer.recv(PUBLIC_KEY),
            peer.name,
            cfg.key_bits,
            cfg.fraction,
        )
        for peer in passives
    ]


async def passive_forward(
    me: Party, active: Peer, holder: Holder, alpha: Tensor, cfg: HeteroNN
) -> None:
    """1. [α], 3. what the active party made of it, opened, with ε_acc α."""
    kinds, accumulated = kinds_of(cfg), accumulated_of(me, cfg)
    with me.timing("interactive layer"):
        packed = holder.pack(alpha)
    active.send(kinds.embedding, packed)
    product = await active.recv(kinds.product)
    with me.timing("interactive layer"):
        opened = holder.open(product, (len(alpha), cfg.width), alpha @ accumulated.total)
    active.send(kinds.output, opened)


async def active_forward(
    me: Party,
    passives: Sequence[Peer],
    multipliers: Sequence[Multiplier],
    packed: Sequence[Tensor],
    rows: int,
    cfg: HeteroNN,
) -> Tensor:
    """2. and 3.: Σ_m W_m α_m, (rows, width)."""
    kinds = kinds_of(cfg)
    total = torch.zeros(rows, cfg.width, dtype=torch.float64, device=me.device)
    for some in turns(list(zip(passives, multipliers, packed, strict=True)), cfg):
        masks = []
        for peer, multiplier, message in some:
            weight = number(masked_of(me, peer.name, cfg).weight, cfg)  # W_m - ε_acc
            with me.timing("interactive layer"):
                masks.append(multiplier.mask((rows, cfg.width)))
                product = multiplier.multiply(message, (rows, cfg.dim), weight, mask=masks[-1])
            peer.send(kinds.product, product)
        for (peer, multiplier, _), mask in zip(some, masks, strict=True):
            opened = await peer.recv(kinds.output)
            check_shape(opened, (rows, cfg.width), peer.name, kinds.output)
            total += multiplier.unmask(opened, mask).to(me.device)
    return total.float()


async def active_backward(
    me: Party,
    some: Sequence[tuple[Peer, Multiplier, Tensor]],
    masked: Mapping[Peer, Masked],
    delta: Tensor,
    rate: float,
    cfg: HeteroNN,
) -> None:
    """5. to 7.: the gradient of W_m, which only comes back masked, and the error for party m."""
    kinds, masks = kinds_of(cfg), []
    for peer, multiplier, message in some:
        with me.timing("interactive layer"):
            masks.append(multiplier.mask((cfg.dim, cfg.width)))
            product = multiplier.multiply(
                message, (len(delta), cfg.dim), delta, mask=masks[-1], transposed=True
            )
        peer.send(kinds.gradient, {"product": product, "rate": rate})
    for (peer, multiplier, _), mask in zip(some, masks, strict=True):
        opened = await peer.recv(kinds.masked_gradient)
        check_shape(opened, (cfg.dim, cfg.width), peer.name, kinds.masked_gradient)
        accumulated = await peer.recv(kinds.noise)
        weight = masked[peer].weight
        with me.timing("interactive layer"):
            known = number(weight, cfg) @ delta.T  # (dim, batch)
            error = multiplier.multiply(accumulated, (cfg.dim, cfg.width), delta.T, plus=known)
            gradient = multiplier.unmask(opened, mask).to(me.device)
        peer.send(kinds.error, error)
        weight.sub_(rate * gradient)  # 7. plain SGD: nobody here could keep a momentum of δᵀα_m


def gradient_of(message: object, sender: str, cfg: HeteroNN) -> tuple[Tensor, float]:
    """A rate above the agreed one would shrink the mask ε_m/η, so it is refused."""
    known = isinstance(message, Mapping) and message.keys() == {"product", "rate"}
    product, rate = (message["product"], message["rate"]) if known else (None, None)  # type: ignore[index]
    if not isinstance(product, Tensor) or not isinstance(rate, float):
        raise Untrusted(f"'{sender}' sent no product of the gradient with a rate")
    if not 0 < rate <= cfg.lr * (1 + 1e-9):
        raise Untrusted(f"'{sender}' sent the rate {rate:g}; agreed on is at most {cfg.lr:g}")
    return product, rate


def check_shape(opened: Tensor, shape: tuple[int, int], sender: str, kind: Kind) -> None:
    if opened.shape[:2] != shape:
        raise Untrusted(
            f"'{sender}' sent '{kind.name}' of shape {tuple(opened.shape[:2])}; {shape} is due"
        )


def rate_of(optimizer: torch.optim.Optimizer, cfg: HeteroNN) -> float:
    """η at this moment: it falls with the active party's other rates."""
    group = optimizer.param_groups[0]
    return float(cfg.lr * group["lr"] / group["initial_lr"])


def turns(
    parties: list[tuple[Peer, Multiplier, Tensor]], cfg: HeteroNN
) -> list[list[tuple[Peer, Multiplier, Tensor]]]:
    """Those who are served before anybody is waited for."""
    return [[one] for one in parties] if cfg.in_turn else [parties]


def number(values: Tensor, cfg: HeteroNN) -> Tensor:
    """As it goes into a product: float64, in fixed point where the scheme works in that."""
    if cfg.encryption == "paillier" or cfg.fixed_point:
        return rounded(values, cfg.fraction)
    return values.double()


def clear(cfg: HeteroNN) -> bool:
    return cfg.encryption == "none"


def kinds_of(cfg: HeteroNN) -> Kinds:
    return CLEAR if clear(cfg) else ENCRYPTED


# ---- the networks --------------------------------------------------------------------------------


def bottom_of(me: Party, cfg: HeteroNN) -> nn.Module:
    """The party's own network, up to α_k of width `dim`."""
    return me.keep(
        "bottom", lambda: network(me.recipe.model, me.shape, cfg.dim, **me.recipe.model_options)
    )


def top_of(me: Party, cfg: HeteroNN) -> nn.Module:
    return me.keep(
        "top", lambda: mlp((cfg.width,), len(me.classes), hidden=cfg.hidden, activated=False)
    )


class Layer(nn.Module):
    """The active party's own part of the interactive layer: b + W_0 α_0."""

    def __init__(self, dim: int, width: int, own: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.own = nn.Linear(dim, width, bias=False) if own else None

    def forward(self, embeddings: Sequence[Tensor]) -> Tensor:
        return self.bias if self.own is None else self.own(embeddings[0]) + self.bias


def layer_of(me: Party, cfg: HeteroNN) -> Layer:
    return me.keep("layer", lambda: Layer(cfg.dim, cfg.width, me.has_features))


class Masked(nn.Module):
    """What the active party holds of one W_m: the true weights less ε_acc.

    The first weights are its own draw, as in FATE, and known to it; after the first step it does
    not know them any more.
    """

    weight: Tensor  # float64 (dim, width)

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        drawn = nn.Linear(dim, width, bias=False).weight.detach().T
        self.register_buffer("weight", drawn.double().contiguous())


def masked_of(me: Party, passive: str, cfg: HeteroNN) -> Masked:
    return me.keep(f"masked weight of {passive}", lambda: Masked(cfg.dim, cfg.width))


class Accumulated(nn.Module):
    """ε_acc: the sum of all ε_m so far, at party m alone."""

    total: Tensor  # float64 (dim, width)

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(dim, width, dtype=torch.float64))


def accumulated_of(me: Party, cfg: HeteroNN) -> Accumulated:
    return me.keep("accumulated mask", lambda: Accumulated(cfg.dim, cfg.width))


# ---- the method ----------------------------------------------------------------------------------


def cast(parties: Sequence[str], holder: str, options: HeteroNN) -> dict[str, str]:
    """Refuse before anything runs where the scheme's library is missing."""
    homomorphic.require(options.encryption)
    return active_and_passives(parties, holder, options)


def active_sends(cfg: HeteroNN, passives: int) -> list[Kind]:
    kinds = kinds_of(cfg)
    return [kinds.product, kinds.gradient, kinds.error]


def passive_sends(cfg: HeteroNN, passives: int) -> list[Kind]:
    kinds = kinds_of(cfg)
    key = [] if clear(cfg) else [PUBLIC_KEY]
    return [*key, kinds.embedding, kinds.output, kinds.masked_gradient, kinds.noise]


def caveats(cfg: HeteroNN) -> list[str]:
    if clear(cfg):
        return [
            "encryption = 'none' hides nothing: this is Hetero-NN's arithmetic on plain numbers"
        ]
    if cfg.encryption == "paillier" and cfg.key_bits < 2048:
        return [f"key_bits = {cfg.key_bits} can be broken: take 2048 or more"]
    return []


METHOD = Method(
    name="heteronn",
    summary="split learning through FATE's interactive layer; unprotected unless encryption is set",
    options=HeteroNN,
    roles={
        "active": Role(active, active_predict, features=False, sends=active_sends),
        "passive": Role(passive, passive_predict, sends=passive_sends),
    },
    kinds=(PUBLIC_KEY, *vars(CLEAR).values(), *vars(ENCRYPTED).values()),
    cast=cast,
    about=About(
        title="Hetero-NN",
        trained="a split network with FATE's interactive layer",
        reference="FATE, Hetero-NN (FederatedAI/FATE); Zhang et al., arXiv:2007.06849",
        caveats=caveats,
        repeats=lambda cfg: cfg.encryption == "none",
    ),
)
