"""A session alone, with a mesh of its imagination: words that cross, come late, make no sense."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_mesh import MEMBERS, RUN, Case, start
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import CodecError, ColonnadeError, Denied, PeerLost, RoleFailed, Untrusted
from colonnade.net.frame import HEAD_BYTES
from colonnade.role.progress import Stopped
from colonnade.runtime import control
from colonnade.runtime.control import Done, Failure, GoBack, Halt
from colonnade.runtime.fixed import Fixed
from colonnade.runtime.playing import Playing
from colonnade.runtime.protocol import NAMES, WORDS
from colonnade.wire import Kind

KIND = Kind("gradient", (), reveals="nothing")


def case(me: str, folder: Path, **patience: Any) -> Case:
    return Case(me, folder, Fixed(), **patience)


def test_a_start_that_is_taken_back_in_the_same_breath(tmp_path: Path) -> None:
    """Both lie in the inbox when the party looks: it must not begin what nobody else begins."""
    it = case("shop", tmp_path)
    it.mesh.up("bank")
    it.mesh.say("bank", "start", start(1))
    it.mesh.say("bank", "halt", {"why": "'telco' was started again"})
    it.mesh.say("bank", "start", start(2, ended=True))
    it.mesh.say("bank", "end", {})
    it.serve()
    assert it.words("bank") == ["join", "join", "bye"]
    assert it.marks == [2]


def test_a_start_of_a_hub_that_died_in_the_same_breath(tmp_path: Path) -> None:
    it = case("shop", tmp_path)
    it.mesh.up("bank")
    it.mesh.say("bank", "start", start(1))
    it.mesh.up("bank")
    it.mesh.say("bank", "start", start(2, ended=True))
    it.mesh.say("bank", "end", {})
    it.serve()
    assert it.words("bank") == ["join", "join", "bye"]
    assert it.marks == [2]


def test_the_hub_notes_an_attempt_before_anybody_knows_of_it(tmp_path: Path) -> None:
    it = case("bank", tmp_path)
    for peer in ("shop", "telco"):
        it.joins(peer, attempt=4)
    told: list[int] = []
    shop = it.mesh.links["shop"]
    plain = shop.send
    shop.send = lambda *a, **b: (told.append(len(it.marks)), plain(*a, **b))
    begun = it.session.next_start()
    assert begun is not None and begun.attempt == 5 and told == [1]


def test_what_was_begun_is_not_forgotten_when_all_go_back(tmp_path: Path) -> None:
    """A later attempt starts from a checkpoint; steps beyond it have been opened all the same."""
    session = case("shop", tmp_path).session
    assert session.join().fresh is None
    session.run, session.post.put = "3f", lambda *given: None  # type: ignore[method-assign]
    for position, phase, fresh in [
        (("train", 1, 7), "train", ("train", 1, 8)),
        (("train", 1, 3), "train", ("train", 1, 8)),
        (("train", 1, 10), "eval", ("train", 2, 0)),
    ]:
        party: Any = SimpleNamespace(progress=SimpleNamespace(phase=phase, position=position))
        Playing(session, party).put("bank", KIND, 0)
        assert session.join().fresh == fresh


@pytest.mark.parametrize(
    ("mine", "theirs", "on_lost", "why"),
    [
        ((), ("telco",), "wait", 'only on_lost = "continue"'),
        ((), ("telco",), "stop", 'only on_lost = "continue"'),
        (("telco",), (), "continue", "'telco' was left behind"),
        ((), ("post",), "continue", "'post' is not a member"),
        ((), ("shop",), "continue", 'only on_lost = "continue"'),
        ((), ("telco",), "continue", ""),
        (("telco",), ("telco",), "wait", ""),
    ],
)
def test_who_is_left_out_is_not_the_hubs_to_say(
    mine: tuple[str, ...], theirs: tuple[str, ...], on_lost: str, why: str, tmp_path: Path
) -> None:
    it = case("shop", tmp_path, on_lost=on_lost)
    it.session.leave_out(mine)
    it.mesh.say("bank", "start", start(1, absent=theirs, ended=True))
    it.mesh.say("bank", "end", {})
    if not why:
        it.serve()
        return
    with pytest.raises(Untrusted, match=f"'bank' starts attempt 1 without .*{re.escape(why)}"):
        it.serve()


def test_a_word_that_does_not_fit_one_frame(tmp_path: Path) -> None:
    """It travels in pieces; other words may come between them."""
    sender, hub = case("shop", tmp_path / "a"), case("bank", tmp_path / "b")
    account = {"history": ["x" * 1000] * 3000}
    sender.session.tell("bank", Done(account))
    controls = sender.mesh.links["bank"].sent
    assert len(controls) > 3
    assert all(len(control.content) < HEAD_BYTES for control in controls)
    for piece in controls[:-1]:
        hub.session.hear("shop", piece)
    hub.hear("shop", "waiting", '{"what": "nothing"}')
    assert hub.session.done == {}
    hub.session.hear("shop", controls[-1])
    assert hub.session.done == {"shop": account}


def test_half_a_word_of_a_process_that_died_is_forgotten(tmp_path: Path) -> None:
    hub = case("bank", tmp_path)
    hub.hear("shop", "more of done", " " * control.WORD_BYTES)
    hub.hear("shop", "more of done", " " * control.WORD_BYTES)
    hub.mesh.up("shop")
    hub.session.take_in()
    hub.hear("shop", "done", '{"account": {}}')
    assert hub.session.done == {"shop": {}}


def test_a_word_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "WORDS_BYTES", 1000)
    monkeypatch.setattr(control, "WORD_BYTES", 100)
    hub = case("bank", tmp_path)
    with pytest.raises(CodecError, match="does not come to an end"):
        for _ in range(20):
            hub.hear("shop", "more of done", "x" * 100)


@pytest.mark.parametrize(
    ("sender", "word", "content"),
    [
        ("shop", "dance", "{}"),
        ("shop", "", "{}"),
        ("shop", "done", "[]"),
        ("shop", "done", "not JSON"),
        ("shop", "done", "[" * 100_000),
        ("shop", "done", '{"account": []}'),
        ("shop", "saved", "{}"),
        ("shop", "join", '{"life": 3}'),
        ("telco", "start", json.dumps(start(1))),  # which it may not say
        ("bank", "join", "{}"),
    ],
)
def test_words_that_make_no_sense(sender: str, word: str, content: str, tmp_path: Path) -> None:
    me = "shop" if sender == "bank" else "bank"
    with pytest.raises(CodecError):
        case(me, tmp_path).hear(sender, word, content)


JOIN = {"life": "ab", "run": "", "attempt": 0, "held": [], "finished": False, "fresh": None}
CONTENTS: dict[str, dict[str, Any]] = {  # of every word, one that makes sense
    "join": JOIN,
    "start": start(1),
    "halt": {"why": "x"},
    "saved": {"label": "train-00001-0000000"},
    "commit": {"label": "train-00001-0000000"},
    "countersign": {"seal": {}, "asks": 1, "answers": 0},
    "waiting": {"what": "x"},
    "going": {},
    "done": {"account": {}},
    "end": {},
    "bye": {},
    "stop": {"why": "x"},
    "stop_at": {"steps": 3, "why": "x"},
    "stopped": {},
    "trouble": {"party": "shop", "error": "Denied", "text": "x", "refused": False},
}


def test_every_word_has_one_type_and_one_row() -> None:
    assert CONTENTS.keys() == WORDS.keys() == set(NAMES.values())


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_heard_from_those_alone_who_may_say_it(word: str, tmp_path: Path) -> None:
    """The hub's words of a member, and a member's of the hub, are refused."""
    if WORDS[word].said_by in ("both", "any"):
        return
    from_hub = WORDS[word].said_by == "hub"
    it = case("bank" if from_hub else "shop", tmp_path)
    with pytest.raises(CodecError, match="which it may not say"):
        it.hear("telco" if from_hub else "bank", word, json.dumps(CONTENTS[word]))


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(RUN)
)
trees = st.recursive(
    scalars,
    lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=3), t, max_size=3),
    max_leaves=6,
)
KEYS = sorted({key for content in CONTENTS.values() for key in content})


@settings(max_examples=400, deadline=None)
@given(
    me=st.sampled_from(["bank", "shop"]),
    word=st.sampled_from(list(WORDS)),
    content=st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, trees)),
    mixed=st.booleans(),
)
def test_any_content_is_taken_or_refused_with_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory,
    me: str,
    word: str,
    content: dict[str, Any],
    mixed: bool,
) -> None:
    it = case(me, tmp_path_factory.getbasetemp())
    it.session.stop = lambda why: None  # type: ignore[method-assign]
    sender = "shop" if me == "bank" else "bank"
    if mixed:  # only some of it makes no sense
        content = CONTENTS[word] | content
    try:
        it.hear(sender, word, json.dumps(content))
    except (ColonnadeError, GoBack, Stopped):
        return
    for join in it.session.joins.values():
        assert isinstance(join.attempt, int) and isinstance(join.run, str)
    if it.session.start is not None:
        assert int(it.session.start.run, 16) >= 0 and isinstance(it.session.start.attempt, int)


def test_what_a_party_that_was_left_behind_says_is_not_heard(tmp_path: Path) -> None:
    it = case("shop", tmp_path)
    it.session.leave_out(["telco"], ("train", 1, 2))
    it.mesh.say("telco", "trouble", CONTENTS["trouble"])
    it.session.pump(0)
    assert "telco" in it.mesh.barred


def test_a_peer_that_takes_nothing_in_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    it = case("shop", tmp_path)
    it.mesh.links["telco"].full = 3601.0
    with pytest.raises(PeerLost, match=r"'telco'.*took in nothing for 3601 s"):
        it.session.pump(0)


def test_an_error_that_is_passed_on_stays_that_of_the_party_it_came_from(tmp_path: Path) -> None:
    """By its fields: a text that looks like it changes nothing."""
    own = Denied("'telco' has stopped: says its policy")
    assert Failure.of(own, "shop") == Failure("shop", "Denied", str(own))
    failure = Failure("shop", "Denied", "its policy").as_error()
    assert str(failure) == "'shop' has stopped: Denied: its policy"
    assert Failure.of(failure, "bank") == Failure("shop", "Denied", "its policy")
    for me, passed_on in [("bank", True), ("telco", False)]:
        it = case(me, tmp_path)
        with pytest.raises(RoleFailed), it.session.connected():
            raise failure
        told = [json.loads(one.content) for link in it.mesh.links.values() for one in link.sent]
        assert bool(told) == passed_on and all(one["party"] == "shop" for one in told)


def test_only_the_hub_speaks_for_others(tmp_path: Path) -> None:
    trouble = CONTENTS["trouble"] | {"party": "shop"}
    with pytest.raises(RoleFailed, match="'telco' has stopped") as caught:
        case("bank", tmp_path).hear("telco", "trouble", json.dumps(trouble))
    assert caught.value.party == "telco" and caught.value.error == "Denied"


def test_to_look_at_a_peer_takes_no_event_in(tmp_path: Path) -> None:
    it = case("shop", tmp_path)
    it.mesh.up("bank")
    party: Any = None
    assert Playing(it.session, party).reaches("bank") and it.mesh.inbox.qsize() == 1


def test_members_and_halts(tmp_path: Path) -> None:
    it = case("bank", tmp_path)
    for peer in MEMBERS[1:]:
        it.joins(peer)
    assert it.session.next_start() is not None
    with pytest.raises(GoBack, match="'shop' joined again"):
        it.joins("shop")
        it.session.pump(0)
    assert it.words("telco")[-1] == NAMES[Halt]
