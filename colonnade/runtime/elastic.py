"""The same session where parties come and go: nobody goes back because another one has gone.

    every party   keeps its own checkpoints, and goes on from its own newest one
    the hub       lets in whoever joins, at any time: `start` to that one alone, with an attempt of
                  its own; what had passed between the two before is forgotten
    the others    talk with the hub alone. While it is away they go on, as long as their role does
                  not wait for it without a limit, and at the end conclude alone

A role sees a peer that is away by `peer.reachable`, by a `recv_any` that brings nothing, and by
messages that begin anew. What is sent to such a peer is not sent, and counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from queue import Empty
from typing import Any

from colonnade.errors import FederationError, PeerLost
from colonnade.net.link import Link
from colonnade.role.party import Party
from colonnade.role.progress import Stopped
from colonnade.runtime.control import Join, Start, choose_run
from colonnade.runtime.session import GOODBYE_SECONDS, TICK, WAIT_NOTE_SECONDS, Session, _GoBack
from colonnade.wire import Kind, Recv, Value
from colonnade.wire.ledger import AWAY

ALONE_SECONDS = 30.0  # that a hub is waited for, at a party's return and at its end


class LooseSession(Session):
    """One party's part in a run in which parties come and go."""

    back_to = "the newest checkpoint"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._came_back = bool(self._run)  # an earlier process of this party was in the run
        self._admitted: dict[str, str] = {}  # peer: which process of it this one talks with
        self._unsent: Counter[str] = Counter()
        self._missed: set[str] = set()  # peers to whom the last message was not sent
        self._over: set[str] = set()  # peers whose role has ended
        self._own_account: dict[str, Any] | None = None  # of a role that has ended
        self._remarks: tuple[str, ...] = ()  # who was away at the end
        for link in self.mesh.links.values():
            link.loose = True

    # ---- messages ----------------------------------------------------------------------------

    def put(self, party: Party, receiver: str, kind: Kind, value: Value) -> None:
        if receiver in self.mesh.links and not self.reaches(receiver):
            self._unsent[f"message to '{receiver}', which was not there"] += 1
            if receiver not in self._missed:
                self.work.log(f"'{receiver}' is not there: '{kind.name}' is not sent")
            self._missed.add(receiver)
            return
        self._missed.discard(receiver)
        self.post.put(party, receiver, kind, value)

    def reaches(self, peer: str) -> bool:
        self._glance()
        link = self.mesh.links.get(peer)
        if link is None or peer in self._over:
            return False
        return link.up and self._admitted.get(peer) == link.life_of()

    def refused(self) -> dict[str, int]:
        return {**super().refused(), **self._unsent}

    def _glance(self) -> None:
        """Take in what has come; a role that only computes would never notice that a peer is back,
        or that it is to stop."""
        try:
            while True:
                self._handle(self.mesh.inbox.get_nowait())
        except Empty:
            pass

    # ---- begin -------------------------------------------------------------------------------

    def _gather(self) -> Start:
        self._playing, self._start, self._own_account = False, None, None
        start = self._open() if self.is_hub else self._enter()
        if start.ended:
            self._keep_what_was_reached(start)
            return start
        self._playing = True
        held = self._checkpoints.held()
        place = held[-1] if held else "the beginning"
        self.work.log(f"attempt {start.attempt}: '{self.me}' starts from {place}")
        return start

    def _open(self) -> Start:
        """The hub begins: with all, or with those who are there if that may be."""
        self._joins[self.me] = self._join()
        began, told = time.monotonic(), 0.0
        while not self._may_begin(time.monotonic() - began):
            if time.monotonic() - told > WAIT_NOTE_SECONDS:
                told = time.monotonic()
                self.work.log(f"waiting for {', '.join(self._not_joined())}")
            self._pump(TICK)
        if later := self._not_joined():
            self.work.log(f"begins without {', '.join(later)}, who may come later")
        self._run = choose_run(self._run, self._joins)
        start = self._new_start(self._joins)
        for name in self._joins:
            if name != self.me:
                self._admit(name, start)
        self._joins = {}
        return start

    def _not_joined(self) -> list[str]:
        return [name for name in self.members if name not in self._joins]

    def _may_begin(self, seconds: float) -> bool:
        somebody, patience = len(self._joins) > 1, self.patience
        if not self._not_joined():
            return True
        if self._checkpoints.finished:  # nothing is left to do; some may still have to say so
            return seconds > min(GOODBYE_SECONDS, patience.deadline / 2)
        if self._came_back:  # in the middle of a run, where some may be away
            return somebody
        return patience.on_lost == "continue" and somebody and seconds > patience.deadline

    def _new_start(self, joins: dict[str, Join]) -> Start:
        """The next attempt, on disk before anybody knows of it."""
        self._attempt = max(self._attempt, *(join.attempt for join in joins.values())) + 1
        lives = {self.me: self.mesh.incarnation.hex()}
        lives |= {name: join.life for name, join in joins.items()}
        start = Start(self._run, self._attempt, None, lives=lives, told=dict(self.work.told))
        self.work.mark(start)
        return start

    def _admit(self, peer: str, start: Start) -> None:
        """From here on the two talk, and both begin to count at nought."""
        self._admitted[peer] = start.lives[peer]
        self._missed.discard(peer)
        self._over.discard(peer)
        self._waits.pop(peer, None)
        self.post.admit(peer, int(start.run, 16), start.attempt)
        if self.is_hub:
            self._tell(peer, "start", asdict(start))
            if self._own_account is not None:
                self._tell(peer, "end", {})

    def _enter(self) -> Start:
        """Be let in by the hub; a party that has been in this run goes on alone without it."""
        if self._hub_known:
            self._tell(self.hub, "join", asdict(self._join()))
        began = time.monotonic()
        while self._start is None:
            self._pump(TICK)
            if self._came_back and self._hub_away_since(began) > self._patient_seconds:
                self.work.log(f"'{self.hub}' cannot be reached: going on alone")
                return Start(self._run, self._attempt, None, told=dict(self.work.told))
        return self._start

    def _keep_what_was_reached(self, start: Start) -> None:
        """The federation has ended while this party was away: its newest checkpoint is what it
        has."""
        self.work.log("the federation has ended")
        self._note_away([self.hub])
        if self._checkpoints.finished:
            return
        snapshot = self._checkpoints.newest()
        if snapshot is None:
            raise FederationError(
                [f"the federation has ended, and '{self.me}' has trained nothing: it came too late"]
            )
        party = self.work.party(start)
        party.resume(snapshot)
        self.work.account(party)
        place = self._checkpoints.held()[-1]
        self._remarks += (f"the federation had ended: '{self.me}' kept what it had at {place}",)

    def _note_away(self, names: Iterable[str]) -> None:
        """In the ledger too: what was sent to them, or by them, may be lost."""
        for name in names:
            text = AWAY.format(name)
            self.post.ledger.note(text)
            self._remarks += (text,)

    # ---- play --------------------------------------------------------------------------------

    def _play(self, start: Start) -> Party:
        if self.is_hub and self._checkpoints.finished:
            # It died before it could conclude; those who have heard that it ended are gone.
            party = self.work.party(start)
            party.resume(self._checkpoints.last_word())
            return party
        return super()._play(start)

    def _snapshot(self, start: Start) -> dict[str, Any] | None:
        return self._checkpoints.newest()

    def _open_post(self, start: Start) -> None: ...  # `_admit` has, for each pair by itself

    def _checkpoint(self, party: Party) -> None:
        self._checkpoints.commit(self._checkpoints.save(party))  # nobody else has to hold it
        self.work.publish(party)
        self._pump(0.0)

    def _check_silence(self, wanted: Recv, began: float) -> None:
        if wanted.within is not None:
            return
        names = [peer.name for peer in wanted.peers]
        if not self.is_hub and any(n in self._missed and self.reaches(n) for n in names):
            raise _GoBack("it waits for an answer to what was not sent")
        away = [self._away_since(self.mesh.links[n], began) for n in names if n in self.mesh.links]
        over = self._over.issuperset(names) and not any(
            self.post.holds(name, wanted.kind) for name in names
        )
        if away and (min(away) > self.patience.deadline or over):
            why = "its role has ended" if over else self._missing(min(away))
            steps = self._party.progress.steps if self._party is not None else 0
            raise PeerLost(self.me, names[0], wanted.kind.name, steps, why)
        super()._check_silence(wanted, began)

    def _away_since(self, link: Link, began: float) -> float:
        """For how many seconds, at most since a moment; 0: it is there."""
        return 0.0 if link.up else time.monotonic() - max(link.since, began)

    def _hub_away_since(self, began: float) -> float:
        return self._away_since(self.mesh.links[self.hub], began)

    @property
    def _patient_seconds(self) -> float:
        return min(self.patience.deadline, ALONE_SECONDS)

    # ---- end ---------------------------------------------------------------------------------

    def _await_end(self, party: Party) -> None:
        account = self._own_account = self.work.account(party)
        self._checkpoints.finish(party)
        if self.is_hub:
            self._done[self.me] = account
            self._tell_all("end", {})  # nobody needs to wait for another word
            while self._still_playing():
                self._pump(TICK)
            self._accounts = {n: self._done[n] for n in self.members if n in self._done}
            self._note_away(name for name in self.members if name not in self._done)
            return
        apart = not self.reaches(self.hub) and self._accounts is None
        if self._admitted and not apart:
            self._tell(self.hub, "done", account)
        began = time.monotonic()
        while self._accounts is None:
            self._pump(TICK)
            if apart and self.reaches(self.hub):  # its role's last words can now be heard
                raise _GoBack(f"'{self.hub}' is back, and does not know that '{self.me}' has ended")
            if self._hub_away_since(began) > self._patient_seconds:
                self.work.log(f"'{self.hub}' cannot be reached: concluding alone")
                self._note_away([self.hub])
                return

    def _still_playing(self) -> bool:
        """Whether somebody is connected who has not come to an end."""

        def found() -> bool:
            return any(link.up and p not in self._done for p, link in self.mesh.links.items())

        if not found():
            self._glance()  # its last words may have come just before its connection ended
        return found()

    def _warnings(self) -> tuple[str, ...]:
        return self._remarks

    def _leaving(self) -> list[str]:
        return [name for name in self._accounts or {} if name != self.me]

    # ---- events ------------------------------------------------------------------------------

    def _came_up(self, link: Link, anew: bool) -> None:
        if not anew:
            return  # the link has repaired itself
        self._begun = {key: text for key, text in self._begun.items() if key[0] != link.peer}
        self._admitted.pop(link.peer, None)
        self._joins.pop(link.peer, None)
        self._waits.pop(link.peer, None)
        if self.is_hub or link.peer != self.hub:
            return
        self._hub_known = True
        if self._accounts is not None and not self._playing:
            return
        self._accounts = None  # it will say again that it has ended, if it has
        waits = self._wanted is not None and self._wanted.within is None
        if self._playing and (waits or self._own_account is not None):
            # What it had sent has died with that process: the answer to it, or that it has ended.
            raise _GoBack(f"'{self.hub}' was started anew")
        self._tell(self.hub, "join", asdict(self._join()))

    def _hear_join(self, sender: str, content: dict[str, Any]) -> None:
        if self._ended:
            super()._hear_join(sender, content)
            return
        join = self._read_join(content)
        if not self._playing:
            self._joins[sender] = join
            return
        if join.run not in ("", self._run):
            text = f"'{sender}' brings a folder of run {join.run}, this is {self._run}: give it "
            text += "another --out, or the folder of this run"
            trouble = {"error": "FederationError", "text": text, "refused": True}
            self._tell(sender, "trouble", trouble)
            return
        start = self._new_start({sender: join})
        self.work.log(f"attempt {start.attempt}: '{sender}' takes part")
        self._admit(sender, start)

    def _hear_start(self, sender: str, content: dict[str, Any]) -> None:
        super()._hear_start(sender, content)
        start = self._start
        assert start is not None
        if start.ended:
            return
        self._run, self._attempt, self._came_back = start.run, start.attempt, True
        self.work.mark(start)
        self._admit(sender, start)
        if self._playing:
            self.work.log(f"attempt {start.attempt}: '{sender}' is back")

    def _hear_done(self, sender: str, content: dict[str, Any]) -> None:
        super()._hear_done(sender, content)
        self._over.add(sender)

    def _hear_end(self, sender: str, content: dict[str, Any]) -> None:
        super()._hear_end(sender, content)
        self._over.add(sender)
        if self._playing and self._own_account is None:
            self.work.log(f"the role of '{sender}' has ended: going on alone")

    def _hear_trouble(self, sender: str, content: dict[str, Any]) -> None:
        begun = self._playing or self._came_back
        if not self.is_hub and (content.get("refused") or not begun):
            super()._hear_trouble(sender, content)  # this party will not be let in
        self.work.log(f"'{sender}' has stopped: {content['error']}: {content['text']}")

    # ---- the clock ---------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        super()._tick(now)
        if self._stop_told:
            self._stop_if_idle()

    def _look_for_the_lost(self, now: float) -> None:
        """Only a beginning needs everybody; later the hub needs somebody."""
        if self._ended or (not self.is_hub and (self._playing or self._came_back)):
            return
        with_all = not (self._playing or self._came_back) and self.patience.on_lost != "continue"
        if not self.is_hub or with_all:
            super()._look_for_the_lost(now)
            return
        links = self.mesh.links
        if any(link.up or peer in self._done for peer, link in links.items()):
            return
        seconds = min(now - link.since for link in links.values())
        if seconds > self.patience.deadline:
            self._give_up(next(iter(links)), seconds)

    def _look_for_deadlock(self, now: float) -> None:
        if self._wanted is None or self._wanted.within is None:
            super()._look_for_deadlock(now)

    # ---- stop --------------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """This party saves itself and stops; the hub has all others do so too."""
        super().stop(why)
        if self._party is not None and self._playing:
            self._party.progress.stop_at = self._party.progress.steps + 1

    def _spread_the_stop(self) -> None:
        self._stop_told = True
        self.work.log(f"stopping: {self._stop_wish}")
        if self.is_hub:
            self._tell_all("stop_at", {"steps": 0, "why": self._stop_wish})

    def _hear_stop_at(self, sender: str, content: dict[str, Any]) -> None:
        self._stop_told = True
        self.stop(str(content["why"]))

    def _stop_if_idle(self) -> None:
        """A role that computes ends its step first; one that waits has nothing to lose."""
        if self._party is None or not self._playing or self._wanted or self._own_account:
            raise Stopped
