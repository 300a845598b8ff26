"""Rows that may leave a party: grouped, averaged, protected and counted, by one call.

    1. group      rows that are released as one; fixed at the first release              grouping
    2. average    one mean for each group                                                grouping
    3. protect    Laplace noise, and values in steps: neither guarantees anything        noise
                  or, with `epsilon`: clip, add calibrated noise, count the release      counted
    4. measure    how far the released rows are from the original ones: PPM              noise

All noise comes from a secret of the party's journal, never from the seed, which all know. What is
done again after a crash has the same noise, so that nothing can be averaged away; without
`epsilon`, which counts runs, so has what is equal in another run.

The releases of `epsilon` are counted in the journal, too, by record and over all runs. A party that
has released anything refuses to begin a run from nothing; so each first writes a checkpoint
(`prepare`), and nobody goes on before all have done so (`all_prepared`, at the hub). A row by
itself leaves only to be evaluated, clipped as in training, and only if no run has released or will
release it within a budget (`evaluating`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from colonnade.errors import BudgetSpent, ColonnadeError, ConfigError
from colonnade.privacy import budget
from colonnade.privacy.budget import clip_rows
from colonnade.privacy.counted import Allowance, Counted
from colonnade.privacy.grouping import (
    Grouping,
    class_groups,
    class_places,
    kmeans_groups,
    published,
    random_groups,
    single_groups,
)
from colonnade.privacy.noise import generalise, ppm, secret_laplace, secret_of
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.wire import Kind, Peer

MEMBERSHIP = Kind("membership", ("rows",), reveals="which rows are alike", dtype="int64")
READY = Kind(
    "ready",
    (),
    reveals="that the sender has a checkpoint to go back to",
    dtype="int64",
    about="nothing",
)
KINDS = (MEMBERSHIP, READY)
NUMBERS = {  # what reports say of what is logged
    "ppm_embedding": "the distance between the released vectors and the true ones, as a share of "
    "the length of the true ones; 0: they are equal",
    "ppm_output": "the same for the outputs",
    "ppm": "the smaller of the two",
    "epsilon": "the privacy budget spent so far",
}


COUNTED = 1 / 16  # of the clip: what a row adds to the number of rows of its class
Clip = float | Literal["private"]


class Clipped(nn.Module):
    """Clips rows at a bound, which can be kept with the weights."""

    bound: Tensor

    def __init__(self, bound: float = 0.0) -> None:
        """
        bound  0: not yet known
        """
        super().__init__()
        self.register_buffer("bound", torch.tensor(bound, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return clip_rows(x, float(self.bound))


@dataclass(frozen=True)
class ClassSums:
    """Sums over rows of one class each, from which their means follow."""

    sums: Tensor  # (classes · groups, width + 1): the last column counts rows
    one: float  # what a row adds to the last column
    spread: float  # b of the Laplace noise on every number; 0: there is none


@dataclass(frozen=True)
class Release:
    """How rows are released, and with which budget."""

    groups: int = 0  # 0: every row by itself
    grouping: Literal["random", "kmeans", "class"] = "random"
    alike: bool = True  # all parties hold the same rows and group them alike
    generalise: float = 0.0  # the share of groups whose values become one
    noise: float = 0.0  # b of Laplace noise
    epsilon: float = 0.0  # of all releases together; 0: no guarantee
    delta: float = 0.0
    clip: Clip = 10.0  # epsilon: the largest L1 norm of a row; "private": about the median
    clip_embedding: Clip = 0.0  # of a row of the matrix "embedding"; 0: clip
    clip_output: Clip = 0.0  # of a row of the matrix "output"; 0: clip
    clip_share: float = 0.1  # of epsilon, for all clips that are "private"
    named: tuple[str, ...] = ("embedding", "output")  # the matrices that are released
    planned: int = 1  # releases that share epsilon

    @property
    def kinds(self) -> list[Kind]:
        """What a party may send to others for its releases, beside the releases."""
        shared = self.grouping == "kmeans" and self.alike and self.groups
        return [READY] * (self.epsilon > 0) + [MEMBERSHIP] * bool(shared)

    def require(self) -> None:
        """Refuse, before a run, what needs a package that is not installed."""
        if self.epsilon:
            budget.require()

    def check(self, me: Party, *, records: bool = False) -> None:
        """Refuse, before anything is trained, settings that a crash would make unsafe.

        records  epsilon is to cover whole records
        """
        if self.epsilon and not me.schedule.checkpoint_epochs:
            raise ConfigError(
                [
                    "epsilon needs checkpoints, [checkpoint] epochs = 1: a run that has released "
                    "anything cannot begin from nothing"
                ]
            )
        if self.epsilon and records and me.preparation is not None and not me.preparation.fixed:
            raise ConfigError(
                [
                    "epsilon is to cover whole records, and the mean, the spread and the "
                    "categories of a column, by which all rows are scaled or encoded, depend on "
                    "each of them: set [data] standardise = false, scale the columns by what is "
                    "known of them, give categories as numbers, and fill in what is missing"
                ]
            )

    async def prepare(self, me: Party, hub: Peer) -> None:
        """Write a checkpoint, and wait until all parties have: from then on nobody needs to begin
        from nothing."""
        if not self.epsilon:
            return
        for _ in me.epochs("prepared", 1):
            pass
        for _ in me.epochs("ready", 1):
            hub.send(READY, torch.tensor(1))
            await hub.recv(READY)

    async def all_prepared(self, me: Party, parties: Sequence[Peer]) -> None:
        """The hub's side of `prepare`: it has checkpoints at the same positions."""
        for _ in me.epochs("prepared", int(self.epsilon > 0)):
            pass
        for _ in me.epochs("ready", int(self.epsilon > 0)):
            for peer in parties:
                await peer.recv(READY)
            for peer in parties:
                peer.send(READY, torch.tensor(1))

    async def of(
        self, me: Party, others: Sequence[Peer], **matrices: Tensor
    ) -> tuple[Grouping, list[Tensor]]:
        """The groups, and the released form of each matrix, (rows, width): (groups, width).

        others  the parties that group the same rows
        """
        values = list(matrices.values())
        groups = await self._grouping(me, others, values[0])
        if groups.groups == len(values[0]):
            me.remark(
                f"every row is released by itself: {len(values[0]):,} rows, groups = {self.groups}"
            )
        told = [protected(me, one, groups, self, name) for name, one in matrices.items()]
        terms = [ppm(one, sent, groups) for one, sent in zip(values, told, strict=True)]
        named = {f"ppm_{name}": term for name, term in zip(matrices, terms, strict=True)}
        me.figure(**named, ppm=torch.stack(terms).min())
        return groups, told

    def of_classes(self, me: Party, values: Tensor) -> ClassSums:
        """The sums of a matrix, (rows, width), over rows of each class at places that all know: a
        class has equally many groups whoever is in them, and which group a row is in follows from
        its own label and place alone."""
        labels, classes = me.splits["train"].y, len(me.task.classes)
        assert labels is not None
        seed = derive(me.schedule.seed, "groups", "" if self.alike else me.name)
        places = class_places(labels, classes, self.groups, seed)
        if not self.epsilon:
            rows = torch.cat([values, values.new_ones(len(values), 1)], 1)
            return ClassSums(places.sums(rows), one=1.0, spread=0.0)
        bound = self.clipped(me, "embedding", values)
        rows = clip_rows(values, bound * (1 - COUNTED))
        rows = torch.cat([rows, rows.new_full((len(rows), 1), bound * COUNTED)], 1)
        counted = self.counted(me)
        told = counted.sums(rows, places, bound).to(values)
        return ClassSums(told, bound * COUNTED, 2 * bound / counted.epsilon)

    def evaluating(self, me: Party, private: nn.Module, split: str) -> nn.Module:
        """What a row goes through before it leaves by itself: clipped as in training. Rows that are
        within a budget do not leave like this, since no noise covers them."""
        if not self.epsilon:
            return private
        if me.journal is None:
            raise ColonnadeError(f"'{me.name}' has no journal to ask what was released")
        releases = me.journal.releases(me.records(split))
        with releases.journal.turn():
            if inside := releases.within_budgets():
                raise BudgetSpent(
                    f"{inside} rows of '{split}' were released within a privacy budget, as "
                    f"training rows: '{me.name}' would now tell their embeddings one by one, "
                    "which no noise covers. Nothing was released. Evaluate and predict rows that "
                    "were never trained on within a budget, or train without epsilon"
                )
            releases.book_bare()
        return nn.Sequential(private, Clipped(self.clipped(me, "embedding")))

    def caveats(self, table: str, instead: str = "", claim: str = "") -> list[str]:
        """The caveats of a run that releases rows like this.

        instead  what the method sends beside the rows, which their protection does not cover
        claim    what epsilon covers, where the method can say more than this does
        """
        said = []
        if self.grouping == "class" and self.groups and not (claim and self.epsilon):
            said.append(
                "labels decide who is in a group: the server can infer the class of every group"
            )
        heuristics = {"noise": self.noise, "generalise": self.generalise}
        asked = [f"{key} = {value}" for key, value in heuristics.items() if value]
        if instead:
            said.append(instead)
        elif self.epsilon:
            said.append(
                f"epsilon = {self.epsilon} covers "
                + (
                    claim
                    or "what one client releases of each row's vectors (for M clients that hold "
                    "the same person, M times that at worst); not the public part of the networks, "
                    "not what other rows' vectors say of a row that the networks have learnt from, "
                    "not who is in a group, not rows that are evaluated"
                )
            )
        elif asked:
            said.append(
                f"no guarantee: [{table}] {' and '.join(asked)} guarantees nobody's privacy. "
                "epsilon would give a guarantee"
            )
        for key in ("clip", "clip_embedding", "clip_output"):
            value = getattr(self, key)
            if value != getattr(Release, key) and not self.epsilon:
                said.append(f"{key} = {value} has no effect without epsilon")
        return said

    def counted(self, me: Party) -> Counted:
        """What counts the releases of a party's rows."""
        bounds = sum(self._clip_of(name) == "private" for name in self.named)
        allowed = Allowance(self.epsilon, self.delta, self.planned, bounds, self.clip_share)
        return Counted(me, allowed)

    def clipped(self, me: Party, name: str, values: Tensor | None = None) -> float:
        """Where the rows of a matrix are clipped. A clip that is "private" is found from the values
        of the first release, and kept with the weights, so that predictions have it."""
        clip = self._clip_of(name)
        if not isinstance(clip, str):
            return clip
        kept = me.keep(f"clip_{name}", Clipped)
        if not kept.bound:
            if values is None:
                raise ColonnadeError(f"'{me.name}' has no clip yet: it has released nothing")
            kept.bound.fill_(self.counted(me).bound(values))
        return float(kept.bound)

    def _clip_of(self, name: str) -> Clip:
        own: Clip = getattr(self, f"clip_{name}")
        return own or self.clip

    async def _grouping(self, me: Party, others: Sequence[Peer], rows: Tensor) -> Grouping:
        if "membership" not in me.state:
            me.state["membership"] = (await self._new_grouping(me, others, rows)).membership
        return published(me.state["membership"], len(rows))

    async def _new_grouping(self, me: Party, others: Sequence[Peer], rows: Tensor) -> Grouping:
        seed = derive(me.schedule.seed, "groups", "" if self.alike else me.name)
        if not self.groups:
            return single_groups(len(rows))
        if self.grouping == "random":
            return random_groups(len(rows), self.groups, seed)
        if self.grouping == "class":
            labels = me.splits["train"].y
            assert labels is not None
            return class_groups(labels, self.groups, seed)
        if not self.alike:
            return kmeans_groups(rows, self.groups, seed)
        # The party whose name comes first determines the groups of all.
        leader = min(others, key=lambda peer: peer.name, default=None)
        if leader is not None and leader.name < me.name:
            return published(await leader.recv(MEMBERSHIP), len(rows))
        found = kmeans_groups(rows, self.groups, seed)
        for peer in others:
            peer.send(MEMBERSHIP, found.membership)
        return found


def protected(
    me: Party, values: Tensor, groups: Grouping, how: Release, name: str = "embedding"
) -> Tensor:
    """Steps 2 and 3 for the matrix of this name; raises BudgetSpent, and releases nothing, beyond
    the budget."""
    if how.epsilon:
        told = how.counted(me).means(values, groups, how.clipped(me, name, values))
    else:
        told = groups.means(values)
        if how.noise:
            told = secret_laplace(told, how.noise, secret_of(me, lasting=True))
    return generalise(told, how.generalise) if how.generalise else told
