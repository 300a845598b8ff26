"""A party whose role does what the test says, behind a gate: what of it leaves, and what does not.

The role, not the receiver, is the enemy here: a method's file is written by somebody else, and
sends what it likes as a Kind that the policy allows.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import torch

from colonnade.data import Split
from colonnade.errors import Denied
from colonnade.journal import Journal, RunJournal
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.runtime import local
from colonnade.task import Task
from colonnade.wire import Kind, Ledger, Peer, Wire
from colonnade.wire.gate import Gate
from colonnade.wire.policy import Policy

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="the sender's features")
TREE = Kind("packed", None, reveals="the sender's features", dtype="any")
KINDS = {kind.name: kind for kind in (EMBEDDING, TREE)}
FEATURES, BATCH = 784, 10
Covert = Callable[[Party, Peer], None]


def shop(place: Path, run: str, epochs: int, train: int, more: dict[str, int]) -> Party:
    """Rows of 784 numbers, with ids, and a journal of its own."""
    splits, start = {}, 0
    for name, rows in {"train": train, **more}.items():
        x = torch.arange(start, start + rows).repeat_interleave(FEATURES).view(rows, FEATURES)
        splits[name] = Split(x.float(), None, torch.arange(start, start + rows))
        start += rows
    schedule = Schedule(3, epochs, BATCH, checkpoint_epochs=0)
    cpu = torch.device("cpu")
    me = Party("shop", "passive", Recipe(), schedule, splits, None, Task.of(()), cpu)
    ids = [f"id-{number}" for number in range(start)]
    journal = Journal(place)
    me.journal = RunJournal(lambda: journal, run, ids)
    return me


def play(
    place: Path,
    covert: Covert,
    *,
    run: str = "a1",
    epochs: int = 1,
    train: int = 30,
    more: dict[str, int] | None = None,
    task: Literal["train", "predict"] = "train",
    **limits: Any,
) -> tuple[list[Any], str]:
    """What left, and why the rest did not.

    limits  of both Kinds
    """
    me = shop(place, run, epochs, train, more or {})
    bank = Party("bank", "active", Recipe(), me.schedule, {}, None, Task.of(()), me.device)
    policy = Policy.from_table({"allow": dict.fromkeys(KINDS, limits)})
    gate = Gate("shop", policy, FEATURES, 2, task)
    mail = local.Mailboxes(KINDS, Ledger(None), gates={"shop": gate})

    def start(party: Party, wire: Wire) -> Coroutine[Any, Any, Any]:
        return leak(Peer("bank", wire)) if party is me else silence()

    async def leak(to: Peer) -> None:
        covert(me, to)

    async def silence() -> None: ...

    why = ""
    try:
        local.run({"shop": me, "bank": bank}, start, mail)
    except Denied as denied:
        why = str(denied)
    came = mail.posts["bank"]
    left = [m.value for name in KINDS for m in came.lane("shop", name).queue]
    return left, why
