"""One run, from a configuration to a result: the whole flow, top to bottom."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from colonnade import assemble, identity, state
from colonnade import config as configuration
from colonnade import folder as folders
from colonnade.assemble import Federation
from colonnade.config import Config
from colonnade.data import IN_MEMORY
from colonnade.errors import ColonnadeError, RunError
from colonnade.method import bind
from colonnade.party import Meter, Party
from colonnade.result import Result, account, combine, divergence
from colonnade.runtime import local
from colonnade.runtime.checkpoint import Checkpoints
from colonnade.runtime.drive import reproducible
from colonnade.wire import Ledger, Wire, ledger
from colonnade.wire.record import Recorder

Source = str | Path | Mapping[str, Any] | Config


class Observer:
    """What a progress display may override; the default shows nothing.

    It is reachable from every party, so it is given no party: only meters and finished rows.
    """

    def began(self, config: Config, meters: Mapping[str, Meter], ledger: Ledger) -> None: ...

    def epoch(self, party: str, row: Mapping[str, Any]) -> None: ...

    def ended(self) -> None: ...


def run(
    config: Source,
    *,
    parties: Mapping[str, Any] | None = None,
    test: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
    lose: Mapping[str, int] | None = None,
) -> Result:
    """Train one configuration and return its result.

    parties    in-memory data, {"bank": (x, y), "shop": x}; without it, [data] of the config
    test       test rows in the same form; without it, a seeded share of the rows
    overrides  "key=value" texts, as on the command line
    out        the folder that will hold the run; default runs/<name>, <name>-2, <name>-3 …
    resume     a run folder that was stopped: go on from its last common checkpoint
    overwrite  replace an older run in the folder `out`, or in runs/<name>
    observer   is told how the run goes; see Observer
    lose       {"shop": 12}: rehearse the loss of a party after 12 training steps
    """
    began = time.perf_counter()
    observer = observer or Observer()
    # 1. Read and check everything before anything is written.
    settings = configuration.load(config, overrides)
    with reproducible(settings.run.threads, settings.run.device == "cuda"):
        if parties is None:
            federation = assemble.from_catalogue(settings)
        else:
            federation = assemble.from_memory(settings, parties, test)
        settings = replace(settings, partition=federation.partition)
        if parties is not None:
            settings = replace(settings, data=replace(settings.data, name=IN_MEMORY))
        _check_loss(lose or {}, federation)
        # 2. The folder: new, or one to go on with.
        if resume is not None:
            if out is not None:
                raise RunError("resume goes on in its own folder: leave `out` away")
            folder = Path(resume)
            attempt = folders.reopen(folder, settings)["attempt"] + 1
            folders.mark(folder, settings, attempt)
        else:
            folder = Path(out) if out is not None else folders.free(settings.run.name, overwrite)
            attempt = folders.create(folder, settings, overwrite)
        earlier = folders.seconds_so_far(folder) if resume else 0.0
        book = Ledger(folder / "ledger.jsonl", attempt)
        recorder = Recorder(folder / "record", settings.run.record) if settings.run.record else None
        checkpoints = Checkpoints(folder / "checkpoints", list(federation.parties), book.flush)
        if resume:
            for name, snapshot in (checkpoints.latest() or {}).items():
                federation.parties[name].resume(snapshot)
        for party in federation.parties.values():
            party.on_epoch, party.on_checkpoint = observer.epoch, checkpoints.save
        if settings.found.method.signs(settings.options):
            identities = identity.simulated(
                list(federation.parties), f"{settings.sha256()} attempt {attempt}"
            )
            for name, party in federation.parties.items():
                party.identity = identities[name]
        # 3. Run the roles.
        status, problem, warnings = "failed", "", list[str]()
        setup = time.perf_counter() - began
        meters = {name: party.meter for name, party in federation.parties.items()}
        observer.began(settings, meters, book)
        try:
            warnings = _train(settings, federation, book, recorder, checkpoints, lose)
            status = "finished"
        except KeyboardInterrupt as stop:
            status = "stopped"
            stop.add_note(f"go on with: colonnade run --resume {folder}")
            raise
        except ColonnadeError as error:
            problem = str(error)
            error.add_note(f"what was reached lies in {folder}")
            raise
        finally:
            # 4. Whatever happened: the ledger, the result so far.
            observer.ended()
            if recorder is not None:
                recorder.flush()
            book.close()
            seconds = earlier + time.perf_counter() - began
            kinds = {kind.name: kind for kind in settings.found.method.kinds}
            content = combine(
                settings,
                name=folder.name,
                runtime="local",
                data=federation.data,
                cast=federation.cast,
                holder=federation.holder,
                accounts={n: account(p, federation.holder) for n, p in federation.parties.items()},
                wire=ledger.summarise(ledger.read(folder / "ledger.jsonl"), kinds),
                setup=setup,
                seconds=seconds,
            )
            content["wire"]["head"] = book.head
            warnings += divergence(content["history"])
            content |= {"status": status, "error": problem, "warnings": warnings}
            state.write_text(json.dumps(content, indent=1), folder / "result.json")
        # 5. The trained models; checkpoints have done their work.
        for party in federation.parties.values():
            folders.save_weights(party, folder / "weights.part")
        (folder / "weights.part").rename(folder / "weights")  # all of them make a finished run
        checkpoints.clear()
    return Result(content, folder)


def _train(
    settings: Config,
    federation: Federation,
    book: Ledger,
    recorder: Recorder | None,
    checkpoints: Checkpoints,
    lose: Mapping[str, int] | None,
) -> list[str]:
    """Run every role to its end; what should be known about the messages."""
    method = settings.found.method
    mail = local.Mailboxes(
        {kind.name: kind for kind in method.kinds}, book, settings.run.strict, recorder
    )

    def start(party: Party, wire: Wire) -> Any:
        program = method.roles[party.role].train
        return bind(program, party, federation.cast, wire, settings.options)

    local.run(federation.parties, start, mail, lose, finished=checkpoints.finish)
    return mail.warnings()


def _check_loss(lose: Mapping[str, int], federation: Federation) -> None:
    for name in lose:
        if name not in federation.parties:
            parties = ", ".join(federation.parties)
            raise RunError(f"lose = '{name}': no such party; there are {parties}")
