"""Takes rows that the caller passes in memory: one array or table for each party."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade import data
from colonnade.assembly.cast import Assembly, assembled
from colonnade.assembly.holding import (
    POOLED,
    as_image,
    check_equal_rows,
    declared_views,
    held_out_ids,
    holding_of,
    of,
    pool,
)
from colonnade.assembly.labels import asked, task_for
from colonnade.config import Config, Data, check_name, same_but_for_case
from colonnade.data import IN_MEMORY, Column, Split
from colonnade.data.labels import label_values
from colonnade.errors import ConfigError, DataError, unknown
from colonnade.role.seeds import derive


@dataclass(frozen=True)
class Given:
    """The caller's rows for one party: features, labels and weights if any, columns; not yet
    divided."""

    x: Tensor  # (n, 0) for a party that brings labels only
    y: Any
    columns: tuple[Column, ...]
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def split(self, name: str, classes: tuple[str, ...], start: int = 0) -> Split:
        """All its rows, numbered from `start`."""
        with of(name):
            y = None if self.y is None else data.label_codes(self.y, classes)
        return replace(data.numbered(self.x, y, start), weights=self.weights)


def from_memory(
    config: Config, parties: Mapping[str, Any], test: Mapping[str, Any] | None
) -> Assembly:
    """The parties' own arrays, {"bank": (x, y), "shop": x}; `test` likewise, or a seeded share.
    (x, y, weights) says also how much each row counts."""
    views = declared_views(config, list(parties))
    _check_settings(config)
    _check_given(parties, "parties")
    _check_names(config, parties)
    given = {name: _read(name, value) for name, value in parties.items()}
    holder = _holder(config, given)
    method, seed = config.found.method, derive(config.run.seed, "data")
    why = method.simulated(config.options)
    if method.network.moved_whole(config.options):
        raise ConfigError([f"{why}: in memory there is no whole image"])
    if method.rows.own_labels and method.rows.pooled(config.options):
        raise ConfigError([f"{why}: rows in memory are not matched, so they cannot be joined"])
    later = None if test is None else _read_test(test, given)
    if method.rows.own_labels:
        splits, classes = _each_labelled(config, given, later, seed)
    else:
        check_equal_rows({name: len(rows) for name, rows in given.items()}, "")
        with of(holder):
            _, classes = data.labels_from(given[holder].y, asked(config))
        if later is not None:
            check_equal_rows({name: len(rows) for name, rows in later.items()}, " in test")
        splits = _divided(holder, given, later, classes, config, seed)
    held_out = held_out_ids(splits[holder][0], config.data.validation, seed)
    task = task_for(config, classes, _labels_of(splits, holder, method.rows.own_labels))
    holdings = {}
    for name, both in splits.items():
        if method.rows.own_labels:
            held_out = held_out_ids(both[0], config.data.validation, seed)
        holding = holding_of(*both, given[name].columns, held_out)
        holdings[name] = replace(holding, view=views.get(name))
    if method.rows.pooled(config.options):
        holdings, holder = {POOLED: pool(holdings, holder)}, POOLED
    assembly = assembled(config, holdings, holder, task, IN_MEMORY)
    return replace(assembly, partition=config.partition)


def _check_settings(config: Config) -> None:
    """Refuse settings that choose or divide a known data set: they have no meaning here."""
    if config.run.label_only:
        raise ConfigError(["label_only has no meaning beside parties=…"])
    if config.data.name not in (Data().name, IN_MEMORY):
        raise ConfigError([f"data.name = '{config.data.name}' has no meaning beside parties=…"])
    if config.data.train_rows or config.data.test_rows:
        raise ConfigError(["data.train_rows and test_rows have no meaning beside parties=…"])


def _check_names(config: Config, parties: Mapping[str, Any]) -> None:
    problems = [p for name in parties for p in check_name(name, "party name")]
    problems += same_but_for_case(parties)
    problems += [
        unknown(name, parties, "for a table in [parties]", "party")
        for name in config.parties
        if name not in parties
    ]
    if problems or not parties:
        raise ConfigError(problems or ["parties is empty: give at least two, one with labels"])


def _holder(config: Config, given: Mapping[str, Given]) -> str:
    """The label holder: as the settings say, otherwise the first party that brings labels."""
    labelled = [name for name, rows in given.items() if rows.y is not None]
    if not labelled:
        raise DataError("no party has labels: give one as (x, y)")
    holder = config.run.label_holder or labelled[0]
    if holder not in labelled:
        raise DataError(
            f"label_holder = '{holder}' brings no labels; with labels: {', '.join(labelled)}"
        )
    return holder


def _each_labelled(
    config: Config, given: Mapping[str, Given], later: Mapping[str, Given] | None, seed: int
) -> tuple[dict[str, tuple[Split, Split]], tuple[str, ...]]:
    """Training and test rows, and classes, if every party brings labels of its own rows."""
    method = config.found.method
    if silent := [name for name, rows in given.items() if rows.y is None]:
        raise DataError(
            f"{', '.join(silent)}: no labels. In {method.name} every party has some of its own"
        )
    classes = _all_classes(given, asked(config))
    if later is None and (why := config.untested()):
        raise DataError(
            f"{why}: give test = {{…}}, the same rows in the same order for every party, or "
            "set evaluate_every = 0"
        )
    if method.rows.aligned(config.options):
        _check_same_rows(given, classes, "")
    if later is not None and method.rows.tested_together(config.options):
        _check_same_rows(later, classes, " in test")
    if config.others_tested() and config.data.validation:
        raise DataError(
            f"data.validation = {config.data.validation}: {method.name} tests all parties' values "
            "of a row together, and the held-out rows would differ between parties. Omit it"
        )
    splits = {
        name: _divided(name, {name: rows}, later, classes, config, seed)[name]
        for name, rows in given.items()
    }
    return splits, classes


def _read_test(test: Mapping[str, Any], given: Mapping[str, Given]) -> dict[str, Given]:
    """Every party's test rows, in the form of its training rows."""
    _check_given(test, "test")
    if missing := [name for name in given if name not in test]:
        raise DataError(f"test has no rows of {', '.join(missing)}: give every party's")
    if strangers := [name for name in test if name not in given]:
        raise DataError(
            "; ".join(unknown(n, given, "for rows in test", "party") for n in strangers)
        )
    later = {name: _read(name, test[name], rows.columns) for name, rows in given.items()}
    for name, rows in given.items():
        if later[name].x.shape[1:] != rows.x.shape[1:]:
            raise DataError(
                f"party '{name}' has training rows of shape {tuple(rows.x.shape[1:])} and test "
                f"rows of shape {tuple(later[name].x.shape[1:])}: give both alike"
            )
    return later


def _divided(
    holder: str,
    given: Mapping[str, Given],
    later: Mapping[str, Given] | None,
    classes: tuple[str, ...],
    config: Config,
    seed: int,
) -> dict[str, tuple[Split, Split]]:
    """Training and test rows of parties that hold the same rows, of which one has the labels."""
    if later is not None:
        if later[holder].y is None:
            raise DataError(f"test of '{holder}' has no labels: give it as (x, y)")
        count = len(given[holder])
        return {
            name: (rows.split(name, classes), later[name].split(name, classes, count))
            for name, rows in given.items()
        }
    whole = {name: rows.split(name, classes) for name, rows in given.items()}
    if not (share := config.held_out()):
        return {name: (rows, rows.rows(torch.arange(0))) for name, rows in whole.items()}
    y = whole[holder].y
    assert y is not None
    if config.protect.label_epsilon:  # which rows are for tests is told, so no label decides it
        y, classes = torch.zeros_like(y, dtype=torch.float64), ()
    found = tuple(name for code, name in enumerate(classes) if bool((y == code).any()))
    codes = torch.unique(y, return_inverse=True)[1] if classes else y  # a party may lack classes
    inside, out = data.stratified(codes, found, share, seed, f"party '{holder}'")
    return {name: (rows.rows(inside), rows.rows(out)) for name, rows in whole.items()}


def _check_same_rows(given: Mapping[str, Given], classes: tuple[str, ...], where: str) -> None:
    """Check that all parties have as many rows, with the same labels as far as they have any."""
    check_equal_rows({name: len(rows) for name, rows in given.items()}, where)
    labels = {name: rows.split(name, classes).y for name, rows in given.items()}
    known = [(name, y) for name, y in labels.items() if y is not None]
    for name, y in known[1:]:
        if differing := int((y != known[0][1]).sum()):
            raise DataError(
                f"the labels of '{known[0][0]}' and '{name}' differ in {differing} of {len(y)} rows"
                f"{where}. They must be the same row by row at all parties: are the rows in the "
                "same order?"
            )


def _all_classes(given: Mapping[str, Given], asked: data.Asked) -> tuple[str, ...]:
    """The labels of all parties together; numbers in their order."""
    pooled, where = list[Any](), list[str]()
    for name, rows in given.items():
        with of(name):
            values = label_values(rows.y, data.Called()).tolist()
        pooled += values
        where += [f"row {row} of '{name}'" for row in range(len(values))]
    called = data.Called(place=where.__getitem__)
    _, found = data.labels_from(np.array(pooled, dtype=object), asked, called)
    whole = [name for name in found if name.lstrip("-").isdigit()]
    return (*sorted(whole, key=int), *sorted(set(found).difference(whole)))


def _check_given(parties: object, what: str) -> None:
    if not isinstance(parties, Mapping) or not all(isinstance(name, str) for name in parties):
        raise DataError(f'{what}: give the rows by party name, {{"bank": (x, y), "shop": x}}')


def _read(name: str, value: Any, like: tuple[Column, ...] | None = None) -> Given:
    parts = value if isinstance(value, tuple) and len(value) in (2, 3) else (value,)
    x, y, weights = (*parts, None, None)[:3]
    if weights is not None and y is None:
        raise DataError(f"party '{name}' has weights and no labels: they count beside labels only")
    if x is None:
        if y is None:
            raise DataError(f"party '{name}' has neither features nor labels")
        return Given(torch.empty(_count(name, y), 0), y, (), _weights(name, weights, y))
    with of(name):
        features, columns = data.from_arrays(x, like=like)
        data.check_features(as_image(features), columns)  # now, while row numbers are the caller's
    if y is not None and _count(name, y) != len(features):
        raise DataError(f"party '{name}' has {len(features)} rows of features and {len(y)} labels")
    return Given(features, y, columns, _weights(name, weights, y))


def _weights(name: str, weights: Any, y: Any) -> Tensor | None:
    with of(name):
        return None if weights is None else data.weights_from(weights, _count(name, y))


def _labels_of(
    splits: Mapping[str, tuple[Split, Split]], holder: str, own_labels: bool
) -> Tensor | None:
    """The labels of training rows; of all parties where each brings its own."""
    if not own_labels:
        return splits[holder][0].y
    return torch.cat([train.y for train, _ in splits.values() if train.y is not None])


def _count(name: str, y: Any) -> int:
    try:
        return len(y)
    except TypeError:
        kind = type(y).__name__
        raise DataError(f"party '{name}': labels of type {kind}. Give one per row") from None
