"""How much of what others send may lie here unread; beyond that, senders wait.

A part is taken in when it comes, and its message lies in the post until the role asks for it. It is
acknowledged

    at once        while there is room: PEER_BYTES for each sender, ALL_BYTES for all together
    at once        if the role waits for a message of this sender
    at once        if this party itself waits for room at another: then up to ALL_BYTES, and one
                   message of each sender whatever its size, lest two who both send first lock up
    later          once there is room again; until then it fills its sender's window

Words of the protocol pass whatever lies unread. A sender whom a role waits for, and who fills all
the room with other messages instead, is named. What the hub relays shares the hub's link, which
must not stand still for it: it is acknowledged at once, and a sender that goes beyond ALL_BYTES is
named as well.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable

from colonnade.errors import CodecError
from colonnade.net.frame import Part
from colonnade.net.link import Arrived

PEER_BYTES, ALL_BYTES = 32 << 20, 128 << 20
MESSAGE_BYTES = 2 << 10  # that a message takes besides its own bytes


class Credit:
    """What lies unread at one party, and which frames it has not acknowledged yet."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.needed: Collection[str] = ()  # whom the role waits for
        self.blocked = False  # this party waits for room at another
        self._unread: Counter[str] = Counter()  # whole messages, by sender
        self._all = 0  # of all senders
        # Of each, by sender and Kind
        self._sizes: defaultdict[tuple[str, str], deque[int]] = defaultdict(deque)
        self._begun: Counter[str] = Counter()  # that have come of a message that has not ended
        self._held: dict[str, deque[tuple[Arrived, bool]]] = {}  # not acknowledged, in their order

    def came(self, event: Arrived, part: Part, early: bool = False) -> None:
        """A part was taken in by the post, and lies there.

        early  it is of an attempt that has not begun: nobody waits for it yet, and nobody has
               looked whether it continues what came before
        """
        sender = part.sender
        if len(event.tail) == part.size and not early and sender not in self._begun:
            self._add(sender, part.kind, part.size)  # whole, as most are
        else:
            self._begun[sender] += len(event.tail) + early * MESSAGE_BYTES
            if part.offset + len(event.tail) >= part.size:
                self._add(sender, part.kind, max(part.size, self._begun.pop(sender)))
        relayed = sender != event.link.peer
        if relayed or (sender in self.needed and not early):
            self._check(sender, part.size, early)
        if relayed or (sender not in self._held and self._has_room(sender, early)):
            event.link.took(event)
        else:
            self._held.setdefault(sender, deque()).append((event, early))

    def read(self, sender: str, kind: str) -> None:
        """The role has been given the first message of a Kind."""
        size = self._sizes[sender, kind].popleft()
        self._unread[sender] -= size
        self._all -= size

    def settle(self) -> None:
        """Acknowledge whatever there is room for by now."""
        if not self._held:
            return
        for sender, held in list(self._held.items()):
            while held and self._has_room(sender, held[0][1]):
                event, _ = held.popleft()
                event.link.took(event)
            if not held:
                del self._held[sender]

    def recount(self, unread: Iterable[tuple[str, str, int]]) -> None:
        """Much of what lay unread is gone; these messages are left."""
        self._unread.clear()
        self._all = 0
        self._sizes.clear()
        self._begun.clear()
        for sender, kind, size in unread:
            self._add(sender, kind, size)
        self._held = {
            name: deque((event, False) for event, _ in held) for name, held in self._held.items()
        }

    def _add(self, sender: str, kind: str, size: int) -> None:
        size += MESSAGE_BYTES
        self._unread[sender] += size
        self._all += size
        self._sizes[sender, kind].append(size)

    def _check(self, sender: str, last: int, early: bool) -> None:
        """Refuse a sender that fills the room with what nobody asks for.

        Its receiver may wait for another message of it for any length of time.
        """
        if self._all + (self._begun.total() if early else 0) <= ALL_BYTES:
            return
        mine, all_ = self._unread[sender], self._all
        if early:
            mine, all_ = mine + self._begun[sender], all_ + self._begun.total()
        else:
            mine, all_ = mine - last, all_ - last
        if all_ > ALL_BYTES and mine > max(PEER_BYTES, ALL_BYTES // 2):
            raise CodecError(
                f"'{sender}' sent '{self._me}' {mine >> 20} MiB of messages that nobody has asked "
                f"for, and not the one that is waited for; {ALL_BYTES >> 20} MiB at most"
            )

    def _has_room(self, sender: str, early: bool) -> bool:
        if sender in self.needed and not early:
            return True
        mine, all_ = self._unread[sender], self._all
        if self.blocked and not early:
            return all_ <= ALL_BYTES or not mine
        if not self._begun:
            return mine <= PEER_BYTES and all_ <= ALL_BYTES
        begun, all_begun = self._begun[sender], self._begun.total()
        return mine + begun <= PEER_BYTES and all_ + all_begun <= ALL_BYTES
