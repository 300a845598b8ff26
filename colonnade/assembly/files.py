"""One party's own rows: read from its own file, divided as everybody else divides them.

    id,age,town,label            CSV or Parquet; `data.own` finds out which columns are what
    c1,34,Ulm,no

Images come as NumPy's .npz with the arrays `id` (n,), `x`, uint8 (n, channels, height, width), and
`label` (n,) at the label holder; where they lie in the whole ones, [partition] of the run says.

Where every party brings labels of its own rows, each file has them, and the run's data.classes say
which there are.

Whether a row is for training or testing is decided by its id and the run's seed, so all parties
decide alike without a word. Rows that are not the same, in the same order, are aligned first
([align] of the run, see align/); without it their ids are compared by a keyed digest.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from colonnade import data, store
from colonnade.align import normalise
from colonnade.align.phase import COMMON, plainly
from colonnade.assembly.parties import (
    POOLED,
    Assembly,
    Holding,
    assembled,
    check_view,
    declared_views,
    of,
    pool,
    prepare,
    schedule_of,
)
from colonnade.config import Config
from colonnade.config import read as read_table_of
from colonnade.data import Column, Preparation, Split
from colonnade.data.own import Own, OwnFile
from colonnade.data.own import read as read_table
from colonnade.errors import ConfigError, DataError, RunError
from colonnade.partition import View
from colonnade.role.party import Party
from colonnade.role.seeds import derive

ID, LABEL = "id", "label"
NO_ROWS = "no rows of its own"
OWN_FILES = "the parties' own files"
ALL = "all"  # the one split of rows that are only to be aligned
COMMON_FILE = "common.csv"


@dataclass(frozen=True)
class OwnRows:
    """A party's rows, prepared, and what may be said about them."""

    splits: Mapping[str, Split]
    preparation: Preparation | None
    classes: tuple[str, ...]  # known to the label holder, or agreed on by all; empty elsewhere
    ids: bytes  # of all rows, in their order
    count: int
    source: str
    view: View | None = None  # of images that are parts of larger ones
    notes: tuple[str, ...] = ()  # what was found in the file, for `colonnade doctor`; not kept
    warnings: tuple[str, ...] = ()  # what the user should know about it; not kept
    sha256: str = ""  # of the file

    def digest(self, key: bytes) -> str:
        """What two parties compare; without the key it says nothing about the ids."""
        return hmac.new(key, self.ids, hashlib.sha256).hexdigest()[:32]

    @property
    def names(self) -> list[str]:
        """The ids, one by one."""
        names, text, at = list[str](), self.ids.decode(), 0
        while at < len(text):
            colon = text.index(":", at)
            at = colon + 1 + int(text[at:colon])
            names.append(text[colon + 1 : at])
        return names

    @property
    def width(self) -> int:
        """Numbers per row."""
        split = next(iter(self.splits.values()), None)
        return 0 if split is None else split.x[:1].numel()

    def facts(self, classes: Iterable[str]) -> dict[str, Any]:
        """The `data` part of result.json."""
        return {
            "name": self.source,
            "train_rows": len(self.splits["train"]) if "train" in self.splits else 0,
            "test_rows": len(self.splits["test"]) if "test" in self.splits else 0,
            "classes": list(classes),
            "partition": "the parties' own rows",
        }


def none(classes: tuple[str, ...] = ()) -> OwnRows:
    """What a helper of the protocol brings, such as a server."""
    return OwnRows({}, None, classes, b"", 0, NO_ROWS)


def from_file(
    file: OwnFile | Path, party: str, settings: Config, *, labelled: bool, folder: Path = Path()
) -> OwnRows:
    """A party's rows from its own file; labels are read where they are to be used."""
    _check_tested(settings)
    file = OwnFile(str(file)) if isinstance(file, Path) else file
    path, warnings = file.path(folder), list[str]()
    with of(party):
        if settings.found.method.rows.ids_only:
            ids = read_own(file, folder, like=()).ids
            split = {ALL: _bare(len(ids))}
            return OwnRows(
                split, None, (), ids_of(ids), len(ids), path.name, sha256=sha256_of(path)
            )
        own = read_own(file, folder)
        if labelled and own.labels is None:
            raise DataError(
                f"{path} has no '{file.label or LABEL}', and this party holds the labels"
            )
        if not labelled and own.labels is not None:
            warnings.append(_unused_labels(party, file, "the label holder"))
        classes = settings.data.classes
        if labelled and not classes:
            _, classes = data.labels_from(np.array(own.labels))
            _check_classes(classes, f"{path}, '{file.label or LABEL}'")
    holding = _holding(path, party, own, classes, settings)
    prepared, preparation = prepare(party, holding, settings.data.standardise)
    view, method = None, settings.found.method
    if method.network.images:
        view = declared_views(settings, list(settings.parties)).get(party)
        check_view(party, own.x, view, method)
    return OwnRows(
        prepared,
        preparation,
        classes,
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
        raise DataError(
            'no party\'s file has labels: name their column, [parties.NAME] label = "…"'
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
    _, classes = data.labels_from(np.concatenate([np.array(found[p].labels) for p in using]))
    _check_classes(classes, ", ".join(f"[parties.{party}] label" for party in using))
    holdings = {
        party: _holding(
            config.files[party].path(Path()), party, own, classes if party in using else (), config
        )
        for party, own in found.items()
    }
    names = {party: own.ids for party, own in found.items()} if config.align is not None else {}
    if method.rows.pooled(config.options):
        common = plainly({party: own.ids for party, own in found.items()}, config.asked)
        alike = {party: holdings[party].only(common[party]) for party in holdings}
        holdings, holder, names = {POOLED: pool(alike, holder)}, POOLED, {}
    assembly = assembled(config, holdings, holder, classes, OWN_FILES, names)
    warnings = [
        _unused_labels(party, config.files[party], f"'{config.run.label_holder or labelled[0]}'")
        for party in labelled
        if party not in using
    ]
    facts = assembly.data | {"files_sha256": hashes}
    return replace(assembly, data=facts, warnings=tuple(warnings))


def names_of(config: Config) -> dict[str, list[str]]:
    """What the parties of a run on own files call their rows, by the rows' ids in the run."""
    found = read_all(config.files, like=dict.fromkeys(config.files, ()))
    ids = {party: list(own.ids) for party, own in found.items()}
    method = config.found.method
    pooled = method.rows.pooled(config.options)
    if not pooled and (config.align is None or method.rows.all_rows):
        return ids
    common = plainly(ids, config.asked)
    named = {party: [ids[party][row] for row in rows.tolist()] for party, rows in common.items()}
    return {POOLED: next(iter(named.values()))} if pooled else named


def read_all(
    files: Mapping[str, OwnFile], *, like: Mapping[str, tuple[Column, ...]] | None = None
) -> dict[str, Own]:
    """Every party's file; what is wrong with several of them is told at once."""
    found, problems = dict[str, Own](), list[DataError]()
    for party, file in files.items():
        try:
            with of(party):
                found[party] = read_own(file, Path(), like=None if like is None else like[party])
        except DataError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise DataError(f"{len(problems)} mistakes in the parties' files{listed}")
    return found


def _to_align(
    config: Config, names: Mapping[str, Sequence[str]], hashes: Mapping[str, str]
) -> Assembly:
    """Parties that know their rows by their ids, and nothing else of them."""
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
            (),
            device,
            None,
            own,
        )
        for name, own in names.items()
    }
    facts = none().facts(()) | {"name": OWN_FILES, "files_sha256": dict(hashes)}
    return Assembly(parties, cast, holder, facts)


def _bare(count: int) -> Split:
    """So many rows of which nothing is known but that they are there."""
    return data.numbered(torch.empty(count, 0), None)


def _check_tested(config: Config) -> None:
    if why := config.untested():
        to_do = "set evaluate_every = 0, and score files of the same rows by colonnade predict"
        raise ConfigError([f"{why}: {to_do}"])


def _check_classes(classes: Sequence[str], where: str) -> None:
    if len(classes) < 2:
        raise DataError(f"{where}: all labels are '{classes[0]}'. There is nothing to tell apart")


def _unused_labels(party: str, file: OwnFile, holder: str) -> str:
    column = file.label or LABEL
    return (
        f"the file of '{party}' has labels too, in '{column}': they are left out, since those of "
        f"{holder} count. To use the column as a feature, give [parties.{party}] another label, "
        'such as label = ""'
    )


def sha256_of(path: Path) -> str:
    """Of a file that has just been read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_common(party: Party, folder: Path) -> Path:
    """common.csv: what this party calls the common rows, in the common order, and which rows of
    its file they are; 0 is the first below the names of the columns."""
    path = folder / COMMON_FILE
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "row"])
        lines.writerows([party.names[row], row] for row in party.state[COMMON].tolist())
    return path


def read_common(folder: Path) -> list[str]:
    """The ids of what `write_common` wrote."""
    with (folder / COMMON_FILE).open(newline="", encoding="utf-8") as file:
        return [row[0] for row in csv.reader(file)][1:]


def _holding(
    path: Path, party: str, own: Own, classes: tuple[str, ...], settings: Config
) -> Holding:
    """A party's rows, divided; with the codes of their labels if classes are given."""
    with of(party):
        y: Tensor | None = None
        if classes and own.labels is not None:
            y = _codes(path, own.labels, classes)
        where = _divide(party, own.ids, settings)
        data.check_features(own.x, own.columns)
        splits = {
            key: Split(own.x[chosen], None if y is None else y[chosen], chosen)
            for key, chosen in where.items()
            if len(chosen) or key != "validation"
        }
        for key in ("train", *(["test"] if settings.held_out() else [])):
            if not len(splits[key]):
                raise DataError(
                    f"{path}: none of its {len(own.ids)} rows is for '{key}': give more"
                )
        # Where all have agreed on classes, a party may lack some of them.
        if y is not None and not settings.found.method.rows.own_labels:
            data.check_labels(y[where["train"]], classes)
    return Holding(splits, own.columns)


def _codes(path: Path, labels: list[str], classes: tuple[str, ...]) -> Tensor:
    """Labels as places among the classes that all have agreed on."""
    strangers = sorted({label for label in labels if label not in classes})
    if strangers:
        raise DataError(
            f"{path}: the label {', '.join(map(repr, strangers))} is not among data.classes of the "
            f"federation file ({', '.join(classes)}): correct the file, or agree on other classes"
        )
    return torch.tensor([classes.index(label) for label in labels])


def ids_of(ids: list[str]) -> bytes:
    """All ids in their order, as bytes that no other list has."""
    return "".join(f"{len(name)}:{name}" for name in ids).encode()


def save(rows: OwnRows, path: Path) -> None:
    """Hand prepared rows to a process of this machine."""
    preparation = rows.preparation
    store.save(
        {
            "splits": {
                key: {"x": split.x.cpu(), "ids": split.ids.cpu()}
                | ({} if split.y is None else {"y": split.y.cpu()})
                for key, split in rows.splits.items()
            },
            "preparation": None if preparation is None else preparation.tensors(),
            "columns": []
            if preparation is None
            else [[c.name, list(c.categories), c.missing] for c in preparation.columns],
            "classes": list(rows.classes),
            "ids": rows.ids.decode(),
            "count": rows.count,
            "source": rows.source,
            "sha256": rows.sha256,
            "view": [] if rows.view is None else rows.view.numbers(),
        },
        path,
    )


def load(path: Path) -> OwnRows:
    """What `save` wrote."""
    saved = store.load(path)
    try:
        columns = tuple(Column(name, tuple(known), may) for name, known, may in saved["columns"])
        preparation = None
        if saved["preparation"] is not None:
            preparation = Preparation.from_tensors(saved["preparation"], columns)
        splits = {
            key: Split(split["x"], split.get("y"), split["ids"])
            for key, split in saved["splits"].items()
        }
        return OwnRows(
            splits,
            preparation,
            tuple(saved["classes"]),
            saved["ids"].encode(),
            saved["count"],
            saved["source"],
            View.of(saved["view"]) if saved["view"] else None,
            sha256=saved["sha256"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: not rows that Colonnade wrote ({error})") from error


def described(path: Path) -> OwnFile:
    """A file of rows; or a .toml file with the keys of [parties.NAME] that say where it is, and
    which of its columns are what."""
    if path.suffix != ".toml":
        return OwnFile(str(path))
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}") from None
    problems: list[str] = []
    file: OwnFile = read_table_of(OwnFile, table, "", problems)
    if problems:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    return replace(file, data=str(file.path(path.parent)))


def read_own(file: OwnFile, folder: Path, *, like: tuple[Column, ...] | None = None) -> Own:
    """What a party's file holds, of images too; `like`, the columns of training, for later rows."""
    path = file.path(folder)
    return read_images(path) if path.suffix == ".npz" else read_table(file, folder, like=like)


def read_images(path: Path) -> Own:
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} is no .npz file of plain arrays: {error}") from None
    if missing := [name for name in (ID, "x") if name not in found]:
        raise DataError(f"{path} has no {' and no '.join(map(repr, missing))}: save both in it")
    x = found["x"]
    if x.ndim != 4 or x.dtype != np.uint8:
        raise DataError(
            f"{path}: x is {x.dtype} {x.shape}; images are uint8 (rows, channels, height, width)"
        )
    counts = {name: len(array) for name, array in found.items() if name in (ID, "x", LABEL)}
    if len(set(counts.values())) > 1:
        raise DataError(f"{path}: arrays of different lengths, {counts}")
    ids = [str(name) for name in found[ID]]
    if not ids:
        raise DataError(f"{path} has no rows")
    seen: set[str] = set()
    for name in ids:
        if not name or name in seen:
            raise DataError(f"{path}: the id {name!r} is empty or comes twice; ids must be unique")
        seen.add(name)
    labels = [str(label) for label in found[LABEL]] if LABEL in found else None
    size = "x".join(map(str, x.shape[1:]))
    notes = (f"{len(ids):,} images of {size}", "no labels" if labels is None else "with labels")
    return Own(ids, (), torch.from_numpy(x), labels, notes)


def _divide(party: str, ids: list[str], settings: Config) -> dict[str, Tensor]:
    """Which rows are for what: a draw from each id, the same at every party."""
    if (align := settings.align) is not None:  # ids that count as one are drawn as one
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
