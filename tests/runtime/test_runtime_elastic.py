"""A session whose parties come and go, with a mesh of its imagination."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_mesh import RUN, Case, start

from colonnade.errors import Deadlock, FederationError, PeerLost, RoleFailed
from colonnade.runtime import watch
from colonnade.runtime.control import GoBack
from colonnade.runtime.elastic import Elastic
from colonnade.runtime.playing import Playing
from colonnade.wire import Kind, Recv

HEAD = Kind("head", None, reveals="nothing", dtype="any")


def case(me: str, folder: Path, run: str = "", **patience: Any) -> Case:
    return Case(me, folder, Elastic(came_back=bool(run)), run, **patience)


def playing(it: Case) -> Playing:
    """The wire of a role that is under way."""
    party: Any = SimpleNamespace(progress=SimpleNamespace(steps=3))
    it.session.playing, it.session.party = True, party
    return Playing(it.session, party)


def wanted(*names: str, within: float | None = None) -> Recv:
    peers: Any = tuple(SimpleNamespace(name=name) for name in names)
    return Recv(peers, HEAD, within is not None, within)


def admitted(client: Case) -> Case:
    """The hub has let it in."""
    hub = client.mesh.links["bank"].life_of()
    client.mesh.say("bank", "start", start(1, lives={"bank": hub}))
    client.session.take_in()
    return client


def test_the_hub_lets_each_in_alone(tmp_path: Path) -> None:
    it = case("bank", tmp_path)
    it.joins("shop", attempt=4)
    it.joins("telco")
    begun = it.session.next_start()
    assert begun is not None and begun.attempt == 5 and it.marks == [5]
    assert it.admitted == [("shop", 5), ("telco", 5)]
    wire = playing(it)
    assert wire.reaches("shop") and wire.reaches("telco")
    it.mesh.links["shop"].life += 1
    it.mesh.up("shop")
    assert not wire.reaches("shop") and it.words("telco") == ["start"]
    it.joins("shop", run=begun.run, attempt=5)
    assert not wire.reaches("shop")  # a look takes nothing in
    it.session.take_in()
    assert wire.reaches("shop")
    assert it.marks == [5, 6] and it.admitted[-1] == ("shop", 6)
    assert it.words("telco") == ["start"]
    it.joins("telco", run="00000000000000cd")
    it.session.pump(0)
    assert it.words("telco") == ["start", "trouble"] and it.marks == [5, 6]


def test_the_hub_begins_with_those_who_are_there_if_it_may(tmp_path: Path) -> None:
    it = case("bank", tmp_path, on_lost="continue", deadline=0.1)
    it.mesh.links["telco"].up = False
    it.joins("shop")
    begun = it.session.next_start()
    assert begun is not None and set(begun.lives) == {"bank", "shop"}
    assert "begins without telco, who may come later" in it.lines
    waits = case("bank", tmp_path, on_lost="wait", deadline=0.1)
    waits.mesh.links["telco"].up = False
    waits.joins("shop")
    with pytest.raises(PeerLost, match="'telco'"):
        waits.session.next_start()


def test_the_hub_needs_somebody_but_not_everybody(tmp_path: Path) -> None:
    it = case("bank", tmp_path, run=RUN, deadline=5.0)
    it.session.playing = True
    look = it.session.membership.tick
    it.mesh.links["telco"].up = False
    look(it.session, 10.0)
    it.mesh.links["shop"].up = False
    it.mesh.links["shop"].since = 6.0
    look(it.session, 10.0)
    with pytest.raises(PeerLost):
        look(it.session, 12.0)
    it.hear("telco", "done", '{"account": {}}')
    look(it.session, 12.0)


def test_a_client_waits_for_its_hub_only_where_its_role_does(tmp_path: Path) -> None:
    it = case("shop", tmp_path, run=RUN, deadline=0.1)
    wire = playing(it)
    it.mesh.links["bank"].up = False
    it.session.membership.tick(it.session, 1e6)
    it.session.post.take = lambda peer, kind: None  # type: ignore[method-assign]
    assert wire.take(wanted("bank", within=0.3)) is None
    with pytest.raises(PeerLost, match="'shop' waited for 'head' from 'bank'"):
        wire.take(wanted("bank"))


def test_a_client_that_waits_for_an_answer_to_nothing_goes_back(tmp_path: Path) -> None:
    it = admitted(case("shop", tmp_path, run=RUN))
    wire, link = playing(it), it.mesh.links["bank"]
    link.up = False
    wire.put("bank", HEAD, 1)
    wire.put("bank", HEAD, 2)
    assert it.session.refused() == {"message to 'bank', which was not there": 2}
    assert "'bank' is not there: 'head' is not sent" in it.lines
    link.up = True
    it.session.post.take = lambda peer, kind: None  # type: ignore[method-assign]
    with pytest.raises(GoBack, match="what was not sent"):
        wire.take(wanted("bank"))


def test_nobody_waits_for_a_role_that_has_ended(tmp_path: Path) -> None:
    hub, client = case("bank", tmp_path / "a"), admitted(case("shop", tmp_path / "b"))
    hub.joins("shop")
    hub.joins("telco")
    hub.session.next_start()
    for it, peer, word, content in (
        (hub, "telco", "done", '{"account": {}}'),
        (client, "bank", "end", "{}"),
    ):
        wire = playing(it)
        it.session.post.take = lambda peer, kind: None  # type: ignore[method-assign]
        assert wire.reaches(peer)
        it.hear(peer, word, content)
        assert not wire.reaches(peer)
        with pytest.raises(PeerLost, match="its role has ended"):
            wire.take(wanted(peer))


def test_trouble_of_one_is_not_the_trouble_of_others(tmp_path: Path) -> None:
    hub, client = case("bank", tmp_path), case("shop", tmp_path)

    def trouble(party: str, refused: bool = False) -> str:
        said = {"party": party, "error": "Denied", "text": "its policy", "refused": refused}
        return json.dumps(said)

    hub.hear("shop", "trouble", trouble("shop"))
    assert hub.lines == ["'shop' has stopped: Denied: its policy"]
    client.session.playing = True
    client.hear("bank", "trouble", trouble("bank"))
    client.session.playing = False
    with pytest.raises(RoleFailed, match="'bank' has stopped: Denied"):
        client.hear("bank", "trouble", trouble("bank"))
    back = case("shop", tmp_path, run=RUN)
    back.hear("bank", "trouble", trouble("bank"))
    with pytest.raises(RoleFailed, match="'bank' has stopped: Denied"):
        back.hear("bank", "trouble", trouble("bank", refused=True))


def test_a_hub_that_waits_with_a_limit_is_in_no_deadlock(tmp_path: Path) -> None:
    it = case("bank", tmp_path)
    it.session.moved = -1e9
    for name in ("shop", "telco"):
        it.hear(name, "waiting", json.dumps({"what": "'mean' from bank"}))
    it.session.wanted = wanted("shop", "telco", within=1.0)
    watch.look_for_deadlock(it.session, 0.0)
    it.session.wanted = wanted("shop", "telco")
    with pytest.raises(Deadlock, match="bank waits for 'head' from shop or telco"):
        watch.look_for_deadlock(it.session, 0.0)


def test_who_comes_after_the_end_hears_so(tmp_path: Path) -> None:
    """Nothing is lost where nothing was reached: an error says so."""
    it = case("shop", tmp_path)
    it.mesh.up("bank")
    it.mesh.say("bank", "start", start(3, ended=True))
    it.mesh.say("bank", "end", {})
    with pytest.raises(FederationError, match="has trained nothing: it came too late"):
        it.serve()
    assert "the federation has ended" in it.lines


def test_a_role_that_only_computes_hears_of_others_between_its_steps(tmp_path: Path) -> None:
    """Without a message and without a look: that it is to stop, and that its hub is back."""
    it = case("shop", tmp_path)
    session, party = it.session, _Computing()
    it.mesh.say("bank", "start", start(1, lives={"bank": it.mesh.links["bank"].life_of()}))
    begun = session.next_start()
    assert begun is not None

    async def role() -> None:
        it.mesh.say("bank", "stop_at", {"steps": 0, "why": "SIGTERM"})
        party.step()

    started: Any = party
    with session.connected():  # its end calls the alarm off that follows a stop
        assert session.play(begun, started, lambda wire: role())
    assert party.progress.stop_at == 1 and session.stop_wish == "SIGTERM"


class _Computing:
    """What a session looks at of a party, and what a step does."""

    name, position = "shop", ("train", 0, 0)
    schedule = SimpleNamespace(seed=1)
    on_step: Any = None
    checks = None

    def __init__(self) -> None:
        self.progress = SimpleNamespace(steps=0, stop_at=None, phase="train")

    def step(self) -> None:
        self.on_step()
