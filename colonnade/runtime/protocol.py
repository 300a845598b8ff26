"""The control protocol: who may say which word, what it carries, and what is done about it.

One process is the hub: the label holder's, or that of a server. All others talk with it:

    join    I am here; these checkpoints I hold        →   start   all begin, from this common one
    saved   I have written this checkpoint             →   commit  all have: drop what is older
    done    my role has ended; my account              →   end     all have
    bye     my results are on disk

Any two that have exchanged messages countersign each other's ledgers (sealing.py).

The table below is all there is. Whoever says anything else is named: a hub stops the run for it,
and so does a member if it was the hub; a fellow member is barred, and the run goes on. What depends
on whether parties may come and go is the membership's to do: fixed.py and elastic.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from colonnade.errors import FederationError
from colonnade.runtime.choice import MOST_ATTEMPTS, implausible
from colonnade.runtime.control import (
    NONSENSE,
    Bye,
    Commit,
    Countersign,
    Done,
    End,
    Failure,
    GoBack,
    Going,
    Halt,
    Join,
    Quit,
    Saved,
    Start,
    Stop,
    StopAt,
    Waiting,
    parsed,
    read,
)

if TYPE_CHECKING:
    from colonnade.runtime.session import Session

MOST_SAVED = 1 << 16  # checkpoints that some have written, and others not yet
# The hub to any member; any member to the hub; both of these; anybody to anybody.
Speaker = Literal["hub", "member", "both", "any"]
Handler = Callable[["Session", str, Any], None]  # who hears it, who has said it, what


@dataclass(frozen=True)
class Word:
    """One word of the protocol."""

    said_by: Speaker
    content: type
    handler: Handler


# ---- what is done about each ---------------------------------------------------------------------


def _joined(session: Session, sender: str, join: Join) -> None:
    session.newcomers.pop(sender, None)
    session.joined[sender] += 1
    life, times = session.mesh.links[sender].life_of(), session.joined[sender]
    started = sender in session.told_start
    if why := implausible(join, session.run, session.attempt, life, times, started):
        session.refuse(sender, f"'{sender}' sent a join that cannot be: {why}")
    elif session.ended:
        session.tell_of_the_end(sender)
    else:
        session.membership.joined(session, sender, join)


def _started(session: Session, sender: str, start: Start) -> None:
    if start.run != session.run and session.run:
        text = f"'{sender}' starts run {start.run}; here it is {session.run}"
        raise FederationError([text])
    last = session.attempt
    if not start.ended and not last < start.attempt <= MOST_ATTEMPTS:
        text = f"'{sender}' starts attempt {start.attempt}, after attempt {last}"
        session.refuse(sender, f"{text}: no hub that keeps to the protocol does that")
        return
    session.start = start
    session.membership.started(session, sender, start)


def _halted(session: Session, sender: str, halt: Halt) -> None:
    if session.start is not None:  # also one that has come together with this word
        raise GoBack(halt.why)


def _saved(session: Session, sender: str, saved: Saved) -> None:
    """The hub counts: a checkpoint that all have written is one to go back to."""
    here = session.saved.setdefault(saved.label, set())
    here.add(sender)
    if len(session.saved) > MOST_SAVED and sender != session.me:
        own = sum(sender in names for names in session.saved.values())
        if own > MOST_SAVED // 2:
            text = f"'{sender}' has written {own} checkpoints that others have not"
            session.refuse(sender, f"{text}: no process that keeps to the protocol does that")
            return
    if here.issuperset(name for name in session.present if name not in session.done):
        del session.saved[saved.label]
        session.tell_all(Commit(saved.label))
        session.checkpoints.commit(saved.label)


def _committed(session: Session, sender: str, commit: Commit) -> None:
    session.checkpoints.commit(commit.label)


def _countersigned(session: Session, sender: str, word: Countersign) -> None:
    session.sealing.heard(session, sender, word)


def _waits(session: Session, sender: str, waiting: Waiting) -> None:
    session.waits[sender] = waiting.what


def _goes_on(session: Session, sender: str, going: Going) -> None:
    session.waits.pop(sender, None)


def _done(session: Session, sender: str, done: Done) -> None:
    session.done[sender] = session.keeper.check_account(sender, done.account)
    session.roles_over.add(sender)


def _ended(session: Session, sender: str, end: End) -> None:
    session.accounts = {}  # those of the others are the hub's to know
    session.roles_over.add(sender)
    if session.playing and session.own_account is None:
        session.log(f"the role of '{sender}' has ended: going on alone")


def _left(session: Session, sender: str, bye: Bye) -> None:
    session.byes.add(sender)


def _stop_wished(session: Session, sender: str, stop: Stop) -> None:
    session.stop(stop.why)


def _stopping(session: Session, sender: str, stop: StopAt) -> None:
    session.stop_told = True
    session.stop(stop.why)
    session.membership.told_to_stop(session, stop.steps)


def _hub_stopped(session: Session, sender: str, quit_: Quit) -> None:
    if not session.stop_wish:
        session.stop(f"'{sender}' has stopped")


def _failed(session: Session, sender: str, failure: Failure) -> None:
    if session.is_hub:  # only the hub passes on what others say
        failure = replace(failure, party=sender)
    session.membership.failed(session, sender, failure)


WORDS: dict[str, Word] = {
    # name          said by    carries   what a session does about it
    "join": Word("member", Join, _joined),
    "start": Word("hub", Start, _started),
    "halt": Word("hub", Halt, _halted),
    "saved": Word("member", Saved, _saved),
    "commit": Word("hub", Commit, _committed),
    "countersign": Word("any", Countersign, _countersigned),
    "waiting": Word("member", Waiting, _waits),
    "going": Word("member", Going, _goes_on),
    "done": Word("member", Done, _done),
    "end": Word("hub", End, _ended),
    "bye": Word("member", Bye, _left),
    "stop": Word("member", Stop, _stop_wished),
    "stop_at": Word("hub", StopAt, _stopping),
    "stopped": Word("hub", Quit, _hub_stopped),
    "trouble": Word("both", Failure, _failed),
}
NAMES = {word.content: name for name, word in WORDS.items()}


def hear(session: Session, sender: str, name: str, text: str) -> None:
    """A whole word of another party's process: check it, then do what it asks for."""
    word = WORDS.get(name)
    try:
        if word is None:
            raise KeyError(name)
        said: Any = read(word.content, parsed(text))
    except NONSENSE as error:
        text = f"'{sender}' said something unknown: {name!r:.50} ({error!s:.200})"
        session.refuse(sender, text)
        return
    if not _may_say(session, sender, word.said_by):
        session.refuse(sender, f"'{sender}' said '{name}' to '{session.me}', which it may not say")
        return
    word.handler(session, sender, said)


def _may_say(session: Session, sender: str, said_by: Speaker) -> bool:
    """Whether the sender may say words of this row to this party."""
    if sender == session.hub:
        return said_by != "member"
    return said_by == "any" or (session.is_hub and said_by != "hub")


def hear_own(session: Session, said: Any) -> None:
    """What the hub says to itself, as every other member does."""
    WORDS[NAMES[type(said)]].handler(session, session.me, said)
