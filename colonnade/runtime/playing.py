"""One role under way in a process of its own: what it sends, and what it waits for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from colonnade.errors import PeerLost
from colonnade.role.party import Party
from colonnade.runtime import watch
from colonnade.runtime.control import TICK, Waiting
from colonnade.runtime.drive import handed_over
from colonnade.wire import Kind, Message, Recv, Value

if TYPE_CHECKING:
    from colonnade.runtime.session import Session


class Playing:
    """The wire of one role, and the answers to its requests."""

    def __init__(self, session: Session, party: Party) -> None:
        self._session, self._party = session, party
        self._begun: tuple[Any, ...] = ()  # the last step that was booked

    def put(self, receiver: str, kind: Kind, value: Value) -> None:
        """A role's message. To a peer that is away and may be so, it is not sent."""
        session = self._session
        if session.membership.elastic:
            session.take_in()
            if receiver in session.mesh.links and not self.reaches(receiver):
                session.skipped[f"message to '{receiver}', which was not there"] += 1
                if receiver not in session.unsent:
                    session.log(f"'{receiver}' is not there: '{kind.name}' is not sent")
                session.unsent.add(receiver)
                return
            session.unsent.discard(receiver)
        else:
            self._begin_step()
        session.post.put(self._party, receiver, kind, value)

    def _begin_step(self) -> None:
        """Before the first message of a step: no step meets two sets of members."""
        session, progress = self._session, self._party.progress
        now = progress.position, session.away, progress.phase
        if now == self._begun:
            return
        phase, epoch, step = now[0]
        if phase:
            evaluates = progress.phase == "eval"
            session.steps_taken.begin(phase, (epoch, step), session.away, evaluates)
        self._begun = now

    def reaches(self, peer: str) -> bool:
        """Whether a message to this peer would go out at once, as far as events were taken in:
        a look that changes nothing."""
        session = self._session
        return session.membership.reaches(session, peer)

    def take(self, wanted: Recv) -> Any:
        """Answer a role's request; the only place where it waits."""
        session = self._session
        began = time.monotonic()
        if session.membership.elastic:
            session.take_in()
        session.wanted = wanted
        names = [peer.name for peer in wanted.peers]
        try:
            while True:
                for peer in wanted.peers:
                    message = session.post.take(peer.name, wanted.kind)
                    if message is not None:
                        value = self._accept(message)
                        return (peer, value) if wanted.any else value
                session.credit.needed = names
                left = TICK
                if wanted.within is not None:
                    left = min(left, began + wanted.within - time.monotonic())
                    if left <= 0:
                        return None
                session.pump(left)
                watch.look_for_the_barred(session, wanted)
                if not (session.membership.elastic and wanted.within is not None):
                    session.membership.check_wait(session, wanted, began)
                    self._check_silence(wanted, began)
        finally:
            session.wanted, session.credit.needed = None, ()
            if session.wait_told:
                session.say_going()

    def _accept(self, message: Message) -> Value:
        self._session.credit.read(message.sender, message.kind.name)
        self._session.moved = time.monotonic()
        return handed_over(message, self._party)

    def _check_silence(self, wanted: Recv, began: float) -> None:
        session = self._session
        quiet = time.monotonic() - max(began, session.moved)
        if quiet > watch.STUCK_SECONDS / 2 and not session.wait_told and wanted.within is None:
            session.wait_told = True
            session.tell(session.hub, Waiting(watch.what(wanted)))
        if quiet > session.patience.silence:
            peer = wanted.peers[0].name
            why = f"it is connected, but nothing came for {quiet:.0f} s. Is its process stuck?"
            raise PeerLost(session.me, peer, wanted.kind.name, session.steps, why)
