"""All rows of a party's own file, whatever its form."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from colonnade.data.labels import Called
from colonnade.data.own.checks import (
    Mistakes,
    check_decimal_ids,
    check_ids,
    check_missing,
    checked_labels,
    checked_weights,
    whole,
)
from colonnade.data.own.csv import Csv
from colonnade.data.own.images import read_images
from colonnade.data.own.numbers import numbers_of
from colonnade.data.own.parquet import Parquet
from colonnade.data.own.phrases import about_labels, character, remarks
from colonnade.data.own.settings import OwnFile
from colonnade.data.own.table import Own, TableFile
from colonnade.data.own.types import typed
from colonnade.data.types import Column
from colonnade.data.values import short
from colonnade.errors import DataError, listed, nearest, unknown


def read(file: OwnFile, folder: Path, *, like: tuple[Column, ...] | None = None) -> Own:
    """Read a party's rows or images; for later rows pass `like`, the columns of training."""
    path = file.path(folder)
    if path.suffix == ".npz":
        return read_images(path, file.weight if like is None else "")
    return _read_table(file, folder, like=like)


def _read_table(file: OwnFile, folder: Path, *, like: tuple[Column, ...] | None = None) -> Own:
    """All rows of a party's file.

    For later rows pass `like`, the columns of training: columns are found by name, equal
    categories get equal codes, a category that training did not have gets -1, and a label may be
    missing. With no columns, `()`, only ids are read.
    """
    path = file.path(folder)
    table, form = _open_table(path, file.delimiter)
    label, features = _choose(table, file, like)
    weight = file.weight if file.weight and like is None else None
    first = numbers_of(table, file.id, label, weight, features)
    mistakes, labels, weights = Mistakes(path), None, None
    with mistakes.one():
        table.check_rows()
    if not first.ids:
        mistakes.tell()
        raise DataError(f"{path} has no rows: nothing follows the names of the columns")
    ids, count = whole(first.ids), len(first.ids)
    with mistakes.one():
        check_ids(table, file.id, ids)
        if isinstance(table, Parquet) and table.decimals(file.id):
            check_decimal_ids(table, file.id, ids)
    with mistakes.one():
        named = file.label != OwnFile.label
        labels = checked_labels(table, label, first.labels, some=like is not None, named=named)
    with mistakes.one():
        weights = checked_weights(table, weight, first.weights, rows=count)
    known = {column.name: column for column in like or ()}
    columns, kinds = typed(table, features, first, known, mistakes)
    for place, column in enumerate(columns):
        with mistakes.one():
            check_missing(table, file, column, first.x[:, place])
    mistakes.tell()
    if file.missing == "mean":  # in all numeric columns: later rows may lack what these have
        columns = [c if c.categories else Column(c.name, missing=True) for c in columns]
    notes = [f"{count:,} rows, {form}, ids in '{file.id}'"]
    notes.append(about_labels(file.label, labels))
    if weights is not None:
        notes.append(f"weights in '{weight}', from {weights.min():g} to {weights.max():g}")
    notes += [
        f"'{column.name}': {kind}{remarks(column, first.x[:, place])}"
        for place, (column, kind) in enumerate(zip(columns, kinds, strict=True))
    ]
    if unused := [n for n in table.names if n not in (file.id, label, weight, *features)]:
        notes.append(f"not used: {listed(unused)}")
    x = first.x
    for place, column in enumerate(columns):
        if column.categories:
            x[:, place].clip(-1, None, out=x[:, place])
    called = Called(str(path), label or "", table.place)
    return Own(ids, tuple(columns), torch.from_numpy(x), labels, tuple(notes), weights, called)


def _choose(
    table: TableFile, file: OwnFile, like: tuple[Column, ...] | None
) -> tuple[str | None, list[str]]:
    """The column of labels, if there is one, and the columns of features."""
    names, path = table.names, table.path
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        first, second = [at + 1 for at, name in enumerate(names) if name == twice[0]][:2]
        raise DataError(
            f"{path}: columns {first} and {second} are both named '{twice[0]}'. Rename one"
        )
    if like is not None:
        named = [file.id, *(column.name for column in like)]
    else:
        label_named = file.label not in ("", OwnFile.label)
        chosen = [*[file.label] * label_named, *[file.weight] * bool(file.weight)]
        named = [file.id, *chosen, *file.features, *file.leave_out]
    for name in named:
        if name not in names:
            raise _no_column(path, name, names, ids=name == file.id)
    label = file.label if file.label in names else None
    if like is not None:
        return (label if like and label not in named else None), named[1:]
    taken = {file.id, label, file.weight or None, *file.leave_out}
    features = list(file.features) or [name for name in names if name not in taken]
    for name in features:
        if name == "" or (name.startswith("__index_level_") and name not in file.features):
            raise DataError(
                f"{path}: column {names.index(name) + 1} has no name of its own. Name it, or "
                "remove it (pandas writes its index so, unless index=False is given)"
            )
    return label, features


def _no_column(path: Path, name: str, names: list[str], *, ids: bool) -> DataError:
    if len(names) == 1:
        mark = next((repr(one) for one in " :^~#/" if one in names[0]), "something else")
        return DataError(
            f"{path}: no column '{name}', but only one column, {short(names[0])}: cells are "
            f"separated by none of , ; tab |. It looks like {mark}: set delimiter"
        )
    rule = "" if nearest(name, names) else "; the first line must name the columns"
    if rule and ids:
        rule += ", and `id`, or --id, the one that holds the ids"
    return DataError(f"{path}: {unknown(name, names, what='column')}{rule}")


def _open_table(path: Path, delimiter: str) -> tuple[TableFile, str]:
    """The opened file, and its form in words."""
    ends = [end.lower() for end in path.suffixes]
    if ends[-1:] in ([".parquet"], [".pq"]):
        return Parquet.open(path), "Parquet"
    if ends[-1:] == [".gz"]:
        ends.pop()
    if ends[-1:] not in ([".csv"], [".tsv"], [".txt"]):
        raise DataError(
            f"{path}: rows are read from .csv, .tsv, .txt (also with .gz) and .parquet. Save it "
            "as one of them"
        )
    table = Csv.open(path, delimiter or ("\t" if ends[-1] == ".tsv" else ""))
    return table, f"separated by {character(table.delimiter)}"
