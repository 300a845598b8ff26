"""Predictions of a federation: every party brings new rows and the models it has trained.

The same links, post, ledger and policy as in training; the roles are those of `predict`. Whoever
predicts has its own predictions, and nobody else's. A method that can do without some
passive parties may be told who is absent, by everybody alike.

Where parties come and go, each predicts by itself, at any time: also in the middle of a training,
with the models of its newest checkpoint, and without a connection.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.align.phase import COMMON, aligned
from colonnade.assembly import OwnRows, heard, ids_of, of, task_for
from colonnade.data import Column, Preparation, Split
from colonnade.data.own import OwnFile, described, read
from colonnade.deploy.connect import connect, signals
from colonnade.deploy.memory import (
    check_head,
    keep_anchor,
    keep_head,
    open_journal,
    run_journal,
    run_of,
    watch_rows,
)
from colonnade.deploy.records import Log, Say
from colonnade.deploy.setup import Setup, party_of
from colonnade.errors import CodecError, DataError, MethodError, RunError
from colonnade.owner import private
from colonnade.partition import View
from colonnade.privacy.protection import protect
from colonnade.report.protections import of_predictions
from colonnade.results import folder as folders
from colonnade.results.prediction import Prediction, made
from colonnade.results.result import read_json
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.runtime.checkpoint import NoCheckpoints
from colonnade.runtime.control import Start
from colonnade.runtime.drive import drive, reproducible
from colonnade.task import Task
from colonnade.wire import Kind, Ledger, Peer, Recv, Value, Wire

SPLIT = "predict"
AGAIN = "train again with the others, in a new run"


@dataclass(frozen=True, eq=False)
class NewFile:
    """A party's file of new rows."""

    rows: OwnRows  # as its models take them
    ids: list[str]
    labels: list[str] | None  # "": none; they are compared with the predictions, and stay here

    def only(self, rows: Sequence[int]) -> NewFile:
        """The ids and labels of some rows, in this order."""
        labels = None if self.labels is None else [self.labels[row] for row in rows]
        return replace(self, ids=[self.ids[row] for row in rows], labels=labels)


@dataclass(frozen=True, eq=False)
class Predicted:
    """What this party predicts, and the labels of these rows as far as its file has them."""

    prediction: Prediction
    labels: list[str] | None

    def only(self, rows: list[int]) -> Predicted:
        """The same of some rows, in this order."""
        labels = None if self.labels is None else [self.labels[row] for row in rows]
        return Predicted(self.prediction.only(rows), labels)


def rows_for(file: OwnFile | Path, party: str, run: Path, unfinished: bool = False) -> NewFile:
    """New rows of a party as its models take them."""
    file = described(file) if isinstance(file, Path) else file
    path, saved = file.path(Path()), _saved(run, party, unfinished)
    with of(party):
        columns = tuple(Column(name, tuple(known), may) for name, known, may in saved["columns"])
        found = read(file, Path(), like=columns)
        ids, x = found.ids, found.x
        preparation = None
        if saved["preparation"] is not None:
            preparation = Preparation.from_tensors(saved["preparation"], columns)
            if not columns and list(x.shape[1:]) != saved["shape"]:
                raise DataError(
                    f"{path} has rows of shape {tuple(x.shape[1:])}, and the training had "
                    f"{tuple(saved['shape'])}"
                )
            x = preparation.apply(x)
        else:
            x = torch.empty(len(ids), 0)
    split = Split(x, None, torch.arange(len(ids)))
    rows = OwnRows({SPLIT: split}, preparation, None, ids_of(ids), len(ids), path.name)
    return NewFile(rows, ids, found.labels)


@private()
def predict(
    setup: Setup,
    run: Path,
    file: NewFile,
    absent: Collection[str] = (),
    say: Say | None = None,
) -> Predicted | None:
    """Predict with the others; this party's predictions, if it is one that predicts."""
    settings, method = setup.settings, setup.settings.found.method
    method.check_absent(absent, setup.cast, settings.options)
    log = Log(run / "log-predict.txt", say)
    task = _task(setup, read_json(run / "result.json")["data"])
    saved = _saved(run, setup.name)
    book = Ledger(_touched(run / "ledger-predict.jsonl"), through=True)
    asked = replace(setup, task="predict")
    manifest = read_json(run / "run.json")
    journal = open_journal(setup, run, manifest)
    session = connect(asked, journal, book, NoCheckpoints(), _NothingKept(), log, absent=absent)
    party: Party | None = None
    order: list[int] | None = None
    with (
        closing(book),
        closing(journal),
        reproducible(settings.run.threads, settings.run.device == "cuda"),
        signals(session.stop),
        session.connected(),
    ):
        check_head(journal, manifest["run"], book)
        while (start := session.next_start()) is not None:
            party = _party(setup, saved, task)
            party.journal = run_journal(setup, journal, run_of(start.run, party))
            protect(party, settings.protect, sent=setup.sends)
            watch_rows(setup, party, journal, start.absent)
            if settings.signs:
                party.identity = setup.identity(f"predict {start.run} attempt {start.attempt}")
            if session.play(start, party, partial(_role, setup, party, start.absent)):
                session.finish(party, {})
        session.leave()
        keep_head(journal, manifest["run"], book)
        keep_anchor(run, journal)
        if party is not None and party.protection is not None:
            for sentence in of_predictions({setup.name: party.protection.told()}):
                log(sentence)
    if party is not None and COMMON in party.state:
        file = file.only(party.state[COMMON].tolist())
        order = party.state[COMMON].argsort().tolist()  # as its own file has the rows
        log(f"{len(file.ids)} of {len(party.names)} rows are common to all; the others stay out")
    if party is None or not isinstance(session.returned, Tensor):
        return None
    found = _predicted(setup, party, session.returned, file, saved, run)
    return found if order is None else found.only(order)


class _NothingKept:
    """Predicting is short: a process that dies begins again, and no member may be lost."""

    def mark(self, start: Start) -> None: ...

    def publish(self, party: Party) -> None: ...

    def may_lose(self, absent: frozenset[str]) -> str:
        return "Name who is absent, at every party, to predict without them. "

    def check_account(self, sender: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
        if told:
            raise CodecError(f"'{sender}' sent an account of its work, and a prediction has none")
        return told


def _role(
    setup: Setup, party: Party, absent: Collection[str], wire: Wire
) -> Coroutine[Any, Any, Any]:
    """The predicting role, after an alignment where the settings ask for one."""
    settings, missing = setup.settings, frozenset(absent)
    roles, cast = settings.found.method.roles, setup.cast
    program = roles[party.role].predict
    role = partial(bind, program, party, cast, wire, settings.options, missing, split=SPLIT)
    bringing = [name for name, part in cast.items() if roles[part].rows and name not in missing]
    peers = [Peer(name, wire) for name in bringing if name != party.name]
    if settings.align is None or not peers:
        return role()
    return aligned(role, party, peers, settings.align)


@private()
def predict_alone(
    setup: Setup,
    run: Path,
    file: NewFile,
    absent: Collection[str] = (),
    say: Say | None = None,
) -> Predicted | None:
    """Predict without a word to anybody, with the newest models there are."""
    settings, me = setup.settings, setup.name
    if absent:
        raise RunError(f"--absent: '{me}' predicts alone, whoever is there; omit it")
    saved = _saved(run, me, unfinished=True)
    if say is not None:
        say(f"models of {_reached(saved)}")
    if settings.data.classes or "task" not in saved:
        saved |= {"task": {}}
    facts = {"classes": settings.data.classes, "task": saved["task"]}
    if not (facts["classes"] or facts["task"]):
        facts = read_json(run / "result.json")["data"]
    task = _task(setup, facts)
    party = _party(setup, saved, task)
    program = settings.found.method.roles[party.role].predict
    role = bind(program, party, setup.cast, _NoWire(me), settings.options, split=SPLIT)

    def take(wanted: Recv) -> Any:
        raise _talks(me, wanted.kind)

    with reproducible(settings.run.threads, settings.run.device == "cuda"):
        logits = drive(role, take)
    if not isinstance(logits, Tensor):
        return None
    return _predicted(setup, party, logits, file, saved, run)


class _NoWire:
    """Carries nothing."""

    def __init__(self, me: str) -> None:
        self._me = me

    def put(self, receiver: str, kind: Kind, value: Value) -> None:
        raise _talks(self._me, kind)

    def reaches(self, receiver: str) -> bool:
        return False


def _talks(me: str, kind: Kind) -> MethodError:
    return MethodError(
        f"'{me}' predicts alone, since its method is elastic, but its role sends or awaits "
        f"'{kind.name}': an elastic method must predict without messages"
    )


def _party(setup: Setup, saved: Mapping[str, Any], task: Task) -> Party:
    """A party that has trained, with new rows."""
    made = party_of(setup, task, View.of(saved["view"]) if saved["view"] else None)
    made.kept.load(saved["weights"])
    return made


def _task(setup: Setup, facts: Mapping[str, Any]) -> Task:
    """What was learnt; of older runs only the classes are written down."""
    if told := facts.get("task"):
        return heard(setup.settings, told)
    return task_for(setup.settings, facts["classes"])


def _reached(saved: Mapping[str, Any]) -> str:
    """How far the training of these models had come."""
    if "position" not in saved:
        return "a finished training"
    phase, epoch, step = saved["position"]
    part = f"epoch {epoch}" if not step else f"step {step} of epoch {epoch + 1}"
    return f"{part} of {saved['epochs']} ('{phase}'); the training has not ended"


def _predicted(
    setup: Setup,
    party: Party,
    outputs: Tensor,
    file: NewFile,
    saved: Mapping[str, Any],
    run: Path,
) -> Predicted:
    rows, rate = torch.arange(len(file.ids)), setup.settings.decision.rate
    return Predicted(made(party, outputs, rows, file.ids, run, saved, rate), file.labels)


def _saved(run: Path, party: str, unfinished: bool = False) -> dict[str, Any]:
    if unfinished:
        return _newest(run, party)
    if not (run / "weights").exists():
        raise RunError(f"{run} has no trained models: give the run folder of a finished training")
    if not (run / "weights" / f"{party}.json").exists():
        whose = ", ".join(file.stem for file in (run / "weights").glob("*.json"))
        raise RunError(f"{run} is the folder of '{whose}', not of '{party}'")
    return folders.load_weights(run / "weights", party, AGAIN)


def _newest(run: Path, party: str) -> dict[str, Any]:
    """The models of a run that may be under way: its process may replace them at this moment."""
    for patient in (True, True, False):
        place = folders.newest_weights(run, party)
        try:
            if place is not None:
                return folders.load_weights(place, party, AGAIN)
        except RunError:
            if not patient:
                raise
        time.sleep(0.1 * patient)
    raise RunError(
        f"{run} has no models of '{party}' yet: give its own run folder, once a first checkpoint "
        "is written"
    )


def _touched(path: Path) -> Path:
    path.touch()
    return path
