"""Checks at every tick of a session which peers are away or stuck, and whether all wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn

from colonnade.errors import Deadlock, PeerLost
from colonnade.wire import Recv

if TYPE_CHECKING:
    from colonnade.net.link import Link
    from colonnade.runtime.session import Session

WORK_TIMES = 24  # × patience: an hour is a day
STUCK_SECONDS = 10.0  # everybody waits for another, and nothing moves


def look_for_the_stuck(session: Session, now: float) -> None:
    """A peer that is connected and takes nothing in is not waited for for ever."""
    for peer, link in session.mesh.links.items():
        if link.stuck(now) > session.patience.silence:
            seconds = f"{link.stuck(now):.0f} s"
            why = f"it is connected, but took in nothing for {seconds}. Is its process stuck?"
            raise PeerLost(session.me, peer, "room for more", session.steps, why)


def overdue(session: Session, now: float) -> Iterator[tuple[str, float]]:
    """Who has been away for longer than patience allows, and for how many seconds."""
    for peer, link in session.mesh.links.items():
        if link.up or peer in session.absent or peer in session.byes or session.ended:
            continue
        if not (session.is_hub or peer == session.hub):
            continue
        known = link.life > 0 and session.attempt > 0
        quickly = session.patience.on_lost == "stop" and known
        limit = min(session.patience.deadline, 5.0) if quickly else session.patience.deadline
        if now - link.since >= limit:
            yield peer, now - link.since


def look_for_the_silent(
    session: Session, peers: Iterable[str], what: str, began: float, seconds: float
) -> None:
    """Whoever is connected, is waited for since `began`, and has sent nothing for so long."""
    for peer in peers:
        quiet = silent(session, peer, began)
        if quiet > seconds:
            why = f"it is connected, but said nothing for {quiet:.0f} s. Is its process stuck?"
            raise PeerLost(session.me, peer, what, session.steps, why)


def silent(session: Session, peer: str, began: float) -> float:
    """For how many seconds a connected peer has sent nothing, at most since a moment."""
    link = session.mesh.links.get(peer)
    if link is None or not link.up:
        return 0.0  # its absence has a limit of its own
    return time.monotonic() - max(began, session.heard.get(peer, 0.0))


def look_for_the_barred(session: Session, wanted: Recv) -> None:
    """A role does not wait for those with whom there is no connection any more."""
    barred = session.mesh.barred
    if barred and all(peer.name in barred for peer in wanted.peers):
        name = wanted.peers[0].name
        raise PeerLost(session.me, name, wanted.kind.name, session.steps, barred[name])


def look_for_the_mute(session: Session, missing: Iterable[str], began: float) -> None:
    """Whoever is connected and does not join: a new process does so at once, one that had joined
    before may first have to end its step."""
    now, patience = time.monotonic(), session.patience
    for peer in missing:
        link = session.mesh.links.get(peer)
        if link is None or not link.up:
            continue
        new = peer in session.newcomers
        since = session.newcomers[peer] if new else began
        if now - since > (patience.deadline if new else patience.silence):
            why = f"it is connected since {now - since:.0f} s, and did not join"
            raise PeerLost(session.me, peer, "join", session.steps, why)


def work_seconds(session: Session) -> float:
    """How long a party whose role goes on may say nothing: it need not send anything, and a
    checkpoint, which all hear of, may be hours away."""
    return WORK_TIMES * session.patience.silence


def hub_seconds(session: Session) -> float:
    """How long a hub may say nothing before it starts all: it waits for others itself."""
    return session.patience.deadline + session.patience.silence


def give_up(session: Session, peer: str, seconds: float, why_not: str = "") -> NoReturn:
    """A party that is needed does not come."""
    raise PeerLost(
        session.me,
        peer,
        session.wanted.kind.name if session.wanted else "a connection",
        session.steps,
        f"{missing(session, seconds)}. {why_not}{moves(session)}",
    )


def waiting(session: Session, names: Iterable[str]) -> str:
    """Who is waited for at the start, and what stands in the way of those who were refused."""
    links = session.mesh.links
    said = [
        f"{name} ({links[name].trouble})" if name in links and links[name].move else name
        for name in names
    ]
    return f"waiting for {', '.join(said)}, for {session.patience.deadline:g} s at most"


def missing(session: Session, seconds: float) -> str:
    """Everybody who is away, and why, as far as is known."""
    away = [f"'{link.peer}' ({link.trouble})" for link in _away(session)]
    return f"waited {seconds:.0f} s for {', '.join(away)}"


def moves(session: Session) -> str:
    """What to do about everybody who is away: not all come once they are started."""
    found = [
        link.move
        or "Start them with their own commands; whoever has stopped goes on with the same command "
        "as before"
        for link in _away(session)
    ]
    return ". ".join(dict.fromkeys(found))


def _away(session: Session) -> list[Link]:
    """The links of those who are waited for and not there."""
    return [
        link
        for peer, link in session.mesh.links.items()
        if not link.up and peer not in session.absent and (session.is_hub or peer == session.hub)
    ]


def look_for_deadlock(session: Session, now: float) -> None:
    """Whether every role waits for another; only the hub can tell."""
    wanted = session.wanted
    if session.membership.elastic and wanted is not None and wanted.within is not None:
        return
    others = [name for name in session.present if name != session.me and name not in session.done]
    busy = wanted is None and session.me not in session.done
    if now - session.moved < STUCK_SECONDS or busy or not others:
        return
    if all(name in session.waits for name in others) and all(
        link.up for peer, link in session.mesh.links.items() if peer not in session.absent
    ):
        waits = {name: session.waits[name] for name in others}
        if wanted is not None:
            waits = {session.me: what(wanted)} | waits
        raise Deadlock("; ".join(f"{name} waits for {it}" for name, it in waits.items()))


def what(wanted: Recv) -> str:
    """Describe what a role waits for."""
    names = " or ".join(peer.name for peer in wanted.peers)
    return f"'{wanted.kind.name}' from {names}"
