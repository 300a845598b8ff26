"""Heads that are added up under masks: the server learns their mean, and no single one.

    every client: agree on a secret with every other, over the server        (privacy/secure_sum.py)
    each round: θ_i as one vector, masked for this round                →   Σ θ_i, and its mean

Only the sum over all clients can be opened, so all must come to every round. Every client learns
the mean as well: of two clients, each can work out the other's head from it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from colonnade.errors import ConfigError, MethodError, Untrusted
from colonnade.methods.parts.head_messages import MASKED_HEAD
from colonnade.privacy.masking import Moment, Ring
from colonnade.privacy.secure_sum import SecureSum
from colonnade.role.party import Party
from colonnade.wire import Peer

FRACTION = 32  # bits behind the point, of 64: a sum of K terms is right to K · 2^-33
MOST_LAYERS = 10_000
SHAPE = re.compile(r"([1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){0,7})?")


def check(cfg: Any) -> None:
    """Refuse options under which a mean of all, each counted alike, is not what is needed."""
    if not cfg.secure:
        return
    needed = {
        "strategy": "fedavg",
        "weighted": False,
        "compress": "none",
        "mode": "sync",
        "deadline": 0,
        "contact": 0,
        "absence": 0,
        "away": {},
    }
    wrong = [name for name, due in needed.items() if getattr(cfg, name) != due]
    if cfg.share not in ("heads", "networks"):
        wrong.append("share")
    if wrong:
        raise ValueError(
            "secure opens the mean of all heads, which all clients send in every round, and "
            f"nothing else: omit {', '.join(wrong)}"
        )


async def agreed(me: Party, relay: Peer | None, others: Sequence[Peer], receiver: str) -> SecureSum:
    """A secret for every pair; all sign that they add up alike.

    relay  the server; None: this party
    """
    if me.schedule.patience:
        raise ConfigError(
            [
                f"patience = {me.schedule.patience}: with [jovefl] secure = true all clients must "
                "come to every round, and none may stop before the others. Omit patience"
            ]
        )
    if relay is None and len(others) < 2:
        raise MethodError("the sum over one client is its own head: secure needs two or more")
    return await SecureSum.agree(
        me,
        relay,
        others,
        purpose=f"jovefl heads fraction={FRACTION}",
        receiver=receiver,
        kind=MASKED_HEAD,
        ring=lambda terms: Ring(64, FRACTION, terms),
    )


def message(
    me: Party, total: SecureSum, number: int, parameters: Mapping[str, Tensor], **about: Any
) -> dict[str, Any]:
    """A client's head for this round, as it leaves: what is said about it is not masked."""
    if about["buffers"]:
        raise ConfigError(
            [
                f"jovefl.secure: the head of '{me.name}' has statistics of batches, which are not "
                'added up under masks. Set [jovefl] batch_norm = "local", or norm = "group"'
            ]
        )
    assert total.masks is not None
    ordered = sorted(parameters.items())  # by name, for messages do not keep an order
    flat = torch.cat([x.detach().flatten().double() for _, x in ordered])
    with me.timing("masking"):
        hidden = total.masks.mask(flat, _moment(me))
    layers = {name: "x".join(map(str, x.shape)) for name, x in parameters.items()}  # "10x12"
    start = {"leaves": False, "number": number, "base": me.state.get("base", 0)}
    return start | about | {"masked": hidden, "layers": layers}


def merge(me: Party, total: SecureSum, clients: Sequence[Peer], told: Mapping[str, Any]) -> None:
    """The server's step 2: its head is the mean of all, which is all it can open."""
    if gone := [peer.name for peer in clients if peer.name not in told]:
        raise MethodError(
            f"'{gone[0]}' sent no head, and with [jovefl] secure = true only the mean over all "
            "clients can be opened. Train without it where clients may be away"
        )
    layers = {name: _layers(name, message) for name, message in told.items()}
    first = next(iter(layers))
    for name, these in layers.items():
        if these != layers[first]:
            raise MethodError(
                f"the heads of '{first}' and '{name}' have different layers, so there is no mean"
            )
    sizes = {name: math.prod(shape) for name, shape in sorted(layers[first].items())}
    assert total.masks is not None
    with me.timing("masking"):
        hidden = {name: message.get("masked") for name, message in told.items()}
        added = total.masks.total(hidden, _moment(me), [sum(sizes.values())])
    parts = (added.double() / len(told)).float().to(me.device).split(list(sizes.values()))
    mean = {name: part.view(layers[first][name]) for name, part in zip(sizes, parts, strict=True)}
    me.state["head"] = {"parameters": mean, "buffers": {}}


def _moment(me: Party) -> Moment:
    _, epoch, _ = me.position
    return Moment("heads", epoch, 0)


def _layers(client: str, message: Mapping[str, Any]) -> dict[str, list[int]]:
    """Names and shapes, as a client says them."""
    told = message.get("layers")
    found: Mapping[Any, Any] = told if isinstance(told, Mapping) else {}
    fits = 0 < len(found) <= MOST_LAYERS and all(
        isinstance(name, str) and isinstance(shape, str) and SHAPE.fullmatch(shape)
        for name, shape in found.items()
    )
    if not fits:
        raise Untrusted(f"'{client}' sent a masked head that does not say which layers it has")
    return {name: [int(size) for size in shape.split("x") if size] for name, shape in found.items()}
