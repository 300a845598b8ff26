"""The networks of one client: one that is shared with others, and one that may insure it.

A network is a chain θ∘ξ of an embedding network and a head. An insured client also trains a second
one on the same batches, without anything from others, and predicts with the mixture of both that
its held-out rows prefer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from colonnade.methods.parts.mixture import Mixture
from colonnade.methods.parts.scoring import accuracy_and_loss, labels_of, logits_of
from colonnade.models.divided import Pair
from colonnade.role.party import Party

SHARED, ALONE = "shared", "alone"
MEAN = (
    "share = 'networks' averages whole networks, so column 1 must mean the same at all clients, "
    "and so must every other; where they do not, the mean fits nobody and losses rise. Then choose "
    "share = 'heads', which leaves every client a network of its own"
)
MEASURES = {  # what reports say of the scores
    "shared": "by the network whose head is shared",
    "alone": "by the network that never hears of others",
    "merged": "with the common head, before own training",
    "attendance": "rounds in which the server answered",
}


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
