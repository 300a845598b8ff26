"""Fixed membership, where every party is needed: when one process dies, all go back together.

The hub sends `halt` and all parties join again; the attempt counts up, keys are agreed on again,
and messages of older attempts are refused. If the federation may continue without a lost party,
that party is excluded for good, and no step done before the loss is repeated.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

from colonnade.errors import PeerLost, Untrusted
from colonnade.net.link import Link
from colonnade.role.party import Party
from colonnade.role.progress import Stopped
from colonnade.runtime import watch
from colonnade.runtime.checkpoint import label_of
from colonnade.runtime.choice import choose_label, choose_run, first_new_step
from colonnade.runtime.control import (
    TICK,
    WAIT_NOTE_SECONDS,
    Done,
    Failure,
    GoBack,
    Halt,
    Join,
    Saved,
    Start,
    Stop,
    StopAt,
)
from colonnade.wire import Recv

if TYPE_CHECKING:
    from colonnade.runtime.session import Session


class Fixed:
    """All parties take part from the first step to the last."""

    elastic = False
    goes_back_to = "the last common checkpoint"

    def __init__(self) -> None:
        self._lost = False  # whether a party was lost since the last start

    # ---- begin ---------------------------------------------------------------------------------

    def gather(self, session: Session) -> Start | None:
        """Wait until all are here and the hub has chosen where to begin."""
        if session.is_hub:
            start = self._choose_with_all(session)
        else:
            if session.hub_known:
                session.tell(session.hub, session.join())
            began = time.monotonic()
            while session.start is None:
                session.pump(TICK)
                seconds = watch.hub_seconds(session)
                watch.look_for_the_silent(session, [session.hub], "start", began, seconds)
            start = session.start
            self._check_members(session, start)
            session.keeper.mark(start)
        session.playing = not start.ended
        session.run, session.attempt = start.run, start.attempt
        session.leave_out(start.absent, start.skip)
        place = start.label or "the beginning"
        session.log(f"attempt {start.attempt}: all start from {place}")
        self._meet(session, start)
        return None if start.ended else start

    def _meet(self, session: Session, start: Start) -> None:
        """A message to a process that is not yet known would be lost."""
        began, links = time.monotonic(), session.mesh.links
        while strangers := [
            peer
            for peer, link in links.items()
            if peer in start.lives and link.life_of() != start.lives[peer]
        ]:
            session.pump(TICK)
            if time.monotonic() - began > session.patience.deadline:
                peer = strangers[0]
                why = f"they did not connect for {time.monotonic() - began:.0f} s"
                why += f" ({links[peer].trouble})" if links[peer].trouble else ""
                raise PeerLost(session.me, peer, "a connection", session.steps, why)

    def _check_members(self, session: Session, start: Start) -> None:
        """Who may be left out, whatever the hub says. That no step meets two sets of members is
        seen when it begins."""
        absent, before = frozenset(start.absent), frozenset(session.absent)
        if absent == before:
            return
        why = ""
        if gone := before - absent:
            why = f"'{min(gone)}' was left behind, and the hub has it take part again"
        elif strangers := absent - frozenset(session.members):
            why = f"'{min(strangers)}' is not a member"
        elif session.patience.on_lost != "continue" or session.me in absent:
            why = 'only on_lost = "continue", in the federation file, lets a run leave somebody out'
        else:
            why = session.keeper.may_lose(absent)
        if why:
            names = ", ".join(f"'{name}'" for name in start.absent) or "nobody"
            raise Untrusted(
                f"'{session.hub}' starts attempt {start.attempt} without {names}, and "
                f"'{session.me}' takes no part in that: {why}. Ask '{session.hub}' why; nothing "
                "was sent"
            )

    def _choose_with_all(self, session: Session) -> Start:
        session.joins[session.me] = session.join()
        began, told = time.monotonic(), 0.0
        while missing := [name for name in session.present if name not in session.joins]:
            if time.monotonic() - told > WAIT_NOTE_SECONDS:
                told = time.monotonic()
                session.log(watch.waiting(session, missing))
            session.pump(TICK)
            watch.look_for_the_mute(session, missing, began)
        start = self._choose(session)
        session.joins, session.saved, session.done, session.waits = {}, {}, {}, {}
        session.keeper.mark(start)  # before anybody else knows of it
        session.tell_all(start)
        session.start = start
        return start

    def _choose(self, session: Session) -> Start:
        joins = {name: session.joins[name] for name in session.present}
        run = choose_run(session.run, joins, session.me)
        label = choose_label(joins)
        if self._lost:
            self._lost, session.skip = False, first_new_step(session.skip, joins.values())
        return Start(
            run,
            max(join.attempt for join in joins.values()) + 1,
            label,
            tuple(sorted(session.absent)),
            session.skip,
            {name: join.life for name, join in joins.items()},
            session.told,
        )

    def resume(self, session: Session, start: Start, party: Party) -> bool:
        """Bring a party to where all begin; returns whether its role has something left to do."""
        snapshot = session.checkpoints.go_back(start.label)
        if snapshot is not None:
            party.resume(snapshot)
        if start.skip is not None:
            phase, *place = start.skip
            if snapshot is None or place > snapshot["positions"].get(phase, [0, 0]):
                saved = party.progress.place(phase)
                steps = session.steps_taken
                steps.check_apart(phase, saved, (place[0], place[1]), session.away)
                party.progress.go_on_at(*start.skip)
        session.begin_attempt(start)
        if session.post.gate is not None:
            session.post.gate.attend(len(session.present))
        if start.skip is not None:
            phase, epoch, step = start.skip
            text = f"went on without {', '.join(start.absent)} from {phase}, epoch {epoch + 1}, "
            text += f"step {step + 1}"
            session.post.ledger.note(text)
            session.log(text)
        return True

    # ---- play ----------------------------------------------------------------------------------

    def reaches(self, session: Session, peer: str) -> bool:
        """Whether a message to this peer would go out at once."""
        link = session.mesh.links.get(peer)
        return link is None or link.up  # without a link of its own, the hub relays

    def signs(self, session: Session, peer: str) -> bool:
        """Whether this peer is to sign for its messages; one that is away comes back, or all go
        back. Where a run stops, some have already gone."""
        link = session.mesh.links.get(peer)
        gone = bool(session.stop_wish) and link is not None and not link.up
        return peer not in session.absent and not gone

    def checkpoint(self, session: Session, party: Party) -> None:
        """Write a checkpoint, which counts once every party has written it."""
        session.sealing.settle(session, "checkpoint", label_of(party))
        if label := session.checkpoints.save(party):  # where none are kept, nobody counts them
            session.tell(session.hub, Saved(label))

    def check_wait(self, session: Session, wanted: Recv, began: float) -> None:
        """Check nothing more than every session does: a party that dies is waited for."""

    def finish(self, session: Session) -> None:
        """This party's role has ended: wait until all have."""
        session.sealing.settle(session, "end")
        session.tell(session.hub, Done(session.own_account or {}))
        began = time.monotonic()
        if session.is_hub:
            while missing := [name for name in session.present if name not in session.done]:
                session.pump(TICK)
                missing = [name for name in missing if name not in session.done]
                seconds = watch.work_seconds(session)
                watch.look_for_the_silent(session, missing, "done", began, seconds)
            session.accounts = {name: session.done[name] for name in session.present}
        else:
            while session.accounts is None:
                session.pump(TICK)
                seconds = watch.work_seconds(session)
                watch.look_for_the_silent(session, [session.hub], "end", began, seconds)

    # ---- who comes and who goes ----------------------------------------------------------------

    def came_up(self, session: Session, link: Link) -> None:
        """A peer's process was started, or started again."""
        if session.is_hub:
            if session.playing and link.life > 1:
                self._halt(session, f"'{link.peer}' was started again")
            session.joins.pop(link.peer, None)
        elif link.peer == session.hub and session.accounts is None:
            if session.start is not None:
                raise GoBack(f"'{session.hub}' was started again")
            session.tell(session.hub, session.join())

    def joined(self, session: Session, sender: str, join: Join) -> None:
        if not join.run and session.checkpoints.committed:
            text = (
                f"'{sender}' brings no folder of this run, which has come to attempt "
                f"{session.attempt}: start it with the --out it had before"
            )
            session.tell(sender, Failure(session.me, "FederationError", text, refused=True))
            return
        session.joins[sender] = join
        if session.playing:
            # It knows no start of this run, so it has lost its state.
            self._halt(session, f"'{sender}' joined again")

    def started(self, session: Session, sender: str, start: Start) -> None:
        """Nothing to do: `gather` looks for it."""

    def failed(self, session: Session, sender: str, failure: Failure) -> None:
        raise failure.as_error()

    def tick(self, session: Session, now: float) -> None:
        """Continue without a party that is away for too long, if allowed; otherwise give up."""
        for peer, seconds in watch.overdue(session, now):
            why_not = ""
            if session.is_hub and session.patience.on_lost == "continue" and session.attempt > 0:
                why_not = session.keeper.may_lose(frozenset({*session.absent, peer}))
                if not why_not:
                    session.leave_out([peer])
                    session.joins.pop(peer, None)
                    self._lost = True
                    self._halt(session, f"going on without '{peer}'")
            watch.give_up(session, peer, seconds, why_not)

    def _halt(self, session: Session, why: str) -> NoReturn:
        session.tell_all(Halt(why))
        raise GoBack(why)

    # ---- stop ----------------------------------------------------------------------------------

    def spread_the_stop(self, session: Session) -> None:
        """All stop after the same step, so that they can go on from there."""
        if not session.is_hub:
            if session.mesh.links[session.hub].up:
                session.tell(session.hub, Stop(session.stop_wish))
                return
            raise Stopped
        party = session.party
        if party is None or not session.playing:
            raise Stopped
        # Nobody is ahead of the hub by more than one step.
        steps = party.progress.stop_at = party.progress.steps + 2
        session.tell_all(StopAt(steps, session.stop_wish))

    def told_to_stop(self, session: Session, steps: int) -> None:
        if session.party is None or not session.playing:
            raise Stopped
        session.party.progress.stop_at = steps
