"""The doctor on a run file: settings, every party's own file, and what these have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from math import prod
from pathlib import Path

from colonnade import config as configuration
from colonnade import toml
from colonnade.align import kinds_of, ristretto
from colonnade.align.phase import better_spelt, common_in_clear, keep
from colonnade.assembly import Assembly, from_catalogue, from_files
from colonnade.config import Config
from colonnade.data import own
from colonnade.data.own import OwnFile
from colonnade.deploy.costs import costs_of_run, oversized
from colonnade.deploy.doctor.check import Check, problems
from colonnade.deploy.doctor.code import of_run
from colonnade.deploy.doctor.learnt import learnt
from colonnade.deploy.doctor.machine import software
from colonnade.deploy.spending import planned
from colonnade.errors import ColonnadeError, ConfigError, MethodError, listed

MOST_NOTES = 24  # lines about one party's file


def is_run(path: Path) -> bool:
    """Whether it says what to run on this machine, and is not a federation file."""
    try:
        return "method" in toml.load(path)
    except ConfigError:
        return False  # which a federation file's reader explains


def examine_run(path: Path, overrides: Sequence[str] = ()) -> list[Check]:
    """All checks of a run file: settings, every party's own file, what they have in common.

    overrides  "key=value" texts, as of `colonnade run --set`
    """
    looked = of_run(path)
    if any(check.verdict != "ok" for check in looked):
        return [*looked, *_files_named_in(path), software()]
    try:
        run = configuration.load(path, overrides)
    except ColonnadeError as error:
        move = f"correct {path}"
        wrong = [Check("file", "problem", said, move) for said in problems(error)]
        return [*wrong, *_files_named_in(path), software()]
    method, checks = run.found.method, looked
    said = f"{method.name}, {run.run.epochs} epochs, batches of {run.run.batch_size}"
    checks.append(Check("run", "ok", f"{said}, seed {run.run.seed}"))
    for party, file in run.files.items():
        checks += _own_file(party, file)
    if all(check.verdict == "ok" for check in checks):
        checks += _rows_of(run)
    return [*checks, software()]


def _files_named_in(path: Path) -> Iterator[Check]:
    """The parties' own files, where the run file itself has mistakes, or code that is not executed:
    what is said of its keys is not said again."""
    keys = {key.name for key in fields(OwnFile)}
    for party, table in toml.table(toml.load(path), "parties", []).items():
        own_keys = {k: v for k, v in table.items() if k in keys} if isinstance(table, dict) else {}
        file = toml.read(OwnFile, own_keys, "", []) if "data" in own_keys else None
        if file is not None:
            yield from _own_file(party, replace(file, data=str(file.path(path.parent).resolve())))


def _own_file(party: str, file: OwnFile) -> Iterator[Check]:
    try:
        notes = own.read(file, Path()).notes
    except ColonnadeError as error:
        for said in problems(error):
            yield Check(party, "problem", said, f"correct the file, or [parties.{party}]")
        return
    yield Check(party, "ok", f"{file.data}: {notes[0]}")
    for note in notes[1:MOST_NOTES]:
        yield Check(party, "ok", note)
    if len(notes) > MOST_NOTES:
        yield Check(party, "ok", f"and {len(notes) - MOST_NOTES} further columns")


def _rows_of(run: Config) -> Iterator[Check]:
    """What would be trained on, and what would cross."""
    if run.align is not None and run.files:
        try:
            ristretto.library()
        except MethodError as error:
            yield Check("alignment", "problem", error.said, error.move)
            return
    try:
        assembly = from_files(run) if run.files else from_catalogue(run)
        names = {n: party.names for n, party in assembly.parties.items() if party.names}
        if run.align is not None and names:
            common = common_in_clear(names, run.align)
            count = len(next(iter(common.values())))
            shares = ", ".join(f"{count / len(own):.0%} of {name}'s" for name, own in names.items())
            if count < run.align.minimum:
                move = "are the ids the same ones, written alike? [align] minimum sets the limit"
                if better := better_spelt(names):
                    move = f"{better[0]}: write them alike in all files"
                said = f"{count} rows are common, fewer than the minimum of {run.align.minimum}"
                yield Check("alignment", "problem", said, move)
                return
            yield Check("alignment", "ok", f"{count:,} rows are common: {shares}")
            for name, rows in common.items():
                keep(assembly.parties[name], rows)
    except ColonnadeError as error:
        for said in problems(error):
            yield Check("rows", "problem", said, "see `colonnade run`, which would stop here")
        return
    facts = assembly.facts()
    validation = assembly.parties[assembly.holder].splits.get("validation", ())
    said = f"{facts['train_rows']:,} rows to train on, "
    said += f"{len(validation):,} for validation, " if len(validation) else ""
    said += f"{facts['test_rows']:,} to test"
    method, classes = run.found.method, listed(facts["classes"], quoted=False) or "numbers"
    labels = f"{assembly.holder} holds the labels, {classes}"
    if method.rows.own_labels:
        labels = f"all rows come with labels, of {classes}"
    yield Check("rows", "ok", f"{said}; {labels}")
    trained = [party.splits.get("train") for party in assembly.parties.values()]
    ys = [split.y for split in trained if split is not None and split.y is not None]
    yield from learnt(assembly.parties[assembly.holder].task, ys, run.decision)
    for warning in assembly.warnings:
        yield Check("rows", "warning", warning, "see whether that is meant")
    for name, party in assembly.parties.items():
        what = f"{prod(party.shape)} numbers per row" if party.has_features else "no features"
        yield Check(name, "ok", f"{party.role}, {what}")
    yield from _sent(run, assembly, len(names))


def _sent(run: Config, assembly: Assembly, aligning: int) -> Iterator[Check]:
    """What would cross, and how much of it; so many parties would align their rows first."""
    cast, sent = assembly.cast, list(kinds_of(aligning) if run.align is not None else ())
    for role in cast.values():
        passives = sum(other == "passive" for other in cast.values())
        sent += run.sent_by(role, cast[assembly.holder], passives)
    for kind in dict.fromkeys(sent):
        yield Check("may cross", "note", f"{kind.name} ({kind.describe()}) reveals {kind.reveals}")
    for name, said in costs_of_run(run, cast, assembly.facts()["train_rows"]):
        yield Check(f"{name} sends", "note", said)
    for name, role in cast.items():
        party = assembly.parties[name]
        passives = sum(other == "passive" for other in cast.values())
        kinds = run.sent_by(role, cast[assembly.holder], passives)
        for said in planned(run, role, kinds, party.labelled):
            text = f"{said}; a simulation, which counts for nobody"
            yield Check(f"{name} spends", "note", text)
        features = prod(party.shape) if party.has_features else 0
        for said, move in oversized(run, role, features):
            yield Check(f"{name} sends", "note", said, move)
