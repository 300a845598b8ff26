"""The doctor's checks of the network: a party's own port, and the peers that it would dial."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from colonnade.config import federation as federations
from colonnade.deploy.doctor.check import Case, Check
from colonnade.deploy.doctor.keys import keys_of
from colonnade.net.admission import Admission
from colonnade.net.diagnose import Cause, Trouble

T = TypeVar("T")
SECONDS = 2.0  # for everything that waits for a network
NO_ANSWER = f"no answer within {SECONDS:g} s"


def own_port(case: Case, usable: bool) -> Iterator[Check]:
    """The port that others dial: whether it is free here."""
    me = case.me
    if not case.federation.listens(me.name):
        yield Check("own port", "ok", f"none: {me.name} dials out")
        return
    error = _in_time({me.name: partial(_bind, me.binds)}).get(me.name, TimeoutError(NO_ANSWER))
    if error is not None:
        yield _cannot_bind(case, error, usable)
    else:
        yield Check("own port", "ok", f"{me.binds} is free; a firewall must let others in")


def _cannot_bind(case: Case, error: OSError, usable: bool) -> Check:
    me = case.me
    if error.errno == errno.EADDRINUSE:
        host, port = federations.split_address(me.binds)
        here = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not host.strip("0.:"):  # all of the machine's addresses
            here = f"[::1]:{port}" if ":" in host else f"127.0.0.1:{port}"
        if usable and not _knock(case, {me.name: here})[me.name]:
            said = f"{me.binds}: a process of '{me.name}' listens there already"
            move = "leave it running, or stop it before another one is started"
            return Check("own port", "warning", said, move)
        move = "stop what uses it, or agree on another port"
        return Check("own port", "problem", f"{me.binds} is taken", move)
    moves = {
        errno.EADDRNOTAVAIL: f'it is not this machine\'s: add listen = "0.0.0.0:…" to '
        f"[parties.{me.name}]",
        errno.EACCES: "choose a port from 1024 on, or run with more rights",
    }
    said = f"{me.binds} cannot be bound: {error.strerror or error}"
    return Check("own port", "problem", said, moves.get(error.errno or 0, "correct `listen`"))


def peers(case: Case, usable: bool) -> Iterator[Check]:
    """Everybody whom this party talks with: who dials, and whether the way is open."""
    linked = case.federation.linked(case.me.name)
    others = [m for m in case.federation.members if m.name in linked]
    dials = {m.name: case.federation.dials(case.me.name, m.name) for m in others}
    called = {m.name: m.address for m in others if dials[m.name] == case.me.name}
    answers = _knock(case, called) if usable else {}
    for other in others:
        about, who = f"peer {other.name}", f"'{other.name}' at {other.address}"
        if dials[other.name] is None:
            said = f"reached through '{case.federation.hub}'"
            yield Check(about, "ok", said)
        elif dials[other.name] == other.name:
            yield Check(about, "ok", f"dials this party, which must listen at {case.me.address}")
        elif not usable:
            move = "correct this party's own keys first"
            yield Check(about, "warning", f"{who}: not dialled", move)
        elif (trouble := answers[other.name]) is None:
            yield Check(about, "ok", f"{who} answers, and each accepts the other's certificate")
        elif trouble.cause is Cause.NOBODY_LISTENS:
            move = f"start '{other.name}'; this party will go on dialling until it answers"
            yield Check(about, "warning", f"{who}: {trouble.text}", move)
        else:
            move = "compare address, firewall, ca.pem and clocks of both parties"
            yield Check(about, "problem", f"{who}: {trouble.text}", move)


def engine(case: Case, usable: bool) -> Iterator[Check]:
    """The engine's. Peers are there while a job runs, and not before."""
    address = case.mine.server
    host = address.rpartition(":")[0]
    if not usable:
        move = "correct this site's own keys first"
        yield Check("engine", "warning", f"the server at {address}: not dialled", move)
    elif (trouble := _knock(case, {host: address})[host]) is None:
        found = f"the server at {address} answers, and each accepts the other's certificate"
        yield Check("engine", "ok", found)
    elif trouble.cause is Cause.NOBODY_LISTENS:
        move = "start the engine's server"
        yield Check("engine", "warning", f"the server at {address}: {trouble.text}", move)
    else:
        move = "is it the kit of this server? Compare address, firewall and clocks"
        yield Check("engine", "problem", f"the server at {address}: {trouble.text}", move)


def _knock(case: Case, addresses: Mapping[str, str]) -> dict[str, Trouble | None]:
    """What stands in the way of a connection with each peer."""
    admission = Admission(case.me.name, keys_of(case), lambda text: None)
    # Longer than it is waited for: a time-out in the handshake looks like success.
    works = {
        peer: partial(admission.trouble, peer, address, 2 * SECONDS)
        for peer, address in addresses.items()
    }
    late: Trouble | None = Trouble(Cause.UNREACHABLE, NO_ANSWER)
    return dict.fromkeys(addresses, late) | _in_time(works)


def _bind(address: str) -> OSError | None:
    """Bind and let go again, without listening: a peer that dials now is not answered."""
    host, port = federations.split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error
    return None


def _in_time(works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """What each returns, as far as it does so in time: a name that does not resolve can take
    minutes, and nothing can interrupt that."""
    answers: SimpleQueue[tuple[str, T]] = SimpleQueue()

    def do(name: str, work: Callable[[], T]) -> None:
        answers.put((name, work()))

    for one in works.items():
        threading.Thread(target=do, args=one, daemon=True).start()
    found: dict[str, T] = {}
    until = time.monotonic() + SECONDS
    try:
        while len(found) < len(works):
            name, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
            found[name] = answer
    except Empty:
        pass
    return found
