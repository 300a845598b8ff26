"""All links of one party: it listens and dials, admits peers, and relays parts between others.

In every pair one party dials and one listens. A pair in which neither can listen talks through the
hub, which relays its parts. A party that connects must present a certificate of the federation's
authority, be a member by its name, speak TLS 1.3, and agree on everything that must be equal;
otherwise it is refused and told why, and the reason is logged.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from colonnade.errors import CodecError, FederationError, Refused, RunError, foreign
from colonnade.net import siege
from colonnade.net.admission import Admission
from colonnade.net.diagnose import CERTIFICATES, UNHEARD, Trouble, diagnose
from colonnade.net.frame import (
    FRAME_BYTES,
    Body,
    Frame,
    Hello,
    Part,
    Refusal,
    pack,
    parse,
)
from colonnade.net.greeting import AGREE, WAITING, Unfit, first_words, fitting
from colonnade.net.keys import Keys
from colonnade.net.link import Arrived, Astray, Connection, Event, Foul, Inbox, Link
from colonnade.net.rationed import Rationed

SERVICE, METHOD = "colonnade.Link", "Exchange"
HELLO_SECONDS = 10.0
MOST_CALLS = 4  # of one peer that are answered at once; a thread is ready for each
LINE_LETTERS = 10_000  # of a line about a refusal
MOST_REASONS, REASON_LETTERS = 100, 1000  # of a refusal: it may repeat what a stranger said
CLOCK_SECONDS = 60.0  # how far two clocks may differ without a remark
BEAT_SECONDS = 3.0  # how often an idle party sends a sign of life
DEAF_SECONDS = 30.0  # silence after which a connection is dead; the largest frame must fit into it
RETRY_SECONDS = (0.05, 1.0)  # first and longest pause between two attempts to reach a peer
OPTIONS = [
    ("grpc.max_send_message_length", FRAME_BYTES),
    ("grpc.max_receive_message_length", FRAME_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
    # No gRPC setting detects a half-open connection in time: gRPC 1.85 waits 60 s for the answer to
    # a ping, and a shorter timeout breaks a slow line, where the answer queues behind megabytes of
    # data. So links send their own signs of life. The timeout below is TCP's, for unconfirmed data.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 600_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True)
class Lost:
    """A peer that cannot be won back: it refuses this party for good."""

    error: Refused


class Mesh:
    def __init__(
        self,
        me: str,
        keys: Keys,
        *,
        hub: str,
        listen: str | None,
        dial: Mapping[str, str],
        accept: frozenset[str],
        relayed: frozenset[str],
        between: frozenset[frozenset[str]] = frozenset(),
        agreed: Mapping[str, str],
        log: Callable[[str], None],
    ) -> None:
        """
        dial     address of every peer that this party dials
        accept   the peers that dial this party
        relayed  the peers that are reached through the hub
        between  the pairs that this party, the hub, relays between
        agreed   what must be equal at all parties, by name
        """
        self.me, self.hub, self.inbox = me, hub, SimpleQueue[Event | Lost]()
        self.barred: dict[str, str] = {}  # members that may not come back, and why
        self.when_full = self._pause  # called by a sender while there is no room; may raise
        self._keys, self._listen, self._dial = keys, listen, dict(dial)
        self._accept, self._relayed, self._between = accept, relayed, between
        self._log = Rationed(log)
        self._agreed = dict(agreed)
        self._admission = Admission(me, keys, log)
        self.incarnation = os.urandom(16)  # of this process
        self.links = {
            peer: Link(me, peer, self.incarnation, self.inbox, partial(self._route, peer))
            for peer in sorted({*dial, *accept})
        }
        self._passing = {peer: SimpleQueue[Event | None]() for peer in self.links}
        self._closing = threading.Event()
        self._ending = False
        self._server: grpc.Server | None = None
        self._files = 0  # that were open when this party began to listen
        self._threads: list[threading.Thread] = []
        self._said: dict[str, str] = {}
        self._calls = siege.Calls()

    def start(self) -> None:
        """Listen and dial; returns at once."""
        siege.limit_arenas()
        if self._listen is not None:
            self._serve(self._listen)
        for peer, address in self._dial.items():
            self._thread(partial(self._keep_dialling, peer, address))
        if self.me == self.hub:
            for parts in self._passing.values():
                self._thread(partial(self._pass_on, parts))
        self._thread(self._watch)

    def send_part(self, peer: str, part: Part, tail: Sequence[bytes | memoryview]) -> None:
        """Send a part of a message to any member, directly or through the hub."""
        self.links[self.hub if peer in self._relayed else peer].send(self.when_full, part, tail)

    def relays(self, sender: str, receiver: str) -> bool:
        """Whether this party, the hub, carries what one member sends to another."""
        return frozenset((sender, receiver)) in self._between

    def expect_end(self) -> None:
        """Everything has been sent: from now on a connection that ends is not worth a report."""
        self._ending = True

    def bar(self, peer: str, why: str) -> None:
        """From now on there is no connection with a peer; messages to it go nowhere."""
        if peer not in self.barred:
            self.barred[peer] = why
            self._log(f"no connection with '{peer}' any more: {why}")
            self.links[peer].bar(why)

    def close(self, seconds: float = 2.0) -> None:
        """Wait until everything sent has arrived, then end all connections."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(
            link.up and not link.flushed() for link in self.links.values()
        ):
            time.sleep(0.01)
        self._closing.set()
        for link in self.links.values():
            link.close()
            self._passing[link.peer].put(None)
        if self._server is not None:
            self._server.stop(0.1).wait(1.0)
        until = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def refused(self) -> dict[str, int]:
        """How many frames were refused, by reason."""
        total: dict[str, int] = {}
        for link in self.links.values():
            for reason, count in link.refused.items():
                total[reason] = total.get(reason, 0) + count
        return total

    # ---- what everybody must agree on ----------------------------------------------------------

    def _check(self, body: Body, peer: str) -> Hello:
        """A peer's hello, if the peer may come back and fits; otherwise Unfit says why not."""
        if peer in self.barred:
            raise Unfit(self.barred[peer])
        hello = fitting(body, peer, self.me, self._agreed)
        apart = hello.clock - time.time()
        if abs(apart) > CLOCK_SECONDS:
            self._log(
                f"the clock of '{peer}' is {apart:+.0f} s off this one: set both by NTP", peer
            )
        return hello

    def _hello(self, link: Link) -> bytes:
        return link.hello(json.dumps(self._agreed))

    # ---- listening -----------------------------------------------------------------------------

    def _serve(self, address: str) -> None:
        pool = ThreadPoolExecutor(MOST_CALLS * len(self.links) + 8, thread_name_prefix="listen")
        server = grpc.server(pool, options=[*OPTIONS, *siege.options()])
        handler = grpc.stream_stream_rpc_method_handler(self._answer)  # bytes in, bytes out
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})]
        )
        try:
            bound = server.add_secure_port(address, self._admission.listener())
        except RuntimeError:
            bound = 0
        if not bound:
            raise FederationError(
                [
                    f"'{self.me}' cannot listen at {address}: the port is taken or needs rights, "
                    "or the address is not this machine's. Free the port, or give another address"
                ]
            )
        server.start()
        self._server, self._files = server, siege.open_files()

    def _answer(self, requests: Any, context: grpc.ServicerContext) -> Any:
        """One connection of a peer that dialled."""
        self._admission.heard()
        who, why = self._caller(context)
        if why:
            yield self._refuse(who, why)
            return
        with self._calls.of(who) as calls:
            if calls > MOST_CALLS:  # no word of refusal: an honest one may try again
                self._refuse(who, f"'{who}' has too many connections at once")
                return
            yield from self._converse(who, requests, context)

    def _converse(self, who: str, requests: Any, context: grpc.ServicerContext) -> Any:
        link = self.links[who]
        first: SimpleQueue[bytes | None] = SimpleQueue()
        connection = Connection(lambda: context.cancel())
        self._thread(partial(self._read, link, connection, requests, first))
        try:
            data = first.get(timeout=HELLO_SECONDS)
        except Empty:
            data = None
        if data is None:
            self._refuse(who, "no hello came")
            return
        try:
            body = first_words(data, who)
            if isinstance(body, Refusal):
                self._say(who, f"'{who}' refuses this party: {foreign('; '.join(body.reasons))}")
                return
            link.attach(connection, self._check(body, who))
        except Unfit as unfit:
            yield self._refuse(who, *unfit.reasons, move="" if who in self.barred else AGREE)
            return
        except CodecError as error:
            yield self._refuse(who, str(error))
            return
        self._log(f"connected with '{who}', who dialled", who)
        yield self._hello(link)  # before the frames that the peer has missed
        while (data := connection.queue.get()) is not None:
            yield data

    def _caller(self, context: grpc.ServicerContext) -> tuple[str, str]:
        """Who dialled, and the reason not to answer, if there is one."""
        shown = context.auth_context()
        names = [name.decode(errors="replace") for name in shown.get("x509_common_name", [])]
        who = self._keys.party(names[0]) if len(names) == 1 else "somebody without a name"
        version = b"".join(shown.get("ssl_tls_version", [])).decode(errors="replace")
        if version and version != "TLSv1.3":
            return who, f"'{who}' speaks {version}; TLS 1.3 is required"
        if who not in self._accept:
            known = "not a member of this federation" if who not in self.links else "to be dialled"
            return who, f"'{who}' is {known}"
        return who, self._admission.refuses(who, b"".join(shown.get("x509_pem_cert", [])))

    # ---- dialling ------------------------------------------------------------------------------

    def _keep_dialling(self, peer: str, address: str) -> None:
        pause = RETRY_SECONDS[0]
        while not self._closing.is_set() and peer not in self.barred:
            began = time.monotonic()
            try:
                why = self._dial_once(peer, address)
            except Refused as refusal:
                self.inbox.put(Lost(refusal))
                return
            if self._closing.is_set() or self._ending or peer in self.barred:
                return
            if time.monotonic() - began > 5:
                pause = RETRY_SECONDS[0]
            self._say(peer, f"'{peer}' at {address}: {why}")
            self._closing.wait(pause * random.uniform(0.5, 1.0))  # not all at the same moment
            pause = min(2 * pause, RETRY_SECONDS[1])

    def _dial_once(self, peer: str, address: str) -> str:
        """Talk until the connection ends, and return why it ended."""
        link = self.links[peer]
        shown = self._admission.look(peer, address)
        if isinstance(shown, Trouble):
            link.trouble, link.move = shown.text, shown.move
            return shown.text
        try:
            credentials = self._admission.dialler(shown)
        except FederationError as error:
            return str(error)
        options = [*OPTIONS, ("grpc.ssl_target_name_override", self._keys.host_of(peer))]
        channel = grpc.secure_channel(address, credentials, options)
        if why := self._admission.refuses(peer, shown):
            with channel:
                self._turn_down(link, channel, why)
            return why
        connection = Connection(lambda: call.cancel())
        connection.queue.put(self._hello(link))
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(connection.queue.get, None))
        attached, why = False, "refused"
        timer = threading.Timer(HELLO_SECONDS, lambda: None if attached else call.cancel())
        timer.daemon = True
        timer.start()
        try:
            for data in call:
                if attached:
                    link.incoming(connection, data)
                    continue
                body = parse(data, f"'{peer}'")[0].body
                if isinstance(body, Refusal):
                    raise Unfit(foreign("; ".join(body.reasons)))
                hello = self._check(body, peer)
                attached = True
                link.attach(connection, hello)
                self._log(f"connected with '{peer}' at {address}", peer)
                self._said.pop(peer, None)
            why = "the connection was closed"
        except grpc.RpcError as error:
            code = error.code().name if hasattr(error, "code") else str(error)
            why = "the connection broke" if attached else f"cannot be reached ({code})"
            if not attached and not self._closing.is_set():
                trouble = diagnose(address, peer, self._keys)
                why = why if trouble is None else trouble.text
        except Unfit as unfit:
            raise Refused(
                f"'{peer}' and '{self.me}' do not fit together: {'; '.join(unfit.reasons)}. {AGREE}"
            ) from None
        except CodecError as error:
            why = str(error)
            link.refused["malformed"] += 1
            if attached:
                self.inbox.put(Foul(link, why))
        finally:
            timer.cancel()
            connection.queue.put(None)
            call.cancel()
            channel.close()
            link.detach(connection, why)
        if not attached:
            link.trouble = why
        return why

    def _turn_down(self, link: Link, channel: grpc.Channel, why: str) -> None:
        """Tell a peer whose certificate does not count why it is left alone; once."""
        if link.trouble != why:
            link.trouble = why
            told = channel.stream_stream(f"/{SERVICE}/{METHOD}")(
                iter([pack(Frame(body=Refusal((why,))))]), timeout=HELLO_SECONDS
            )
            with suppress(grpc.RpcError):
                next(told, None)  # it has nothing to say, and ends the call
            told.cancel()

    # ---- both ----------------------------------------------------------------------------------

    def _read(
        self, link: Link, connection: Connection, requests: Any, first: SimpleQueue[bytes | None]
    ) -> None:
        """Read everything that one peer sends over a connection."""
        why = "the connection was closed"
        try:
            first.put(next(requests, None))
            for data in requests:  # none comes before our own hello has arrived at the peer
                link.incoming(connection, data)
        except CodecError as error:
            why = str(error)
            link.refused["malformed"] += 1
            self._log(f"closing the connection with '{link.peer}': {why}", link.peer)
            if link.carried_by(connection):
                self.inbox.put(Foul(link, why))
            connection.close()
        except Exception as error:  # noqa: BLE001 - gRPC raises bare Exceptions for broken streams
            why = f"the connection broke ({error})" if str(error) else "the connection broke"
        finally:
            first.put(None)
            connection.queue.put(None)
            link.detach(connection, why)

    def _route(self, peer: str, part: Part) -> Inbox:
        """Where a part goes: to this party, or to another one that its sender cannot reach."""
        if part.sender != peer and (peer != self.hub or part.sender not in self._relayed):
            return self._astray(peer, f"in the name of '{foreign(part.sender)}'")
        if part.receiver == self.me or self.me != self.hub or part.receiver not in self.links:
            return self.inbox
        if not self.relays(peer, part.receiver):
            return self._astray(peer, f"for '{part.receiver}', with whom it has a link of its own")
        return self._passing[peer]

    def _astray(self, peer: str, what: str) -> Inbox:
        """Where a part goes that may not come this way. The link goes on: if it broke, its peer
        would send the part again and again."""
        why = f"'{peer}' sent a message {what}"
        self._say(peer, why)
        return Astray(why, self.inbox)

    def _pass_on(self, parts: SimpleQueue[Event | None]) -> None:
        """Relay what one party sends to others. A reading thread must not do this: while it waits
        for room it reads no acks, and two such threads would wait for each other for ever."""
        while (event := parts.get()) is not None:
            if not isinstance(event, Arrived) or not isinstance(event.content, Part):
                continue  # only parts are relayed
            part = event.content
            try:
                self.links[part.receiver].send(self._pause, part, [event.tail])
            except CodecError:
                return  # closing
            event.link.took(event)

    def _pause(self) -> None:
        if self._closing.wait(0.002):
            raise CodecError("closing")

    def _watch(self) -> None:
        """Break connections that are dead or miss a frame: missing frames are then sent again."""
        while not self._closing.wait(0.25):
            self._wonder()
            self._look_for_a_siege()
            for link in self.links.values():
                link.beat(BEAT_SECONDS)
                if link.deaf(DEAF_SECONDS):
                    self._log(f"'{link.peer}' was silent for {DEAF_SECONDS:g} s: connecting again")
                    link.break_off()
                if link.gaping():
                    self._log(f"a frame of '{link.peer}' is missing: connecting again")
                    link.refused["missing"] += 1
                    link.break_off()

    def _wonder(self) -> None:
        """gRPC does not tell the accepting side why a handshake fails, nor whose it was."""
        missing = [peer for peer in sorted(self._accept) if not self.links[peer].up]
        if not missing or not self._admission.unheard():
            self._said.pop("", None)
            return
        for peer in missing:
            self.links[peer].trouble, self.links[peer].move = UNHEARD, CERTIFICATES
        names = " and ".join(f"'{name}'" for name in missing)
        self._say(
            "",
            f"{UNHEARD}, and {names} did not connect: is the certificate there of another "
            f"authority, or expired? Compare both: `colonnade certs show {self._keys.authority}`",
        )

    def _look_for_a_siege(self) -> None:
        """Say why members may need several attempts to connect."""
        if self._server is not None:
            more = siege.open_files() - self._files - 2 * len(self.links)
            if more > siege.MANY:
                self._say(" siege", siege.REMARK.format(self._listen))

    def _refuse(self, who: str, *reasons: str, move: str = "") -> bytes:
        """Log why a peer is refused, and return the frame that says so and ends its connection."""
        told = tuple(reason[:REASON_LETTERS] for reason in reasons[:MOST_REASONS])
        if who in self.links:
            self.links[who].trouble, self.links[who].move = "; ".join(told), move
        goes_on = WAITING.format(me=self.me, who=who) if move else ""
        self._say(who, f"refused '{who}': {'; '.join(told)}"[:LINE_LETTERS] + goes_on)
        return pack(Frame(body=Refusal(told)))

    def _say(self, peer: str, text: str) -> None:
        if self._said.get(peer) != text:  # once, not at every attempt
            self._said[peer] = text
            self._log(text, peer)

    def _thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()]
        try:
            thread.start()
        except RuntimeError as error:
            raise RunError(
                f"'{self.me}' has no thread left for its links ({error}): raise the limit, `ulimit "
                "-u`, or end other programs, and start it again with the same command"
            ) from error
        self._threads.append(thread)
