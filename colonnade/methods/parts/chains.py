"""The networks of one client: one that is shared with others, and one that may insure it.

A network is a chain θ∘ξ of an embedding network and a head. An insured client also trains a second
one on the same batches, without anything from others, and predicts with the mixture of both that
its held-out rows prefer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from colonnade.methods.parts.mixture import Mixture
from colonnade.methods.parts.options import group
from colonnade.methods.parts.scoring import accuracy_and_loss, labels_of, logits_of
from colonnade.models.divided import Division, Pair, Way
from colonnade.role.party import Party
from colonnade.role.seeds import derive

SHARED, ALONE = "shared", "alone"
MEAN = (
    "share = 'networks' averages whole networks, so column 1 must mean the same at all clients, "
    "and so must every other; where they do not, the mean fits nobody and losses rise. Then choose "
    "share = 'heads', which leaves every client a network of its own"
)
ONE_HEAD = (
    "All clients need one θ: with a cut the same model and width behind it, else [jovefl] dim and "
    "hidden say what it is"
)
MEASURES = {  # what reports say of the scores
    "shared": "by the network whose head is shared",
    "alone": "by the network that never hears of others",
    "merged": "with the common head, before own training",
    "attendance": "rounds in which the server answered",
}


class Networked(Protocol):
    """The options that say which networks a client has."""

    @property
    def share(self) -> str: ...

    @property
    def adopt(self) -> str: ...

    @property
    def rate(self) -> str: ...

    @property
    def fit(self) -> Way: ...

    @property
    def same_start(self) -> bool: ...


@dataclass(frozen=True)
class Chain:
    """θ∘ξ, and what trains it."""

    name: str
    layers: Pair  # ξ and θ
    shared: nn.Module  # what is told to others: θ, or all of it
    optimizer: torch.optim.Optimizer

    def __call__(self, x: Tensor) -> Tensor:
        embed, head = self.layers
        logits: Tensor = head(embed(x))
        return logits

    def last(self, me: Party, what: str) -> float | None:
        """Its last "accuracy" or "loss" on the rows that decide; None: not measured yet."""
        found: float | None = me.state.get(measured(self.name, what))
        return found


def measured(name: str, what: str) -> str:
    """The key of me.state for the last "accuracy" or "loss" of such a network."""
    return what if name == SHARED else f"{what} {name}"


def models_of(me: Party, cfg: Networked, prefix: str = "") -> Pair:
    """ξ_i and θ_i. All θ_i begin alike, whatever ξ_i is."""
    whole = cfg.share == "data" and cfg.fit in ("resize", "canvas")  # the views already are
    division = group(cfg, Division, fit="none" if whole else cfg.fit)
    owner = "" if cfg.same_start or cfg.share == "networks" else me.name

    def drawn(*purpose: str) -> Pair:
        model, options = me.recipe.model, me.recipe.model_options
        seed, classes = derive(me.schedule.seed, *purpose), me.task.outputs
        return division.drawn(seed, model, options, me.shape, classes, me.view, me.name)

    embed = me.keep(f"{prefix}embedding", lambda: drawn("embedding", owner)[0])
    return embed, me.keep(f"{prefix}head", lambda: drawn("head")[1])


def pairs_of(me: Party, cfg: Networked) -> dict[str, Pair]:
    return {name: models_of(me, cfg, prefix) for name, prefix in networks(cfg).items()}


def networks(cfg: Networked) -> dict[str, str]:
    """A client's networks, and what the names of their parts begin with."""
    insured = cfg.adopt == "insured" and cfg.share in ("heads", "networks")
    return {SHARED: ""} | ({ALONE: "alone "} if insured else {})


def why_judged(cfg: Networked) -> str:
    """Which option decides by held-out rows; empty: none does."""
    if cfg.rate == "plateau":
        return "jovefl.rate = 'plateau'"
    return f"jovefl.adopt = '{cfg.adopt}'" if ALONE in networks(cfg) else ""


def chains_of(me: Party, pairs: Mapping[str, Pair], whole: bool) -> list[Chain]:
    """A party's networks with their optimisers; whole: embedding networks are shared as well."""
    chains = []
    if whole and len(me.shape) == 1 and MEAN not in me.remarks:
        me.remarks.append(MEAN)
    for name, layers in pairs.items():
        shared = nn.ModuleList(layers) if whole else layers[1]
        kept = "optimizer" if name == SHARED else f"{name} optimizer"
        optimizer = me.optimizer(*layers, name=kept)
        chains.append(Chain(name, layers, shared, optimizer))
    return chains


def score_all(me: Party, chains: Sequence[Chain], due: Sequence[str], judges: str) -> None:
    """Score the splits that are due.

    judges  the split by which something is decided, or "": its accuracies and losses are kept in
            me.state, and it chooses the mixture
    """
    for rows in dict.fromkeys([*([judges] if judges else []), *due]):
        logits = {chain.name: logits_of(me, rows, *chain.layers) for chain in chains}
        if rows == judges:
            _judge(me, logits, labels_of(me, rows))
        if rows in due:
            me.score(rows, predicted(me, logits))
            for name in logits if ALONE in logits else ():
                me.score(rows, logits[name], measure=name)


def predicted(me: Party, logits: Mapping[str, Tensor]) -> Tensor:
    """What the client predicts, from what its networks say."""
    if ALONE not in logits:
        return logits[SHARED]
    mixed: Tensor = _mixture_of(me)(logits[SHARED], logits[ALONE])
    return mixed


def _judge(me: Party, logits: Mapping[str, Tensor], labels: Tensor) -> None:
    for name, said in logits.items():
        accuracy, loss = accuracy_and_loss(me.task, said, labels)
        me.state[measured(name, "accuracy")] = accuracy
        me.state[measured(name, "loss")] = loss
    if ALONE in logits:
        mixture = _mixture_of(me)
        mixture.choose(logits[SHARED], logits[ALONE], labels)
        me.log(mixture=float(mixture.part))


def _mixture_of(me: Party) -> Mixture:
    return me.keep("mixture", lambda: Mixture(me.task))
