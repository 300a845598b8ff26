"""One party's own rows: read from its own file, divided as everybody else divides them.

    id,age,income,label          ids and labels by these names; every other column is a number
    c1,34,2100.5,no

Images come as NumPy's .npz with the arrays `id` (n,), `x`, uint8 (n, channels, height, width), and
`label` (n,) at the label holder; where they lie in the whole ones, [partition] of the run says.

Where every party brings labels of its own rows, each file has them, and the run's data.classes say
which there are.

Whether a row is for training or testing is decided by its id and the run's seed, so all parties
decide alike without a word. That the ids are the same, in the same order, is compared by a keyed
digest: until rows can be aligned, another order is refused.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from colonnade import data, state
from colonnade.assemble import Holding, check_view, declared_views, of, prepare
from colonnade.config import Config
from colonnade.data import Column, Preparation, Split
from colonnade.errors import DataError, RunError
from colonnade.partition import View
from colonnade.party import derive

ID, LABEL = "id", "label"
NO_ROWS = "no rows of its own"


@dataclass(frozen=True)
class Rows:
    """A party's rows, prepared, and what may be said about them."""

    splits: Mapping[str, Split]
    preparation: Preparation | None
    classes: tuple[str, ...]  # known to the label holder, or agreed on by all; empty elsewhere
    ids: bytes  # of all rows, in their order
    count: int
    source: str
    view: View | None = None  # of images that are parts of larger ones

    def digest(self, key: bytes) -> str:
        """What two parties compare; without the key it says nothing about the ids."""
        return hmac.new(key, self.ids, hashlib.sha256).hexdigest()[:32]

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


def none(classes: tuple[str, ...] = ()) -> Rows:
    """What a helper of the protocol brings, such as a server."""
    return Rows({}, None, classes, b"", 0, NO_ROWS)


def from_file(path: Path, party: str, settings: Config, *, labelled: bool) -> Rows:
    """A party's rows from its own file; labels are read where they are to be used."""
    with of(party):
        ids, names, x, labels = read(path)
        if labelled and labels is None:
            raise DataError(f"{path} has no '{LABEL}', and this party holds the labels")
        y: Tensor | None = None
        classes = settings.data.classes
        if classes and labels is not None:
            y = _codes(path, labels, classes)
        elif labelled:
            y, classes = data.labels_from(np.array(labels))
        where = _divide(ids, settings)
        columns = tuple(Column(name) for name in names)
        data.check_features(x, columns)
        splits = {
            key: Split(x[chosen], None if y is None else y[chosen], chosen)
            for key, chosen in where.items()
            if len(chosen) or key != "validation"
        }
        for key in ("train", "test"):
            if not len(splits[key]):
                raise DataError(f"{path}: none of its {len(ids)} rows is for '{key}': give more")
        if y is not None and not settings.data.classes:  # else a party may lack some of them
            data.check_labels(y[where["train"]], classes)
    prepared, preparation = prepare(party, Holding(splits, columns), settings.data.standardise)
    view, method = None, settings.found.method
    if method.images:
        view = declared_views(settings, list(settings.parties)).get(party)
        check_view(party, x, view, method)
    return Rows(prepared, preparation, classes, ids_of(ids), len(ids), path.name, view)


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


def save(rows: Rows, path: Path) -> None:
    """Hand prepared rows to a process of this machine."""
    preparation = rows.preparation
    state.save(
        {
            "splits": {
                key: {"x": split.x.cpu(), "ids": split.ids.cpu()}
                | ({} if split.y is None else {"y": split.y.cpu()})
                for key, split in rows.splits.items()
            },
            "preparation": None if preparation is None else preparation.tensors(),
            "columns": []
            if preparation is None
            else [[column.name, list(column.categories)] for column in preparation.columns],
            "classes": list(rows.classes),
            "ids": rows.ids.decode(),
            "count": rows.count,
            "source": rows.source,
            "view": [] if rows.view is None else rows.view.numbers(),
        },
        path,
    )


def load(path: Path) -> Rows:
    """What `save` wrote."""
    saved = state.load(path)
    try:
        columns = tuple(Column(name, tuple(known)) for name, known in saved["columns"])
        preparation = None
        if saved["preparation"] is not None:
            preparation = Preparation.from_tensors(saved["preparation"], columns)
        splits = {
            key: Split(split["x"], split.get("y"), split["ids"])
            for key, split in saved["splits"].items()
        }
        return Rows(
            splits,
            preparation,
            tuple(saved["classes"]),
            saved["ids"].encode(),
            saved["count"],
            saved["source"],
            View.of(saved["view"]) if saved["view"] else None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: not rows that Colonnade wrote ({error})") from error


Read = tuple[list[str], list[str], Tensor, list[str] | None]


def read(path: Path) -> Read:
    """ids, names of the columns (none: images), features, labels if any."""
    ids, names, x, labels = read_images(path) if path.suffix == ".npz" else read_table(path)
    if not ids:
        raise DataError(f"{path} has no rows")
    seen: set[str] = set()
    for name in ids:
        if not name or name in seen:
            raise DataError(f"{path}: the id {name!r} is empty or comes twice; ids must be unique")
        seen.add(name)
    return ids, names, x, labels


def read_images(path: Path) -> Read:
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
    labels = [str(label) for label in found[LABEL]] if LABEL in found else None
    return [str(name) for name in found[ID]], [], torch.from_numpy(x), labels


def read_table(path: Path) -> Read:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = [cell.strip() for cell in next(lines, [])]
            _check_header(path, header)
            at_id = header.index(ID)
            at_label = header.index(LABEL) if LABEL in header else None
            features = [at for at in range(len(header)) if at not in (at_id, at_label)]
            ids: list[str] = []
            labels: list[str] = []
            numbers: list[list[float]] = []
            for number, cells in enumerate(lines, start=2):
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise DataError(
                        f"{path}, line {number}: {len(cells)} values, the header has {len(header)}"
                    )
                ids.append(cells[at_id].strip())
                if at_label is not None:
                    labels.append(cells[at_label].strip())
                numbers.append([_number(path, number, header[at], cells[at]) for at in features])
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8: {error}") from None
    x = torch.tensor(numbers, dtype=torch.float32).view(len(ids), len(features))
    return ids, [header[at] for at in features], x, labels if at_label is not None else None


def _check_header(path: Path, header: list[str]) -> None:
    if ID not in header:
        raise DataError(
            f"{path} has no column '{ID}': its first line must name the columns, one of them '{ID}'"
        )
    if len(set(header)) < len(header):
        raise DataError(f"{path}: two columns have one name")


def _number(path: Path, line: int, column: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise DataError(
            f"{path}, line {line}, column '{column}': {cell!r} is no number. Text and missing "
            "values must become numbers first"
        ) from None


def _divide(ids: list[str], settings: Config) -> dict[str, Tensor]:
    """Which rows are for what: a draw from each id, the same at every party."""
    seed = derive(settings.run.seed, "data")
    test, validation = settings.data.test, settings.data.validation
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
