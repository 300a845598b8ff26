"""A member can stop a run with its words, but not steer it: whoever says what it may not say is
named, and nobody else."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_mesh import RUN, Case, start
from nursery import Nursery

import colonnade
from colonnade.deploy.supervisor import Options
from colonnade.errors import CodecError, ColonnadeError, PeerLost, RoleFailed
from colonnade.runtime.choice import MOST_ATTEMPTS
from colonnade.runtime.control import GoBack, Join
from colonnade.runtime.elastic import Elastic
from colonnade.runtime.fixed import Fixed
from colonnade.runtime.playing import Playing
from colonnade.runtime.protocol import WORDS
from colonnade.wire import Kind, Peer, Recv

JOIN = asdict(Join("life 1 of shop", "", 0, (), False))
CONTENTS: dict[str, dict[str, Any]] = {
    "join": JOIN,
    "start": start(1),
    "halt": {"why": "x"},
    "saved": {"label": "train-00001-0000000"},
    "commit": {"label": "train-00001-0000000"},
    "waiting": {"what": "x"},
    "done": {"account": {}},
    "stop": {"why": "x"},
    "stop_at": {"steps": 3, "why": "x"},
    "trouble": {"party": "bank", "error": "Denied", "text": "x", "refused": False},
    "going": {},
    "end": {},
    "bye": {},
    "stopped": {},
    "unknown": {},
}


def begin(it: Case, seconds: float = 3.0) -> Any:
    """The next start; an AssertionError if none comes and nothing is refused."""
    until, plain = time.monotonic() + seconds, it.session.pump

    def pump(left: float) -> None:
        assert time.monotonic() < until, "it waits for ever"
        plain(left)

    it.session.pump = pump  # type: ignore[method-assign]
    return it.session.next_start()


def test_every_word_between_the_hub_and_a_member_is_tried() -> None:
    between = {name for name, word in WORDS.items() if word.said_by != "any"}
    assert between <= CONTENTS.keys()


@pytest.mark.parametrize("word", CONTENTS)
def test_a_word_to_a_fellow_changes_nothing_there_and_its_sender_is_barred(
    word: str, tmp_path: Path
) -> None:
    """A passive party says every word of the protocol to another passive party, in the middle of a
    run. The other one must neither do anything, nor fail (the hub would then accuse it)."""
    it = Case("telco", tmp_path, Fixed())
    it.mesh.say("bank", "start", start(1, lives={"shop": "life 1 of shop"}))
    assert begin(it) is not None
    said = {peer: it.words(peer) for peer in it.mesh.links}
    stops: list[str] = []
    it.session.stop = stops.append  # type: ignore[method-assign]
    try:
        it.hear("shop", word, json.dumps(CONTENTS[word]))
        it.session.pump(0)
    except (ColonnadeError, GoBack) as error:
        raise AssertionError(f"{type(error).__name__} at an innocent party: {error}") from None
    session = it.session
    assert {peer: it.words(peer) for peer in it.mesh.links} == said
    assert not (session.joins or session.done or session.saved or session.byes or session.waits)
    assert session.start is not None and session.accounts is None and not stops
    assert set(it.mesh.barred) == {"shop"} and f"'{word}'" in it.mesh.barred["shop"]


@pytest.mark.slow
def test_a_run_that_is_stopped_by_a_word_names_the_liar(nursery: Nursery, tmp_path: Path) -> None:
    """Real processes: one passive party joins the other instead of the hub. The other one shuts it
    out; the hub hears of no fault but the liar's."""
    tree = {
        "method": "splitnn",
        "seed": 3,
        "epochs": 40,
        "batch_size": 20,
        "model_options": {"hidden": [16]},
        "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
        "partition": {"kind": "columns", "parties": 3},
        "absence": False,
        "splitnn": {"dim": 8},
    }
    plan = json.dumps({"folder": os.fspath(tmp_path), "party3": ["join_a_fellow"]})
    disruptor = os.fspath(Path(__file__).with_name("disruptor.py"))
    program = (*nursery.program(Path("x"))[:-2], disruptor, plan)
    options = Options(restarts=0, program=program)
    with pytest.raises(RoleFailed) as stopped:
        colonnade.run(tree, out=tmp_path / "run", runtime="process", processes=options)
    said = str(stopped.value)
    assert "'party3' said 'join' to 'party2', which it may not say" in " ".join(said.split())
    assert "'party2' has stopped" not in said and "'party1' has stopped" not in said
    log = (tmp_path / "run" / "parties" / "party2" / "log.txt").read_text()
    assert "no connection with 'party3' any more" in log


def test_who_was_barred_is_not_waited_for(tmp_path: Path) -> None:
    """A role that needs the liar's message ends at once, and its error says who lied."""
    it = Case("telco", tmp_path, Fixed())
    it.session.post.take = lambda peer, kind: None  # type: ignore[method-assign]
    wire: Any = None
    wanted = Recv((Peer("shop", wire),), Kind("x", ("dim",), reveals="nothing"), any=False)
    it.hear("shop", "join", json.dumps(JOIN))
    party: Any = None
    with pytest.raises(PeerLost, match="'shop' said 'join' to 'telco', which it may not say"):
        Playing(it.session, party).take(wanted)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"attempt": 2**32 - 1}, "attempt 4294967295"),
        ({"attempt": 2**62}, "join"),
        ({"attempt": -1}, "join"),
        ({"attempt": 5000, "run": RUN}, "attempt 5000"),
        ({"run": "../../elsewhere"}, "join"),
        ({"run": "zz"}, "join"),
        ({"life": "of somebody else"}, "another process"),
        ({"fresh": ["train", -1, 0]}, "join"),
        ({"fresh": ["train", 2**41, 0]}, "join"),
        ({"held": ["../../x"]}, "join"),
        ({"finished": "no"}, "join"),
    ],
)
def test_an_implausible_join_is_refused_and_never_stored(
    lie: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """A member says at its join what no honest process can say. The hub stops and names it, and
    nobody has written anything down: with honest members the same run goes on."""
    it = Case("bank", tmp_path, Fixed(), run=RUN if "run" in lie else "")
    it.mesh.say("shop", "join", JOIN | lie)
    it.joins("telco")
    try:
        begin(it)
    except CodecError as refusal:
        assert "'shop'" in str(refusal) and "'telco'" not in str(refusal) and why in str(refusal)
    except (ValueError, TypeError) as error:
        raise AssertionError(f"no typed refusal: {error!r}") from None
    else:
        raise AssertionError(f"the join was taken, and attempt {it.marks} stored")
    assert it.marks == [] and it.words("telco") == []
    again = Case("bank", tmp_path, Fixed())
    again.joins("shop")
    again.joins("telco")
    begun = begin(again)
    assert begun is not None and again.marks == [1]


def test_one_member_cannot_choose_the_name_of_a_run(tmp_path: Path) -> None:
    """A hub that has no folder takes a run's name from the others only if they all bring it."""
    it = Case("bank", tmp_path, Fixed())
    it.joins("shop", run=RUN)
    it.joins("telco")
    with pytest.raises(ColonnadeError, match="'shop' brings a folder of run") as refusal:
        raise AssertionError(f"the run is called {begin(it)}")
    assert "'telco'" not in str(refusal.value)


@pytest.mark.parametrize("attempt", [2**32 - 1, 2**40, 1, 0])
def test_a_start_that_no_honest_hub_gives_is_not_stored(attempt: int, tmp_path: Path) -> None:
    """The hub lies: an attempt that no later one can follow, or one that has been."""
    it = Case("shop", tmp_path, Fixed(), run=RUN)
    it.session.attempt = 1
    it.mesh.say("bank", "start", start(attempt))
    try:
        begin(it)
    except CodecError as refusal:
        assert "'bank'" in str(refusal)
    else:
        raise AssertionError(f"stored: {it.marks}")
    assert it.marks == []


def test_questions_whose_answers_nobody_takes_in_exhaust_no_stack(tmp_path: Path) -> None:
    """A member asks again and again and takes in no answer. The hub waits for room, and takes in
    what comes meanwhile: questions again, whose answers wait inside the wait, until the stack is
    exhausted at an innocent party's word."""
    it = Case("bank", tmp_path, Fixed())
    it.session.ended, link = True, it.mesh.links["shop"]
    until = time.monotonic() + 0.5

    def send(wait: Any, body: Any, tail: Any = ()) -> None:
        while time.monotonic() < until:
            wait()
        link.sent.append(body)

    link.send = send
    for _ in range(300):
        it.joins("shop")
        it.mesh.say("telco", "going", {})
    try:
        while len(link.sent) < 600:  # two words to each
            it.session.pump(0)
            assert time.monotonic() < until + 5
    except (RecursionError, CodecError) as error:
        raise AssertionError(f"the hub breaks down: {error}") from None


@pytest.mark.parametrize("ahead", [0, 1000])
def test_nobody_uses_up_the_attempts_of_a_run(ahead: int, tmp_path: Path) -> None:
    """A member of an elastic run joins again and again, each time a thousand attempts ahead of the
    hub. Were they all stored, every honest member would refuse the hub's next start as absurd."""
    it = Case("bank", tmp_path, Elastic())
    for name in ("shop", "telco"):
        it.joins(name)
    assert begin(it) is not None
    joined = 0
    try:
        while it.session.attempt <= MOST_ATTEMPTS and joined < 20_000:
            join = Join("life 1 of shop", it.session.run, it.session.attempt + ahead, (), False)
            it.hear("shop", "join", json.dumps(asdict(join)))
            joined += 1
    except CodecError as refusal:
        assert "'shop'" in str(refusal) and it.session.attempt < MOST_ATTEMPTS // 2
        return
    raise AssertionError(f"attempt {it.session.attempt} after {joined} words")


def test_checkpoints_that_others_never_write_fill_no_memory(tmp_path: Path) -> None:
    """A member has always written another checkpoint, of ever new names."""
    it = Case("bank", tmp_path, Fixed())
    try:
        for number in range(70_000):
            it.hear("shop", "saved", f'{{"label": "train-{number}"}}')
    except CodecError as refusal:
        assert "'shop'" in str(refusal)
        it.hear("telco", "saved", '{"label": "train-1-0"}')  # and nobody else is meant
        return
    raise AssertionError(f"{len(it.session.saved)} names are kept")
