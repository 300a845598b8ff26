"""No member makes the others wait for ever: whoever is connected and does not join, start, end or
say goodbye is named in time."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_mesh import MEMBERS, RUN, Case, start

from colonnade.errors import PeerLost
from colonnade.net.frame import Part
from colonnade.net.link import Arrived
from colonnade.role.checks import Checks
from colonnade.role.progress import Progress
from colonnade.role.recipe import Schedule
from colonnade.runtime import watch
from colonnade.runtime.elastic import Elastic
from colonnade.runtime.fixed import Fixed
from colonnade.runtime.playing import Playing
from colonnade.runtime.post import Post
from colonnade.wire import Kind, Ledger, Peer, codec

LIVES = {"shop": "life 1 of shop", "telco": "life 1 of telco"}
PATIENT = {"deadline": 0.4, "silence": 0.8}
LATEST = 4.0  # all of it, and slow machines


@pytest.fixture(autouse=True)
def a_short_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WORK_TIMES", 1)


def hurry(it: Case) -> Case:
    """An AssertionError where a wait has no end."""
    until, plain = time.monotonic() + LATEST, it.session.pump

    def pump(left: float) -> None:
        assert time.monotonic() < until, "it waits for ever"
        plain(min(left, 0.02))

    it.session.pump = pump  # type: ignore[method-assign]
    return it


def lost(wait: Callable[[], Any], peer: str, what: str) -> None:
    with pytest.raises(PeerLost, match=f"'{peer}'") as error:
        wait()
    others = {"bank", "shop", "telco"} - {peer}
    said = str(error.value)
    assert what in said
    assert sum(f"'{other}'" in said for other in others) == 1  # whoever waited


def test_a_member_that_never_joins(tmp_path: Path) -> None:
    it = hurry(Case("bank", tmp_path, Fixed(), **PATIENT))
    it.mesh.up("shop")
    it.mesh.up("telco")
    it.joins("telco")
    lost(it.session.next_start, "shop", "join")


def test_a_member_that_does_not_join_again(tmp_path: Path) -> None:
    """Its process has joined before, and may first have to end its step: but not for ever."""
    it = hurry(Case("bank", tmp_path, Fixed(), **PATIENT))
    for peer in ("shop", "telco"):
        it.mesh.up(peer)
        it.joins(peer)
    assert it.session.next_start() is not None
    it.session.joins = {}
    it.joins("telco")
    it.session.playing = False
    lost(it.session.next_start, "shop", "join")


def test_a_hub_that_never_starts(tmp_path: Path) -> None:
    it = hurry(Case("shop", tmp_path, Fixed(), **PATIENT))
    it.mesh.up("bank")
    lost(it.session.next_start, "bank", "start")


def test_a_fellow_that_never_connects(tmp_path: Path) -> None:
    """The hub says that its process is there, and the link between the two does not."""
    it = hurry(Case("shop", tmp_path, Fixed(), **PATIENT))
    it.mesh.up("bank")
    it.mesh.links["telco"].life = 7
    it.mesh.say("bank", "start", start(1, lives=LIVES))
    lost(it.session.next_start, "telco", "connect")


def ended(me: str, folder: Path, membership: Any) -> Case:
    """A session whose own role has ended."""
    it = hurry(Case(me, folder, membership, run=RUN, **PATIENT))
    it.session.own_account = {}
    nothing = lambda *_, **__: None  # noqa: E731
    it.session.sealing = SimpleNamespace(settle=nothing, tick=nothing)  # type: ignore[assignment]
    it.session.attempt, it.session.playing = 1, True
    return it


def test_a_member_that_is_never_done(tmp_path: Path) -> None:
    it = ended("bank", tmp_path, Fixed())
    it.mesh.say("telco", "done", {"account": {}})
    lost(lambda: it.session.membership.finish(it.session), "shop", "done")


def test_a_hub_that_never_ends(tmp_path: Path) -> None:
    it = ended("shop", tmp_path, Fixed())
    lost(lambda: it.session.membership.finish(it.session), "bank", "end")


def test_whoever_works_on_is_waited_for(tmp_path: Path) -> None:
    """A member that writes checkpoints is at work, however long it takes."""
    it = ended("bank", tmp_path, Fixed())
    it.mesh.say("telco", "done", {"account": {}})
    plain, began = it.session.pump, time.monotonic()
    saved: list[float] = []

    def pump(left: float) -> None:
        now = time.monotonic() - began
        if now > 0.3 * (len(saved) + 1):
            saved.append(now)
            word = "done" if len(saved) > 6 else "saved"
            content = {"account": {}} if len(saved) > 6 else {"label": f"train-{len(saved)}"}
            it.mesh.say("shop", word, content)
        plain(left)

    it.session.pump = pump  # type: ignore[method-assign]
    it.session.membership.finish(it.session)
    assert it.session.accounts is not None and time.monotonic() - began > PATIENT["silence"]


@pytest.mark.parametrize("me", ["bank", "shop"])
def test_an_elastic_run_ends_without_the_mute(me: str, tmp_path: Path) -> None:
    it = ended(me, tmp_path, Elastic())
    it.mesh.say("telco", "done", {"account": {}})
    it.session.membership.finish(it.session)
    assert any("'shop' was away" in note for note in it.session.remarks) == (me == "bank")


KIND = Kind("embedding", ("batch", "dim"), reveals="noise")


class Feed:
    """What a peer sends: parts of an attempt that has begun."""

    def __init__(self, case: Case, sender: str) -> None:
        self.case, self.sender, self.data = case, sender, codec.encode(torch.zeros(2, 2))

    def part(self, sequence: int, attempt: int = 1) -> None:
        sha256 = hashlib.sha256(self.data).digest()
        place = ("train", 0, 0, 0, len(self.data), sha256)
        part = Part(int(RUN, 16), attempt, self.sender, "bank", KIND.name, sequence, *place)
        link: Any = self.case.mesh.links[self.sender]
        event = Arrived(link, link.life, 1, 1, part, memoryview(self.data))
        self.case.mesh.inbox.put(event)


def waiting(folder: Path) -> tuple[Case, Callable[[], Any]]:
    """The hub's role waits for messages of 'shop', in the first step of a training."""
    it = hurry(Case("bank", folder, Fixed(), run=RUN, **PATIENT))
    session = it.session
    session.post = Post("bank", frozenset(MEMBERS), {KIND.name: KIND}, Ledger(None), None, it)  # type: ignore[arg-type]
    session.post.begin(int(RUN, 16), 1)
    session.attempt, session.playing = 1, True
    progress = Progress(Schedule(1, 1, 1), torch.device("cpu"), labelled=False)
    party: Any = SimpleNamespace(progress=progress, checks=Checks("bank", None, progress))
    party.device, party.at_hand, session.party = torch.device("cpu"), None, party
    session.moved = time.monotonic()
    playing, shop = Playing(session, party), Peer("shop", SimpleNamespace())  # type: ignore[arg-type]
    return it, lambda: playing.take(shop.recv(KIND))


@pytest.mark.parametrize("attempt", [1, 0], ids=["the same message", "an older attempt"])
def test_repeating_a_message_is_not_saying_anything(attempt: int, tmp_path: Path) -> None:
    """What was there already is dropped, and does not put off the end of the wait for what comes
    next."""
    it, take = waiting(tmp_path)
    feed, plain = Feed(it, "shop"), it.session.pump
    feed.part(0)
    assert take() is not None

    def pump(left: float) -> None:
        feed.part(0, attempt)
        plain(left)

    it.session.pump = pump  # type: ignore[method-assign]
    lost(take, "shop", "nothing came")


def test_repeating_a_message_is_no_sign_of_work(tmp_path: Path) -> None:
    """The same where all roles but that of the liar have ended."""
    it, take = waiting(tmp_path)
    feed, plain = Feed(it, "shop"), it.session.pump
    feed.part(0)
    assert take() is not None
    it.session.own_account = {}
    nothing = lambda *_, **__: None  # noqa: E731
    it.session.sealing = SimpleNamespace(settle=nothing, tick=nothing)  # type: ignore[assignment]
    it.mesh.say("telco", "done", {"account": {}})

    def pump(left: float) -> None:
        feed.part(0)
        plain(left)

    it.session.pump = pump  # type: ignore[method-assign]
    lost(lambda: it.session.membership.finish(it.session), "shop", "done")


def test_whoever_sends_what_is_due_is_waited_for(tmp_path: Path) -> None:
    """Longer than the longest silence, of which there is none."""
    it, take = waiting(tmp_path)
    feed, began = Feed(it, "shop"), time.monotonic()
    for sequence in range(6):
        time.sleep(0.2)
        feed.part(sequence)
        assert take() is not None
    assert time.monotonic() - began > PATIENT["silence"]


@pytest.mark.parametrize("says", [True, False])
def test_a_member_that_never_says_goodbye(says: bool, tmp_path: Path) -> None:
    """All results are written; the hub does not wait for ever for one that stays silent, nor long
    for those that do say it."""
    accounts: dict[str, Any] = {"bank": {}, "shop": {}, "telco": {}}
    it = Case("bank", tmp_path, Fixed(), run=RUN, **PATIENT)
    it.session.accounts = accounts
    it.mesh.say("telco", "bye", {})
    if says:
        it.mesh.say("shop", "bye", {})
    began = time.monotonic()
    it.session.leave()
    took = time.monotonic() - began
    assert took < 0.3 if says else PATIENT["deadline"] <= took < PATIENT["deadline"] + 1
    assert it.words("shop") == ["end"]


def test_a_hub_that_was_killed_at_its_last_word_does_not_wait_long(tmp_path: Path) -> None:
    """All others have left. Started again, it has nothing to do but to tell whoever is still there,
    and must be done in time for a rejoin of ten seconds in all."""
    accounts: dict[str, Any] = {"bank": {}, "shop": {}, "telco": {}}
    it = Case("bank", tmp_path, Fixed(), run=RUN, accounts=accounts)
    began = time.monotonic()
    it.session.leave()
    assert 2 < time.monotonic() - began < 6
