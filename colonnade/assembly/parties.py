"""From a configuration to the parties: who holds which rows, and who plays which role.

Everything that can be wrong with the input is found here, before a run folder exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from colonnade import data, models
from colonnade.config import Config, Data, check_name, same_but_for_case
from colonnade.data import IN_MEMORY, Column, Dataset, Preparation, Split
from colonnade.errors import ConfigError, DataError
from colonnade.partition import Part, Partition, Rectangle, View
from colonnade.role.method import Circumstances, Method
from colonnade.role.party import Party
from colonnade.role.recipe import Schedule
from colonnade.role.seeds import derive

POOLED = "all"  # the one party of a method that sees everything


@dataclass(frozen=True)
class Holding:
    """One party's rows, before its own preparation."""

    splits: Mapping[str, Split]
    columns: tuple[Column, ...]
    view: View | None = None  # what it sees of every image

    def without_labels(self) -> Holding:
        return replace(self, splits={k: s.without_labels() for k, s in self.splits.items()})

    def only(self, rows: Tensor) -> Holding:
        """These rows alone, by their ids and in this order."""
        return replace(self, splits={k: s.only(rows) for k, s in self.splits.items()})


@dataclass(frozen=True)
class Assembly:
    """The parties of a run and what the report says about their data."""

    parties: dict[str, Party]
    cast: dict[str, str]  # party: role
    holder: str
    data: dict[str, Any]  # the `data` part of result.json
    partition: Partition | None = None  # as it was used; None for the parties' own rows
    warnings: tuple[str, ...] = ()  # what the user should know before it begins

    def facts(self) -> dict[str, Any]:
        """`data` as it is now: rows that were aligned are fewer."""
        held = self.parties[self.holder]
        if not held.names:
            return self.data
        own = {name: len(party.names) for name, party in self.parties.items() if party.names}
        counted = {f"{k}_rows": len(held.splits[k]) for k in ("train", "test") if k in held.splits}
        common = 0 if held.common is None else len(held.common)
        return self.data | counted | {"own_rows": own, "common_rows": common}


def from_catalogue(config: Config) -> Assembly:
    """Split a known data set as the configuration says."""
    settings, run = config.data, config.run
    if settings.name == IN_MEMORY:
        raise DataError(
            "this configuration belongs to a run on in-memory data, which is not kept: give the "
            "rows again, colonnade.run(config, parties={…})"
        )
    # Data split, initialisation and batch order are seeded apart (spec 7.3).
    seed = derive(run.seed, "data")
    dataset = data.load(settings.name, test=settings.test, seed=seed)
    if not settings.official:
        dataset = _divided_anew(dataset, settings.test, seed)
    dataset = replace(
        dataset,
        train=_sample(dataset.train, settings.train_rows, "train_rows", seed),
        test=_sample(dataset.test, settings.test_rows, "test_rows", seed),
    )
    _check_classes(dataset)
    partition = config.partition or default_partition(dataset, len(config.parties))
    held_out = _held_out(dataset.train, settings.validation, seed)
    if config.others_tested() and len(held_out):
        parts = _validated_together(dataset, partition, held_out, seed)
    else:
        parts = partition.split(dataset, seed)
    if config.found.method.rows.pooled(config.options):
        whole = partition.join(parts, dataset)
        holdings = {POOLED: _holding(whole.train, whole.test, whole.columns, held_out)}
    else:
        names = _names(config, len(parts), list(partition.groups))
        features = names[1:] if run.label_only else names
        height, width = dataset.train.x.shape[-2:] if dataset.is_image else (0, 0)
        holdings = {
            name: replace(
                _holding(part.train, part.test, part.columns, held_out),
                view=None if part.view is None else View(part.view, height, width),
            )
            for name, part in zip(features, parts, strict=True)
        }
        if run.label_only:
            labels = _holding(dataset.train, dataset.test, (), held_out)
            empty = {key: replace(s, x=torch.empty(len(s), 0)) for key, s in labels.splits.items()}
            holdings = {names[0]: Holding(empty, ()), **holdings}
    holder = _holder(config, list(holdings))
    method = config.found.method
    if not (method.rows.everyone_labelled(config.options) or method.rows.own_labels):
        holdings = {
            name: rows if name == holder else rows.without_labels()
            for name, rows in holdings.items()
        }
    assembly = assembled(config, holdings, holder, dataset.classes, dataset.name)
    if config.found.method.network.moved_whole(config.options):
        _give_whole_images(assembly, dataset)
    facts = assembly.data | {
        "train_rows": len(dataset.train) - len(held_out),  # of all parties together
        "partition": describe(partition, len(parts)),
    }
    warnings = _same_rows(config, partition)
    return replace(assembly, data=facts, partition=partition, warnings=warnings)


def _same_rows(config: Config, partition: Partition) -> tuple[str, ...]:
    """Where options take rows for different ones that the partition gives to all alike."""
    method = config.found.method
    if method.rows.aligned(config.options) or partition.kind in ("rows", "hybrid", "whole"):
        return ()
    try:
        if not method.rows.aligned(method.options()):
            return ()  # it never matches any
    except TypeError:  # an option of a user's own method has no default
        return ()
    return (
        f'[partition] kind = "{partition.kind}" gives the same rows to all parties, and these '
        f"options of {method.name} do not match rows: what one party knows about a row is joined "
        'with what others know about any. Divide the rows, too, kind = "hybrid", or choose options '
        "that match rows",
    )


def from_memory(
    config: Config, parties: Mapping[str, Any], test: Mapping[str, Any] | None
) -> Assembly:
    """The parties' own arrays: {"bank": (x, y), "shop": x}; `test` alike, or a seeded share."""
    views = declared_views(config, list(parties))
    if config.run.label_only:
        raise ConfigError(["with in-memory parties there is no label_only"])
    if config.data.name not in (Data().name, IN_MEMORY):
        raise ConfigError([f"data.name = '{config.data.name}' has no meaning beside parties=…"])
    if config.data.train_rows or config.data.test_rows:
        raise ConfigError(["data.train_rows and test_rows have no meaning beside parties=…"])
    _check_given(parties, "parties")
    problems = [p for name in parties for p in check_name(name, "party name")]
    problems += same_but_for_case(parties)
    problems += [
        f"[parties.{name}]: no such party among {', '.join(parties)}"
        for name in config.parties
        if name not in parties
    ]
    if problems or not parties:
        raise ConfigError(problems or ["parties is empty: give at least two, one with labels"])
    given = {name: _read(name, value) for name, value in parties.items()}
    labelled = [name for name, rows in given.items() if rows.y is not None]
    if not labelled:
        raise DataError("no party has labels: give one as (x, y)")
    holder = config.run.label_holder or labelled[0]
    if holder not in labelled:
        raise DataError(
            f"label_holder = '{holder}' brings no labels; with labels: {', '.join(labelled)}"
        )
    method, seed = config.found.method, derive(config.run.seed, "data")
    why = method.simulated(config.options)
    if method.network.moved_whole(config.options):
        raise ConfigError([f"{why}: in memory there is no whole image"])
    if method.rows.own_labels and method.rows.pooled(config.options):
        raise ConfigError([f"{why}: rows in memory are not matched, so they cannot be joined"])
    later = None if test is None else _read_test(test, given)
    if method.rows.own_labels:
        if silent := [name for name in given if name not in labelled]:
            raise DataError(
                f"{', '.join(silent)}: no labels. In {method.name} every party has some of its own"
            )
        classes = _all_classes(given)
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
                f"data.validation = {config.data.validation}: {method.name} tests what all parties "
                "know of a row together, and these rows would be others at each. Leave it out"
            )
        splits = {
            name: _divided(name, {name: rows}, later, classes, config, seed)[name]
            for name, rows in given.items()
        }
    else:
        check_equal_rows({name: len(rows) for name, rows in given.items()}, "")
        with of(holder):
            y, classes = data.labels_from(given[holder].y)
            data.check_labels(y, classes)
        if later is not None:
            check_equal_rows({name: len(rows) for name, rows in later.items()}, " in test")
        splits = _divided(holder, given, later, classes, config, seed)
    held_out = _held_out(splits[holder][0], config.data.validation, seed)
    holdings = {}
    for name, both in splits.items():
        if method.rows.own_labels:
            held_out = _held_out(both[0], config.data.validation, seed)
        holding = _holding(*both, given[name].columns, held_out)
        holdings[name] = replace(holding, view=views.get(name))
    if method.rows.pooled(config.options):
        holdings, holder = {POOLED: pool(holdings, holder)}, POOLED
    assembly = assembled(config, holdings, holder, classes, IN_MEMORY)
    return replace(assembly, partition=config.partition)


def _read_test(test: Mapping[str, Any], given: Mapping[str, Given]) -> dict[str, Given]:
    """Every party's test rows, in the form of its training rows."""
    _check_given(test, "test")
    if missing := [name for name in given if name not in test]:
        raise DataError(f"test has no rows of {', '.join(missing)}: give every party's")
    if strangers := [name for name in test if name not in given]:
        raise DataError(
            f"test has rows of {', '.join(strangers)}: no such party among {', '.join(given)}"
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
    with of(holder):
        y, found = data.labels_from(given[holder].y)
    inside, out = data.stratified(y, found, share, seed, f"party '{holder}'")
    return {name: (rows.rows(inside), rows.rows(out)) for name, rows in whole.items()}


def _check_same_rows(given: Mapping[str, Given], classes: tuple[str, ...], where: str) -> None:
    """As many, and with the same labels, as far as they have any."""
    check_equal_rows({name: len(rows) for name, rows in given.items()}, where)
    labels = {name: rows.split(name, classes).y for name, rows in given.items()}
    known = [(name, y) for name, y in labels.items() if y is not None]
    for name, y in known[1:]:
        if differing := int((y != known[0][1]).sum()):
            raise DataError(
                f"the labels of '{known[0][0]}' and '{name}' differ in {differing} of {len(y)} rows"
                f"{where}. Row by row the same ones are needed at all parties: are they in one "
                "order?"
            )


def _all_classes(given: Mapping[str, Given]) -> tuple[str, ...]:
    """The labels of all parties together; numbers in their order."""
    found: set[str] = set()
    for name, rows in given.items():
        with of(name):
            found.update(data.labels_from(rows.y)[1])
    whole = [name for name in found if name.lstrip("-").isdigit()]
    return (*sorted(whole, key=int), *sorted(found.difference(whole)))


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


@contextmanager
def of(name: str) -> Iterator[None]:
    """Errors inside are about this party's data, and say so."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"party '{name}': {error}") from error


def assembled(
    config: Config,
    holdings: dict[str, Holding],
    holder: str,
    classes: tuple[str, ...],
    dataset: str,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Assembly:
    """The parties, each with its role; `names` are those of rows that are still to be aligned."""
    method, names = config.found.method, names or {}
    if method.rows.aligned(config.options) and config.align is None:
        counts = {name: len(holding.splits["train"]) for name, holding in holdings.items()}
        check_equal_rows(counts, "")
        _same_ids(holdings)
    cast = method.cast(list(holdings), holder, config.options)
    if helpers := [n for n in holdings if n not in cast or not method.roles[cast[n]].rows]:
        raise ConfigError(
            [
                f"in {method.name} the party '{name}' brings no rows: name it anew"
                for name in helpers
            ]
        )
    run = config.run
    device = torch.device(run.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(['device = "cuda": this machine has no CUDA device; use "cpu"'])
    schedule = schedule_of(config)
    features = [holding.splits["train"].x for holding in holdings.values()]
    if method.network.images and schedule.upside_down:
        raise ConfigError(
            [f"data.upside_down: {method.name} mirrors tiles from left to right only"]
        )
    moved = schedule.flip or schedule.shift or schedule.upside_down
    if moved and any(x[:1].numel() and as_image(x).dim() < 4 for x in features):
        raise ConfigError(["data.flip, shift and upside_down move images; these rows are tables"])
    everyone = method.rows.everyone_labelled(config.options)
    labels = holdings[holder].splits
    parties: dict[str, Party] = {}
    for name, role in cast.items():
        recipe = config.parties.get(name, config.recipe)
        if name not in holdings:  # a helper of the protocol, such as a server or a key generator
            parties[name] = Party(name, role, recipe, schedule, {}, None, classes, device)
            continue
        splits, preparation = prepare(name, holdings[name], config.data.standardise)
        for key, split in splits.items():
            if everyone and split.y is None:
                splits[key] = replace(split, y=_copy(labels[key].y))
        view = holdings[name].view
        check_view(name, splits["train"].x, view, method)
        own = names.get(name, ())
        parties[name] = Party(
            name, role, recipe, schedule, splits, preparation, classes, device, view, own
        )
    if method.network.images:
        _check_alike(parties)
    widths = [prod(party.shape) for party in parties.values() if party.has_features]
    method.check(Circumstances(config.options, widths=widths))
    _check_networks(parties, [n for n in holdings if method.roles[cast[n]].features])
    rows = holdings[holder].splits
    return Assembly(
        parties,
        cast,
        holder,
        {
            "name": dataset,
            "train_rows": len(rows["train"]),
            "test_rows": len(rows["test"]),
            "classes": list(classes),
            "partition": "the parties' own rows",
        },
    )


def declared_views(config: Config, parties: Sequence[str]) -> dict[str, View]:
    """Where the parties' own images lie: [partition] says it, and cuts nothing."""
    partition = config.partition
    if partition is None:
        return {}
    if partition.kind != "rectangles" or len(partition.rectangles) != len(parties):
        raise ConfigError(
            [
                "with rows of their own there is nothing to divide: [partition] may only say where "
                f'the images lie, kind = "rectangles" with {len(parties)} rectangles, one (top, '
                f"left, height, width) for each party; given: {partition.kind}, "
                f"{len(partition.rectangles)} rectangles"
            ]
        )
    parts = [Rectangle(*numbers) for numbers in partition.rectangles]
    height, width = max(part.bottom for part in parts), max(part.right for part in parts)
    views = [View.of([*numbers, height, width]) for numbers in partition.rectangles]
    return dict(zip(parties, views, strict=True))


def check_view(name: str, x: Tensor, view: View | None, method: Method) -> None:
    """Whether a party's images are what its view says."""
    if method.network.images and x.dim() != 4:
        shown = f"a table of {x.shape[1]} columns" if x[:1].numel() else "no features"
        raise ConfigError(
            [
                f"party '{name}' has {shown}, and {method.name} needs images, (rows, channels, "
                "height, width), at every party"
            ]
        )
    if method.network.images and view is None:
        raise ConfigError(
            [
                f"party '{name}': {method.name} joins parts of images by their places, and these "
                'have none. Divide images, [partition] kind = "tiles", "strips" or "rectangles"; '
                "for rows in memory, name their rectangles there"
            ]
        )
    if view is not None and tuple(x.shape[-2:]) != view.part.size:
        raise ConfigError(
            [
                f"party '{name}' has images of {x.shape[-2]}×{x.shape[-1]} pixels, and [partition] "
                f"gives it {view.part}. Images are (rows, channels, height, width)"
            ]
        )


def _check_alike(parties: Mapping[str, Party]) -> None:
    """Maps are put together, so they must have the same channels, and so must the images."""
    found = {name: party.shape[0] for name, party in parties.items()}
    widths = {name: party.recipe.model_options.get("width", 1) for name, party in parties.items()}
    for what, values in (("channels", found), ("model_options.width", widths)):
        if len(set(values.values())) > 1:
            listed = ", ".join(f"'{name}' {value:g}" for name, value in values.items())
            raise ConfigError([f"{what} must be the same at all parties, and are not: {listed}"])


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


def schedule_of(config: Config) -> Schedule:
    run = config.run
    return Schedule(
        run.seed,
        run.epochs,
        run.batch_size,
        run.evaluate_every,
        config.checkpoint.epochs,
        config.checkpoint.steps,
        config.data.flip,
        config.data.shift,
        config.data.upside_down,
        config.found.method.rows.all_rows,
    )


def prepare(
    name: str, holding: Holding, standardise: bool
) -> tuple[dict[str, Split], Preparation | None]:
    """A party's rows as its models take them, with the statistics of its own training rows."""
    splits = {key: replace(split, x=as_image(split.x)) for key, split in holding.splits.items()}
    x = splits["train"].x
    if not x[:1].numel():
        return splits, None
    with of(name):
        preparation = Preparation.fit(x, holding.columns, standardise=standardise)
        splits = {key: replace(s, x=preparation.apply(s.x)) for key, s in splits.items()}
    return splits, preparation


def _copy(y: Tensor | None) -> Tensor | None:
    return None if y is None else y.clone()  # parties share no memory


def as_image(x: Tensor) -> Tensor:
    """Loose pixels are an image of one row: they share one brightness scale."""
    return x[:, None, None, :] if x.dtype == torch.uint8 and x.dim() == 2 else x


def _check_networks(parties: Mapping[str, Party], need: Sequence[str]) -> None:
    """Whether each party's network can take its rows, found without making a single weight."""
    problems: list[str] = []
    for name, party in parties.items():
        if not party.has_features:
            if name in need:
                problems.append(
                    f"party '{name}' brings no features, but is to be '{party.role}', which needs "
                    "some: give it columns, or choose a method whose label holder may bring labels "
                    "only, such as splitnn"
                )
            continue
        try:
            models.check(party.recipe.model, party.shape, **party.recipe.model_options)
        except ConfigError as error:
            problems += [f"party '{name}': {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)


def _names(config: Config, parts: int, groups: Sequence[str]) -> list[str]:
    """The parties in order: as the groups, else as the [parties] tables, else numbered."""
    run, given = config.run, list(config.parties)
    if groups:
        further = [name for name in given if name not in groups]
        first = [run.label_holder or next(iter(further), "labels")] if run.label_only else []
        strangers = [name for name in further if name not in first]
        if strangers:
            raise ConfigError(
                [f"[parties.{n}]: no such group; there are {', '.join(groups)}" for n in strangers]
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
        raise ConfigError(
            [f"label_holder = '{wanted}': no such party; there are {', '.join(names)}"]
        )
    if config.run.label_only and wanted != names[0]:
        raise ConfigError(
            [f"label_only = true makes the first party, '{names[0]}', hold the labels"]
        )
    return wanted


def _divided_anew(dataset: Dataset, test: float, seed: int) -> Dataset:
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
    """Every class has rows to learn from, and rows to be tested on, also in a small sample."""
    for what, split in (("training", dataset.train), ("test", dataset.test)):
        assert split.y is not None
        try:
            data.check_labels(split.y, dataset.classes)
        except DataError as error:
            raise DataError(f"the {what} rows of '{dataset.name}': {error}") from error


def _held_out(train: Split, share: float, seed: int) -> Tensor:
    """The identities of the validation rows: the same for every party."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed + 1))
    return train.ids[order[: round(share * len(train))]]


def _validated_together(
    dataset: Dataset, partition: Partition, held_out: Tensor, seed: int
) -> list[Part]:
    """Of rows that are divided between the parties, all have their columns of those held out."""
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


def _holding(train: Split, test: Split, columns: tuple[Column, ...], held_out: Tensor) -> Holding:
    if not len(held_out):
        return Holding({"train": train, "test": test}, columns)
    out = torch.isin(train.ids, held_out)
    kept, validation = train.rows((~out).nonzero().flatten()), train.rows(out.nonzero().flatten())
    return Holding({"train": kept, "validation": validation, "test": test}, columns)


@dataclass(frozen=True)
class Given:
    """One in-memory party: its features, its labels if any, its columns."""

    x: Tensor  # (n, 0) for a party that brings labels only
    y: Any
    columns: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.x)

    def split(self, name: str, classes: tuple[str, ...], start: int = 0) -> Split:
        """All its rows, numbered from `start`."""
        with of(name):
            y = None if self.y is None else data.label_codes(self.y, classes)
        return data.numbered(self.x, y, start)


def _check_given(parties: object, what: str) -> None:
    if not isinstance(parties, Mapping) or not all(isinstance(name, str) for name in parties):
        raise DataError(f'{what}: give the rows by party name, {{"bank": (x, y), "shop": x}}')


def _read(name: str, value: Any, like: tuple[Column, ...] | None = None) -> Given:
    x, y = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if x is None:
        if y is None:
            raise DataError(f"party '{name}' has neither features nor labels")
        return Given(torch.empty(_count(name, y), 0), y, ())
    with of(name):
        features, columns = data.from_arrays(x, like=like)
        data.check_features(as_image(features), columns)  # now, while rows have their own numbers
    if y is not None and _count(name, y) != len(features):
        raise DataError(f"party '{name}' has {len(features)} rows of features and {len(y)} labels")
    return Given(features, y, columns)


def _count(name: str, y: Any) -> int:
    try:
        return len(y)
    except TypeError:
        kind = type(y).__name__
        raise DataError(f"party '{name}': labels of type {kind}. Give one per row") from None


def pool(holdings: Mapping[str, Holding], holder: str) -> Holding:
    """All parties' columns side by side; images are flattened."""
    mine = holdings[holder].splits
    pooled = {}
    for key, split in mine.items():
        sides = [h.splits[key].x.flatten(1).float() for h in holdings.values()]
        pooled[key] = Split(torch.cat(sides, 1), split.y, split.ids)
    columns: list[Column] = []
    for name, holding in holdings.items():
        width = holding.splits["train"].x.flatten(1).shape[1]
        own = holding.columns or tuple(Column(str(i)) for i in range(width))
        columns += [replace(c, name=f"{name}.{c.name}") for c in own]
    return Holding(pooled, tuple(columns))


def check_equal_rows(counts: Mapping[str, int], where: str) -> None:
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise DataError(
            f"the parties hold different numbers of rows{where}: {listed}. This method needs the "
            "same rows in the same order at every party: align them first, or use a partition "
            "that keeps all rows (tiles, strips, columns)"
        )


def _same_ids(holdings: Mapping[str, Holding]) -> None:
    (first, reference), *others = holdings.items()
    for name, holding in others:
        if not torch.equal(holding.splits["train"].ids, reference.splits["train"].ids):
            raise DataError(
                f"'{first}' and '{name}' hold different rows. This method needs the same rows in "
                "the same order at every party: use a partition that keeps all rows (tiles, "
                "strips, columns), or a method, or options of this one, that match no rows"
            )
