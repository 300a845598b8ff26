"""One run, from a configuration to a result: the whole flow, top to bottom."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from colonnade import config as configuration
from colonnade.align import ristretto
from colonnade.assembly import Assembly, from_catalogue, from_files, from_memory
from colonnade.config import Config
from colonnade.data import IN_MEMORY
from colonnade.deploy.costs import remarks
from colonnade.deploy.nvflare import kits
from colonnade.deploy.nvflare.machine import Machine
from colonnade.deploy.supervisor import Options, hub_of, train_in_processes
from colonnade.errors import ConfigError, RunError, unknown
from colonnade.metrics import inversion
from colonnade.owner import private
from colonnade.plugin import own
from colonnade.results import folder as folders
from colonnade.results.observer import Observer
from colonnade.results.result import Result
from colonnade.results.writer import add_metrics
from colonnade.runs import absence, local
from colonnade.runs.attempt import Attempt, Runtime, open_new, reopen, telling
from colonnade.runtime.drive import reproducible
from colonnade.wire import store

Source = str | Path | Mapping[str, Any] | Config
APART = ("process", "nvflare")  # one process per party


@private()
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
    processes  how those are looked after; see Options in deploy/supervisor.py
    starts     a folder in which runs that train alike before their first message share that part,
               where the method says what it depends on; only with runtime "local"
    """
    began = time.perf_counter()
    observer, lose = observer or Observer(), lose or {}
    shared = None if starts is None else Path(starts)
    # 1. Read and check everything before anything is written.
    settings = _settings(config, overrides, resume, out)
    with reproducible(settings.run.threads, settings.run.device == "cuda"):
        settings, assembly = _assembled(settings, parties, test)
        _check(settings, assembly, runtime, lose)
        # 2. The folder: new, or one to go on with.
        with _attempt(settings, out, resume, overwrite, runtime) as attempt:
            for remark in _remarks(settings, assembly):
                observer.note(remark)
            # 3. Play the roles.
            if attempt.runtime in APART:
                result, weights = _apart(
                    settings, assembly, attempt, observer, processes or Options()
                )
            else:
                result, weights = local.train(
                    settings, assembly, attempt, observer, lose, shared, began
                )
            # 4. What only somebody who has all parties at hand can measure.
            return _measured(settings, assembly, weights, result)


def _remarks(settings: Config, assembly: Assembly) -> list[str]:
    """What should be known of the parties' own files before they are trained on."""
    if not settings.files:
        return []
    widths = {name: prod(party.shape) for name, party in assembly.parties.items() if party.splits}
    return remarks(settings, assembly.cast, widths)


def _settings(
    config: Source, overrides: Sequence[str], resume: str | Path | None, out: str | Path | None
) -> Config:
    if resume is not None:
        if out is not None:
            raise RunError("resume goes on in its own folder: omit `out`")
        folders.check_whole(Path(resume))
    rule = own if resume is None else folders.rule_of(Path(resume))
    settings = configuration.load(config, overrides, rule=rule)
    if settings.data.classes:
        raise ConfigError(
            ["data.classes is for a federation file; here the data say which classes there are"]
        )
    return settings


def _assembled(
    settings: Config, parties: Mapping[str, Any] | None, test: Mapping[str, Any] | None
) -> tuple[Config, Assembly]:
    """The parties with their rows, and the settings as these rows have completed them."""
    if parties is not None:
        assembly = from_memory(settings, parties, test)
        settings = replace(settings, data=replace(settings.data, name=IN_MEMORY))
    elif settings.files:
        assembly = from_files(settings)
    elif settings.align is not None:
        raise ConfigError(["[align] is for the parties' own files, [parties.NAME] data"])
    else:
        assembly = from_catalogue(settings)
    return replace(settings, partition=assembly.partition), assembly


def _check(
    settings: Config, assembly: Assembly, runtime: Runtime | None, lose: Mapping[str, int]
) -> None:
    """Whether these parties can be run that way."""
    if settings.align is not None and any(party.names for party in assembly.parties.values()):
        ristretto.library()
    for name in lose:
        if name not in assembly.parties:
            raise RunError(unknown(name, assembly.parties, "as lose", "party"))
    if runtime in APART:
        if why := settings.found.method.simulated(settings.options):
            raise ConfigError([f"{why}: only a simulation may do that, --runtime local"])
        hub_of(settings, assembly)
    if runtime == "nvflare":
        kits.need_nvflare()


def _attempt(
    settings: Config,
    out: str | Path | None,
    resume: str | Path | None,
    overwrite: bool,
    runtime: Runtime | None,
) -> AbstractContextManager[Attempt]:
    if resume is not None:
        return reopen(Path(resume), settings, runtime)
    return open_new(settings, out, overwrite, runtime)


def _apart(
    settings: Config, assembly: Assembly, attempt: Attempt, observer: Observer, options: Options
) -> tuple[Result, local.Weights | None]:
    """One process per party; the trained models, unless a party was lost."""
    folder, drive = attempt.folder, Machine if attempt.runtime == "nvflare" else None
    with telling(folder):
        result = train_in_processes(
            settings, assembly, folder, observer, options, attempt.number, drive, attempt.runtime
        )
    (folder / "weights.part").rename(folder / "weights")
    folders.finish(folder)
    saved = {name: folder / "weights" / name for name in assembly.cast}
    if not all(path.with_suffix(".json").exists() for path in saved.values()):
        return result, None
    return result, {name: store.load(path)["weights"] for name, path in saved.items()}


def _measured(
    settings: Config, assembly: Assembly, weights: local.Weights | None, result: Result
) -> Result:
    """What is left without each party, and how well an attack has reconstructed private images."""
    if weights is not None:
        result = add_metrics(result, absence.measure(settings, assembly, weights, result.content))
    attacked = inversion.score(assembly.parties, result.path)
    return add_metrics(result, {"test": attacked} if attacked else {})
