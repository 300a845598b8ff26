"""Reads one party's own rows from its file, and divides them as every other party does.

    id,age,town,label            CSV or Parquet; `data.own` infers the columns' types
    c1,34,Ulm,no

Images come as NumPy's .npz with the arrays `id` (n,), `x`, uint8 (n, channels, height, width), and
`label` (n,) at the label holder; the run's [partition] names their places in the whole images.

If every party brings labels of its own rows, each file has them, and the run's data.classes lists
the classes.

A row's id and the run's seed decide whether it is for training or testing, so all parties decide
alike without a message. Rows that differ, or differ in order, are aligned first ([align] of the
run, see align/); without alignment the ids are compared by a keyed digest.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from colonnade import data
from colonnade.align import doubts, normalise
from colonnade.align.phase import COMMON, common_in_clear
from colonnade.assembly.cast import Assembly, assembled, schedule_of
from colonnade.assembly.holding import (
    POOLED,
    Holding,
    check_view,
    declared_views,
    of,
    pool,
    prepare,
)
from colonnade.assembly.labels import asked, task_for
from colonnade.assembly.own_rows import OwnRows, ids_of, no_rows
from colonnade.config import Config
from colonnade.data import OWN_FILES, Called, Column, Split
from colonnade.data.own import LABEL, Own, OwnFile, read
from colonnade.errors import ConfigError, DataError, enumerated, listed
from colonnade.role.party import Party
from colonnade.role.seeds import derive
from colonnade.task import Task

ALL = "all"  # the only split of rows that are only to be aligned
COMMON_FILE = "common.csv"


def from_file(
    file: OwnFile | Path, party: str, settings: Config, *, labelled: bool, folder: Path = Path()
) -> OwnRows:
    """A party's rows from its own file; labels are read only if they will be used."""
    _check_tested(settings)
    file = OwnFile(str(file)) if isinstance(file, Path) else file
    path, warnings = file.path(folder), list[str]()
    with of(party):
        if settings.found.method.rows.ids_only:
            ids = read(file, folder, like=()).ids
            split = {ALL: _bare(len(ids))}
            return OwnRows(
                split, None, None, ids_of(ids), len(ids), path.name, sha256=sha256_of(path)
            )
        own = read(file, folder)
        warnings += _doubted(party, own.ids, settings)
        if labelled and own.labels is None:
            raise DataError(_unlabelled(path, file, own))
        if not labelled and own.labels is not None:
            warnings.append(_unused_labels(party, file, "the label holder"))
        y, classes = _learnt(own, settings) if labelled else (None, ())
    holding = _holding(path, party, own, y, classes, settings)
    prepared, preparation = prepare(party, holding, settings.data.standardise)
    view, method = None, settings.found.method
    if method.network.images:
        view = declared_views(settings, list(settings.parties)).get(party)
        check_view(party, own.x, view, method)
    return OwnRows(
        prepared,
        preparation,
        task_for(settings, classes, prepared["train"].y) if labelled else None,
        ids_of(own.ids),
        len(own.ids),
        path.name,
        view,
        own.notes,
        tuple(warnings),
        sha256_of(path),
    )


def from_files(config: Config) -> Assembly:
    """All parties of a simulation, each with the rows of its own file, still to be aligned."""
    ids_only = dict.fromkeys(config.files, ()) if config.found.method.rows.ids_only else None
    found = read_all(config.files, like=ids_only)
    hashes = {party: sha256_of(file.path(Path())) for party, file in config.files.items()}
    if config.found.method.rows.ids_only:
        return _to_align(config, {party: own.ids for party, own in found.items()}, hashes)
    labelled = [party for party, own in found.items() if own.labels is not None]
    if not labelled:
        empty = [
            _unlabelled(file.path(Path()), file, found[party])
            for party, file in config.files.items()
            if found[party].called.column
        ]
        raise DataError(
            "; ".join(empty)
            or 'no party\'s file has labels: name their column, [parties.NAME] label = "…"'
        )
    method, holder = config.found.method, config.run.label_holder or labelled[0]
    _check_tested(config)
    if holder not in labelled:
        raise DataError(
            f"label_holder = '{holder}': its file has no labels; those of {', '.join(labelled)} do"
        )
    if method.rows.own_labels and (silent := [party for party in found if party not in labelled]):
        raise DataError(
            f"the file of {', '.join(silent)} has no labels, and in {method.name} every party "
            "brings labels of its own rows: name their column, or choose a method for which one "
            "party holds them, such as splitnn"
        )
    using = labelled if method.rows.own_labels else [holder]
    ys, classes = _learnt_together({party: found[party] for party in using}, config)
    holdings = {
        party: _holding(
            config.files[party].path(Path()), party, own, ys.get(party), classes, config
        )
        for party, own in found.items()
    }
    trained = [holdings[party].splits["train"].y for party in using]
    labels = torch.cat([y for y in trained if y is not None])
    names = {party: own.ids for party, own in found.items()} if config.align is not None else {}
    if method.rows.pooled(config.options):
        common = common_in_clear({party: own.ids for party, own in found.items()}, config.asked)
        alike = {party: holdings[party].only(common[party]) for party in holdings}
        holdings, holder, names = {POOLED: pool(alike, holder)}, POOLED, {}
    task = task_for(config, classes, labels)
    assembly = assembled(config, holdings, holder, task, OWN_FILES, names)
    warnings = [
        _unused_labels(party, config.files[party], f"'{config.run.label_holder or labelled[0]}'")
        for party in labelled
        if party not in using
    ]
    for party, own in found.items():
        warnings += _doubted(party, own.ids, config)
    facts = assembly.data | {"files_sha256": hashes}
    return replace(assembly, data=facts, warnings=tuple(warnings))


def names_of(config: Config) -> dict[str, list[str]]:
    """The parties' own names of their rows in a run on own files, by the rows' ids in the run."""
    found = read_all(config.files, like=dict.fromkeys(config.files, ()))
    ids = {party: list(own.ids) for party, own in found.items()}
    method = config.found.method
    pooled = method.rows.pooled(config.options)
    if not pooled and (config.align is None or method.rows.all_rows):
        return ids
    common = common_in_clear(ids, config.asked)
    named = {party: [ids[party][row] for row in rows.tolist()] for party, rows in common.items()}
    return {POOLED: next(iter(named.values()))} if pooled else named


def read_all(
    files: Mapping[str, OwnFile], *, like: Mapping[str, tuple[Column, ...]] | None = None
) -> dict[str, Own]:
    """Read every party's file; the mistakes of all files are reported at once."""
    found, errors = dict[str, Own](), list[DataError]()
    for party, file in files.items():
        try:
            with of(party):
                found[party] = read(file, Path(), like=None if like is None else like[party])
        except DataError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if problems := [problem for error in errors for problem in error.problems]:
        raise DataError(enumerated(problems, "the parties' files"), problems)
    return found


def write_common(party: Party, folder: Path) -> Path:
    """Write common.csv: this party's names of the common rows, in the common order, and their
    numbers in its file; 0 is the first row below the names of the columns."""
    path = folder / COMMON_FILE
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "row"])
        lines.writerows([party.names[row], row] for row in party.state[COMMON].tolist())
    return path


def read_common(folder: Path) -> list[str]:
    """The ids in a file that `write_common` wrote."""
    with (folder / COMMON_FILE).open(newline="", encoding="utf-8") as file:
        return [row[0] for row in csv.reader(file)][1:]


def sha256_of(path: Path) -> str:
    """The digest of a file that has just been read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_align(
    config: Config, names: Mapping[str, Sequence[str]], hashes: Mapping[str, str]
) -> Assembly:
    """Parties that have the ids of their rows and nothing else of them."""
    holder = config.run.label_holder or next(iter(names))
    cast = config.found.method.cast(list(names), holder, config.options)
    schedule, device = schedule_of(config), torch.device("cpu")
    parties = {
        name: Party(
            name,
            cast[name],
            config.parties.get(name, config.recipe),
            schedule,
            {ALL: _bare(len(own))},
            None,
            Task.of(()),
            device,
            None,
            own,
        )
        for name, own in names.items()
    }
    facts = no_rows().facts(None) | {"name": OWN_FILES, "files_sha256": dict(hashes)}
    return Assembly(parties, cast, holder, facts)


def _bare(count: int) -> Split:
    """Rows without features or labels."""
    return data.numbered(torch.empty(count, 0), None)


def _holding(
    path: Path,
    party: str,
    own: Own,
    y: Tensor | None,
    classes: tuple[str, ...],
    settings: Config,
) -> Holding:
    """A party's rows, divided; with their labels, if these are used."""
    with of(party):
        weights = own.weights
        if weights is not None and y is None:
            raise DataError(
                f"{path}: `weight` says how much rows with labels count, and no labels are read "
                "here: omit it, or --weight"
            )
        where = _divide(party, own.ids, settings)
        data.check_features(own.x, own.columns)
        everything = Split(own.x, y, torch.arange(len(own.ids)), weights)
        splits = {
            key: everything.rows(chosen)
            for key, chosen in where.items()
            if len(chosen) or key != "validation"
        }
        for key in ("train", *(["test"] if settings.held_out() else [])):
            if not len(splits[key]):
                raise DataError(
                    f"{path}: none of its {len(own.ids)} rows is for '{key}': bring more"
                )
        # If all have agreed on classes, a party may lack some of them.
        if y is not None and not settings.found.method.rows.own_labels:
            data.check_labels(y[where["train"]], classes)
        data.check_weights(splits["train"].weights)
    return Holding(splits, own.columns)


def _doubted(party: str, ids: list[str], settings: Config) -> list[str]:
    """What looks wrong with ids that others' ids are compared with."""
    return [f"'{party}': {said}" for said in doubts(ids)] if settings.align is not None else []


def _learnt(own: Own, settings: Config) -> tuple[Tensor, tuple[str, ...]]:
    """A file's labels as codes and their classes, or as numbers."""
    labels, agreed = np.array(own.labels), settings.data.classes
    if settings.data.mean is not None:  # one party's may be all alike
        return data.label_codes(labels, (), own.called), ()
    if not agreed:
        return data.labels_from(labels, asked(settings), own.called)
    if strangers := sorted(set(own.labels or ()).difference(agreed)):
        raise DataError(
            f"{own.called.file}: the label {listed(strangers)} is not among data.classes of the "
            f"federation file ({listed(agreed, quoted=False)}): correct the file, or agree on "
            "other classes"
        )
    return data.label_codes(labels, agreed, own.called), agreed


def _learnt_together(
    owns: Mapping[str, Own], settings: Config
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The same for the files of several parties, which have the same classes."""
    if len(owns) == 1:
        ((party, own),) = owns.items()
        with of(party):
            y, classes = _learnt(own, settings)
        return {party: y}, classes
    counts = [len(own.ids) for own in owns.values()]
    where = [(party, row) for party, own in owns.items() for row in range(len(own.ids))]

    def place(row: int) -> str:
        party, own_row = where[row]
        return f"{owns[party].called.place(own_row)} of {Path(owns[party].called.file).name}"

    columns = dict.fromkeys(own.called.column for own in owns.values())
    called = Called(
        ", ".join(own.called.file for own in owns.values()), " and ".join(columns), place
    )
    labels = np.concatenate([np.array(own.labels) for own in owns.values()])
    y, classes = data.labels_from(labels, asked(settings), called)
    return dict(zip(owns, y.split(counts), strict=True)), classes


def _unlabelled(path: Path, file: OwnFile, own: Own) -> str:
    """Why a file has no labels, though its party holds them."""
    if own.called.column:
        return (
            f"{path}, column '{own.called.column}': all {len(own.ids):,} labels are missing. Label "
            "the rows, or name another column by `label`, or --label"
        )
    return (
        f"{path} has no '{file.label or LABEL}', and this party holds the labels: name their "
        "column by `label`, or --label"
    )


def _divide(party: str, ids: list[str], settings: Config) -> dict[str, Tensor]:
    """Divide rows by a draw from each id, the same at every party."""
    if (align := settings.align) is not None:  # ids that alignment treats as equal get equal draws
        ids = normalise(ids, party, casefold=align.casefold, most=align.most)
    seed = derive(settings.run.seed, "data")
    test, validation = settings.held_out(), settings.data.validation
    draws = np.array(
        [
            int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little") / 2**64
            for name in ids
        ]
    )
    held = test + (1 - test) * validation
    kind = np.where(draws < test, "test", np.where(draws < held, "validation", "train"))
    return {
        key: torch.from_numpy(np.flatnonzero(kind == key))
        for key in ("train", "validation", "test")
    }


def _check_tested(config: Config) -> None:
    if why := config.untested():
        to_do = "set evaluate_every = 0, and score files of the same rows by colonnade predict"
        raise ConfigError([f"{why}: {to_do}"])


def _unused_labels(party: str, file: OwnFile, holder: str) -> str:
    column = file.label or LABEL
    return (
        f"the file of '{party}' has labels too, in '{column}': they are ignored, because those of "
        f"{holder} count. To use the column as a feature, give [parties.{party}] another label, "
        'such as label = ""'
    )
