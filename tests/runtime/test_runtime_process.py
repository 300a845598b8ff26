"""A session alone, with a mesh of its imagination: words that cross, come late, make no sense."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import CodecError, ColonnadeError, PeerLost
from colonnade.net.frame import HEAD_BYTES, Control
from colonnade.net.link import Arrived, Up
from colonnade.role.progress import Stopped
from colonnade.runtime import session as process
from colonnade.runtime.checkpoint import OwnCheckpoints
from colonnade.runtime.session import Patience, Session, Start, Work, _GoBack

MEMBERS = ("bank", "shop", "telco")
RUN = "00000000000000ab"


class FakeLink:
    """Remembers what was said to its peer."""

    def __init__(self, peer: str) -> None:
        self.peer, self.life, self.up, self.since, self.trouble = peer, 1, True, 0.0, ""
        self.sent: list[Any] = []
        self.full = 0.0

    def send(self, wait: Any, body: Any, tail: Any = ()) -> None:
        self.sent.append(body)

    def words(self) -> list[str]:
        return [control.word for control in self.sent]

    def life_of(self) -> str:
        return f"life {self.life} of {self.peer}"

    def took(self, event: Any) -> None: ...

    def stuck(self, now: float) -> float:
        return self.full


class FakeMesh:
    def __init__(self, me: str) -> None:
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.links = {peer: FakeLink(peer) for peer in MEMBERS if peer != me}
        self.incarnation, self.barred = b"me", dict[str, str]()

    def start(self) -> None: ...
    def close(self, seconds: float) -> None: ...
    def expect_end(self) -> None: ...

    def refused(self) -> dict[str, int]:
        return {}

    def up(self, peer: str, anew: bool = True) -> None:
        self.inbox.put(Up(self.links[peer], anew))  # type: ignore[arg-type]

    def say(self, peer: str, word: str, content: Any) -> None:
        control = Control(word, json.dumps(content))
        link: Any = self.links[peer]
        self.inbox.put(Arrived(link, link.life, 1, 1, control, memoryview(b"")))


class Case:
    """A session, its mesh, and which attempts it has noted."""

    def __init__(self, me: str, folder: Path) -> None:
        self.mesh, self.marks = FakeMesh(me), list[int]()
        work = Work(
            party=lambda start: pytest.fail("no role begins here"),
            role=lambda *_: pytest.fail("no role begins here"),
            mark=lambda start: self.marks.append(start.attempt),
            account=lambda party: {},
            conclude=lambda accounts, absent: None,
            may_lose=lambda absent: "",
            told={"classes": []},
            log=lambda text: None,
        )
        post: Any = SimpleNamespace(refused={}, waiting=lambda: 0)
        mesh: Any = self.mesh
        checkpoints = OwnCheckpoints(folder / "checkpoints", lambda: None)
        self.session = Session(me, MEMBERS, "bank", mesh, post, checkpoints, Patience(), work)


def start(attempt: int, **more: Any) -> dict[str, Any]:
    return asdict(Start(RUN, attempt, None, **more))


def test_a_start_that_is_taken_back_in_the_same_breath(tmp_path: Path) -> None:
    """Both lie in the inbox when the party looks: it must not begin what nobody else begins."""
    case = Case("shop", tmp_path)
    case.mesh.up("bank")
    case.mesh.say("bank", "start", start(1))
    case.mesh.say("bank", "halt", {"why": "'telco' was started anew"})
    case.mesh.say("bank", "start", start(2, ended=True))
    case.mesh.say("bank", "end", {})
    case.session.serve()
    assert case.mesh.links["bank"].words() == ["join", "join", "bye"]
    assert case.marks == [2]


def test_a_start_of_a_hub_that_died_in_the_same_breath(tmp_path: Path) -> None:
    case = Case("shop", tmp_path)
    case.mesh.up("bank")
    case.mesh.say("bank", "start", start(1))
    case.mesh.up("bank")
    case.mesh.say("bank", "start", start(2, ended=True))
    case.mesh.say("bank", "end", {})
    case.session.serve()
    assert case.mesh.links["bank"].words() == ["join", "join", "bye"]
    assert case.marks == [2]


def test_the_hub_notes_an_attempt_before_anybody_knows_of_it(tmp_path: Path) -> None:
    case = Case("bank", tmp_path)
    shop, telco = case.mesh.links["shop"], case.mesh.links["telco"]
    for link in (shop, telco):
        join = asdict(process.Join(link.life_of(), "", 4, (), False))
        case.mesh.say(link.peer, "join", join)
    told: list[int] = []
    plain = shop.send
    shop.send = lambda *a, **b: (told.append(len(case.marks)), plain(*a, **b))  # type: ignore[method-assign,assignment,func-returns-value]
    begun = case.session._gather()
    assert begun.attempt == 5 and told == [1]


def at(position: tuple[str, int, int], phase: str) -> Any:
    """A party in the middle of its run."""
    return SimpleNamespace(position=position, progress=SimpleNamespace(phase=phase))


def test_what_was_begun_is_not_forgotten_when_all_go_back(tmp_path: Path) -> None:
    """A later attempt starts from a checkpoint; steps beyond it have been opened all the same."""
    session = Case("shop", tmp_path).session
    assert session._join().fresh is None
    session._party = at(("train", 1, 7), "train")
    assert session._join().fresh == ("train", 1, 8)
    session._party = at(("train", 1, 3), "train")
    assert session._join().fresh == ("train", 1, 8)
    session._party = at(("train", 1, 10), "eval")
    assert session._join().fresh == ("train", 2, 0)


def test_a_word_that_does_not_fit_one_frame(tmp_path: Path) -> None:
    """It travels in pieces; other words may come between them."""
    sender, hub = Case("shop", tmp_path / "a"), Case("bank", tmp_path / "b")
    account = {"history": ["x" * 1000] * 3000}
    sender.session._tell("bank", "done", account)
    controls = sender.mesh.links["bank"].sent
    assert len(controls) > 3
    assert all(len(control.content) < HEAD_BYTES for control in controls)
    for control in controls[:-1]:
        hub.session._hear("shop", control)
    hub.session._hear("shop", Control("waiting", '{"for": "nothing"}'))
    assert hub.session._done == {}
    hub.session._hear("shop", controls[-1])
    assert hub.session._done == {"shop": account}


def test_half_a_word_of_a_process_that_died_is_forgotten(tmp_path: Path) -> None:
    hub = Case("bank", tmp_path).session
    hub._hear("shop", Control("more of done", '{"history": ['))
    link: Any = hub.mesh.links["shop"]
    hub._came_up(link, anew=True)
    hub._hear("shop", Control("done", "{}"))
    assert hub._done == {"shop": {}}


def test_a_word_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WORDS_BYTES", 1000)
    hub = Case("bank", tmp_path).session
    with pytest.raises(CodecError, match="does not come to an end"):
        for _ in range(20):
            hub._hear("shop", Control("more of done", "x" * 100))


@pytest.mark.parametrize(
    ("sender", "word", "content"),
    [
        ("shop", "dance", "{}"),
        ("shop", "", "{}"),
        ("shop", "done", "[]"),
        ("shop", "done", "not JSON"),
        ("shop", "done", "[" * 100_000),
        ("shop", "saved", "{}"),
        ("shop", "join", '{"life": 3}'),
        ("telco", "start", json.dumps(start(1))),  # not its to say
        ("bank", "join", "{}"),
    ],
)
def test_words_that_make_no_sense(sender: str, word: str, content: str, tmp_path: Path) -> None:
    me = "shop" if sender == "bank" else "bank"
    with pytest.raises(CodecError):
        Case(me, tmp_path).session._hear(sender, Control(word, content))


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(RUN)
)
trees = st.recursive(
    scalars,
    lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=3), t, max_size=3),
    max_leaves=6,
)
KEYS = (
    *("run", "attempt", "label", "absent", "skip", "lives", "told", "ended", "why", "steps"),
    *("life", "held", "finished", "fresh", "for", "error", "text"),
)
WORDS = (
    *("start", "halt", "commit", "end", "join", "saved", "done", "bye"),
    *("waiting", "going", "stopped", "trouble"),
)


@settings(max_examples=400, deadline=None)
@given(
    me=st.sampled_from(["bank", "shop"]),
    word=st.sampled_from(WORDS),
    content=st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, trees)),
)
def test_any_content_is_taken_or_refused_with_a_typed_error(
    me: str, word: str, content: dict[str, Any]
) -> None:
    session = Case(me, Path("nowhere")).session
    session.stop = lambda why: None  # type: ignore[method-assign]
    sender = "shop" if me == "bank" else "bank"
    try:
        session._hear(sender, Control(word, json.dumps(content)))
    except (ColonnadeError, _GoBack, Stopped):
        return
    for join in session._joins.values():
        assert isinstance(join.attempt, int) and isinstance(join.run, str)
    if session._start is not None:
        assert int(session._start.run, 16) >= 0 and isinstance(session._start.attempt, int)


def test_what_a_party_that_was_left_behind_says_is_not_heard(tmp_path: Path) -> None:
    case = Case("shop", tmp_path)
    case.session.leave_out(["telco"], ("train", 1, 2))
    case.mesh.say("telco", "trouble", {"error": "Refused", "text": "it may not come back"})
    case.session._pump(0)
    assert "telco" in case.mesh.barred


def test_a_peer_that_takes_nothing_in_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    case = Case("shop", tmp_path)
    case.mesh.links["telco"].full = 3601.0
    with pytest.raises(PeerLost, match=r"'telco'.*took in nothing for 3601 s"):
        case.session._no_room()
