"""The one-process runtime: order, waiting, loss, time, randomness."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from colonnade.errors import Deadlock, Denied, KindError, PeerLost, RoleFailed
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.runtime import local
from colonnade.runtime.drive import drive
from colonnade.task import Task
from colonnade.wire import Kind, Ledger, Peer, Recv, Wire, ledger, recv_any
from colonnade.wire.gate import Gate
from colonnade.wire.policy import Allow, Policy

NUMBER = Kind("number", (), "nothing", dtype="any")
OTHER = Kind("other", (), "nothing", dtype="any")
TREE = Kind("tree", None, "nothing")
NEXT = Kind("next", None, "nothing", paces=True)

Program = Callable[[Party, dict[str, Peer]], Coroutine[Any, Any, Any]]


def parties(*names: str, seed: int = 0) -> dict[str, Party]:
    schedule = Schedule(seed, 1, 1)
    cpu = torch.device("cpu")
    return {
        name: Party(name, "test", Recipe(), schedule, {}, None, Task.of(()), cpu) for name in names
    }


def play(
    programs: dict[str, Program],
    strict: bool = False,
    lose: dict[str, int] | None = None,
    kinds: tuple[Kind, ...] = (NUMBER, OTHER, TREE),
) -> dict[str, Any]:
    members = parties(*programs)

    def start(me: Party, wire: Wire) -> Coroutine[Any, Any, Any]:
        peers = {name: Peer(name, wire) for name in programs if name != me.name}
        return programs[me.name](me, peers)

    mail = local.Mailboxes({kind.name: kind for kind in kinds}, Ledger(None), strict)
    return local.run(members, start, mail, lose)


def number(value: float) -> torch.Tensor:
    return torch.tensor(value)


def test_messages_of_one_kind_arrive_in_the_order_they_were_sent() -> None:
    async def a(me: Party, peers: dict[str, Peer]) -> None:
        for i in range(5):
            peers["b"].send(NUMBER, number(i))
            peers["b"].send(OTHER, number(10 + i))

    async def b(me: Party, peers: dict[str, Peer]) -> list[float]:
        others = [float(await peers["a"].recv(OTHER)) for _ in range(5)]
        numbers = [float(await peers["a"].recv(NUMBER)) for _ in range(5)]
        return others + numbers

    assert play({"b": b, "a": a})["b"] == [10, 11, 12, 13, 14, 0, 1, 2, 3, 4]


def test_everybody_waiting_is_a_named_deadlock() -> None:
    async def a(me: Party, peers: dict[str, Peer]) -> None:
        await peers["b"].recv(NUMBER)

    async def b(me: Party, peers: dict[str, Peer]) -> None:
        await peers["a"].recv(OTHER)

    says = r"a waits for 'number' from b \(.*, line \d+\); b waits for 'other' from a \(.*\)"
    with pytest.raises(Deadlock, match=says):
        play({"a": a, "b": b})


def test_waiting_for_a_party_that_has_ended_says_so() -> None:
    async def a(me: Party, peers: dict[str, Peer]) -> None:
        await peers["b"].recv(NUMBER)

    async def b(me: Party, peers: dict[str, Peer]) -> None:
        return None

    with pytest.raises(Deadlock, match=r"a waits for 'number' from b \(and b has ended\)"):
        play({"a": a, "b": b})


async def _stepping(me: Party, peers: dict[str, Peer]) -> None:
    """Sends a number per step to 'keeper' and waits for its echo."""
    for i in range(10):
        peers["keeper"].send(NUMBER, number(i))
        await peers["keeper"].recv(OTHER)
        me.progress.steps += 1


def test_a_lost_peer_is_thrown_into_the_role_that_waits_and_may_be_caught() -> None:
    async def keeper(me: Party, peers: dict[str, Peer]) -> tuple[list[float], PeerLost | None]:
        got: list[float] = []
        try:
            while True:
                got.append(float(await peers["shop"].recv(NUMBER)))
                peers["shop"].send(OTHER, number(0))
        except PeerLost as lost:
            return got, lost

    got, lost = play({"keeper": keeper, "shop": _stepping}, lose={"shop": 3})["keeper"]
    assert got == [0, 1, 2, 3]  # what it had sent before it vanished still arrives
    assert lost is not None
    assert (lost.peer, lost.kind, lost.waiter) == ("shop", "number", "keeper")


def test_a_lost_peer_that_nobody_catches_ends_the_run() -> None:
    async def keeper(me: Party, peers: dict[str, Peer]) -> None:
        while True:
            await peers["shop"].recv(NUMBER)
            peers["shop"].send(OTHER, number(0))

    with pytest.raises(PeerLost, match="'keeper' waited for 'number' from 'shop'"):
        play({"keeper": keeper, "shop": _stepping}, lose={"shop": 2})


def test_first_come_is_decided_by_the_virtual_clock() -> None:
    async def server(me: Party, peers: dict[str, Peer]) -> list[str]:
        came = []
        for _ in range(4):
            answer = await recv_any([peers["slow"], peers["fast"]], NUMBER)
            came.append(answer[0].name)
        return came

    def client(seconds: float) -> Program:
        async def program(me: Party, peers: dict[str, Peer]) -> None:
            for _ in range(2):
                me.elapse(seconds)
                peers["server"].send(NUMBER, number(seconds))

        return program

    # fast sends at 1 and 2, slow at 1.5 and 3, whatever order the roles are started in
    for order in (["server", "slow", "fast"], ["fast", "slow", "server"]):
        programs = {"server": server, "slow": client(1.5), "fast": client(1.0)}
        came = play({name: programs[name] for name in order})["server"]
        assert came == ["fast", "slow", "fast", "slow"]


def test_recv_any_gives_up_after_its_seconds_and_the_late_message_is_kept() -> None:
    async def server(me: Party, peers: dict[str, Peer]) -> list[Any]:
        first = await recv_any([peers["client"]], NUMBER, within=2.0)
        clock = me.progress.clock
        second = await recv_any([peers["client"]], NUMBER, within=2.0)
        return [first, clock, float(second[1]), me.progress.clock]

    async def client(me: Party, peers: dict[str, Peer]) -> None:
        me.elapse(3.0)
        peers["server"].send(NUMBER, number(7))

    assert play({"server": server, "client": client})["server"] == [None, 2.0, 7.0, 3.0]


def test_recv_any_waits_for_the_earliest_even_if_a_later_sender_ran_first() -> None:
    """A chain: the earliest message exists only after another first-comer was answered."""

    async def server(me: Party, peers: dict[str, Peer]) -> list[str]:
        return [(await recv_any([peers["late"], peers["relay"]], NUMBER))[0].name for _ in range(2)]

    async def late(me: Party, peers: dict[str, Peer]) -> None:
        me.elapse(10)
        peers["server"].send(NUMBER, number(0))

    async def relay(me: Party, peers: dict[str, Peer]) -> None:
        await recv_any([peers["origin"]], OTHER)
        peers["server"].send(NUMBER, number(1))

    async def origin(me: Party, peers: dict[str, Peer]) -> None:
        me.elapse(1)
        peers["relay"].send(OTHER, number(0))

    result = play({"server": server, "late": late, "relay": relay, "origin": origin})
    assert result["server"] == ["relay", "late"]


def test_dropout_and_initialisation_do_not_depend_on_who_else_runs() -> None:
    async def drawing(me: Party, peers: dict[str, Peer]) -> list[torch.Tensor]:
        layer = nn.Linear(3, 2)
        drawn = [layer.weight.detach().clone()]
        for peer in peers.values():
            peer.send(NUMBER, number(0))
        for peer in peers.values():
            await peer.recv(NUMBER)
            drawn.append(nn.functional.dropout(torch.ones(8), 0.5))
        return [*drawn, torch.rand(4)]

    async def silent(me: Party, peers: dict[str, Peer]) -> None:
        for peer in peers.values():
            peer.send(NUMBER, number(0))
        for peer in peers.values():
            await peer.recv(NUMBER)

    both = play({"a": drawing, "b": drawing})
    one = play({"a": drawing, "b": silent})
    turned = play({"b": drawing, "a": drawing})
    for name, other in (("a", one), ("a", turned), ("b", turned)):
        for mine, theirs in zip(both[name], other[name], strict=True):
            assert torch.equal(mine, theirs)
    assert not torch.equal(both["a"][0], both["b"][0])


def test_the_caller_keeps_his_own_random_numbers() -> None:
    async def drawing(me: Party, peers: dict[str, Peer]) -> None:
        torch.rand(100)

    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    play({"a": drawing})
    assert torch.equal(torch.rand(3), expected)


def test_no_grad_in_one_role_does_not_leak_into_another() -> None:
    async def quiet(me: Party, peers: dict[str, Peer]) -> bool:
        with torch.no_grad():
            peers["loud"].send(NUMBER, number(0))
            await peers["loud"].recv(NUMBER)
            return torch.is_grad_enabled()

    async def loud(me: Party, peers: dict[str, Peer]) -> bool:
        await peers["quiet"].recv(NUMBER)
        enabled = torch.is_grad_enabled()
        peers["quiet"].send(NUMBER, number(0))
        return enabled

    assert play({"quiet": quiet, "loud": loud}) == {"quiet": False, "loud": True}
    assert torch.is_grad_enabled()


def test_strict_refuses_to_wait_inside_inference_mode() -> None:
    async def a(me: Party, peers: dict[str, Peer]) -> None:
        with torch.inference_mode():
            await peers["b"].recv(NUMBER)

    async def b(me: Party, peers: dict[str, Peer]) -> None:
        await peers["a"].recv(NUMBER)

    with pytest.raises(RoleFailed, match="'a' waits for a peer inside inference_mode"):
        play({"a": a, "b": b}, strict=True)


def test_strict_hands_over_copies_and_plain_hands_over_the_tensor() -> None:
    async def sender(me: Party, peers: dict[str, Peer]) -> None:
        value = torch.zeros(())
        peers["receiver"].send(NUMBER, value)
        value += 1  # after sending: over a network this could not arrive

    async def receiver(me: Party, peers: dict[str, Peer]) -> float:
        return float(await peers["sender"].recv(NUMBER))

    programs = {"sender": sender, "receiver": receiver}
    assert play(programs, strict=True)["receiver"] == 0
    assert play(programs, strict=False)["receiver"] == 1


def test_a_failing_role_is_named_with_its_place() -> None:
    async def bad(me: Party, peers: dict[str, Peer]) -> None:
        raise ZeroDivisionError("oh")

    with pytest.raises(RoleFailed, match=r"'bank' .* failed in its set-up: ZeroDivisionError: oh"):
        play({"bank": bad})


def test_undeclared_kinds_and_strangers_are_refused() -> None:
    async def undeclared(me: Party, peers: dict[str, Peer]) -> None:
        peers["b"].send(Kind("number", (), "nothing", dtype="any"), number(0))

    async def stranger(me: Party, peers: dict[str, Peer]) -> None:
        Peer("nobody", peers["b"]._wire).send(NUMBER, number(0))

    async def oneself(me: Party, peers: dict[str, Peer]) -> None:
        Peer("a", peers["b"]._wire).send(NUMBER, number(0))

    async def b(me: Party, peers: dict[str, Peer]) -> None:
        return None

    with pytest.raises(KindError, match="does not declare"):
        play({"a": undeclared, "b": b})
    for program in (stranger, oneself):
        with pytest.raises(KindError, match="which is not a peer"):
            play({"a": program, "b": b})


def test_drive_answers_and_throws_like_the_scheduler() -> None:
    peer = Peer("b", None)  # type: ignore[arg-type]
    requests: list[Recv] = []

    async def role() -> str:
        first = await peer.recv(NUMBER)
        try:
            await peer.recv(OTHER)
        except PeerLost:
            return f"{first} then alone"
        return "unreachable"

    def take(request: Recv) -> int:
        requests.append(request)
        if request.kind is OTHER:
            raise PeerLost("a", "b", "other", 1, "gone")
        return 5

    assert drive(role(), take) == "5 then alone"
    assert [request.kind for request in requests] == [NUMBER, OTHER]


def test_rounds_count_messages_that_waited_for_each_other() -> None:
    """Two independent messages side by side are one round; an answer is a second one."""

    async def a(me: Party, peers: dict[str, Peer]) -> int:
        me.progress.phase = "train"  # set-up and evaluation are no rounds
        peers["b"].send(NUMBER, number(0))
        peers["c"].send(NUMBER, number(0))
        await peers["b"].recv(NUMBER)
        return me.progress.hop

    async def b(me: Party, peers: dict[str, Peer]) -> int:
        me.progress.phase = "train"
        await peers["a"].recv(NUMBER)
        peers["a"].send(NUMBER, number(0))
        return me.progress.hop

    async def c(me: Party, peers: dict[str, Peer]) -> int:
        me.progress.phase = "train"
        await peers["a"].recv(NUMBER)
        return me.progress.hop

    assert play({"a": a, "b": b, "c": c}) == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize("asked", [1, 4])
def test_to_say_go_on_is_no_round(asked: int, tmp_path: Path) -> None:
    """What is sent in parts, each when it is asked for, is sent at once: one round."""

    async def a(me: Party, peers: dict[str, Peer]) -> int:
        me.progress.phase = "train"
        for _ in range(asked):
            peers["b"].send(NEXT, True)
            await peers["b"].recv(NUMBER)
        return me.progress.hop

    async def b(me: Party, peers: dict[str, Peer]) -> int:
        me.progress.phase = "train"
        for part in range(asked):
            await peers["a"].recv(NEXT)
            peers["a"].send(NUMBER, number(part))
        return me.progress.hop

    programs = {"a": a, "b": b}
    kinds = {kind.name: kind for kind in (NUMBER, NEXT)}
    book = Ledger(tmp_path / "ledger.jsonl")

    def start(me: Party, wire: Wire) -> Coroutine[Any, Any, Any]:
        return programs[me.name](me, {name: Peer(name, wire) for name in programs})

    found = local.run(parties(*programs), start, local.Mailboxes(kinds, book))
    book.close()
    assert found == {"a": 1, "b": 0}  # b has waited for nothing but the word to go on
    summary = ledger.summarise(ledger.read(tmp_path / "ledger.jsonl"), kinds)
    assert (summary["rounds"], summary["messages"]) == (1, 2 * asked)
    told = [r["hop"] for r in ledger.read(tmp_path / "ledger.jsonl") if r["kind"] == "next"]
    assert told == [0] + [1] * (asked - 1)  # what a had waited for, and no more


@pytest.mark.parametrize("strict", [False, True])
def test_a_policy_holds_in_one_process_too(strict: bool, tmp_path: Path) -> None:
    """One party has a policy: two numbers may leave it. The other one sends what it likes."""

    async def a(me: Party, peers: dict[str, Peer]) -> int:
        for i in range(3):
            peers["b"].send(NUMBER, number(i))
            await peers["b"].recv(OTHER)
        return 3

    async def b(me: Party, peers: dict[str, Peer]) -> None:
        for i in range(3):
            await peers["a"].recv(NUMBER)
            peers["a"].send(OTHER, number(i))

    programs = {"a": a, "b": b}
    kinds = {kind.name: kind for kind in (NUMBER, OTHER)}
    path = tmp_path / "ledger.jsonl"

    def play_with(limit: int) -> Gate:
        gate = Gate("a", Policy({"number": Allow(bytes=limit)}), 1, 2)
        book = Ledger(path)
        mail = local.Mailboxes(kinds, book, strict, gates={"a": gate})

        def start(me: Party, wire: Wire) -> Coroutine[Any, Any, Any]:
            return programs[me.name](me, {name: Peer(name, wire) for name in programs})

        try:
            assert local.run(parties(*programs), start, mail)["a"] == 3
        finally:
            book.close()
        return gate

    size = 3 + 8  # a scalar as it would cross a network, which is what counts in one process too
    with pytest.raises(Denied, match="'a' does not send 'number' to 'b'"):
        play_with(2 * size)
    *sent, denied = ledger.read(path)
    assert [(row["sender"], row["bytes"]) for row in sent] == [("a", size), ("b", size)] * 2
    assert denied["sender"] == "a" and denied["bytes"] == 0 and "bytes" in denied["denied"]
    path.unlink()
    gate = play_with(3 * size)
    assert gate.spent() == {"number": {"messages": 3, "bytes": 3 * size}}
    assert len(list(ledger.read(path))) == 6  # one row per message, in one book
