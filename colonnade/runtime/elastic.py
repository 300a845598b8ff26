"""Elastic membership: when one party goes, the others continue without going back.

    every party   keeps its own checkpoints, and goes on from its own newest one
    the hub       admits a party that joins, at any time: it sends `start` to that party alone, with
                  a separate attempt; earlier messages between the two are forgotten
    the others    talk with the hub alone. While it is away they go on, as long as their role does
                  not wait for it without a limit, and they conclude alone at the end

A role notices an absent peer by `peer.reachable`, by a `recv_any` that returns nothing, and by
messages that begin again. A message to such a peer is not sent, and counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from colonnade.errors import FederationError, PeerLost
from colonnade.net.link import Link
from colonnade.role.party import Party
from colonnade.role.progress import Stopped
from colonnade.runtime import watch
from colonnade.runtime.checkpoint import label_of
from colonnade.runtime.choice import choose_run
from colonnade.runtime.control import (
    TICK,
    WAIT_NOTE_SECONDS,
    Done,
    End,
    Failure,
    GoBack,
    Join,
    Start,
    StopAt,
)
from colonnade.wire import Recv

if TYPE_CHECKING:
    from colonnade.runtime.session import Session

ALONE_SECONDS = 30.0  # that a hub is waited for, at a party's return and at its end
LATECOMER_SECONDS = 10.0  # that a hub which has finished waits for others to say that they have


class Elastic:
    """Parties come, go and return while the others go on."""

    elastic = True
    goes_back_to = "the newest checkpoint"

    def __init__(self, came_back: bool = False) -> None:
        """came_back: an earlier process of this party was in the run."""
        self._came_back = came_back
        self._admitted: dict[str, str] = {}  # peer: which process of it this one talks with

    # ---- begin ---------------------------------------------------------------------------------

    def gather(self, session: Session) -> Start | None:
        """The hub begins with the parties present; others are admitted by it, or go on alone."""
        start = self._open(session) if session.is_hub else self._enter(session)
        if start.ended:
            return start if self._can_keep_something(session) else None
        session.playing = True
        place = _newest(session)
        session.log(f"attempt {start.attempt}: '{session.me}' starts from {place}")
        return start

    def _open(self, session: Session) -> Start:
        """The hub begins: with all, or with those who are there if that may be."""
        session.joins[session.me] = session.join()
        began, told = time.monotonic(), 0.0
        while not self._may_begin(session, time.monotonic() - began):
            if time.monotonic() - told > WAIT_NOTE_SECONDS:
                told = time.monotonic()
                session.log(watch.waiting(session, _not_joined(session)))
            session.pump(TICK)
            if session.patience.on_lost != "continue":
                watch.look_for_the_mute(session, _not_joined(session), began)
        if later := _not_joined(session):
            session.log(f"begins without {', '.join(later)}, who may come later")
        session.run = choose_run(session.run, session.joins, session.me)
        start = self._new_start(session, session.joins)
        for name in session.joins:
            if name != session.me:
                self._admit(session, name, start)
        session.joins = {}
        return start

    def _may_begin(self, session: Session, seconds: float) -> bool:
        somebody, patience = len(session.joins) > 1, session.patience
        if not _not_joined(session):
            return True
        if session.checkpoints.finished:  # nothing is left to do; some may still have to say so
            return seconds > min(LATECOMER_SECONDS, patience.deadline / 2)
        if self._came_back:  # in the middle of a run, where some may be away
            return somebody
        return patience.on_lost == "continue" and somebody and seconds > patience.deadline

    def _new_start(self, session: Session, joins: dict[str, Join]) -> Start:
        """The next attempt, on disk before anybody knows of it."""
        attempt = max(session.attempt, *(join.attempt for join in joins.values())) + 1
        session.attempt = attempt
        lives = {session.me: session.mesh.incarnation.hex()}
        lives |= {name: join.life for name, join in joins.items()}
        start = Start(session.run, attempt, None, lives=lives, told=session.told)
        session.keeper.mark(start)
        return start

    def _admit(self, session: Session, peer: str, start: Start) -> None:
        """Admit a peer: from here on the two talk, and both count from zero."""
        self._admitted[peer] = start.lives[peer]
        session.unsent.discard(peer)
        session.sealing.forget(peer)
        session.roles_over.discard(peer)
        session.waits.pop(peer, None)
        session.admit(peer, start)
        if session.is_hub:
            session.tell(peer, start)
            if session.own_account is not None:
                session.tell(peer, End())

    def _enter(self, session: Session) -> Start:
        """Be admitted by the hub; without it a party that was in this run goes on alone."""
        if session.hub_known:
            session.tell(session.hub, session.join())
        began = time.monotonic()
        while session.start is None:
            session.pump(TICK)
            seconds = watch.hub_seconds(session)
            watch.look_for_the_silent(session, [session.hub], "start", began, seconds)
            if self._came_back and _hub_away_since(session, began) > _patient_seconds(session):
                session.log(f"'{session.hub}' cannot be reached: going on alone")
                return Start(session.run, session.attempt, None, told=session.told)
        return session.start

    def _can_keep_something(self, session: Session) -> bool:
        """The federation ended while this party was away: it keeps its newest checkpoint, unless
        its role had ended, too."""
        session.log("the federation has ended")
        _note_away(session, [session.hub])
        if session.checkpoints.finished:
            return False
        if not session.checkpoints.held():
            text = f"the federation has ended, and '{session.me}' has trained nothing: it came "
            raise FederationError([f"{text}too late"])
        return True

    def resume(self, session: Session, start: Start, party: Party) -> bool:
        """Bring a party to its own newest checkpoint; whether its role has something left to do."""
        checkpoints = session.checkpoints
        if session.is_hub and checkpoints.finished:
            # It died before it could conclude; those who have heard that it ended are gone.
            party.resume(checkpoints.last_word())
            return False
        snapshot = checkpoints.newest()
        if snapshot is not None:
            party.resume(snapshot)
        if start.ended:
            place = _newest(session)
            session.remark(f"the federation had ended: '{session.me}' kept what it had at {place}")
        return not start.ended

    # ---- play ----------------------------------------------------------------------------------

    def reaches(self, session: Session, peer: str) -> bool:
        """Whether this peer is connected, was let in, and still plays."""
        return peer not in session.roles_over and self.signs(session, peer)

    def signs(self, session: Session, peer: str) -> bool:
        """Whether this peer is there, and can sign for its messages."""
        link = session.mesh.links.get(peer)
        return link is not None and link.up and self._admitted.get(peer) == link.life_of()

    def checkpoint(self, session: Session, party: Party) -> None:
        """Write a checkpoint; no other party has to hold it."""
        session.sealing.settle(session, "checkpoint", label_of(party), wait=False)
        session.checkpoints.commit(session.checkpoints.save(party))
        session.keeper.publish(party)
        session.pump(0.0)

    def check_wait(self, session: Session, wanted: Recv, began: float) -> None:
        """Stop waiting for a peer that will never answer."""
        names, links = [peer.name for peer in wanted.peers], session.mesh.links
        if not session.is_hub and any(
            name in session.unsent and self.reaches(session, name) for name in names
        ):
            raise GoBack("it waits for an answer to what was not sent")
        away = [_away_since(links[name], began) for name in names if name in links]
        over = session.roles_over.issuperset(names) and not any(
            session.post.holds(name, wanted.kind) for name in names
        )
        if away and (min(away) > session.patience.deadline or over):
            why = "its role has ended" if over else watch.missing(session, min(away))
            raise PeerLost(session.me, names[0], wanted.kind.name, session.steps, why)

    def finish(self, session: Session) -> None:
        """This party's role has ended: tell the hub, or conclude alone if it is away."""
        if session.start is not None and session.start.ended:
            return
        if session.is_hub:
            self._finish_hub(session)
            return
        session.take_in()
        apart = not self.reaches(session, session.hub) and session.accounts is None
        if self._admitted and not apart:
            session.sealing.settle(session, "end")
            session.tell(session.hub, Done(session.own_account or {}))
        began = time.monotonic()
        while session.accounts is None:
            session.pump(TICK)
            if apart and self.reaches(
                session, session.hub
            ):  # its role's last words can now be heard
                text = f"'{session.hub}' is back, and does not know that '{session.me}' has ended"
                raise GoBack(text)
            mute = watch.silent(session, session.hub, began) > watch.work_seconds(session)
            if mute or _hub_away_since(session, began) > _patient_seconds(session):
                session.log(f"'{session.hub}' cannot be reached: concluding alone")
                _note_away(session, [session.hub])
                return

    def _finish_hub(self, session: Session) -> None:
        session.sealing.settle(session, "end", wait=False)  # all ask again at their own ends
        done = session.done
        done[session.me] = session.own_account or {}
        session.tell_all(End())  # nobody needs to wait for another word
        began = time.monotonic()
        while _somebody_plays(session, began):
            session.pump(TICK)
        session.accounts = {name: done[name] for name in session.members if name in done}
        _note_away(session, (name for name in session.members if name not in done))

    # ---- who comes and who goes ----------------------------------------------------------------

    def came_up(self, session: Session, link: Link) -> None:
        """A peer's process was started, or started again."""
        self._admitted.pop(link.peer, None)
        session.joins.pop(link.peer, None)
        session.waits.pop(link.peer, None)
        if session.is_hub or link.peer != session.hub:
            return
        if session.accounts is not None and not session.playing:
            return
        session.accounts = None  # it will say again that it has ended, if it has
        waits = session.wanted is not None and session.wanted.within is None
        if session.playing and (waits or session.own_account is not None):
            # What it had sent has died with that process: the answer to it, or that it has ended.
            raise GoBack(f"'{session.hub}' was started again")
        session.tell(session.hub, session.join())

    def joined(self, session: Session, sender: str, join: Join) -> None:
        """Let a party in, at any time."""
        if not session.playing:
            session.joins[sender] = join
            return
        if join.run not in ("", session.run):
            text = f"'{sender}' brings a folder of run {join.run}, this is {session.run}: give it "
            text += "another --out, or the folder of this run"
            session.tell(sender, Failure(session.me, "FederationError", text, refused=True))
            return
        start = self._new_start(session, {sender: join})
        session.log(f"attempt {start.attempt}: '{sender}' takes part")
        self._admit(session, sender, start)

    def started(self, session: Session, sender: str, start: Start) -> None:
        """The hub has let this party in."""
        if start.ended:
            return
        session.run, session.attempt, self._came_back = start.run, start.attempt, True
        session.keeper.mark(start)
        self._admit(session, sender, start)
        if session.playing:
            session.log(f"attempt {start.attempt}: '{sender}' is back")

    def failed(self, session: Session, sender: str, failure: Failure) -> None:
        """Ignore another party's failure, unless it means that this party may not take part."""
        begun = session.playing or self._came_back
        error = failure.as_error()
        if not session.is_hub and (failure.refused or not begun):
            raise error
        session.log(str(error))

    def tick(self, session: Session, now: float) -> None:
        """Only the beginning needs all parties; later the hub needs at least one."""
        self._look_for_the_lost(session, now)
        if session.stop_told:
            self._stop_if_idle(session)

    def _look_for_the_lost(self, session: Session, now: float) -> None:
        begun = session.playing or self._came_back
        if session.ended or (begun and not session.is_hub):
            return
        needs_all = not begun and session.patience.on_lost != "continue"
        if not session.is_hub or needs_all:
            for peer, seconds in watch.overdue(session, now):
                watch.give_up(session, peer, seconds)
            return
        links = session.mesh.links
        if any(link.up or peer in session.done for peer, link in links.items()):
            return
        seconds = min(now - link.since for link in links.values())
        if seconds > session.patience.deadline:
            watch.give_up(session, next(iter(links)), seconds)

    # ---- stop ----------------------------------------------------------------------------------

    def spread_the_stop(self, session: Session) -> None:
        """This party saves itself and stops; the hub has all others do so too."""
        if session.is_hub:
            session.tell_all(StopAt(0, session.stop_wish))

    def told_to_stop(self, session: Session, steps: int) -> None:
        """Each after its present step: `Session.stop` has noted it."""

    def _stop_if_idle(self, session: Session) -> None:
        """A role that computes ends its step first; one that waits has nothing to lose."""
        at_work = session.party is not None and session.playing
        if not at_work or session.wanted or session.own_account:
            raise Stopped


def _not_joined(session: Session) -> list[str]:
    return [name for name in session.members if name not in session.joins]


def _newest(session: Session) -> str:
    """The label of the newest checkpoint."""
    held = session.checkpoints.held()
    return held[-1] if held else "the beginning"


def _note_away(session: Session, names: Iterable[str]) -> None:
    """In the ledger too: what was sent to them, or by them, may be lost."""
    for name in names:
        text = f"'{name}' was away at the end"
        session.post.ledger.note(text, away=name)
        session.remark(text)


def _somebody_plays(session: Session, began: float) -> bool:
    """Whether a connected party's role has not ended; not if it says nothing for too long."""

    def found() -> bool:
        return any(
            link.up
            and peer not in session.done
            and watch.silent(session, peer, began) <= watch.work_seconds(session)
            for peer, link in session.mesh.links.items()
        )

    if not found():
        session.take_in()  # its last words may have come just before its connection ended
    return found()


def _away_since(link: Link, began: float) -> float:
    """For how many seconds, at most since a moment; 0: it is there."""
    return 0.0 if link.up else time.monotonic() - max(link.since, began)


def _hub_away_since(session: Session, began: float) -> float:
    return _away_since(session.mesh.links[session.hub], began)


def _patient_seconds(session: Session) -> float:
    return min(session.patience.deadline, ALONE_SECONDS)
