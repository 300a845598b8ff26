"""One party of a federation, from its own files to its own results: what `colonnade party` does.

What it brings is checked in setup.py; what it keeps is written by records.py. A process that died
is started again with the same command: it finds its folder and rejoins.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Coroutine, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from colonnade.align.phase import aligned
from colonnade.assembly import heard
from colonnade.deploy.connect import connect, signals
from colonnade.deploy.costs import remarks, scarce
from colonnade.deploy.forecast import doubtful, exhausted, forbidden, imitated
from colonnade.deploy.memory import open_journal, run_journal, watch_rows
from colonnade.deploy.records import Records, Say
from colonnade.deploy.setup import Setup, party_of
from colonnade.deploy.spending import spends, unguarded
from colonnade.errors import ConfigError, DataError, RunError, Untrusted
from colonnade.owner import private
from colonnade.privacy.protection import protect
from colonnade.results import folder as folders
from colonnade.results.observer import Observer
from colonnade.results.result import Result, read_json
from colonnade.role.method import Circumstances, bind
from colonnade.role.party import Party
from colonnade.runtime.control import Start
from colonnade.runtime.drive import reproducible
from colonnade.task import Task
from colonnade.wire import Peer, Wire


@private()
def take_part(
    setup: Setup, folder: Path, observer: Observer | None = None, say: Say | None = None
) -> Result:
    """Train with the others; returns when all have ended."""
    settings = setup.settings
    _foresee(setup, folder, say)
    if (folder / "weights").exists() and setup.name != setup.federation.hub:
        if say is not None:
            say(f"{folder} is finished; nothing was done. For a new run give another --out")
        return Result(read_json(folder / "result.json"), folder)
    with reproducible(settings.run.threads, settings.run.device == "cuda"):
        manifest = _opened(folder, setup)
        with folders.alone(folder), closing(open_journal(setup, folder, manifest)) as journal:
            records = Records(setup, folder, manifest, journal, observer or Observer(), say)
            for remark in remarks(settings, setup.cast, {setup.name: setup.rows.width}):
                records.log(remark)
            session = connect(
                setup,
                journal,
                records.book,
                records.checkpoints,
                records,
                records.log,
                told={"task": records.task},
                run=records.run,
                attempt=records.attempt,
                accounts=records.accounts,
            )
            session.leave_out(records.absent, records.since)
            with signals(session.stop), records.kept(session), session.connected():
                while (start := session.next_start()) is not None:
                    party = _new_party(setup, start, records)
                    party.journal = run_journal(setup, journal, start.run)
                    trained = settings.trained_by(party.role)
                    protect(party, settings.protect, trained, sent=setup.sends)
                    if not setup.elastic:  # where each goes on from its own
                        party.journal.check_start(start.label)
                    watch_rows(setup, party, journal, start.absent, start.run)
                    records.begin(party)
                    if session.play(start, party, partial(_role, setup, party, start.absent)):
                        account = records.account(party, session.post.leftover())
                        session.finish(party, account)
                records.conclude(session.accounts, session.remarks)
                session.leave()
    return Result(read_json(folder / "result.json"), folder)


def _foresee(setup: Setup, folder: Path, say: Say | None) -> None:
    """Refuse, before anybody is called, a new run that the policy would stop in the middle. Which
    rows are common is not known yet, so what depends on that is only a warning."""
    if (folder / "run.json").exists() and not folders.never_began(folder):
        return  # what it has released so far is its own
    about = (setup.federation, setup.name, setup.policy, setup.rows)
    problems, warnings = [*forbidden(*about)], [*doubtful(*about), *scarce(*about)]
    problems += unguarded(*about[:3])
    if not setup.simulated:
        problems += imitated(setup.federation)
        known = Circumstances(setup.settings.options, on_lost=setup.federation.on_lost)
        setup.settings.found.method.check(known)
        counted = [*exhausted(*about), *spends(*about).problems]
        (problems if setup.settings.align is None else warnings).extend(counted)
    if problems:
        raise ConfigError([f"{setup.policy.source}: {said}: {move}" for said, move in problems])
    if say is not None:
        for said, move in warnings:
            say(f"warning: {setup.policy.source}: {said}: {move}")


def _opened(folder: Path, setup: Setup) -> dict[str, Any]:
    """What an earlier process has left, or a new folder; returns run.json."""
    if (folder / "run.json").exists() and folders.never_began(folder):
        with folders.alone(folder):
            folders.withdraw(folder)  # what was refused then may be right by now
    if not (folder / "run.json").exists():
        _make(folder, setup)
        return {"run": "", "attempt": 0}
    if (folder / "weights").exists():  # of a hub that may still have to tell the others
        return read_json(folder / "run.json")
    return folders.reopen(folder, setup.settings)


def _make(folder: Path, setup: Setup) -> None:
    """A new folder, whole or not at all: a process that dies here can be started again."""
    begun = folder.with_name(f"{folder.name}.begun")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise RunError(f"{folder} exists and is not a run: choose another --out")
        shutil.rmtree(begun, ignore_errors=True)
        folders.create(begun, setup.settings, overwrite=False, run="", party=setup.name)
        begun.replace(folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error.strerror}; choose another --out") from None


def _new_party(setup: Setup, start: Start, records: Records) -> Party:
    """The party as it begins: the hub has told the task to those who do not know it."""
    settings = setup.settings
    task = setup.rows.task or _told(setup, start.told.get("task") or records.task)
    records.hear(task)
    method = settings.found.method
    method.check_task(task.kind)
    method.check(Circumstances(settings.options, task=task.kind))
    party = party_of(setup, task, setup.rows.view)
    if settings.signs:
        party.identity = setup.identity(f"run {start.run} attempt {start.attempt}")
    return party


def _told(setup: Setup, told: Mapping[str, Any]) -> Task:
    """The task as the hub tells it."""
    try:
        return heard(setup.settings, told)
    except DataError as why:
        raise Untrusted(
            f"'{setup.federation.hub}' says what is to be learnt, and that is refused: {why}. Its "
            "program was changed, or is of another version"
        ) from None


def _role(
    setup: Setup, party: Party, absent: Collection[str], wire: Wire
) -> Coroutine[Any, Any, Any]:
    """The method's role, after an alignment where the settings ask for one."""
    settings, missing = setup.settings, frozenset(absent)
    roles = settings.found.method.roles
    train = roles[party.role].train
    role = partial(bind, train, party, setup.cast, wire, settings.options, absent=missing)
    if settings.align is None:
        return role()
    bringing = [name for name, part in setup.cast.items() if roles[part].rows]
    peers = [Peer(name, wire, name not in missing) for name in bringing if name != party.name]
    known = None if setup.reused is None else setup.reused.rows
    return aligned(role, party, peers, settings.align, known=known)
