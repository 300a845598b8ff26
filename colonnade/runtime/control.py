"""What the processes of a federation say to each other, and how the hub chooses where to begin."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from colonnade.errors import FederationError
from colonnade.role.party import Party

Place = tuple[str, int, int]  # phase, epoch, step


@dataclass(frozen=True)
class Patience:
    """How long a lost party is waited for, and what then."""

    on_lost: Literal["wait", "stop", "continue"] = "wait"
    deadline: float = 600.0  # seconds without a connection
    silence: float = 3600.0  # seconds without a message, although connected


@dataclass(frozen=True)
class Start:
    """The hub's word: everybody begins here."""

    run: str
    attempt: int
    label: str | None  # of the common checkpoint; None: from the beginning
    absent: tuple[str, ...] = ()
    skip: Place | None = None  # after a loss: nothing before it is done again
    lives: Mapping[str, str] = field(default_factory=dict)  # which process of each party it is
    told: Mapping[str, Any] = field(default_factory=dict)  # by the hub: the classes
    ended: bool = False  # only the results are missing


@dataclass(frozen=True)
class Join:
    """A member's word: it is here, and this is what it holds."""

    life: str
    run: str
    attempt: int
    held: tuple[str, ...]
    finished: bool
    fresh: Place | None = None  # the first step that it has never begun, with whatever members


@dataclass(frozen=True)
class Work:
    """What a session is given to do; all of it is the caller's."""

    party: Callable[[Start], Party]  # a new one, not yet resumed
    role: Callable[[Party, Any, frozenset[str]], Coroutine[Any, Any, Any]]
    mark: Callable[[Start], None]  # remember on disk which attempt this is
    account: Callable[[Party], dict[str, Any]]  # of a role that has ended; its models are saved
    conclude: Callable[[Mapping[str, Any], tuple[str, ...]], None]  # all accounts, warnings
    may_lose: Callable[[frozenset[str]], str]  # why not to go on without these; "" if it may
    told: Mapping[str, Any]  # what the hub tells everybody
    log: Callable[[str], None]
    publish: Callable[[Party], None] = lambda party: None  # what it can do by now, for others


def choose_run(run: str, joins: Mapping[str, Join]) -> str:
    """Which run this is: the hub's own, one that others are in and have nothing to lose of, or a
    new one. Whoever is in another is named."""
    nothing_to_lose = not any(join.held or join.finished for join in joins.values())
    theirs = next((join.run for join in joins.values() if join.run), "")
    run = run or (theirs if nothing_to_lose else "") or secrets.token_hex(8)
    strangers = [
        f"'{name}' brings a folder of run {join.run}, the others are of {run}: give it another "
        "--out, or the folder of this run"
        for name, join in joins.items()
        if join.run not in ("", run)
    ]
    if strangers:
        raise FederationError(strangers)
    return run


def choose_label(joins: Mapping[str, Join]) -> str | None:
    """The newest checkpoint that everybody holds, or whose role has ended; None: there is none."""
    order: tuple[str, ...] = next((j.held for j in joins.values() if not j.finished), ())
    order = order or max((join.held for join in joins.values()), key=len)
    common = [
        label
        for label in order
        if all(label in join.held or join.finished for join in joins.values())
    ]
    return common[-1] if common else None


def first_new_step(skip: Place | None, joins: Iterable[Join]) -> Place:
    """The first step that nobody has begun with the members there were before."""
    fresh = [place for place in (skip, *(join.fresh for join in joins)) if place]
    phases = {phase for phase, _, _ in fresh}
    if len(phases) > 1:
        raise FederationError(
            [f"the parties are in different phases ({', '.join(sorted(phases))}): resume later"]
        )
    return max(fresh, default=("train", 0, 0))
