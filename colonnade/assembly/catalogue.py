"""A known data set, divided between the parties as the configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from colonnade import data
from colonnade.assembly.cast import Assembly, assembled
from colonnade.assembly.holding import POOLED, Holding, held_out_ids, holding_of
from colonnade.assembly.labels import task_for
from colonnade.config import Config
from colonnade.data import IN_MEMORY, Dataset, Split
from colonnade.errors import ConfigError, DataError, unknown
from colonnade.partition import Part, Partition, View
from colonnade.role.seeds import derive


def from_catalogue(config: Config) -> Assembly:
    """Split a known data set as the configuration says."""
    settings, run = config.data, config.run
    if settings.name == IN_MEMORY:
        raise DataError(
            "this configuration belongs to a run on in-memory data, which is not saved: pass the "
            "rows again, colonnade.run(config, parties={…})"
        )
    # Data split, initialisation and batch order have separate seeds.
    seed = derive(run.seed, "data")
    dataset = data.load(settings.name, test=settings.test, seed=seed)
    if not settings.official:
        dataset = _divided_again(dataset, settings.test, seed)
    dataset = replace(
        dataset,
        train=_sample(dataset.train, settings.train_rows, "train_rows", seed),
        test=_sample(dataset.test, settings.test_rows, "test_rows", seed),
    )
    _check_classes(dataset)
    partition = config.partition or default_partition(dataset, len(config.parties))
    held_out = held_out_ids(dataset.train, settings.validation, seed)
    if config.others_tested() and len(held_out):
        parts = _validated_together(dataset, partition, held_out, seed)
    else:
        parts = partition.split(dataset, seed)
    if config.found.method.rows.pooled(config.options):
        whole = partition.join(parts, dataset)
        holdings = {POOLED: holding_of(whole.train, whole.test, whole.columns, held_out)}
    else:
        names = _names(config, len(parts), list(partition.groups))
        features = names[1:] if run.label_only else names
        height, width = dataset.train.x.shape[-2:] if dataset.is_image else (0, 0)
        holdings = {
            name: replace(
                holding_of(part.train, part.test, part.columns, held_out),
                view=None if part.view is None else View(part.view, height, width),
            )
            for name, part in zip(features, parts, strict=True)
        }
        if run.label_only:
            labels = holding_of(dataset.train, dataset.test, (), held_out)
            empty = {key: replace(s, x=torch.empty(len(s), 0)) for key, s in labels.splits.items()}
            holdings = {names[0]: Holding(empty, ()), **holdings}
    holder = _holder(config, list(holdings))
    method = config.found.method
    if not (method.rows.everyone_labelled(config.options) or method.rows.own_labels):
        holdings = {
            name: rows if name == holder else rows.without_labels()
            for name, rows in holdings.items()
        }
    task = task_for(config, dataset.classes, dataset.train.y)
    assembly = assembled(config, holdings, holder, task, dataset.name)
    if config.found.method.network.moved_whole(config.options):
        _give_whole_images(assembly, dataset)
    facts = assembly.data | {
        "train_rows": len(dataset.train) - len(held_out),  # of all parties together
        "partition": describe(partition, len(parts)),
    }
    warnings = _same_rows(config, partition)
    return replace(assembly, data=facts, partition=partition, warnings=warnings)


def _same_rows(config: Config, partition: Partition) -> tuple[str, ...]:
    """Warn where options treat rows as different that the partition gives to all parties."""
    method = config.found.method
    if method.rows.aligned(config.options) or partition.kind in ("rows", "hybrid", "whole"):
        return ()
    try:
        if not method.rows.aligned(method.options()):
            return ()  # the method never matches rows
    except TypeError:  # an option of a user's own method has no default
        return ()
    return (
        f'[partition] kind = "{partition.kind}" gives the same rows to all parties, and these '
        f"options of {method.name} do not match rows: one party's values of a row are joined with "
        'other parties\' values of any row. Divide the rows, too, kind = "hybrid", or choose '
        "options that match rows",
    )


def default_partition(dataset: Dataset, parties: int) -> Partition:
    """Quarters of an image, or even columns of a table."""
    if dataset.is_image and parties in (0, 4):
        return Partition("tiles")
    if dataset.is_image:
        return Partition("strips", parties=parties)
    return Partition("columns", parties=parties or 2)


def describe(partition: Partition, parties: int) -> str:
    """The partition in a few words."""
    if partition.kind == "tiles":
        return f"tiles {partition.grid[0]}×{partition.grid[1]}"
    if partition.kind == "strips":
        return f"strips {parties}, of {partition.axis}"
    return partition.kind


def _give_whole_images(assembly: Assembly, dataset: Dataset) -> None:
    """Simulation only: each party may move whole training images before it takes its own part."""
    places = {int(i): n for n, i in enumerate(dataset.train.ids)}
    for party in assembly.parties.values():
        if not party.splits:
            continue  # a helper of the protocol
        train = party.splits["train"]
        chosen = torch.tensor([places[int(i)] for i in train.ids])
        if party.view is None:
            raise ConfigError([f"'{party.name}' has no part of an image that could be moved whole"])
        party.window = party.view.part
        party.splits["train"] = replace(train, x=dataset.train.x[chosen].to(party.device))


def _names(config: Config, parts: int, groups: Sequence[str]) -> list[str]:
    """The parties in order: as the groups, else as the [parties] tables, else numbered."""
    run, given = config.run, list(config.parties)
    if groups:
        further = [name for name in given if name not in groups]
        first = [run.label_holder or next(iter(further), "labels")] if run.label_only else []
        strangers = [name for name in further if name not in first]
        if strangers:
            raise ConfigError(
                [unknown(n, groups, f"for [parties.{n}]", "group") for n in strangers]
            )
        return [*first, *groups]
    count = parts + run.label_only
    if given and len(given) != count:
        raise ConfigError(
            [
                f"[parties] names {len(given)} parties ({', '.join(given)}), but the partition "
                f"makes {count}: name all of them, in order, or change the partition"
            ]
        )
    return given or [f"party{number}" for number in range(1, count + 1)]


def _holder(config: Config, names: Sequence[str]) -> str:
    wanted = config.run.label_holder
    if not wanted or config.found.method.rows.pooled(config.options):
        return names[0]
    if wanted not in names:
        raise ConfigError([unknown(wanted, names, "as label_holder", "party")])
    if config.run.label_only and wanted != names[0]:
        raise ConfigError(
            [f"label_only = true makes the first party, '{names[0]}', hold the labels"]
        )
    return wanted


def _divided_again(dataset: Dataset, test: float, seed: int) -> Dataset:
    """All rows of a set, divided as if there were no official test rows."""
    first, second = dataset.train, dataset.test
    assert first.y is not None and second.y is not None
    rows = Split(
        torch.cat([first.x, second.x]),
        torch.cat([first.y, second.y]),
        torch.cat([first.ids, second.ids]),
    )
    assert rows.y is not None
    inside, out = data.stratified(rows.y, dataset.classes, test, seed, f"'{dataset.name}'")
    return replace(dataset, train=rows.rows(inside), test=rows.rows(out))


def _sample(split: Split, rows: int, key: str, seed: int) -> Split:
    if not rows:
        return split
    if rows > len(split):
        raise DataError(f"data.{key} = {rows}: there are only {len(split)} rows; use fewer or 0")
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    return split.rows(order[:rows].sort().values)


def _check_classes(dataset: Dataset) -> None:
    """Check that every class has training rows and test rows, also in a small sample."""
    for what, split in (("training", dataset.train), ("test", dataset.test)):
        assert split.y is not None
        try:
            data.check_labels(split.y, dataset.classes)
        except DataError as error:
            raise DataError(f"the {what} rows of '{dataset.name}': {error}") from error


def _validated_together(
    dataset: Dataset, partition: Partition, held_out: Tensor, seed: int
) -> list[Part]:
    """Give every party its columns of all held-out rows where rows are divided among parties."""
    out = torch.isin(dataset.train.ids, held_out)
    kept = replace(dataset, train=dataset.train.rows((~out).nonzero().flatten()))
    asked = replace(kept, test=dataset.train.rows(out.nonzero().flatten()))
    parts = []
    for part, also in zip(partition.split(kept, seed), partition.split(asked, seed), strict=True):
        both = (part.train, also.test)
        labels = torch.cat([rows.y for rows in both if rows.y is not None])
        x, ids = torch.cat([rows.x for rows in both]), torch.cat([rows.ids for rows in both])
        parts.append(replace(part, train=Split(x, labels, ids)))
    return parts
