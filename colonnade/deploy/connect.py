"""A party's way to the others: what all must agree on, its links, its post, its session."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colonnade import models
from colonnade.config.federation import Federation
from colonnade.deploy.setup import Setup
from colonnade.journal import Journal
from colonnade.net.greeting import ANY
from colonnade.net.mesh import Mesh
from colonnade.runtime.checkpoint import NoCheckpoints, OwnCheckpoints
from colonnade.runtime.control import Patience
from colonnade.runtime.elastic import Elastic
from colonnade.runtime.fixed import Fixed
from colonnade.runtime.network import Network
from colonnade.runtime.post import Post
from colonnade.runtime.sealing import NoSealing, Sealing
from colonnade.runtime.session import Keeper, Session
from colonnade.version import __version__
from colonnade.wire import Ledger
from colonnade.wire.gate import Gate


def connect(
    setup: Setup,
    journal: Journal,
    book: Ledger,
    checkpoints: OwnCheckpoints | NoCheckpoints,
    keeper: Keeper,
    log: Callable[[str], None],
    *,
    told: Mapping[str, Any] | None = None,
    run: str = "",
    attempt: int = 0,
    absent: Collection[str] = (),
    accounts: Mapping[str, Any] | None = None,
) -> Session:
    """The session of a party, with its links and its post; nobody is called yet."""
    federation = setup.federation
    members, width = len(federation.names), setup.rows.width
    counted = setup.settings.found.method.learning.counted(setup.settings.options)
    gate = Gate(setup.name, setup.policy, width, members, setup.task, counted)
    gate.restore(row for row in book.rows() if row.get("sender") == setup.name)
    mesh = _mesh(setup, absent, log)
    post = Post(
        setup.name,
        frozenset({setup.name, *federation.linked(setup.name)}),
        setup.settings.kinds,
        book,
        gate,
        Network(mesh),
    )
    return Session(
        setup.name,
        federation.names,
        federation.hub,
        mesh,
        post,
        checkpoints,
        Elastic(came_back=bool(run)) if setup.elastic else Fixed(),
        Patience(federation.on_lost, federation.deadline, federation.patience),
        keeper,
        log,
        journal,
        told=told,
        run=run,
        attempt=attempt,
        absent=absent,
        reached=_reached(book) if federation.on_lost == "continue" else None,
        accounts=accounts,
        sealing=Sealing(setup.identity("ledger"), book, run)
        if setup.task == "train"
        else NoSealing(),
    )


def _mesh(setup: Setup, absent: Collection[str], log: Callable[[str], None]) -> Mesh:
    """The links: of each pair one party dials, or the hub relays."""
    federation = setup.federation
    me = federation.member(setup.name)
    others = [name for name in federation.linked(setup.name) if name not in absent]
    dialler = {name: federation.dials(setup.name, name) for name in others}
    names = federation.names
    between = frozenset(
        frozenset((a, b))
        for a in names
        for b in names
        if a != b and b in federation.linked(a) and federation.dials(a, b) is None
    )
    return Mesh(
        setup.name,
        setup.keys,
        hub=federation.hub,
        listen=setup.addresses.get(me.name, me.binds) if federation.listens(me.name) else None,
        dial={
            n: setup.addresses.get(n, federation.member(n).address)
            for n in others
            if dialler[n] == setup.name
        },
        accept=frozenset(n for n in others if dialler[n] == n),
        relayed=frozenset(n for n in others if dialler[n] is None),
        between=between if me.name == federation.hub else frozenset(),
        agreed=agreed(setup) | ({"absent": ", ".join(sorted(absent))} if absent else {}),
        log=log,
    )


def _reached(book: Ledger) -> tuple[int, int] | None:
    """The first epoch and step of which the ledger knows nothing."""
    return max(
        (
            (row["epoch"] + 1, 0) if row["phase"] == "eval" else (row["epoch"], row["step"] + 1)
            for row in book.rows()
            if row.get("phase") in ("train", "eval")
        ),
        default=None,
    )


def agreed(setup: Setup) -> dict[str, str]:
    """What must be equal at all parties, name by name, so that a difference can be named."""
    federation = setup.federation
    method = setup.settings.found.method
    facts = facts_of(federation, setup.task)
    if method.rows.aligned(setup.settings.options) and setup.settings.align is None:
        brings = method.roles[setup.cast[setup.name]].rows
        digest = setup.rows.digest(federation.row_key())
        facts["number of rows"] = str(setup.rows.count) if brings else ANY
        facts["order and ids of the rows (keyed digest)"] = digest if brings else ANY
    if setup.reused is not None:
        facts["rows of --aligned (keyed digest)"] = setup.reused.digest
    return facts | ({"run": setup.token} if setup.token else {})


def facts_of(federation: Federation, task: str = "train") -> dict[str, str]:
    """The part of it that a federation file says, and nobody's rows."""
    settings = federation.run
    run = settings.resolved()
    for key in ("device", "threads", "name"):  # each party's own matter
        run.pop(key, None)
    facts = {
        "version of Colonnade": __version__,
        "task": task,
        "federation": federation.name,
        "members": ", ".join(federation.names),
        "on_lost": federation.on_lost,
        "deadline": f"{federation.deadline:g}",
        "patience": f"{federation.patience:g}",
        "method file": settings.found.sha256[:16],
    }
    for member in federation.members:
        facts[f"address of '{member.name}'"] = member.address or "none"
        facts[f"signing key of '{member.name}'"] = member.signing_key[:16]
        if member.tls_keys:
            facts[f"TLS keys of '{member.name}'"] = ", ".join(key[:16] for key in member.tls_keys)
    for model in settings.own_models():
        facts[f"network file {Path(models.path_of(model)).name}"] = models.source_of(model).sha256[
            :16
        ]
    return facts | {f"[run] {key}": value for key, value in _flat(run)}


def _flat(tree: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", json.dumps(value)


@contextmanager
def signals(stop: Callable[[str], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C save everybody's state and stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    words = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
    before = {
        number: signal.signal(number, lambda got, _: stop(words[signal.Signals(got)]))
        for number in words
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
