"""Rows that may leave a party: grouped, averaged, protected and counted, by one call.

    1. group      rows that are released as one; fixed at the first release              grouping
    2. average    one mean for each group                                                grouping
    3. protect    Laplace noise, and values in steps: neither guarantees anything        noise
                  or, with `epsilon`: clip, add calibrated noise, count the release      budget
    4. measure    how far the released rows are from the original ones: PPM              noise

All noise comes from a secret of the party's journal, never from the seed, which all know. What is
done again after a crash has the same noise, so that nothing can be averaged away; without
`epsilon`, which counts runs, so has what is equal in another run.

The releases of `epsilon` are counted in the journal, too, by record and over all runs. A party that
has released anything refuses to begin a run from nothing; so each first writes a checkpoint
(`prepare`), and nobody goes on before all have done so (`all_prepared`, at the hub).
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from colonnade.errors import BudgetSpent, ColonnadeError, ConfigError
from colonnade.journal import Releases
from colonnade.privacy import budget
from colonnade.privacy.budget import Budget, release
from colonnade.privacy.grouping import (
    Grouping,
    class_groups,
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
    clip: float = 10.0  # epsilon: the largest L1 norm of a row
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

    def check(self, me: Party) -> None:
        """Refuse, before anything is trained, settings that a crash would make unsafe."""
        if self.epsilon and not me.schedule.checkpoint_epochs:
            raise ConfigError(
                [
                    "epsilon needs checkpoints, [checkpoint] epochs = 1: a run that has released "
                    "anything cannot begin from nothing"
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
        told = [protected(me, one, groups, self) for one in values]
        terms = [ppm(one, sent, groups) for one, sent in zip(values, told, strict=True)]
        named = {f"ppm_{name}": term for name, term in zip(matrices, terms, strict=True)}
        me.figure(**named, ppm=torch.stack(terms).min())
        return groups, told

    def caveats(self, table: str, instead: str = "") -> list[str]:
        """The caveats of a run that releases rows like this.

        instead  what the method sends beside the rows, which their protection does not cover
        """
        said = []
        if self.grouping == "class" and self.groups:
            said.append(
                "labels decide who is in a group: the server can infer the class of every group"
            )
        heuristics = {"noise": self.noise, "generalise": self.generalise}
        asked = [f"{key} = {value}" for key, value in heuristics.items() if value]
        if instead:
            said.append(instead)
        elif self.epsilon:
            said.append(
                f"epsilon = {self.epsilon} covers what one client releases of each row's vectors "
                "(for M clients that hold the same person, M times that at worst); not the public "
                "part of the networks, not who is in a group, not rows that are evaluated"
            )
        elif asked:
            said.append(
                f"no guarantee: [{table}] {' and '.join(asked)} guarantees nobody's privacy. "
                "epsilon would give a guarantee"
            )
        if self.clip != Release.clip and not self.epsilon:
            said.append(f"clip = {self.clip} has no effect without epsilon")
        return said

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


def protected(me: Party, values: Tensor, groups: Grouping, how: Release) -> Tensor:
    """Steps 2 and 3 for one matrix; raises BudgetSpent, and releases nothing, beyond the budget."""
    if how.epsilon:
        told = _released(me, values, groups, how)
    else:
        told = groups.means(values)
        if how.noise:
            told = secret_laplace(told, how.noise, secret_of(me, lasting=True))
    return generalise(told, how.generalise) if how.generalise else told


def _released(me: Party, values: Tensor, groups: Grouping, how: Release) -> Tensor:
    if me.journal is None:
        raise ColonnadeError(f"'{me.name}' has no journal to count releases in")
    releases = me.journal.releases(me.records("train"))

    def share() -> float:
        earlier = Budget(how.epsilon, how.delta, releases.spent(by_others=True))
        return earlier.share(how.planned)

    epsilon = releases.plan(share)
    if not epsilon:
        raise BudgetSpent(
            f"the privacy budget is spent: earlier runs have released these rows with ε = "
            f"{Budget(how.epsilon, how.delta, releases.spent()).spent:.6g} at δ = {how.delta:g}, "
            f"and {how.epsilon:g} is allowed for all runs together. Nothing was released. Train "
            "on other rows, or with a larger epsilon"
        )
    secret = secret_of(me)
    book = _Book(how.epsilon, how.delta, releases, secret, _number(me))
    told = release(values, groups, how.clip, epsilon, book, secret)
    me.figure(epsilon=Budget(how.epsilon, how.delta, releases.spent()).spent)
    return told


def _number(me: Party) -> int:
    """How many matrices this party has released before, in this run; the same after a crash."""
    number: int = me.state.get("releases", 0)
    me.state["releases"] = number + 1
    return number


@dataclass(frozen=True)
class _Book:
    """Counts one release in the journal: once, however often it is done again with the same
    numbers."""

    epsilon: float
    delta: float
    releases: Releases
    secret: bytes
    number: int

    def release(self, epsilon: float, means: Tensor, scale: Tensor) -> int:
        parts = (means.detach(), scale.detach())
        content = b"".join(part.cpu().contiguous().numpy().tobytes() for part in parts)
        key = f"{self.number} {hmac.digest(self.secret, content, 'sha256').hex()[:32]}"
        with self.releases.journal.turn():
            if not self.releases.holds(key):
                Budget(self.epsilon, self.delta, self.releases.spent()).spend(epsilon)
                self.releases.book(key, epsilon)
        return self.number
