"""All parties of a run in this process: their roles take turns, and every message is recorded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from colonnade.align import phase
from colonnade.assembly import Assembly, write_common
from colonnade.config import Config
from colonnade.errors import ColonnadeError
from colonnade.journal import RunJournal
from colonnade.privacy.protection import protect
from colonnade.results import folder as folders
from colonnade.results.account import account
from colonnade.results.observer import Observer
from colonnade.results.result import Result
from colonnade.results.writer import ResultFile, Status
from colonnade.role import identity
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.runs.attempt import Attempt, telling
from colonnade.runtime import local
from colonnade.runtime.checkpoint import Checkpoints, SharedStart
from colonnade.wire import Ledger, Peer, Wire
from colonnade.wire.record import Recorder

Weights = dict[str, Mapping[str, Mapping[str, Tensor]]]  # by party


def train(
    settings: Config,
    assembly: Assembly,
    attempt: Attempt,
    observer: Observer,
    lose: Mapping[str, int],
    starts: Path | None,
    began: float,
) -> tuple[Result, Weights]:
    """Play every role to its end; what came out, and the trained models.

    lose    after how many training steps a party is lost, by its name
    starts  the folder with what runs share that train alike before their first message
    """
    folder, parties = attempt.folder, assembly.parties
    file = ResultFile.begin(folder, settings, "local", assembly.cast, assembly.holder, began)
    book = Ledger(folder / "ledger.jsonl", attempt.number)
    recorder = Recorder(folder / "record", settings.run.record) if settings.run.record else None
    checkpoints = Checkpoints(folder / "checkpoints", list(parties), book.flush)
    _restore(settings, parties, attempt, checkpoints, starts)
    for damage in checkpoints.damaged:
        observer.note(damage)
    _identify(settings, parties, attempt)
    for party in parties.values():
        noise_seed = settings.protect.simulate_noise_seed
        party.journal = RunJournal.in_folder(folder, party.name, noise_seed)
        protect(party, settings.protect, settings.trained_by(party.role))
        party.on_epoch, party.on_checkpoint = observer.epoch, checkpoints.save
    mail = local.Mailboxes(settings.kinds, book, settings.run.strict, recorder)
    status: Status = "failed"
    problem, warnings = "", list[str]()
    setup = time.perf_counter() - began
    observer.began(settings, {name: party.progress.meter for name, party in parties.items()}, book)
    with telling(folder):
        try:
            start = _starter(settings, assembly)
            local.run(parties, start, mail, lose, finished=checkpoints.finish)
            warnings = mail.warnings(settings.found.method.membership.elastic)
            status = "finished"
        except KeyboardInterrupt:
            status = "stopped"
            raise
        except ColonnadeError as error:
            problem = str(error)
            raise
        finally:  # whatever happened: the ledger, and the result so far
            observer.ended()
            if recorder is not None:
                recorder.flush()
            book.close()
            wish = settings.decision if status == "finished" else None
            accounts = {n: account(party, assembly.holder, wish) for n, party in parties.items()}
            result = file.write(
                status,
                problem,
                data=assembly.facts(),
                accounts=accounts,
                setup=setup,
                head=book.head,
                warnings=[*assembly.warnings, *checkpoints.damaged, *warnings],
            )
    _keep(settings, parties, folder, {n: told["decision"] for n, told in accounts.items()})
    checkpoints.clear()  # they have done their work
    return result, {name: party.kept.weights() for name, party in parties.items()}


def _keep(
    settings: Config, parties: Mapping[str, Party], folder: Path, decisions: Mapping[str, Any]
) -> None:
    """The trained models, and how their parties decide; all of them make a finished run."""
    for name, party in parties.items():
        folders.save_weights(party, folder / "weights.part", **folders.deciding(decisions[name]))
        if settings.found.method.rows.ids_only:
            write_common(party, folder / "parties" / party.name)
    (folder / "weights.part").rename(folder / "weights")
    folders.finish(folder)


def _restore(
    settings: Config,
    parties: Mapping[str, Party],
    attempt: Attempt,
    checkpoints: Checkpoints,
    starts: Path | None,
) -> None:
    """Bring the parties to where they go on: the last common checkpoint, or a shared start."""
    first = settings.found.method.start
    if attempt.resumed:
        for name, snapshot in checkpoints.latest(first.phase if first else "").items():
            parties[name].resume(snapshot)
    elif starts is not None and first is not None and not _of_one_run(settings):
        shared = SharedStart(starts / settings.start_sha256(), first.phase, list(parties))
        for name, snapshot in shared.snapshots().items():
            parties[name].resume(snapshot)
        for party in parties.values():
            party.on_phase_end = shared.keep


def _of_one_run(settings: Config) -> bool:
    """Whether what is drawn or counted in the part that runs share belongs to one run."""
    return settings.protect.label_epsilon > 0 or settings.protect.model_epsilon > 0


def _identify(settings: Config, parties: Mapping[str, Party], attempt: Attempt) -> None:
    """Give every party a signing key where one is needed."""
    if settings.signs:
        session = f"{settings.sha256()} attempt {attempt.number}"
        for name, known in identity.simulated(list(parties), session).items():
            parties[name].identity = known


def _starter(settings: Config, assembly: Assembly) -> local.Start:
    """A function that starts a role, after an alignment of ids where the run asks for one."""
    method, options = settings.found.method, settings.align
    names = {name: party.names for name, party in assembly.parties.items() if party.names}
    truth = phase.common_in_clear(names, options) if options is not None and names else {}

    def start(party: Party, wire: Wire) -> Any:
        program = method.roles[party.role].train
        role = partial(bind, program, party, assembly.cast, wire, settings.options)
        if options is None or not truth:
            return role()
        peers = [Peer(name, wire) for name in truth if name != party.name]
        return phase.aligned(role, party, peers, options, truth.get(party.name))

    return start
