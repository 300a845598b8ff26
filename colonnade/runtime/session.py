"""One party in a process of its own: it drives its role, and agrees with the others on when.

The words they say to each other are in protocol.py. When a process dies and comes back, all go
back to a common checkpoint (fixed.py), or the others go on without it (elastic.py): that is the
session's membership. A connection that breaks and returns between two living processes is
repaired by the link, and no session sees it.

    with session.connected():
        while (start := session.next_start()) is not None:      # again after every going back
            party = …
            if session.play(start, party, role):                # False: it has to go back
                session.finish(party, account)
        …                                                       # write session.accounts
        session.leave()

Everything below runs in one thread, which takes events from one queue: frames, connections that
come and go. Other threads only fill it.
"""

from __future__ import annotations

import gc
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty
from typing import Any, NoReturn, Protocol

import torch

from colonnade.errors import CodecError, ColonnadeError
from colonnade.journal import Journal, Steps
from colonnade.net.frame import Control, Part
from colonnade.net.link import Arrived, Down, Event, Foul, Link, Up
from colonnade.net.mesh import Lost, Mesh
from colonnade.role.party import Party
from colonnade.role.progress import Stopped
from colonnade.role.seeds import derive
from colonnade.runtime import watch
from colonnade.runtime.checkpoint import NoCheckpoints, OwnCheckpoints
from colonnade.runtime.control import (
    TICK,
    Bye,
    End,
    Failure,
    GoBack,
    Going,
    Join,
    Patience,
    Pieces,
    Place,
    Quit,
    Start,
    frames,
)
from colonnade.runtime.credit import Credit
from colonnade.runtime.drive import drive, failed, where
from colonnade.runtime.elastic import Elastic
from colonnade.runtime.fixed import Fixed
from colonnade.runtime.playing import Playing
from colonnade.runtime.post import Post
from colonnade.runtime.protocol import NAMES, hear, hear_own
from colonnade.runtime.sealing import NoSealing, Sealing
from colonnade.wire import Recv, Wire

STOP_SECONDS = 3.0  # from the wish to stop to the end
LAST_SAVES_SECONDS = 0.7  # that a hub which stops waits for the others' checkpoints
MOST_FULL_WAITS = 20  # one inside the other
GOODBYE_SECONDS, LATE_GOODBYE_SECONDS = 10.0, 4.0
GONE = "the federation has gone on without it"

Membership = Fixed | Elastic
Role = Callable[[Wire], Coroutine[Any, Any, Any]]


class Keeper(Protocol):
    """Who keeps a party's records: what a session asks for in the middle of things."""

    def mark(self, start: Start) -> None:
        """Remember on disk which attempt this is, before anybody else knows of it."""
        ...

    def publish(self, party: Party) -> None:
        """A checkpoint of a party that may be on its own was written: save its models, too."""
        ...

    def may_lose(self, absent: frozenset[str]) -> str:
        """Why the method cannot go on without these; "" if it can."""
        ...

    def check_account(self, sender: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """The account of a party whose role has ended; a CodecError if it may not say that."""
        ...


class Session:
    """One party's part in a run, from the first connection to the last."""

    def __init__(
        self,
        me: str,
        members: tuple[str, ...],
        hub: str,
        mesh: Mesh,
        post: Post,
        checkpoints: OwnCheckpoints | NoCheckpoints,
        membership: Membership,
        patience: Patience,
        keeper: Keeper,
        log: Callable[[str], None],
        journal: Journal,
        *,
        told: Mapping[str, Any] | None = None,
        run: str = "",
        attempt: int = 0,
        absent: Collection[str] = (),
        reached: tuple[int, int] | None = None,
        accounts: Mapping[str, Any] | None = None,
        sealing: Sealing | NoSealing | None = None,
    ) -> None:
        """
        told          what the hub tells everybody at the start
        run, attempt  what an earlier process of this party has remembered
        absent        who is not waited for
        reached       the epoch and step up to which the ledger of earlier processes has come
        accounts      of all parties, where an earlier process of this hub died behind their end
        """
        self.me, self.members, self.hub, self.mesh = me, members, hub, mesh
        self.checkpoints, self.membership, self.patience = checkpoints, membership, patience
        self.keeper, self.log, self.told = keeper, log, dict(told or {})
        self.journal = journal
        self.post, self.credit = post, Credit(me)
        self.sealing = sealing or NoSealing()
        self.mesh.when_full = self._no_room
        self.run, self.attempt = run, attempt
        self.absent, self.away = set(absent), tuple(sorted(absent))
        self.skip: Place | None = None  # see Start
        self.returned: Any = None  # by the role, once it has ended
        self.party: Party | None = None
        self.playing = False
        self.start: Start | None = None  # the hub's last word about it; not the hub's own
        self.hub_known = False  # a process of the hub has said hello
        self.own_account: Mapping[str, Any] | None = None  # of a role that has ended
        self.accounts = accounts  # of all, once all roles have ended
        self.roles_over: set[str] = set()  # peers whose role has ended
        self.unsent: set[str] = set()  # peers to whom the last message was not sent
        self.wanted: Recv | None = None  # what the role waits for
        self.stop_wish, self.stop_told = "", False
        self.skipped: Counter[str] = Counter()  # messages that were not sent
        self._remarks: list[str] = []
        self._reached, self._steps_taken = reached, dict[str, Steps]()
        self._over = self._too_late = accounts is not None
        self.moved = time.monotonic()  # when a message last came or a role last went on
        self.newcomers: dict[str, float] = {}  # processes that have not joined, since when
        self.heard: dict[str, float] = {}  # when something last came from a peer
        self._ticked = 0.0
        self.wait_told, self._full_waits = False, 0
        self._pieces = Pieces()
        # What only the hub keeps:
        self.joins: dict[str, Join] = {}
        self.joined, self.told_start = Counter[str](), set[str]()
        self.saved: dict[str, set[str]] = {}
        self.done: dict[str, Mapping[str, Any]] = {}
        self.byes: set[str] = set()
        self.waits: dict[str, str] = {}
        self.ended = False
        for link in mesh.links.values():
            link.elastic = membership.elastic

    @property
    def is_hub(self) -> bool:
        return self.me == self.hub

    @property
    def present(self) -> list[str]:
        return [name for name in self.members if name not in self.absent]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the results should know about who took part."""
        without = [f"the run went on without '{name}'" for name in sorted(self.absent)]
        return (*without, *self._remarks)

    def refused(self) -> dict[str, int]:
        """How much of what came was refused, and of what goes was not sent, by reason."""
        return {**self.mesh.refused(), **self.post.refused, **self.skipped}

    # ---- the steps of taking part --------------------------------------------------------------

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Talk with the others; whoever fails or stops inside tells them so."""
        self.mesh.start()
        try:
            yield
        except Stopped as stop:
            self._say_stopped()
            stop.add_note(self.stop_wish)
            raise
        except ColonnadeError as error:
            self._tell_trouble(error)
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.mesh.close(1.0)

    def next_start(self) -> Start | None:
        """Wait until it is agreed where to begin; None once only the results are missing."""
        while not self._over:
            self.playing, self.start, self.own_account = False, None, None
            self.sealing.begin()
            for damage in self.checkpoints.sift():
                self.log(damage)
                self.remark(damage)
            try:
                start = self.membership.gather(self)
            except GoBack as reason:
                self._note_going_back(reason)
            else:
                if start is not None:
                    return start
                self._over = True
        return None

    def play(self, start: Start, party: Party, role: Role) -> bool:
        """Drive the role from its checkpoint to its end; False if everybody goes back."""
        has_more_to_do = self.membership.resume(self, start, party)
        if not has_more_to_do:
            return True
        party.on_checkpoint = partial(self.membership.checkpoint, self)
        party.on_step = partial(self.pump, 0.0)  # others ask, and wait, in the middle of training
        self.party, self.playing, self.post.checks = party, True, party.checks
        self.moved = time.monotonic()
        torch.manual_seed(derive(party.schedule.seed, "party", party.name))
        try:
            playing = Playing(self, party)
            self._drive(party, role(playing), playing.take)
        except GoBack as reason:
            self._note_going_back(reason)
            return False
        return True

    def finish(self, party: Party, account: Mapping[str, Any]) -> None:
        """The role has ended: wait until all have, or have to go back."""
        self.own_account = account
        self.checkpoints.finish(party)
        try:
            self.membership.finish(self)
        except GoBack as reason:
            self._note_going_back(reason)
        else:
            self._over, self.playing = True, False

    def leave(self) -> None:
        """The results are on disk: say so, and let the others write theirs."""
        try:
            if not self.is_hub:
                self.tell(self.hub, Bye())
                self.mesh.expect_end()
                return
            self.ended = True
            self.tell_all(End())
            others = {*(self.accounts or {})} - {self.me}
            # Others may have heard the end from an earlier process of this hub, and be gone.
            seconds = LATE_GOODBYE_SECONDS if self._too_late else GOODBYE_SECONDS
            until = time.monotonic() + min(seconds, self.patience.deadline)
            while time.monotonic() < until and not self.byes.issuperset(others):
                self.pump(TICK)
        except GoBack:
            pass  # nothing is left to do again

    def leave_out(self, names: Collection[str], since: Place | None = None) -> None:
        """Who was lost, also before this process began: it may not come back."""
        self.absent.update(names)
        self.away = tuple(sorted(self.absent))
        self.skip = since or self.skip
        self.mesh.barred.update(dict.fromkeys(names, GONE))

    def stop(self, why: str) -> None:
        """Ask all parties to save themselves and stop; may be called by a signal handler."""
        self.stop_wish = self.stop_wish or why
        # Whatever happens now, this process ends in time.
        signal.signal(signal.SIGALRM, self._stop_at_once)
        signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)
        if self.membership.elastic and self.party is not None and self.playing:
            self.party.progress.stop_at = self.party.progress.steps + 1  # it stops alone

    def _stop_at_once(self, *_: object) -> NoReturn:
        raise Stopped

    def refuse(self, sender: str, why: str) -> None:
        """Act on a sender that did what no honest process does: stop, or bar it.

        A hub stops the run, and so does a member whose hub did it. A member only bars a fellow
        member: if it stopped instead, the hub would blame it, since the hub did not see the deed.
        """
        if self.is_hub or sender == self.hub:
            raise CodecError(why)
        self.mesh.bar(sender, why)

    def _note_going_back(self, reason: GoBack) -> None:
        self.log(f"going back to {self.membership.goes_back_to}: {reason}")

    # ---- the role ------------------------------------------------------------------------------

    def _drive(
        self, party: Party, role: Coroutine[Any, Any, Any], take: Callable[[Recv], Any]
    ) -> None:
        gc.collect()
        gc.freeze()  # the libraries' objects stay: looking through them again costs time
        try:
            with torch.autograd.set_multithreading_enabled(False):
                self.returned = drive(role, take)
        except (GoBack, Stopped):
            raise
        except ColonnadeError as error:
            error.add_note(where(party, role, error))
            raise
        except Exception as error:
            raise failed(party, role, error) from error
        finally:
            role.close()
            torch.set_grad_enabled(True)

    def say_going(self) -> None:
        if self.wait_told:
            self.wait_told = False
            self.tell(self.hub, Going())

    @property
    def steps(self) -> int:
        """How many the role has taken."""
        return 0 if self.party is None else self.party.progress.steps

    def join(self) -> Join:
        """This party's word to the hub: that it is here, and what it holds."""
        fresh = self.steps_taken.fresh if self.run else None
        held, finished = tuple(self.checkpoints.held()), self.checkpoints.finished
        life = self.mesh.incarnation.hex()
        return Join(life, self.run, self.attempt, held, finished, fresh)

    @property
    def steps_taken(self) -> Steps:
        """Which steps of this run this party has begun, and with whom."""
        if self.run not in self._steps_taken:
            self._steps_taken[self.run] = Steps(self.journal, self.run, self._reached)
        return self._steps_taken[self.run]

    # ---- events --------------------------------------------------------------------------------

    def pump(self, seconds: float) -> None:
        """Wait for one event, then take in all that is there; look after the clock."""
        self.credit.settle()
        try:
            self._handle(self.mesh.inbox.get(timeout=max(seconds, 0.0)))
            self.take_in()
        except Empty:
            pass
        now = time.monotonic()
        if now - self._ticked >= TICK:
            self._ticked = now
            self._tick(now)

    def take_in(self) -> None:
        """Take in what has come, without waiting."""
        try:
            while True:
                self._handle(self.mesh.inbox.get_nowait())
        except Empty:
            pass

    def _handle(self, event: Event | Lost) -> None:
        if isinstance(event, Arrived):
            if event.life != event.link.life or event.link.peer in self.mesh.barred:
                return  # of a process that is gone, of a party that was left behind, or barred
            if isinstance(event.content, Part):
                if self._accept(event, event.content):
                    self.heard[event.link.peer] = self.moved
            else:
                self.heard[event.link.peer] = time.monotonic()
                event.link.took(event)
                self.hear(event.link.peer, event.content)
        elif isinstance(event, Up):
            if event.restarted:  # else the link has repaired itself
                self._came_up(event.link)
        elif isinstance(event, Down):
            self.log(f"lost the connection with '{event.link.peer}': {event.why}")
        elif isinstance(event, Foul):
            self.refuse(event.link.peer, event.why)
        elif isinstance(event, Lost):
            raise event.error

    def _accept(self, event: Arrived, part: Part) -> bool:
        """A part of a message; while there is no room for more, its sender is not told so. One that
        is dropped, such as a repetition, counts as silence: else it would put off every deadline.
        """
        if not self.post.accept(part, event.tail):
            event.link.took(event)
            return False
        self.moved = time.monotonic()
        if self.own_account is None:
            early = part.attempt > self.post.attempt_with(part.sender)
            self.credit.came(event, part, early)
        else:  # the role has ended, and its account says what it has not read
            self.post.drop()
            event.link.took(event)
        self.say_going()
        return True

    def begin_attempt(self, start: Start) -> None:
        """In a fixed membership: from now on, messages of this attempt."""
        self.post.begin(int(start.run, 16), start.attempt)
        self.credit.recount(self.post.unread())

    def admit(self, peer: str, start: Start) -> None:
        """In an elastic one: from now on, messages of this attempt with this peer."""
        self.post.admit(peer, int(start.run, 16), start.attempt)
        self.credit.recount(self.post.unread())

    def _came_up(self, link: Link) -> None:
        """Another process than before stands at the other end."""
        self._pieces.forget(link.peer)
        self.newcomers[link.peer] = time.monotonic()
        self.sealing.forget(link.peer)
        if link.peer == self.hub:
            self.hub_known = True
        self.membership.came_up(self, link)

    def hear(self, sender: str, control: Control) -> None:
        """A word of another party's process, or a piece of one."""
        whole = self._pieces.take(sender, control)
        if whole is not None:
            hear(self, sender, *whole)

    # ---- the clock -----------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if self.stop_wish and not self.stop_told:
            self.log(f"stopping: {self.stop_wish}")
            self.stop_told = True
            self.membership.spread_the_stop(self)
        watch.look_for_the_stuck(self, now)
        self.sealing.tick(self, now)
        self.membership.tick(self, now)
        if self.is_hub and self.playing:
            watch.look_for_deadlock(self, now)

    # ---- words out -----------------------------------------------------------------------------

    def tell(self, peer: str, said: Any) -> None:
        """Say a word of the protocol to another party, or to oneself."""
        if peer == self.me:
            hear_own(self, said)
            return
        if isinstance(said, Start):
            self.told_start.add(peer)
        for control in frames(NAMES[type(said)], said):
            self.mesh.links[peer].send(self._no_room, control)

    def tell_all(self, said: Any) -> None:
        """To everybody whom this party has a link with."""
        for peer in self.mesh.links:
            if peer not in self.mesh.barred:
                self.tell(peer, said)

    def tell_of_the_end(self, peer: str) -> None:
        """To one who comes when all is over."""
        absent = tuple(sorted(self.absent))
        self.tell(peer, Start(self.run, self.attempt, None, absent, ended=True))
        self.tell(peer, End())

    def remark(self, text: str) -> None:
        """Something that the reader of the results should know."""
        self._remarks.append(text)

    def _tell_trouble(self, error: ColonnadeError) -> None:
        """The others should not wait for a party that has failed."""
        failure = Failure.of(error, self.me)
        if failure.party != self.me and not self.is_hub:
            return  # they know it from the hub
        with suppress(ColonnadeError, GoBack, Stopped):
            if self.is_hub:
                self.tell_all(failure)
            else:
                self.tell(self.hub, failure)

    def _say_stopped(self) -> None:
        """Where the run stopped everybody has a checkpoint; the hub waits until they do."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.playing = False
        if not self.is_hub:
            return
        held = self.checkpoints.held()
        until = time.monotonic() + LAST_SAVES_SECONDS
        try:
            while held and time.monotonic() < until and held[-1] in self.saved:
                self.pump(0.05)
        except (ColonnadeError, GoBack, Stopped):
            pass
        self.tell_all(Quit())

    def _no_room(self) -> None:
        """The peer has not taken in what it was sent: take in what others send meanwhile. What they
        ask is answered at once, and the answer may wait as well: only so often."""
        if self._full_waits == MOST_FULL_WAITS:
            time.sleep(TICK)
            watch.look_for_the_stuck(self, time.monotonic())
            return
        self._full_waits += 1
        self.credit.blocked = True
        try:
            self.pump(TICK)
        finally:
            self._full_waits -= 1
            self.credit.blocked = self._full_waits > 0
