"""`colonnade party`: one organisation's process, in a terminal or under a supervisor."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from colonnade import assembly, report
from colonnade.cli import predicted
from colonnade.cli.predicted import Judged
from colonnade.cli.progress import Progress
from colonnade.config import Config, code, federation
from colonnade.data import own
from colonnade.data.own import OwnFile
from colonnade.deploy import member
from colonnade.deploy import predict as member_predict
from colonnade.deploy.reuse import found_in
from colonnade.deploy.setup import Setup, check_data, prepare, read_rows
from colonnade.errors import ColonnadeError, RunError
from colonnade.report import protections
from colonnade.results import predictions_csv
from colonnade.results.observer import Observer, Traffic
from colonnade.results.prediction import Truth
from colonnade.role.progress import Meter
from colonnade.runtime.control import Failure
from colonnade.wire.policy import Policy

METER_SECONDS = 0.5


def own_file(arguments: argparse.Namespace) -> OwnFile | None:
    """The file that --data, --id, --label and --weight describe."""
    given = {key: getattr(arguments, key, None) for key in ("id", "label", "weight")}
    changes = {key: value for key, value in given.items() if value is not None}
    path: Path | None = arguments.data
    if path is None:
        if changes:
            raise RunError(f"--{next(iter(changes))} is about a file: give --data FILE, too")
        return None
    try:
        return replace(own.described(path), **changes)
    except ValueError as error:
        raise RunError(f"--data {path}: {error}") from None


def setup_of(arguments: argparse.Namespace) -> Setup:
    """The files and names in the arguments, checked."""
    shared = federation.load(arguments.federation, code.trusted_by(arguments.policy))
    shared.member(arguments.name)  # a wrong name first, before any file is read
    own = read_rows(own_file(arguments), shared, arguments.name)
    setup = prepared(arguments, shared, own)
    if arguments.aligned is None:
        return setup
    return replace(setup, reused=found_in(arguments.aligned, shared, arguments.name, own))


def prepared(
    arguments: argparse.Namespace, shared: federation.Federation, own: assembly.OwnRows
) -> Setup:
    """The rows, keys and policy that one party brings, checked."""
    keys = arguments.keys or shared.path.parent / "keys"
    policy = Policy.load(arguments.policy) if arguments.policy else None
    if policy is not None and shared.run.found.method.rows.ids_only:
        policy = policy.only(shared.run.kinds)  # it may be that of the training to come
    predicts = getattr(arguments, "predict", None) is not None
    if policy is None and predicts and shared.run.found.method.predicts_alone:
        policy = Policy.allowing(())  # it predicts alone: nothing leaves
    device = getattr(arguments, "device", None)
    return prepare(shared, arguments.name, own, keys, policy, device)


def _predict(arguments: argparse.Namespace) -> None:
    console = Console(highlight=False, quiet=arguments.json or arguments.quiet)
    if arguments.aligned is not None:
        raise RunError("--aligned is for training: new rows are aligned again. Omit it")
    predictions_csv.check_free(arguments.out, arguments.overwrite)
    shared = federation.load(arguments.federation, code.trusted_by(arguments.policy))
    shared.member(arguments.name)
    file = own_file(arguments)
    check_data(file, shared, arguments.name)
    out, judged = None, None
    if file is not None:
        alone = shared.run.found.method.predicts_alone
        new = member_predict.rows_for(file, arguments.name, arguments.predict, alone)
        found = (member_predict.predict_alone if alone else member_predict.predict)(
            prepared(arguments, shared, new.rows),
            arguments.predict,
            new,
            arguments.absent,
            lambda text: console.print(Text(f"  {text}"), soft_wrap=True),
        )
        if found is not None:
            labels = found.labels or ()
            judged = Judged.by(found.prediction, Truth(labels))
            out = predictions_csv.write(
                {arguments.name: found.prediction},
                arguments.predict,
                truth={arguments.name: labels} if judged.scored else {},
                out=arguments.out,
                overwrite=arguments.overwrite,
            )
            predicted.show(console, [judged], file.label)
            predicted.show_file(console, out)
    if judged is None:
        console.print(Text("\npredictions  this party predicts nothing itself"), soft_wrap=True)
    if arguments.json:
        told = {
            "predictions": None if out is None else str(out),
            "parties": [] if judged is None else [judged.told()],
            "warnings": [] if judged is None else judged.warnings(),
        }
        sys.stdout.write(json.dumps(told) + "\n")
    elif arguments.quiet and out is not None:
        sys.stdout.write(f"{out}\n")


def main(arguments: argparse.Namespace) -> None:
    if arguments.predict is not None:
        _predict(arguments)
        return
    if arguments.absent:
        raise RunError("--absent goes with --predict; in training, on_lost says what to do")
    if arguments.overwrite:
        raise RunError("--overwrite goes with --predict; a training takes another --out")
    if arguments.events:
        _supervised(arguments)
        return
    setup = setup_of(arguments)
    out = out_of(arguments, setup)
    console = Console(highlight=False, quiet=arguments.json or arguments.quiet)

    def say(text: str) -> None:
        console.print(Text(f"  {text}"), soft_wrap=True)

    for warning in setup.rows.warnings:
        say(f"warning: {warning}")
    result = member.take_part(setup, out, Progress(console), say)
    page = report.write_report([result.content], result.path / "report.html")
    if arguments.json:
        sys.stdout.write(json.dumps(result.content, indent=1) + "\n")
    elif arguments.quiet:
        sys.stdout.write(f"{result.path}\n")
    console.print()
    if result.accuracy is not None:
        console.print(report.summary([result.content]))
        console.print(Text(report.sentences(result.content)))
    else:  # it is told no measures, and may know what it has spent
        for said in protections.sentences(result.content):
            console.print(Text(said))
    for warning in result.content["warnings"]:
        console.print(Text(f"warning: {warning}"))
    console.print(Text(f"\nresult  {result.path / 'result.json'}\nreport  {page}"), soft_wrap=True)


def _supervised(arguments: argparse.Namespace) -> None:
    """Take part, and tell the process that started this one how it goes."""
    events = Events()
    try:
        setup = replace(setup_of(arguments), simulated=True)
        _end_with_parent()
        member.take_part(setup, out_of(arguments, setup), events)
    except ColonnadeError as error:
        events.failed(Failure.of(error, arguments.name))
        raise


def out_of(arguments: argparse.Namespace, setup: Setup) -> Path:
    """The folder of the run."""
    folder: Path | None = arguments.out
    return folder or Path("runs") / f"{setup.federation.name}-{arguments.name}"


class Events(Observer):
    """Progress as JSON lines, for the process that started this one."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def began(self, config: Config, meters: Mapping[str, Meter], ledger: Traffic) -> None:
        self._ledger = ledger
        self._write({"began": True})
        ((_, meter),) = meters.items()

        def watch() -> None:
            while not self._ended.wait(METER_SECONDS):
                now = [meter.phase, meter.share, meter.epochs, meter.points]
                self._write({"meter": now, "bytes": ledger.bytes})

        threading.Thread(target=watch, daemon=True).start()

    def epoch(self, party: str, row: Mapping[str, Any]) -> None:
        self._write({"epoch": dict(row), "bytes": self._ledger.bytes})

    def failed(self, failure: Failure) -> None:
        """The last event: which party has failed of its own accord, this one or another."""
        self._write({"failed": {"party": failure.party, "error": failure.error}})

    def ended(self) -> None:
        self._ended.set()

    def _write(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()


def _end_with_parent() -> None:
    """No orphans: when the supervisor is gone, its end of this pipe closes."""

    def watch() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
