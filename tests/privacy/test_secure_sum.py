"""A secure sum between roles that talk through queues: what crosses, and what it adds up to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from colonnade.privacy import keys
from colonnade.privacy.masking import MASKED, Moment, Ring
from colonnade.privacy.secure_sum import SecureSum
from colonnade.role import identity
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.runtime import local
from colonnade.task import Task
from colonnade.wire import Kind, Ledger, Peer, Wire

PLAIN = Kind("embedding", ("batch", "dim"), reveals="the term")
TASK = Task.of(("x",))
NAMES = ("bank", "shop", "lab", "helper")  # the helper has keys, and no term
MOMENT = Moment("train", 0, 0)


def added(kind: Kind, path: Path) -> tuple[torch.Tensor, list[str]]:
    """Σ at the bank, and the Kinds of all messages."""
    values = {"shop": torch.full((2, 3), 0.25), "lab": torch.full((2, 3), -1.5)}
    found: list[torch.Tensor] = []
    parties = {n: Party(n, "", Recipe(), Schedule(0, 1, 1), {}, None, TASK, torch.device("cpu"))
               for n in NAMES}  # fmt: skip
    for name, known in identity.simulated(list(NAMES), "session").items():
        parties[name].identity = known

    async def role(me: Party, peers: dict[str, Peer]) -> None:
        relay = peers.get("bank")
        total = SecureSum(me, kind)
        if kind is MASKED:
            others = [peer for peer in peers.values() if peer is not relay]
            total = await SecureSum.agree(
                me,
                relay,
                others,
                purpose="test",
                receiver="bank",
                kind=kind,
                ring=lambda terms: Ring(64, 24, terms),
                apart=["helper"],
            )
            assert set(total.secrets) == set(peers)
        if relay is None:
            senders = [peers["shop"], peers["lab"]]
            found.append(await total.receive(senders, MOMENT, own=torch.ones(2, 3)))
        elif me.name in values:
            total.send(relay, values[me.name], MOMENT)

    def start(me: Party, wire: Wire) -> Any:
        return role(me, {name: Peer(name, wire) for name in NAMES if name != me.name})

    kinds = {one.name: one for one in (kind, *keys.KINDS)}
    ledger = Ledger(path)
    local.run(parties, start, local.Mailboxes(kinds, ledger))
    ledger.close()
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return found[0], [row["kind"] for row in rows if "kind" in row]


@pytest.mark.parametrize("kind", [MASKED, PLAIN], ids=lambda kind: kind.name)
def test_the_receiver_gets_the_sum_of_all_terms(kind: Kind, tmp_path: Path) -> None:
    total, sent = added(kind, tmp_path / "ledger.jsonl")
    assert torch.equal(total, torch.full((2, 3), -0.25))
    assert sent.count(kind.name) == 2
    assert (set(sent) == {kind.name}) is (kind is PLAIN)
