"""A session whose parties come and go, with a mesh of its imagination."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_runtime_process import MEMBERS, RUN, FakeMesh

from colonnade.errors import FederationError, PeerLost, RoleFailed
from colonnade.runtime.checkpoint import OwnCheckpoints
from colonnade.runtime.control import Join
from colonnade.runtime.elastic import LooseSession
from colonnade.runtime.session import Patience, Start, Work, _GoBack
from colonnade.wire import Kind, Recv

HEAD = Kind("head", None, reveals="nothing", dtype="any")


class Case:
    """A session, its mesh, and what it has noted."""

    def __init__(self, me: str, folder: Path, run: str = "", **patience: Any) -> None:
        self.mesh: Any = FakeMesh(me)
        self.marks, self.log, self.admitted = list[int](), list[str](), list[tuple[str, int]]()
        work = Work(
            party=lambda start: pytest.fail("no role begins here"),
            role=lambda *_: pytest.fail("no role begins here"),
            mark=lambda start: self.marks.append(start.attempt),
            account=lambda party: {},
            conclude=lambda accounts, warnings: None,
            may_lose=lambda absent: "",
            told={"classes": ["no", "yes"]},
            log=self.log.append,
        )
        post: Any = SimpleNamespace(
            refused={},
            waiting=lambda: 0,
            holds=lambda peer, kind: False,
            admit=lambda peer, run, attempt: self.admitted.append((peer, attempt)),
            ledger=SimpleNamespace(note=lambda text: None),
        )
        checkpoints = OwnCheckpoints(folder / "checkpoints", lambda: None)
        self.session = LooseSession(
            me, MEMBERS, "bank", self.mesh, post, checkpoints, Patience(**patience), work, run
        )

    def joins(self, peer: str, run: str = "", attempt: int = 0) -> None:
        join = Join(self.mesh.links[peer].life_of(), run, attempt, (), False)
        self.mesh.say(peer, "join", asdict(join))

    def words(self, peer: str) -> list[str]:
        words: list[str] = self.mesh.links[peer].words()
        return words


def wanted(session: LooseSession, *names: str, within: float | None = None) -> Recv:
    peers: Any = tuple(SimpleNamespace(name=name) for name in names)
    session._playing, session._party = True, SimpleNamespace(progress=SimpleNamespace(steps=3))  # type: ignore[assignment]
    return Recv(peers, HEAD, within is not None, within)


def test_the_hub_lets_each_in_alone(tmp_path: Path) -> None:
    case = Case("bank", tmp_path)
    case.joins("shop", attempt=4)
    case.joins("telco")
    begun = case.session._gather()
    assert begun.attempt == 5 and case.marks == [5]
    assert case.admitted == [("shop", 5), ("telco", 5)]
    assert case.session.reaches("shop") and case.session.reaches("telco")
    case.mesh.links["shop"].life += 1
    case.mesh.up("shop")
    assert not case.session.reaches("shop") and case.words("telco") == ["start"]
    case.joins("shop", run=begun.run, attempt=5)
    assert case.session.reaches("shop")
    assert case.marks == [5, 6] and case.admitted[-1] == ("shop", 6)
    assert case.words("telco") == ["start"]
    case.joins("telco", run="00000000000000cd")
    case.session._pump(0)
    assert case.words("telco") == ["start", "trouble"] and case.marks == [5, 6]


def test_the_hub_begins_with_those_who_are_there_if_it_may(tmp_path: Path) -> None:
    case = Case("bank", tmp_path, on_lost="continue", deadline=0.1)
    case.mesh.links["telco"].up = False
    case.joins("shop")
    assert set(case.session._gather().lives) == {"bank", "shop"}
    assert "begins without telco, who may come later" in case.log
    waits = Case("bank", tmp_path, on_lost="wait", deadline=0.1)
    waits.mesh.links["telco"].up = False
    waits.joins("shop")
    with pytest.raises(PeerLost, match="'telco'"):
        waits.session._gather()


def test_the_hub_needs_somebody_but_not_everybody(tmp_path: Path) -> None:
    case = Case("bank", tmp_path, run=RUN, deadline=5.0)
    case.session._playing = True
    case.mesh.links["telco"].up = False
    case.session._look_for_the_lost(10.0)
    case.mesh.links["shop"].up = False
    case.mesh.links["shop"].since = 6.0
    case.session._look_for_the_lost(10.0)
    with pytest.raises(PeerLost):
        case.session._look_for_the_lost(12.0)
    case.session._hear_done("telco", {})
    case.session._look_for_the_lost(12.0)


def test_a_client_waits_for_its_hub_only_where_its_role_does(tmp_path: Path) -> None:
    case = Case("shop", tmp_path, run=RUN, deadline=5.0)
    session, link = case.session, case.mesh.links["bank"]
    link.up = False
    session._check_silence(wanted(session, "bank", within=1.0), 0.0)
    session._look_for_the_lost(1e6)
    with pytest.raises(PeerLost, match="'shop' waited for 'head' from 'bank'"):
        session._check_silence(wanted(session, "bank"), 0.0)


def test_a_client_that_waits_for_an_answer_to_nothing_goes_back(tmp_path: Path) -> None:
    case = Case("shop", tmp_path, run=RUN)
    session, link = case.session, case.mesh.links["bank"]
    link.up = False
    session.put(None, "bank", HEAD, 1)  # type: ignore[arg-type]
    session.put(None, "bank", HEAD, 2)  # type: ignore[arg-type]
    assert session.refused() == {"message to 'bank', which was not there": 2}
    assert case.log == ["'bank' is not there: 'head' is not sent"]
    link.up, session._admitted = True, {"bank": link.life_of()}
    with pytest.raises(_GoBack, match="what was not sent"):
        session._check_silence(wanted(session, "bank"), 0.0)


def test_nobody_waits_for_a_role_that_has_ended(tmp_path: Path) -> None:
    hub, client = Case("bank", tmp_path / "a").session, Case("shop", tmp_path / "b").session
    hub._admitted = {"telco": hub.mesh.links["telco"].life_of()}
    client._admitted = {"bank": client.mesh.links["bank"].life_of()}
    assert hub.reaches("telco") and client.reaches("bank")
    hub._hear_done("telco", {})
    client._hear_end("bank", {})
    for session, peer in ((hub, "telco"), (client, "bank")):
        assert not session.reaches(peer)
        with pytest.raises(PeerLost, match="its role has ended"):
            session._check_silence(wanted(session, peer), 0.0)


def test_trouble_of_one_is_not_the_trouble_of_others(tmp_path: Path) -> None:
    hub, client = Case("bank", tmp_path), Case("shop", tmp_path)
    trouble = {"error": "Denied", "text": "its policy"}
    hub.session._hear_trouble("shop", trouble)
    client.session._playing = True
    client.session._hear_trouble("bank", trouble)
    assert hub.log == ["'shop' has stopped: Denied: its policy"]
    client.session._playing = False
    for said in (trouble, trouble | {"refused": True}):
        with pytest.raises(RoleFailed, match="'bank' has stopped: Denied"):
            client.session._hear_trouble("bank", said)
        client.session._came_back = True  # then only one that is refused has nothing to hope for


def test_a_hub_that_waits_with_a_limit_is_in_no_deadlock(tmp_path: Path) -> None:
    session = Case("bank", tmp_path).session
    session._moved = -1e9
    for name in ("shop", "telco"):
        session._hear_waiting(name, {"for": "'mean' from bank"})
    session._wanted = wanted(session, "shop", "telco", within=1.0)
    session._look_for_deadlock(0.0)
    session._wanted = wanted(session, "shop", "telco")
    with pytest.raises(Exception, match="bank waits for 'head' from shop or telco"):
        session._look_for_deadlock(0.0)


def test_who_comes_after_the_end_hears_so(tmp_path: Path) -> None:
    """Nothing is lost where nothing was reached: an error says so."""
    case = Case("shop", tmp_path)
    case.mesh.up("bank")
    case.mesh.say("bank", "start", asdict(Start(RUN, 3, None, ended=True)))
    case.mesh.say("bank", "end", {})
    with pytest.raises(FederationError, match="has trained nothing: it came too late"):
        case.session.serve()
    assert "the federation has ended" in case.log
