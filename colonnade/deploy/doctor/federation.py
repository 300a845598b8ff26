"""The doctor on a federation file: what all parties agree on, and one party where it is given."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from colonnade.config import federation as federations
from colonnade.config.federation import Federation
from colonnade.deploy.doctor.check import Case, Check, Mine, no_problem, problems
from colonnade.deploy.doctor.code import of_federation
from colonnade.deploy.doctor.keys import certificates, key_files, signing_key
from colonnade.deploy.doctor.machine import disk, run_folder, software
from colonnade.deploy.doctor.network import engine, own_port, peers
from colonnade.deploy.doctor.offer import (
    alignment,
    data,
    forecast,
    mistakes,
    permissions,
    together,
)
from colonnade.deploy.forecast import sends_of
from colonnade.errors import ColonnadeError, FederationError, listed


def examine(path: Path, mine: Mine | None = None) -> list[Check]:
    """All checks of a federation file, and of one party where it is given."""
    try:
        looked, trusted = of_federation(path, None if mine is None else mine.policy)
        if not no_problem(looked):
            return [*looked, *_of_members(path, mine), software()]
        federation = federations.load(path, trusted)
    except ColonnadeError as error:
        move = f"correct {path}; every party needs the same one"
        known = problems(error)
        rest = [check for check in _of_members(path, mine) if check.found not in known]
        return [*(Check("file", "problem", said, move) for said in known), *rest, software()]
    checks = [*looked, *_file(federation)]
    if mine is not None:
        try:
            me = federation.member(mine.name)
        except FederationError as error:
            (said,) = error.problems
            checks.append(Check("name", "problem", said, "give the --name of a member"))
        else:
            checks += _party(Case(federation, me, mine))
    return [*checks, software()]


def _of_members(path: Path, mine: Mine | None) -> Iterator[Check]:
    """What can be said of the rest, where the run has mistakes or needs code that may not be
    executed: not whether it all fits together."""
    move = f"correct {path}; every party needs the same one"
    try:
        federation = federations.load_members(path, "" if mine is None else mine.name)
        case = None if mine is None else Case(federation, federation.member(mine.name), mine)
    except ColonnadeError as error:
        yield from (Check("file", "problem", said, move) for said in problems(error))
        return
    if case is None:
        return
    yield from (*certificates(case), *key_files(case), signing_key(case))
    if case.mine.policy is not None:
        yield from mistakes(case.mine.policy)
    if case.mine.rows is not None:
        rows, about_rows = data(case)
        if rows is not None:
            said = f"{rows.source} can be read: {rows.count:,} rows"
            about_rows = [Check("data", "ok", said)]
        yield from about_rows
    yield from alignment(case)
    yield disk(case.out)


def _party(case: Case) -> list[Check]:
    """One party's own files, its machine, and whom it would talk to."""
    rows, about_rows = data(case)  # which the policy's limits refer to
    policy, about_policy = permissions(case, rows)
    found = [*certificates(case), *key_files(case), signing_key(case), *about_policy, *about_rows]
    found += [*forecast(case, policy, rows), *alignment(case)]
    if rows is not None and no_problem(found):
        found.append(together(case, rows, policy))
    if not case.mine.server:  # whose jobs have each a folder of their own
        found.append(run_folder(case))
    found.append(disk(case.out))
    usable = no_problem([c for c in found if c.about in ("certificate", "keys")])
    others = engine(case, usable) if case.mine.server else peers(case, usable)
    return [*found, *own_port(case, usable), *others]


def _file(federation: Federation) -> Iterator[Check]:
    """What all parties agree on: nothing here can be wrong, or it could not have been read."""
    run, hub, method = federation.run, federation.hub, federation.run.found.method
    labels = f"{federation.holder} holds the labels"
    if method.rows.own_labels:
        labels = (
            f"all rows come with labels, of {listed(run.data.classes, quoted=False) or 'numbers'}"
        )
    labels += f"; {hub} is the hub" if method.membership.hub else ""
    yield Check("members", "ok", f"{', '.join(federation.names)}; {labels}")
    listening = [m for m in federation.members if federation.listens(m.name)]
    yield Check("listening", "ok", ", ".join(f"{m.name} at {m.address}" for m in listening))
    links = {
        (a, b): federation.dials(a, b)
        for a, b in combinations(federation.names, 2)
        if b in federation.linked(a)
    }
    dialling = [f"{who} → {b if who == a else a}" for (a, b), who in links.items() if who]
    yield Check("dialling", "ok", ", ".join(dialling))
    relayed = [f"{a} – {b}" for (a, b), who in links.items() if who is None]
    if relayed:
        said = f"{', '.join(relayed)}, through {hub}, which can read what is not masked"
        yield Check("relayed", "note", said)
    yield Check(
        "run",
        "ok",
        f"{run.found.method.name}, {run.run.epochs} epochs, batches of {run.run.batch_size}, "
        f"seed {run.run.seed}",
    )
    said = (
        f"on_lost = {federation.on_lost}, after {federation.deadline:g} s without a connection or "
        f"{federation.patience:g} s of silence"
    )
    if method.membership.elastic:
        when = {"continue": f"after {federation.deadline:g} s with those who are there"}
        said = f"parties may come and go; it begins {when.get(federation.on_lost, 'with all')}"
    if federation.on_lost == "continue" and method.membership.sums(run.options):
        said += f"; then masks hide nobody from {hub}, if it lies about a loss"
        yield Check("lost party", "warning", said, 'choose on_lost = "wait", unless you trust it')
    else:
        yield Check("lost party", "ok", said)
    for name in federation.names:
        for kind in sends_of(federation, name):
            said = f"{kind.name} ({kind.describe()}) reveals {kind.reveals}"
            yield Check(f"{name} sends", "note", said)
    digest = federation.sha256
    parts = " ".join(digest[at : at + 8] for at in range(0, len(digest), 8))
    yield Check("sha256", "ok", f"{parts}: must be equal everywhere; compare it by telephone")
