"""One run, from a configuration to a result: the whole flow, top to bottom."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from colonnade import config as configuration
from colonnade import store
from colonnade.align import phase
from colonnade.assembly import Assembly, from_catalogue, from_files, from_memory, write_common
from colonnade.config import Config
from colonnade.data import IN_MEMORY
from colonnade.deploy.nvflare import kits
from colonnade.deploy.nvflare.machine import Machine
from colonnade.deploy.supervisor import Options, hub_of, launch
from colonnade.errors import ColonnadeError, ConfigError, RunError
from colonnade.report.prose import budget
from colonnade.results import folder as folders
from colonnade.results.observer import Observer
from colonnade.results.result import Result, account, combine, divergence, read_json
from colonnade.role import identity
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.runs import absence
from colonnade.runs import reconstructions as exhibits
from colonnade.runtime import local
from colonnade.runtime.checkpoint import Checkpoints, SharedStart
from colonnade.runtime.drive import reproducible
from colonnade.wire import Ledger, Peer, Wire, ledger
from colonnade.wire.record import Recorder

Runtime = Literal["local", "process", "nvflare"]
Source = str | Path | Mapping[str, Any] | Config
APART = ("process", "nvflare")  # one process per party


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
    runtime: Runtime | None = None,
    processes: Options | None = None,
    starts: str | Path | None = None,
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
    runtime    "local": all parties in this process (the default); "process": one process each,
               over mutual TLS; "nvflare": the same as a job of that engine, started for it; a
               resumed run keeps its own
    processes  how those are looked after; see launch.Options
    starts     a folder in which runs that train alike before their first message share that part,
               where the method says what it depends on; only with runtime "local"
    """
    began = time.perf_counter()
    observer = observer or Observer()
    # 1. Read and check everything before anything is written.
    settings = configuration.load(config, overrides)
    if settings.data.classes:
        raise ConfigError(
            ["data.classes is for a federation file; here the data say which classes there are"]
        )
    with reproducible(settings.run.threads, settings.run.device == "cuda"), ExitStack() as held:
        if parties is None and settings.files:
            assembly = from_files(settings)
        elif parties is None:
            if settings.align is not None:
                raise ConfigError(["[align] is for the parties' own files, [parties.NAME] data"])
            assembly = from_catalogue(settings)
        else:
            assembly = from_memory(settings, parties, test)
        settings = replace(settings, partition=assembly.partition)
        if parties is not None:
            settings = replace(settings, data=replace(settings.data, name=IN_MEMORY))
        _check_loss(lose or {}, assembly)
        why = settings.found.method.simulated(settings.options)
        if runtime in APART and why:
            raise ConfigError([f"{why}: only a simulation may do that, --runtime local"])
        if runtime in APART:
            hub_of(settings, assembly)
        if runtime == "nvflare":
            kits.need_nvflare()
        # 2. The folder: new, or one to go on with.
        if resume is not None:
            if out is not None:
                raise RunError("resume goes on in its own folder: leave `out` away")
            folder = Path(resume)
            manifest = folders.reopen(folder, settings)
            held.enter_context(folders.alone(folder))
            attempt = manifest["attempt"] + 1
            runtime = _same_runtime(runtime, str(manifest.get("runtime", "local")), folder)
            folders.mark(folder, settings, attempt, runtime=runtime)
        else:
            folder = Path(out) if out is not None else folders.free(settings.run.name, overwrite)
            runtime = runtime or "local"
            attempt = folders.create(folder, settings, overwrite, runtime=runtime)
            held.enter_context(folders.alone(folder))
        if runtime in APART:
            return _run_processes(
                settings, assembly, folder, observer, processes or Options(), attempt, runtime
            )
        earlier = folders.seconds_so_far(folder) if resume else 0.0
        book = Ledger(folder / "ledger.jsonl", attempt)
        recorder = Recorder(folder / "record", settings.run.record) if settings.run.record else None
        checkpoints = Checkpoints(folder / "checkpoints", list(assembly.parties), book.flush)
        if resume:
            first = settings.found.method.start
            for name, snapshot in checkpoints.latest(first.phase if first else "").items():
                assembly.parties[name].resume(snapshot)
        elif starts is not None and (start := _shared_start(settings, assembly, Path(starts))):
            for name, snapshot in start.snapshots().items():
                assembly.parties[name].resume(snapshot)
            for party in assembly.parties.values():
                party.on_phase_end = start.keep
        for party in assembly.parties.values():
            party.on_epoch, party.on_checkpoint = observer.epoch, checkpoints.save
        if settings.found.method.signs(settings.options):
            identities = identity.simulated(
                list(assembly.parties), f"{settings.sha256()} attempt {attempt}"
            )
            for name, party in assembly.parties.items():
                party.identity = identities[name]
        # 3. Run the roles.
        status, problem, warnings = "failed", "", list[str]()
        ended: BaseException | None = None
        setup = time.perf_counter() - began
        meters = {name: party.progress.meter for name, party in assembly.parties.items()}
        observer.began(settings, meters, book)
        try:
            warnings = _train(settings, assembly, book, recorder, checkpoints, lose)
            status = "finished"
        except KeyboardInterrupt as stop:
            status, ended = "stopped", stop
            folders.tell(stop, folder, f"go on with: colonnade run --resume {folder}")
            raise
        except ColonnadeError as error:
            problem, ended = str(error), error
            folders.tell(error, folder, f"what was reached lies in {folder}")
            raise
        finally:
            # 4. Whatever happened: the ledger, the result so far.
            observer.ended()
            if recorder is not None:
                recorder.flush()
            book.close()
            seconds = earlier + time.perf_counter() - began
            content = combine(
                settings,
                name=folder.name,
                runtime="local",
                data=assembly.facts(),
                cast=assembly.cast,
                holder=assembly.holder,
                accounts={n: account(p, assembly.holder) for n, p in assembly.parties.items()},
                wire=ledger.summarise(ledger.read(folder / "ledger.jsonl"), settings.kinds),
                setup=setup,
                seconds=seconds,
            )
            content["wire"]["head"] = book.head
            content["warnings"] += [
                *assembly.warnings,
                *warnings,
                *divergence(content["history"]),
            ]
            content |= {"status": status, "error": problem}
            store.write_text(json.dumps(content, indent=1), folder / "result.json")
            if ended is not None:
                _tell_spent(ended, folder)
        # 5. The trained models; checkpoints have done their work.
        for party in assembly.parties.values():
            folders.save_weights(party, folder / "weights.part")
            if settings.found.method.rows.ids_only:
                write_common(party, folder / "parties" / party.name)
        (folder / "weights.part").rename(folder / "weights")  # all of them make a finished run
        folders.finish(folder)
        checkpoints.clear()
        weights = {name: party.kept.weights() for name, party in assembly.parties.items()}
        _measure_absence(settings, assembly, weights, content, folder)
        if attacked := exhibits.measure(assembly, folder):
            content["metrics"]["test"] |= attacked
            store.write_text(json.dumps(content, indent=1), folder / "result.json")
    return Result(content, folder)


def _run_processes(
    settings: Config,
    assembly: Assembly,
    folder: Path,
    observer: Observer,
    options: Options,
    attempt: int,
    runtime: Runtime,
) -> Result:
    """Steps 3 to 6, with one process per party."""
    drive = Machine if runtime == "nvflare" else None
    try:
        content = launch(settings, assembly, folder, observer, options, attempt, drive, runtime)
    except KeyboardInterrupt as stop:
        folders.tell(stop, folder, f"go on with: colonnade run --resume {folder}")
        _tell_spent(stop, folder)
        raise
    except ColonnadeError as error:
        folders.tell(error, folder, f"what was reached lies in {folder}")
        _tell_spent(error, folder)
        raise
    (folder / "weights.part").rename(folder / "weights")
    folders.finish(folder)
    saved = {name: folder / "weights" / name for name in assembly.cast}
    if all(path.with_suffix(".json").exists() for path in saved.values()):  # nobody was lost
        weights = {name: store.load(path)["weights"] for name, path in saved.items()}
        _measure_absence(settings, assembly, weights, content, folder)
    return Result(content, folder)


def _measure_absence(
    settings: Config,
    assembly: Assembly,
    weights: Mapping[str, Any],
    content: dict[str, Any],
    folder: Path,
) -> None:
    """6. What is left without each party; nothing else changes by it."""
    found = absence.measure(settings, assembly, weights, content["metrics"])
    for split, shares in found.items():
        content["metrics"][split]["absent"] = shares
    if found:
        store.write_text(json.dumps(content, indent=1), folder / "result.json")


def _tell_spent(error: BaseException, folder: Path) -> None:
    """Of a privacy budget, however the run has ended."""
    file = folder / "result.json"
    if file.exists() and (spent := budget(read_json(file))):
        error.add_note(spent)


def _shared_start(settings: Config, assembly: Assembly, folder: Path) -> SharedStart | None:
    """What this run may share with others, under all that decides it."""
    start = settings.found.method.start
    if start is None:
        return None
    place = folder / settings.start_sha256()
    return SharedStart(place, start.phase, list(assembly.parties))


def _same_runtime(asked: str | None, before: str, folder: Path) -> Any:
    if asked not in (None, before):
        raise RunError(f"{folder} was begun with --runtime {before}: resume it with that")
    return before


def _train(
    settings: Config,
    assembly: Assembly,
    book: Ledger,
    recorder: Recorder | None,
    checkpoints: Checkpoints,
    lose: Mapping[str, int] | None,
) -> list[str]:
    """Run every role to its end; what should be known about the messages."""
    method = settings.found.method
    mail = local.Mailboxes(settings.kinds, book, settings.run.strict, recorder)
    options, truth = settings.align, dict[str, Tensor]()
    names = {name: party.names for name, party in assembly.parties.items() if party.names}
    if options is not None and names:
        truth = phase.plainly(names, options)

    def start(party: Party, wire: Wire) -> Any:
        program = method.roles[party.role].train
        role = bind(program, party, assembly.cast, wire, settings.options)
        if options is None or not truth:
            return role
        peers = [Peer(name, wire) for name in truth if name != party.name]
        return phase.aligned(role, party, peers, options, truth.get(party.name))

    local.run(assembly.parties, start, mail, lose, finished=checkpoints.finish)
    return mail.warnings(method.membership.elastic)


def _check_loss(lose: Mapping[str, int], assembly: Assembly) -> None:
    for name in lose:
        if name not in assembly.parties:
            parties = ", ".join(assembly.parties)
            raise RunError(f"lose = '{name}': no such party; there are {parties}")
