"""One party in a process of its own: it drives its role, and agrees with the others on when.

One process is the hub: the label holder's, or that of a server. All others send it these words:

    join    I am here; these checkpoints I hold        →   start   all begin, from this common one
    saved   I have written this checkpoint             →   commit  all have: drop what is older
    done    my role has ended; my account              →   end     all have
    bye     my results are on disk

When a process dies and comes back, the hub says `halt` and everybody joins again; the attempt
counts up, keys are agreed on anew, and messages of older attempts are refused. A connection that
breaks and returns between two living processes is repaired by the link and seen by nobody here.
Where parties may come and go while the others go on, elastic.py changes what is needed.

Everything below runs in one thread, which takes events from one queue: frames, connections that
come and go. Other threads only fill it.
"""

from __future__ import annotations

import gc
import json
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from queue import Empty
from typing import Any, NoReturn

import torch

from colonnade.errors import (
    CodecError,
    ColonnadeError,
    Deadlock,
    FederationError,
    PeerLost,
    RoleFailed,
)
from colonnade.net.frame import HEAD_BYTES, Control, Part
from colonnade.net.link import Arrived, Down, Event, Link, Up
from colonnade.net.mesh import Lost, Mesh
from colonnade.role.party import Party
from colonnade.role.progress import Stopped
from colonnade.role.seeds import derive
from colonnade.runtime.checkpoint import OwnCheckpoints
from colonnade.runtime.control import (
    Join,
    Patience,
    Place,
    Start,
    Work,
    choose_label,
    choose_run,
    first_new_step,
)
from colonnade.runtime.drive import drive, failed, handed_over, where
from colonnade.runtime.post import Post
from colonnade.wire import Kind, Message, Recv, Value

TICK = 0.2  # seconds between two looks at the clock
STOP_SECONDS = 3.0  # from the wish to stop to the end
GOODBYE_SECONDS = 10.0
BACKLOG_BYTES = 256 << 20  # messages that came and were not asked for: then receiving pauses
WAIT_NOTE_SECONDS = 30.0
STUCK_SECONDS = 10.0  # everybody waits for another, and nothing moves
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
GONE = "the federation has gone on without it"
MORE = "more of "  # a word that does not fit one frame
WORD_BYTES, WORDS_BYTES = HEAD_BYTES // 2, 256 << 20


class _GoBack(BaseException):
    """No error: everybody starts again from a checkpoint. No role may catch it."""


@dataclass
class _Outbox:
    """The wire of one role."""

    session: Session
    party: Party

    def put(self, receiver: str, kind: Kind, value: Value) -> None:
        self.session.put(self.party, receiver, kind, value)

    def reaches(self, receiver: str) -> bool:
        return self.session.reaches(receiver)


class Session:
    """One party's part in a run, from the first connection to the last."""

    back_to = "the last common checkpoint"

    def __init__(
        self,
        me: str,
        members: tuple[str, ...],
        hub: str,
        mesh: Mesh,
        post: Post,
        checkpoints: OwnCheckpoints,
        patience: Patience,
        work: Work,
        run: str = "",
        attempt: int = 0,
        absent: Collection[str] = (),
        fresh: Place | None = None,
    ) -> None:
        """
        run, attempt  what an earlier process of this party has remembered
        absent        who is not waited for
        fresh         the first step that earlier processes of this party have never begun
        """
        self.me, self.members, self.hub, self.mesh, self.post = me, members, hub, mesh, post
        self.mesh.when_full = self._no_room
        self.patience, self.work = patience, work
        self._checkpoints = checkpoints
        self._run, self._attempt = run, attempt
        self._absent, self._fresh = set(absent), fresh
        self.returned: Any = None  # by the role, once it has ended
        self._party: Party | None = None
        self._playing = False
        self._start: Start | None = None
        self._accounts: dict[str, dict[str, Any]] | None = None
        self._moved = time.monotonic()  # when a message last came or a role last went on
        self._ticked = 0.0
        self._stop_wish = ""
        self._hub_known = False  # a process of the hub has said hello
        self._stop_told = False
        self._wait_told = False
        self._wanted: Recv | None = None
        # What only the hub keeps:
        self._joins: dict[str, Join] = {}
        self._saved: dict[str, set[str]] = {}
        self._done: dict[str, dict[str, Any]] = {}
        self._byes: set[str] = set()
        self._waits: dict[str, str] = {}
        self._begun: dict[tuple[str, str], str] = {}  # (sender, word) of which more will come
        self._skip: Place | None = None  # see Start
        self._lost = False  # somebody, since the last start
        self._ended = False

    @property
    def is_hub(self) -> bool:
        return self.me == self.hub

    @property
    def present(self) -> list[str]:
        return [name for name in self.members if name not in self._absent]

    # ---- the whole of it ---------------------------------------------------------------------

    def serve(self, ended: Mapping[str, Any] | None = None) -> None:
        """Take part until all have ended; `ended` are the accounts of a hub that had come so far
        before its process died."""
        self.mesh.start()
        try:
            if ended is not None:
                self._accounts = dict(ended)
                self._conclude()
                return
            while True:
                try:
                    start = self._gather()
                    if not start.ended:
                        self._await_end(self._play(start))
                    self._conclude()
                    return
                except _GoBack as reason:
                    self.work.log(f"going back to {self.back_to}: {reason}")
        except Stopped as stop:
            self._say_stopped()
            stop.add_note(self._stop_wish)
            raise
        except ColonnadeError as error:
            self._tell_trouble(error)
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.mesh.close(1.0)

    def leave_out(self, names: Collection[str], since: Place | None = None) -> None:
        """Who was lost, also before this process began: it may not come back."""
        self._absent.update(names)
        self._skip = since or self._skip
        self.mesh.barred.update(dict.fromkeys(names, GONE))

    def stop(self, why: str) -> None:
        """Ask all parties to save themselves and stop; may be called by a signal handler."""
        self._stop_wish = self._stop_wish or why
        # Whatever happens now, this process ends in time.
        signal.signal(signal.SIGALRM, self._stop_at_once)
        signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)

    def _stop_at_once(self, *_: object) -> NoReturn:
        raise Stopped

    def refused(self) -> dict[str, int]:
        """How much of what came was refused, by reason."""
        return {**self.mesh.refused(), **self.post.refused}

    def put(self, party: Party, receiver: str, kind: Kind, value: Value) -> None:
        """A role's message."""
        self.post.put(party, receiver, kind, value)

    def reaches(self, peer: str) -> bool:
        """Whether a message to this peer would go out at once."""
        link = self.mesh.links.get(peer)
        return link is None or link.up  # without a link of its own, the hub relays

    # ---- begin -------------------------------------------------------------------------------

    def _gather(self) -> Start:
        """Wait until all are here and the hub has chosen where to begin."""
        self._playing, self._start = False, None
        if self.is_hub:
            self._joins[self.me] = self._join()
            told = 0.0
            while missing := [name for name in self.present if name not in self._joins]:
                if time.monotonic() - told > WAIT_NOTE_SECONDS:
                    told = time.monotonic()
                    self.work.log(f"waiting for {', '.join(missing)}")
                self._pump(TICK)
            start = self._choose()
            self._joins, self._saved, self._done, self._waits = {}, {}, {}, {}
            self.work.mark(start)  # before anybody else knows of it
            self._tell_all("start", asdict(start))
            self._start = start
        else:
            if self._hub_known:
                self._tell(self.hub, "join", asdict(self._join()))
            start = self._await_start()
            self.work.mark(start)
        self._playing = not start.ended
        self._run, self._attempt = start.run, start.attempt
        self.leave_out(start.absent, start.skip)
        place = start.label or "the beginning"
        self.work.log(f"attempt {start.attempt}: all start from {place}")
        while not all(
            link.life_of() == start.lives[peer]
            for peer, link in self.mesh.links.items()
            if peer in start.lives
        ):
            self._pump(TICK)  # what is sent to a process before it is known would be lost
        return start

    def _await_start(self) -> Start:
        while True:
            self._pump(TICK)
            if self._start is not None:
                return self._start

    def _join(self) -> Join:
        party = self._party
        if party is not None and party.position[0]:
            phase, epoch, step = party.position
            # An evaluation is not repeated either: the epoch after it is the next that is new.
            fresh = (
                (phase, epoch + 1, 0)
                if party.progress.phase == "eval"
                else (phase, epoch, step + 1)
            )
            self._fresh = max(self._fresh or fresh, fresh)
        return Join(
            self.mesh.incarnation.hex(),
            self._run,
            self._attempt,
            tuple(self._checkpoints.held()),
            self._checkpoints.finished,
            self._fresh,
        )

    def _choose(self) -> Start:
        """The hub's choice, once all are here."""
        joins = {name: self._joins[name] for name in self.present}
        run = choose_run(self._run, joins)
        label = choose_label(joins)
        if self._lost:
            self._lost, self._skip = False, first_new_step(self._skip, joins.values())
        return Start(
            run,
            max(join.attempt for join in joins.values()) + 1,
            label,
            tuple(sorted(self._absent)),
            self._skip,
            {name: join.life for name, join in joins.items()},
            dict(self.work.told),
        )

    # ---- play --------------------------------------------------------------------------------

    def _play(self, start: Start) -> Party:
        """Drive the role from its checkpoint to its end; what it returns is kept."""
        party = self.work.party(start)
        snapshot = self._snapshot(start)
        if snapshot is not None:
            party.resume(snapshot)
        if start.skip is not None:
            phase, *place = start.skip
            if snapshot is None or place > snapshot["positions"].get(phase, [0, 0]):
                party.progress.skip_to(*start.skip)
        party.on_checkpoint = self._checkpoint
        self._party, self._playing = party, True
        self._moved = time.monotonic()
        torch.manual_seed(derive(party.schedule.seed, "party", party.name))
        self._open_post(start)
        if start.skip is not None:
            self._note_absence(start)
        role = self.work.role(party, _Outbox(self, party), frozenset(start.absent))
        gc.collect()
        gc.freeze()  # the libraries' objects stay: looking through them again costs time
        try:
            with torch.autograd.set_multithreading_enabled(False):
                self.returned = drive(role, self._take)
        except (_GoBack, Stopped):
            raise
        except ColonnadeError as error:
            error.add_note(where(party, role, error))
            raise
        except Exception as error:
            raise failed(party, role, error) from error
        finally:
            role.close()
            torch.set_grad_enabled(True)
        return party

    def _snapshot(self, start: Start) -> dict[str, Any] | None:
        """What the role begins from; None: from the beginning."""
        return self._checkpoints.go_back(start.label)

    def _open_post(self, start: Start) -> None:
        self.post.begin(int(start.run, 16), start.attempt)

    def _note_absence(self, start: Start) -> None:
        assert start.skip is not None
        phase, epoch, step = start.skip
        text = (
            f"went on without {', '.join(start.absent)} from {phase}, epoch {epoch + 1}, "
            f"step {step + 1}"
        )
        self.post.ledger.note(text)
        self.work.log(text)

    def _take(self, wanted: Recv) -> Any:
        """Answer a role's request; the only place where it waits."""
        began = time.monotonic()
        self._wanted = wanted
        try:
            while True:
                for peer in wanted.peers:
                    message = self.post.take(peer.name, wanted.kind)
                    if message is not None:
                        value = self._accept(message)
                        return (peer, value) if wanted.any else value
                left = TICK
                if wanted.within is not None:
                    left = min(left, began + wanted.within - time.monotonic())
                    if left <= 0:
                        return None
                self._pump(left)
                self._check_silence(wanted, began)
        finally:
            self._wanted = None
            self._say_going()

    def _accept(self, message: Message) -> Value:
        party = self._party
        assert party is not None
        self._moved = time.monotonic()
        return handed_over(message, party)

    def _check_silence(self, wanted: Recv, began: float) -> None:
        now = time.monotonic()
        quiet = now - max(began, self._moved)
        party = self._party
        assert party is not None
        if quiet > STUCK_SECONDS / 2 and not self._wait_told and wanted.within is None:
            names = " or ".join(peer.name for peer in wanted.peers)
            self._wait_told = True
            self._tell(self.hub, "waiting", {"for": f"'{wanted.kind.name}' from {names}"})
        if quiet > self.patience.silence:
            raise PeerLost(
                self.me,
                wanted.peers[0].name,
                wanted.kind.name,
                party.progress.steps,
                f"it is connected, but nothing came for {quiet:.0f} s. Is its process stuck?",
            )

    def _say_going(self) -> None:
        if self._wait_told:
            self._wait_told = False
            self._tell(self.hub, "going", {})

    def _checkpoint(self, party: Party) -> None:
        label = self._checkpoints.save(party)
        self._tell(self.hub, "saved", {"label": label})

    # ---- end ---------------------------------------------------------------------------------

    def _await_end(self, party: Party) -> None:
        account = self.work.account(party)
        self._checkpoints.finish(party)
        self._tell(self.hub, "done", account)
        if self.is_hub:
            while not all(name in self._done for name in self.present):
                self._pump(TICK)
            self._accounts = {name: self._done[name] for name in self.present}
        else:
            while self._accounts is None:
                self._pump(TICK)

    def _conclude(self) -> None:
        """All roles have ended: write what came out, and let the others do so."""
        self._playing = False
        self.work.conclude(self._accounts or {}, self._warnings())
        if not self.is_hub:
            self._tell(self.hub, "bye", {})
            self.mesh.expect_end()
            return
        self._ended = True
        self._tell_all("end", {})
        until = time.monotonic() + min(GOODBYE_SECONDS, self.patience.deadline)
        while time.monotonic() < until and not self._byes.issuperset(self._leaving()):
            self._pump(TICK)

    def _warnings(self) -> tuple[str, ...]:
        """What a reader of the results should know about who took part."""
        return tuple(f"the run went on without '{name}'" for name in sorted(self._absent))

    def _leaving(self) -> list[str]:
        """From whom the hub waits for a last word."""
        return [name for name in self.present if name != self.me]

    # ---- events ------------------------------------------------------------------------------

    def _pump(self, seconds: float) -> None:
        """Wait for one event, then take in all that is there; look after the clock."""
        try:
            event = self.mesh.inbox.get(timeout=max(seconds, 0.0))
            while True:
                self._handle(event)
                event = self.mesh.inbox.get_nowait()
        except Empty:
            pass
        now = time.monotonic()
        if now - self._ticked >= TICK:
            self._ticked = now
            self._tick(now)

    def _handle(self, event: Event | Lost) -> None:
        if isinstance(event, Arrived):
            if event.life != event.link.life or event.link.peer in self._absent:
                return  # of a process that is gone, or of a party that was left behind
            event.link.took(event)
            if isinstance(event.content, Part):
                self.post.accept(event.content, event.tail)
                self._moved = time.monotonic()
                self._say_going()
            else:
                self._hear(event.link.peer, event.content)
        elif isinstance(event, Up):
            self._came_up(event.link, event.anew)
        elif isinstance(event, Down):
            self.work.log(f"lost the connection with '{event.link.peer}': {event.why}")
        elif isinstance(event, Lost):
            raise event.error

    def _came_up(self, link: Link, anew: bool) -> None:
        if not anew:
            return
        self._begun = {key: text for key, text in self._begun.items() if key[0] != link.peer}
        if self.is_hub:
            if self._playing and link.life > 1:
                self._halt(f"'{link.peer}' was started anew")
            self._joins.pop(link.peer, None)
        elif link.peer == self.hub:
            self._hub_known = True
            if self._accounts is not None:
                return
            if self._start is not None:
                raise _GoBack(f"'{self.hub}' was started anew")
            self._tell(self.hub, "join", asdict(self._join()))

    def _halt(self, why: str) -> NoReturn:
        self._tell_all("halt", {"why": why})
        raise _GoBack(why)

    def _hear(self, sender: str, control: Control) -> None:
        """A word of another party's process."""
        key = (sender, control.word.removeprefix(MORE))
        text = self._begun.pop(key, "") + control.content
        if len(text) > WORDS_BYTES:
            raise CodecError(f"'{sender}' does not come to an end: {len(text)} bytes")
        if control.word.startswith(MORE):
            self._begun[key] = text
            return
        try:
            content = json.loads(text)
            words = getattr(self, f"_hear_{control.word}", None)
            if words is None or not isinstance(content, dict):
                raise KeyError(control.word)
            from_hub = control.word in ("start", "halt", "commit", "end", "stop_at")
            if from_hub != (sender == self.hub) and control.word not in ("trouble", "stopped"):
                raise CodecError(f"'{sender}' said '{control.word}', which is not its to say")
            words(sender, content)
        except NONSENSE as error:
            raise CodecError(
                f"'{sender}' said something unknown: {control.word!r} ({error})"
            ) from None

    def _hear_join(self, sender: str, content: dict[str, Any]) -> None:
        if self._ended:
            start = Start(self._run, self._attempt, None, tuple(sorted(self._absent)), ended=True)
            self._tell(sender, "start", asdict(start))
            self._tell(sender, "end", {})
            return
        join = self._read_join(content)
        if not join.run and self._checkpoints.committed:
            text = (
                f"'{sender}' brings no folder of this run, which has come to attempt "
                f"{self._attempt}: start it with the --out it had before"
            )
            self._tell(sender, "trouble", {"error": "FederationError", "text": text})
            return
        self._joins[sender] = join
        if self._playing:
            # It knows of no start of ours: it has lost what it knew.
            self._halt(f"'{sender}' joined anew")

    def _read_join(self, content: dict[str, Any]) -> Join:
        fresh = content["fresh"]
        return Join(
            str(content["life"]),
            str(content["run"]),
            int(content["attempt"]),
            tuple(str(label) for label in content["held"]),
            bool(content["finished"]),
            None if fresh is None else _place(fresh),
        )

    def _hear_start(self, sender: str, content: dict[str, Any]) -> None:
        label, skip = content["label"], content["skip"]
        start = Start(
            f"{int(content['run'], 16):016x}",
            int(content["attempt"]),
            None if label is None else str(label),
            tuple(str(name) for name in content["absent"]),
            None if skip is None else _place(skip),
            {str(name): str(life) for name, life in content["lives"].items()},
            dict(content["told"]),
            bool(content["ended"]),
        )
        if start.run != self._run and self._run:
            raise FederationError([f"'{sender}' starts run {start.run}; here it is {self._run}"])
        self._start = start

    def _hear_halt(self, sender: str, content: dict[str, Any]) -> None:
        if self._start is not None:  # also one that has come together with this word
            raise _GoBack(str(content["why"]))

    def _hear_saved(self, sender: str, content: dict[str, Any]) -> None:
        label = str(content["label"])
        here = self._saved.setdefault(label, set())
        here.add(sender)
        if here.issuperset(name for name in self.present if name not in self._done):
            self._saved = {key: who for key, who in self._saved.items() if key != label}
            self._tell_all("commit", {"label": label})
            self._checkpoints.commit(label)

    def _hear_commit(self, sender: str, content: dict[str, Any]) -> None:
        self._checkpoints.commit(str(content["label"]))

    def _hear_done(self, sender: str, content: dict[str, Any]) -> None:
        self._done[sender] = content

    def _hear_end(self, sender: str, content: dict[str, Any]) -> None:
        self._accounts = {}  # those of the others are the hub's to know

    def _hear_bye(self, sender: str, content: dict[str, Any]) -> None:
        self._byes.add(sender)

    def _hear_waiting(self, sender: str, content: dict[str, Any]) -> None:
        self._waits[sender] = str(content["for"])

    def _hear_going(self, sender: str, content: dict[str, Any]) -> None:
        self._waits.pop(sender, None)

    def _hear_stop(self, sender: str, content: dict[str, Any]) -> None:
        self.stop(str(content["why"]))

    def _hear_stop_at(self, sender: str, content: dict[str, Any]) -> None:
        self._stop_told = True
        self.stop(str(content["why"]))
        if self._party is None or not self._playing:
            raise Stopped
        self._party.progress.stop_at = int(content["steps"])

    def _hear_stopped(self, sender: str, content: dict[str, Any]) -> None:
        if sender == self.hub and not self._stop_wish:
            self.stop(f"'{sender}' has stopped")

    def _hear_trouble(self, sender: str, content: dict[str, Any]) -> None:
        text = str(content["text"])
        if "' has stopped: " not in text:  # else it only passes on what another one said
            text = f"'{sender}' has stopped: {content['error']}: {text}"
        raise RoleFailed(text)

    # ---- the clock ---------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if self._stop_wish and not self._stop_told:
            self._spread_the_stop()
        for peer, link in self.mesh.links.items():
            if link.stuck(now) > self.patience.silence:
                raise PeerLost(
                    self.me,
                    peer,
                    "room for more",
                    0 if self._party is None else self._party.progress.steps,
                    f"it is connected, but took in nothing for {link.stuck(now):.0f} s. Is its "
                    "process stuck?",
                )
        self._look_for_the_lost(now)
        if self.is_hub and self._playing:
            self._look_for_deadlock(now)

    def _look_for_the_lost(self, now: float) -> None:
        for peer, link in self.mesh.links.items():
            if link.up or peer in self._absent or peer in self._byes:
                continue
            if self.is_hub or peer == self.hub:
                self._away(link, now - link.since)

    def _away(self, link: Link, seconds: float) -> None:
        """A party that cannot be reached: wait, stop, or go on without it."""
        patience = self.patience
        known = link.life > 0 and self._attempt > 0
        limit = (
            min(patience.deadline, 5.0)
            if patience.on_lost == "stop" and known
            else (patience.deadline)
        )
        if seconds < limit or self._ended:
            return
        if self.is_hub and patience.on_lost == "continue" and self._attempt > 0:
            why_not = self.work.may_lose(frozenset({*self._absent, link.peer}))
            if not why_not:
                self._go_on_without(link.peer)
        else:
            why_not = ""
        self._give_up(link.peer, seconds, why_not)

    def _give_up(self, peer: str, seconds: float, why_not: str = "") -> NoReturn:
        party = self._party
        raise PeerLost(
            self.me,
            peer,
            self._wanted.kind.name if self._wanted else "a connection",
            0 if party is None else party.progress.steps,
            f"{self._missing(seconds)}. {why_not}Start them with their own commands; whoever has "
            "stopped goes on with the same command as before",
        )

    def _missing(self, seconds: float) -> str:
        """Everybody who is away, and why, as far as is known."""
        away = [
            f"'{peer}' ({link.trouble})"
            for peer, link in self.mesh.links.items()
            if not link.up and peer not in self._absent and (self.is_hub or peer == self.hub)
        ]
        return f"waited {seconds:.0f} s for {', '.join(away)}"

    def _go_on_without(self, peer: str) -> NoReturn:
        self.leave_out([peer])
        self._joins.pop(peer, None)
        self._lost = True
        self._halt(f"going on without '{peer}'")

    def _look_for_deadlock(self, now: float) -> None:
        others = [name for name in self.present if name != self.me and name not in self._done]
        busy = self._wanted is None and self.me not in self._done
        if now - self._moved < STUCK_SECONDS or busy or not others:
            return
        if all(name in self._waits for name in others) and all(
            link.up for peer, link in self.mesh.links.items() if peer not in self._absent
        ):
            waits = {name: self._waits[name] for name in others}
            if self._wanted is not None:
                names = " or ".join(peer.name for peer in self._wanted.peers)
                waits = {self.me: f"'{self._wanted.kind.name}' from {names}"} | waits
            raise Deadlock("; ".join(f"{name} waits for {what}" for name, what in waits.items()))

    def _spread_the_stop(self) -> None:
        self._stop_told = True
        self.work.log(f"stopping: {self._stop_wish}")
        party = self._party
        if not self.is_hub:
            if self.mesh.links[self.hub].up:
                self._tell(self.hub, "stop", {"why": self._stop_wish})
                return
            raise Stopped
        if party is None or not self._playing:
            raise Stopped
        # Nobody is ahead of the hub by more than one step.
        party.progress.stop_at = party.progress.steps + 2
        self._tell_all("stop_at", {"steps": party.progress.stop_at, "why": self._stop_wish})

    def _say_stopped(self) -> None:
        """Where the run stopped everybody has a checkpoint; the hub waits until they do."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._playing = False
        if not self.is_hub:
            return
        held = self._checkpoints.held()
        until = time.monotonic() + 0.7
        try:
            while held and time.monotonic() < until and held[-1] in self._saved:
                self._pump(0.05)
        except (ColonnadeError, _GoBack, Stopped):
            pass
        self._tell_all("stopped", {})

    # ---- words out ---------------------------------------------------------------------------

    def _tell(self, peer: str, word: str, content: Mapping[str, Any]) -> None:
        if peer == self.me:
            getattr(self, f"_hear_{word}")(self.me, dict(content))
            return
        text = json.dumps(content)
        while len(text) > WORD_BYTES:  # the account of a long run
            more = Control(MORE + word, text[:WORD_BYTES])
            self.mesh.links[peer].send(self._no_room, more)
            text = text[WORD_BYTES:]
        self.mesh.links[peer].send(self._no_room, Control(word, text))

    def _tell_all(self, word: str, content: Mapping[str, Any]) -> None:
        """To everybody whom this party has a link with."""
        for peer in self.mesh.links:
            if peer not in self._absent:
                self._tell(peer, word, content)

    def _tell_trouble(self, error: ColonnadeError) -> None:
        """The others should not wait for a party that has failed."""
        if isinstance(error, RoleFailed) and "has stopped:" in str(error) and not self.is_hub:
            return  # they know it from the hub
        try:
            content = {"error": type(error).__name__, "text": str(error)[:2000]}
            self._tell_all("trouble", content)
        except (ColonnadeError, _GoBack, Stopped):
            pass

    def _no_room(self) -> None:
        """The peer has not taken in what it was sent: take in what others send meanwhile."""
        if self.post.waiting() > BACKLOG_BYTES:
            time.sleep(0.01)
            self._tick(time.monotonic())
        else:
            self._pump(TICK)


def _place(position: Any) -> Place:
    phase, epoch, step = position
    return str(phase), int(epoch), int(step)
