"""How two parties countersign each other's ledgers in the middle of a run.

    at a checkpoint    each asks every peer with whom it has exchanged messages: here is my signed
    and at the end     statement, give me yours. It goes on once all have given it, and only then
                       writes the checkpoint, so where a checkpoint is its seals are. Two questions
                       that cross answer each other
    after 4,096 rows   the same, without waiting

A statement is checked against the own ledger before it is kept or answered: messages that one of
the two denies, adds, changes or moves stop the run there, and the error names who said so. In an
elastic run nobody waits for a party that is away, and checkpoints do not wait at all.

Two parties without a link talk through the hub. It can hold a statement back and then both miss
it; it cannot make one.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from colonnade.errors import CodecError, Untrusted
from colonnade.role.identity import Identity
from colonnade.runtime.control import TICK, Countersign
from colonnade.wire import Ledger, seals
from colonnade.wire.seals import At, Flow, Seal, Statement, Traffic

if TYPE_CHECKING:
    from colonnade.runtime.session import Session

BLOCK_ROWS = 4096
MOST_IDLE = 32  # seals of a peer, one after the other, about nothing new
STOP_SECONDS = 0.7  # of a run that stops: then what is not sealed stays so


@dataclass(frozen=True)
class Asked:
    """What a peer has not answered yet."""

    number: int  # of the question
    attempt: int
    sent: int  # messages that it has to confirm
    since: float


class Sealing:
    """One party's seals."""

    def __init__(self, identity: Identity, book: Ledger, run: str) -> None:
        """run: the one that the rows of the ledger are of; empty: all of them are of others"""
        if book.path is None:
            raise CodecError("a ledger without a file cannot be sealed")
        self._identity, self._me, self._book = identity, identity.name, book
        self._file = seals.beside(book.path)
        self._traffic = Traffic(self._me)
        self._heard: dict[str, Statement] = {}  # the newest of each peer
        self._asked: dict[str, Asked] = {}
        self._questions = 0
        self._early: dict[str, tuple[Countersign, float]] = {}  # before what they speak of has come
        self._told: dict[tuple[str, int], Flow] = {}  # by peer and attempt
        self._idle: Counter[str] = Counter()
        self._peers: dict[str, None] = {}  # with whom a message was exchanged
        self._sealed_rows = book.count
        seals.mend(self._file)
        for row in book.rows() if run else ():
            self._note(self._traffic.add(row))
        self._written = book.follow()
        for seal in seals.read(self._file):
            if seal.statement.by != self._me and seal.statement.run == run:
                self._remember(seal.statement)

    # ---- what the session does -------------------------------------------------------------------

    def settle(self, session: Session, at: At, place: str = "", wait: bool = True) -> None:
        """Have all peers sign; returns when they have, as far as they can be waited for."""
        if session.stop_wish:
            at = "stop"
        self._book.flush()
        self._read_on()
        self._sealed_rows = self._book.count
        peers = [peer for peer in self._peers if session.membership.signs(session, peer)]
        made = [
            self._signed(session, peer, at, place)
            for peer in peers
            if at == "end" or not self._is_settled(session, peer)
        ]
        seals.append(self._file, made)
        began = time.monotonic()
        for seal in made:
            peer, flow = seal.statement.to, seal.statement.now
            number = 0
            if at == "end" or not self._is_confirmed(session, peer):  # else it lacks the own only
                number = self._questions = self._questions + 1
                self._asked[peer] = Asked(number, flow.attempt, flow.sent, began)
            self._tell(session, Countersign(seal.content(), number))
        while wait and any(session.membership.signs(session, peer) for peer in self._asked):
            if session.stop_wish and time.monotonic() - began > STOP_SECONDS:
                return
            session.pump(TICK)

    def tick(self, session: Session, now: float) -> None:
        """Seal a block that is full; look again at what came early; name who does not answer."""
        # Others wait for messages of this party meanwhile, and must not come to blame it first.
        patience = session.patience.silence / 2
        for peer, (word, since) in list(self._early.items()):
            if now - since > patience:
                raise self._refused(peer, "sealed messages that never came", session)
            del self._early[peer]
            self._take(session, word, since)
        if self._book.count - self._sealed_rows >= BLOCK_ROWS:
            self.settle(session, "block", wait=False)
        for peer, asked in self._asked.items():
            seconds = now - asked.since
            if seconds > patience and session.membership.signs(session, peer):
                text = f"has not signed for {asked.sent} messages in {seconds:.0f} s"
                raise self._refused(peer, text, session)

    def begin(self) -> None:
        """All begin again: questions of earlier attempts are not answered any more."""
        self._asked, self._early, self._told = {}, {}, {}

    def forget(self, peer: str) -> None:
        """A peer has a new process: questions to and from its old one are not answered any more."""
        self._asked.pop(peer, None)
        self._early.pop(peer, None)
        self._told = {key: flow for key, flow in self._told.items() if key[0] != peer}

    def heard(self, session: Session, sender: str, word: Countersign) -> None:
        """A statement of a peer, or one that the hub is to pass on."""
        try:
            said = Seal.read(word.seal).statement
        except CodecError as error:
            session.refuse(sender, f"'{sender}' sent {error}")
            return
        relayed = sender == session.hub and said.by not in session.mesh.links
        relayed = relayed and said.by != self._me
        if session.is_hub and said.by == sender and session.mesh.relays(sender, said.to):
            session.tell(said.to, word)
        elif said.to == self._me and (said.by == sender or relayed):
            self._take(session, word, time.monotonic())
        else:
            session.refuse(sender, f"'{sender}' sent a seal of '{said.by}' for '{said.to}'")

    # ---- statements in ---------------------------------------------------------------------------

    def _take(self, session: Session, word: Countersign, since: float) -> None:
        seal = Seal.read(word.seal)
        said = seal.statement
        self._identity.verify(said.by, bytes.fromhex(_hex(seal.signature)), said.text())
        attempt = session.post.attempt_with(said.by)
        if not session.run or said.attempt > attempt:
            self._early[said.by] = word, since
            return
        if said.run != session.run:
            text = f"signed for run {said.run}, and this is {session.run}"
            raise self._refused(said.by, text, session)
        if said.attempt < attempt:
            return  # it will know soon that all have begun again
        self._book.flush()
        self._read_on()
        received = self._traffic.between(said.by, attempt).received.count
        if said.now.sent > received and said.by not in session.mesh.links:
            self._early[said.by] = word, since  # its messages take another way than its words
            return
        self._check(session, said)
        asked = self._asked.get(said.by)
        if asked is not None and asked.attempt == attempt:
            if said.now.received >= asked.sent:
                del self._asked[said.by]
            elif word.answers == asked.number:
                text = f"signed for {said.now.received} of the {asked.sent} messages it was sent"
                raise self._refused(said.by, text, session)
        kept = [replace(seal, key=self._identity.trusted[said.by].hex())]
        self._remember(said)
        answers = word.asks > 0 and not (asked is not None and self._has_told(session, said.by))
        if answers:
            kept.append(self._signed(session, said.by, "answer", said.place))
        seals.append(self._file, kept)
        if answers:
            self._tell(session, Countersign(kept[1].content(), answers=word.asks))

    def _check(self, session: Session, said: Statement) -> None:
        """Whether a peer's statement is what the own ledger says, as far as that reaches."""
        before = self._heard.get(said.by)
        if before is not None and said.rows < before.rows:
            text = f"signed for a ledger of {said.rows} rows, and had signed for {before.rows}"
            raise self._refused(said.by, text, session)
        messages = sum(flow.sent + flow.received for flow in said.flows)
        if said.rows < messages:  # its head would bind less than what it signs for
            text = f"signed for a ledger of {said.rows} rows, and for {messages} messages in it"
            raise self._refused(said.by, text, session)
        new = before is None or (before.attempt, before.now) != (said.attempt, said.now)
        self._idle[said.by] = 0 if new else self._idle[said.by] + 1
        if self._idle[said.by] > MOST_IDLE:
            raise self._refused(said.by, f"signed {MOST_IDLE} times for nothing new", session)
        for flow in said.flows:
            here = self._traffic.between(said.by, flow.attempt)
            over = flow.attempt < said.attempt  # a process may have died with the last of it
            for theirs, head, chain, way in (
                (flow.sent, flow.sent_head, here.received, "sent"),
                (flow.received, flow.received_head, here.sent, "received"),
            ):
                if theirs > chain.count:
                    if not over:
                        text = f"signed that it {way} {theirs} messages; there are {chain.count}"
                        raise self._refused(said.by, text, session)
                elif chain.head(theirs) != head:
                    text = f"signed that it {way} {theirs} messages, and not the ones that there "
                    text += f"were in attempt {flow.attempt}, or fewer than it had signed before"
                    raise self._refused(said.by, text, session)

    def _remember(self, said: Statement) -> None:
        self._heard[said.by] = said
        for flow in said.flows:
            here = self._traffic.between(said.by, flow.attempt)
            here.received.forget(flow.sent)
            here.sent.forget(flow.received)

    # ---- statements out --------------------------------------------------------------------------

    def _signed(self, session: Session, peer: str, at: At, place: str) -> Seal:
        """What the ledger says now of this pair; its rows are on the disk."""
        attempt = session.post.attempt_with(peer)
        self._traffic.between(peer, attempt)  # is told, also if nothing has crossed yet
        flows = [
            flow
            for flow in self._traffic.flows(peer)
            if flow.attempt == attempt or self._told.get((peer, flow.attempt)) != flow
        ]
        self._told |= {(peer, flow.attempt): flow for flow in flows}
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said = Statement(
            session.run,
            self._me,
            peer,
            attempt,
            at,
            place,
            now,
            self._book.count,
            self._book.head,
            tuple(flows),
        )
        key = self._identity.trusted[self._me].hex()
        return Seal(said, key, self._identity.sign(said.text()).hex())

    def _tell(self, session: Session, word: Countersign) -> None:
        peer = str(word.seal["to"])
        session.tell(peer if peer in session.mesh.links else session.hub, word)

    # ---- who and what ----------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Take in the rows that were written since the last look."""
        _ = self._book.head  # reading the head writes all rows that still wait in memory
        for peer in dict.fromkeys(map(self._traffic.add_written, self._written)):
            self._note(peer)
        self._written.clear()

    def _note(self, peer: str) -> None:
        if peer:
            self._peers[peer] = None

    def _here(self, session: Session, peer: str) -> Flow:
        attempt = session.post.attempt_with(peer)
        return self._traffic.between(peer, attempt).flow(attempt)

    def _has_told(self, session: Session, peer: str) -> bool:
        """Whether a peer has, or will soon have, the own statement about all there is."""
        here = self._here(session, peer)
        return self._told.get((peer, here.attempt)) == here

    def _is_confirmed(self, session: Session, peer: str) -> bool:
        """Whether the statement of a peer is about all there is."""
        here, said = self._here(session, peer), self._heard.get(peer)
        if said is None or said.attempt != here.attempt:
            return False
        return (here.sent, here.received) == (said.now.received, said.now.sent)

    def _is_settled(self, session: Session, peer: str) -> bool:
        """Whether there is nothing new to sign for, or to ask about."""
        if peer in self._asked and self._has_told(session, peer):
            return True
        here = self._here(session, peer)
        told = all(
            self._told.get((peer, flow.attempt)) == flow
            for flow in self._traffic.flows(peer)
            if flow.sent or flow.received
        )
        return told and (not (here.sent or here.received) or self._is_confirmed(session, peer))

    def _refused(self, peer: str, what: str, session: Session) -> Untrusted:
        link = "" if peer in session.mesh.links else f" (through '{session.hub}', who relays)"
        return Untrusted(
            f"'{peer}'{link} {what}, in attempt {session.post.attempt_with(peer)} with "
            f"'{self._me}'. The two ledgers do not fit, so the run stops here: compare them with "
            "`colonnade ledger --reconcile`"
        )


class NoSealing:
    """For work of which no seals are kept."""

    def settle(self, session: Session, at: At, place: str = "", wait: bool = True) -> None: ...

    def tick(self, session: Session, now: float) -> None: ...

    def begin(self) -> None: ...

    def forget(self, peer: str) -> None: ...

    def heard(self, session: Session, sender: str, word: Countersign) -> None:
        session.refuse(sender, f"'{sender}' wants a ledger signed of which no seals are kept")


def _hex(text: str) -> str:
    return text if len(text) % 2 == 0 and all(c in "0123456789abcdef" for c in text) else ""
