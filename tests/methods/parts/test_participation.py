"""Rounds over fake links: who is waited for, who is given up, and who comes late."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
import torch

from colonnade.errors import PeerLost
from colonnade.methods.parts.participation import (
    Participation,
    all_gone,
    exchange,
    gather,
    take_leave,
)
from colonnade.role.party import Party
from colonnade.role.recipe import Recipe, Schedule
from colonnade.task import Task
from colonnade.wire import Kind, Peer, Recv, Value

UP = Kind("up", None, reveals="nothing", dtype="any")
DOWN = Kind("down", None, reveals="nothing", dtype="any")
EPOCHS = 4


class Link:
    """Remembers what is sent; says who is connected."""

    def __init__(self, *gone: str) -> None:
        self.gone, self.sent = set(gone), list[tuple[str, Value]]()

    def put(self, receiver: str, kind: Kind, value: Value) -> None:
        self.sent.append((receiver, value))

    def reaches(self, receiver: str) -> bool:
        return receiver not in self.gone


def party(name: str = "server") -> Party:
    schedule = Schedule(seed=5, epochs=EPOCHS, batch_size=1)
    return Party(name, "any", Recipe(), schedule, {}, None, Task.of(("x",)), torch.device("cpu"))


def answers(role: Coroutine[Recv, Any, Any], *script: Any) -> Any:
    """Run a role to its end: answer each of its waits from the script.

    "a": that client's message; an exception: raised; anything else: as it is.
    """
    asked = role.send(None)
    for number, step in enumerate(script):
        names = [peer.name for peer in asked.peers]
        try:
            if isinstance(step, Exception):
                asked = role.throw(step)
            elif isinstance(step, str) and asked.any:
                peer = asked.peers[names.index(step.rstrip("!"))]
                asked = role.send((peer, {"leaves": step.endswith("!")}))
            elif isinstance(step, str):
                assert names == [step.rstrip("!")]
                asked = role.send({"leaves": step.endswith("!")})
            else:
                asked = role.send(step)
        except StopIteration as end:
            assert number == len(script) - 1, "it asked less often"
            return end.value
    raise AssertionError(f"it goes on waiting for {[peer.name for peer in asked.peers]}")


def round_of(
    rules: Participation, *script: Any, me: Party | None = None, gone: str = "", epoch: int = 0
) -> list[str]:
    link = Link(*gone)
    clients = [Peer(name, link) for name in "abc"]
    return list(answers(gather(me or party(), clients, UP, epoch, rules), *script))


LOST = PeerLost("server", "b", "up", 0, "it is gone")


def test_in_step_all_are_waited_for_one_after_the_other() -> None:
    assert round_of(Participation(), "a", "b", "c") == ["a", "b", "c"]


def test_who_leaves_or_is_lost_is_waited_for_no_more() -> None:
    me = party()
    assert round_of(Participation(), "a", LOST, "c!", me=me, gone="b") == ["a"]
    assert (me.state["left"], me.state["lost"]) == (["c"], ["b"])
    assert round_of(Participation(), "a", me=me, gone="b") == ["a"]
    assert round_of(Participation(), "a", "b", me=me) == ["a", "b"]  # it is back
    assert me.state["lost"] == []
    clients = [Peer(name, Link()) for name in "abc"]
    assert not all_gone(me, clients)
    me.state |= {"left": ["a", "c"], "lost": ["b", "a"]}
    assert all_gone(me, clients)


def test_who_rehearses_an_absence_is_not_waited_for_in_step() -> None:
    rules = Participation(away={"b": (2,)})
    assert round_of(rules, "a", "c", epoch=1) == ["a", "c"]
    assert round_of(rules, "a", "b", "c", epoch=2) == ["a", "b", "c"]
    assert round_of(rules, "a!", "b!", "c!", epoch=EPOCHS) == []  # the round in which all leave


def test_a_deadline_ends_a_round_with_a_quorum() -> None:
    rules = Participation(deadline=1.0, quorum=2)
    assert round_of(rules, "c", None, "a", None) == ["c", "a"]
    assert round_of(rules, "c", "a", gone="b") == ["c", "a"]  # who is not there will not come


def test_of_those_left_fewer_are_a_quorum() -> None:
    me = party()
    rules = Participation(deadline=1.0, quorum=3)
    assert round_of(rules, "c!", "a", None, "b", me=me) == ["a", "b"]


def test_who_was_never_seen_again_has_left() -> None:
    me = party()
    me.state["left"] = ["a"]
    assert round_of(Participation(deadline=1.0), None, me=me, gone="bc") == []
    assert me.state["left"] == ["a", "b", "c"]


def test_if_all_are_lost_the_round_is_over() -> None:
    me = party()
    assert round_of(Participation(deadline=1.0), "b", LOST, me=me) == ["b"]
    assert me.state["lost"] == ["a", "c"]


def test_async_answers_whoever_comes() -> None:
    assert round_of(Participation(mode="async"), "b") == ["b"]


def test_absences_are_drawn_alike_at_both_ends() -> None:
    rules = Participation(absence=0.4)
    drawn = [rules.is_away("a", epoch, seed=5) for epoch in range(500)]
    assert drawn == [rules.is_away("a", epoch, seed=5) for epoch in range(500)]
    assert 0.3 < sum(drawn) / 500 < 0.5
    assert drawn != [rules.is_away("b", epoch, seed=5) for epoch in range(500)]


def test_most_rounds() -> None:
    assert Participation().most_rounds(5, 3) == 6
    assert Participation(deadline=1.0).most_rounds(5, 3) == 16
    assert Participation(mode="async").most_rounds(5, 3) == 16


def asking(
    me: Party, link: Link, rules: Participation, epoch: int = 0
) -> Coroutine[Recv, Any, Any]:
    server = Peer("server", link)
    return exchange(me, server, (UP, DOWN), lambda number: {"number": number}, epoch, rules)


def test_a_late_answer_is_ignored_and_attendance_counts_answers() -> None:
    me, link, rules = party("a"), Link(), Participation(contact=3.0)
    server = Peer("server", link)
    assert answers(asking(me, link, rules), None) is None  # no contact
    late, mine = (server, {"to": 1}), (server, {"to": 2})
    assert answers(asking(me, link, rules), late, mine) == {"to": 2}
    assert answers(asking(me, link, rules), LOST) is None
    assert answers(asking(me, link, Participation()), {"to": 4}) == {"to": 4}
    assert [value for _, value in link.sent] == [{"number": number} for number in (1, 2, 3, 4)]
    take_leave(me, [server], UP)
    assert me.figures == {"attendance": 0.5}
    assert link.sent[-1] == ("server", {"leaves": True})


def test_nothing_is_sent_without_a_server_in_reach() -> None:
    me, link = party("a"), Link("server")
    for rules, epoch in ((Participation(), 0), (Participation(away={"a": (2,)}), 1)):
        with pytest.raises(StopIteration) as end:
            asking(me, link, rules, epoch).send(None)
        assert end.value.value is None
        link.gone = set()
    assert me.state == {"rounds": 2} and not link.sent
    link.gone = {"server"}
    take_leave(me, [Peer("server", link)], UP)
    assert not link.sent and me.figures == {"attendance": 0.0}
    take_leave(other := party("b"), [], UP)
    assert not other.figures


@pytest.mark.parametrize(
    "bad",
    [{"quorum": 0}, {"deadline": -1.0}, {"contact": -1.0}, {"absence": 1.0}],
    ids=str,
)
def test_out_of_bounds(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Participation(**bad)


def test_a_deadline_has_no_meaning_without_rounds() -> None:
    with pytest.raises(ValueError, match=r"deadline = 1\.0 has no meaning for mode = 'async'"):
        Participation(mode="async", deadline=1.0)
