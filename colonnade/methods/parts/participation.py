"""Decides who takes part in a round: who is away, for whom the server waits, and who has left.

A client sends one numbered message per round, {"leaves": False, "number": n, …}, and the server
answers it with {"to": n, …}. A client that gives up waiting goes on alone, and ignores the answer
when it comes after all. Its last message, {"leaves": True}, is not answered.

Absences are rehearsed by draws from the run's seed, so that both ends know them without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from colonnade.errors import PeerLost, Untrusted
from colonnade.methods.parts.options import bounded
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.wire import Kind, Peer, recv_any

NO_ROUNDS = "has no meaning for mode = 'async', which answers every message by itself"


@dataclass(frozen=True)
class Participation:
    """The rules of a round; `deadline` and `contact` are seconds."""

    mode: Literal["sync", "async"] = "sync"  # async: every message is a round of its own
    quorum: int = 1  # messages without which no round ends early
    deadline: float = 0.0  # without another message for so long, a round ends; 0: wait for all
    contact: float = 0.0  # so long a client waits for an answer; 0: without end
    absence: float = 0.0  # rehearsal: the probability of each client to miss a round
    away: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # rehearsal: epochs, from 1
    pace: Mapping[str, float] = field(default_factory=dict)  # rehearsal: seconds per epoch; else 1

    def __post_init__(self) -> None:
        bounded(self, "quorum", least=1)
        bounded(self, "deadline", "contact", least=0)
        bounded(self, "absence", least=0, below=1)
        if any(not seconds > 0 for seconds in self.pace.values()):
            raise ValueError(f"pace = {dict(self.pace)}: give seconds above 0")
        if self.mode == "async" and self.deadline:
            raise ValueError(f"deadline = {self.deadline} {NO_ROUNDS}")

    @property
    def in_step(self) -> bool:
        """Whether all clients are always in the same round, because nobody goes on without one."""
        return self.mode == "sync" and not self.deadline

    def is_away(self, client: str, epoch: int, seed: int) -> bool:
        """Whether a client rehearses an absence in this epoch, counted from 0."""
        if epoch + 1 in self.away.get(client, ()):
            return True
        if not self.absence:
            return False
        generator = torch.Generator().manual_seed(derive(seed, "absence", client, epoch))
        return float(torch.rand((), generator=generator)) < self.absence

    def most_rounds(self, epochs: int, clients: int) -> int:
        """How many rounds there may be, and one more in which all leave."""
        return epochs + 1 if self.in_step else epochs * clients + 1


def present(peers: Sequence[Peer]) -> list[Peer]:
    """Those who take part in this run at all, in keys, masks and messages."""
    return [peer for peer in peers if peer.present]


# ---- a client's side -----------------------------------------------------------------------------


async def exchange(
    me: Party,
    server: Peer,
    kinds: tuple[Kind, Kind],
    message: Callable[[int], dict[str, Any]],
    epoch: int,
    rules: Participation,
) -> Any:
    """Send the message of this round and wait for its answer; None where there is no contact.

    kinds    of the message, and of its answer
    message  makes the message from its number
    """
    me.state["rounds"] = me.state.get("rounds", 0) + 1
    if rules.is_away(me.name, epoch, me.schedule.seed) or not server.reachable:
        return None
    number = me.state["sent"] = me.state.get("sent", 0) + 1
    server.send(kinds[0], message(number))
    answer = await _answer(server, kinds[1], number, rules.contact)
    if answer is not None:
        me.state["answers"] = me.state.get("answers", 0) + 1
    return answer


def take_leave(me: Party, servers: Sequence[Peer], kind: Kind) -> None:
    """Report how many of its rounds were answered, and tell the server to wait no more."""
    if servers:
        me.figure(attendance=me.state.get("answers", 0) / max(me.state.get("rounds", 0), 1))
    for server in servers:
        if server.reachable:
            server.send(kind, {"leaves": True})


async def _answer(server: Peer, kind: Kind, number: int, contact: float) -> Any:
    """The answer to message `number`. Older ones come late: this client had given up on them."""
    while True:
        try:
            if contact:
                found = await recv_any([server], kind, within=contact)
                if found is None:
                    return None
                answer = found[1]
            else:
                answer = await server.recv(kind)
        except PeerLost:
            return None
        to = answer.get("to") if isinstance(answer, Mapping) else None
        if type(to) is not int:
            raise Untrusted(f"'{server.name}' sent a '{kind.name}' that answers no message")
        if to == number:
            return answer


# ---- the server's side ---------------------------------------------------------------------------


async def gather(
    me: Party, clients: Sequence[Peer], kind: Kind, epoch: int, rules: Participation
) -> dict[str, Any]:
    """The messages of one round, by client.

    me.state["left"] and ["lost"] name the clients that have nothing more to send, and those that
    the runtime has given up.
    """
    left, lost = _noted(me, clients)
    expected = _expected(me, clients, epoch, rules)
    came: dict[str, Any] = {}
    while missing := [p for p in expected if p.name not in {*came, *left, *lost}]:
        if came and rules.mode == "async":
            break
        enough = len(came) >= min(rules.quorum, len(clients) - len(left))
        if came and enough and not any(peer.reachable for peer in missing):
            break  # who is not connected will not come in time
        try:
            found = await _next(missing, kind, rules)
        except PeerLost:
            lost += [peer.name for peer in (missing[:1] if rules.in_step else missing)]
            continue
        if found is None:
            if enough:
                break
            if left and not came and not any(peer.reachable for peer in missing):
                left += [peer.name for peer in missing]  # gone for good, as far as can be seen
        elif _leaves(*found):
            left.append(found[0].name)
        else:
            came[found[0].name] = found[1]
    return came


def _leaves(client: Peer, said: Any) -> bool:
    leaves = said.get("leaves") if isinstance(said, Mapping) else None
    if not isinstance(leaves, bool):
        raise Untrusted(f"'{client.name}' sent a message that does not say whether it leaves")
    return leaves


def all_gone(me: Party, clients: Sequence[Peer]) -> bool:
    """Whether every client has left or is lost."""
    return len({*me.state["left"], *me.state["lost"]}) == len(clients)


def _noted(me: Party, clients: Sequence[Peer]) -> tuple[list[str], list[str]]:
    """Who has left, and who is lost, which nobody awaits until it reconnects."""
    left: list[str] = me.state.setdefault("left", [])
    before: list[str] = me.state.get("lost", [])
    lost = [peer.name for peer in clients if peer.name in before and not peer.reachable]
    me.state["lost"] = lost
    return left, lost


def _expected(
    me: Party, clients: Sequence[Peer], epoch: int, rules: Participation
) -> Sequence[Peer]:
    """The clients of this round: in step, those whose absence is rehearsed are not waited for."""
    if not rules.in_step or epoch >= me.schedule.epochs:
        return clients
    return [p for p in clients if not rules.is_away(p.name, epoch, me.schedule.seed)]


async def _next(missing: Sequence[Peer], kind: Kind, rules: Participation) -> Any:
    """(client, message): of the next one in step, else of whoever comes first; or None."""
    if rules.in_step:
        return missing[0], await missing[0].recv(kind)
    return await recv_any(missing, kind, within=rules.deadline or rules.contact or None)
