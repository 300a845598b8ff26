"""Makes the parties of a run from their rows, and gives each its role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from colonnade import models
from colonnade.assembly.holding import (
    Holding,
    as_image,
    check_equal_rows,
    check_view,
    prepare,
    same_ids,
)
from colonnade.config import Config
from colonnade.data import OWN_PARTITION
from colonnade.errors import ConfigError
from colonnade.partition import Partition
from colonnade.role.batches import check_spread
from colonnade.role.method import Circumstances
from colonnade.role.party import Party
from colonnade.role.recipe import Schedule
from colonnade.task import Task


@dataclass(frozen=True)
class Assembly:
    """The parties of a run, and the facts about their data for the report."""

    parties: dict[str, Party]
    cast: dict[str, str]  # party: role
    holder: str
    data: dict[str, Any]  # the `data` part of result.json
    partition: Partition | None = None  # the partition in use; None for the parties' own rows
    warnings: tuple[str, ...] = ()  # what the user should know before the run begins

    def facts(self) -> dict[str, Any]:
        """The present state of `data`: an alignment may have removed rows."""
        held = self.parties[self.holder]
        if not held.names:
            return self.data
        own = {name: len(party.names) for name, party in self.parties.items() if party.names}
        counted = {f"{k}_rows": len(held.splits[k]) for k in ("train", "test") if k in held.splits}
        common = 0 if held.common is None else len(held.common)
        return self.data | counted | {"own_rows": own, "common_rows": common}


def assembled(
    config: Config,
    holdings: dict[str, Holding],
    holder: str,
    task: Task,
    dataset: str,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Assembly:
    """The parties, each with its role; `names` are the ids of rows that are still to be aligned."""
    method = config.found.method
    if method.rows.aligned(config.options) and config.align is None:
        counts = {name: len(holding.splits["train"]) for name, holding in holdings.items()}
        check_equal_rows(counts, "")
        same_ids(holdings)
    method.check_task(task.kind)
    cast = method.cast(list(holdings), holder, config.options)
    if helpers := [n for n in holdings if n not in cast or not method.roles[cast[n]].rows]:
        raise ConfigError(
            [f"in {method.name} the party '{name}' brings no rows: rename it" for name in helpers]
        )
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(['device = "cuda": this machine has no CUDA device; use "cpu"'])
    _check_moves(config, holdings)
    parties = _parties(config, cast, holdings, holder, task, names or {})
    if method.network.images:
        _check_alike(parties)
    for name, party in parties.items() if config.align is None else ():
        if "train" in party.splits and not method.rows.ids_only:
            check_spread(name, party.splits, party.schedule)
    widths = [prod(party.shape) for party in parties.values() if party.has_features]
    method.check(Circumstances(config.options, widths=widths, task=task.kind))
    _check_networks(parties, [n for n in holdings if method.roles[cast[n]].features])
    rows = holdings[holder].splits
    facts = {
        "name": dataset,
        "train_rows": len(rows["train"]),
        "test_rows": len(rows["test"]),
        "classes": list(task.classes),
        "task": task.told(),
        "partition": OWN_PARTITION,
    }
    return Assembly(parties, cast, holder, facts)


def _parties(
    config: Config,
    cast: Mapping[str, str],
    holdings: Mapping[str, Holding],
    holder: str,
    task: Task,
    names: Mapping[str, Sequence[str]],
) -> dict[str, Party]:
    """Every member of the cast, with its rows as its models take them."""
    method, schedule, device = (
        config.found.method,
        schedule_of(config),
        torch.device(config.run.device),
    )
    everyone = method.rows.everyone_labelled(config.options)
    labels = holdings[holder].splits
    parties: dict[str, Party] = {}
    for name, role in cast.items():
        recipe = config.parties.get(name, config.recipe)
        if name not in holdings:  # a helper of the protocol, such as a server or a key generator
            parties[name] = Party(name, role, recipe, schedule, {}, None, task, device)
            continue
        splits, preparation = prepare(name, holdings[name], config.data.standardise)
        for key, split in splits.items():
            if everyone and split.y is None:
                lent = labels[key]
                splits[key] = replace(split, y=_copy(lent.y), weights=_copy(lent.weights))
        view = holdings[name].view
        check_view(name, splits["train"].x, view, method)
        own = names.get(name, ())
        parties[name] = Party(
            name, role, recipe, schedule, splits, preparation, task, device, view, own
        )
    return parties


def _check_moves(config: Config, holdings: Mapping[str, Holding]) -> None:
    """Refuse to move tables, and to turn images upside down where the method cannot."""
    method, moves = config.found.method, config.data
    if method.network.images and moves.upside_down:
        raise ConfigError(
            [f"data.upside_down: {method.name} mirrors tiles from left to right only"]
        )
    features = [holding.splits["train"].x for holding in holdings.values()]
    moved = moves.flip or moves.shift or moves.upside_down
    if moved and any(x[:1].numel() and as_image(x).dim() < 4 for x in features):
        raise ConfigError(["data.flip, shift and upside_down move images; these rows are tables"])


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
        run.batching,
        run.patience,
        run.min_delta,
    )


def _copy(y: Tensor | None) -> Tensor | None:
    return None if y is None else y.clone()  # parties share no memory


def _check_alike(parties: Mapping[str, Party]) -> None:
    """Refuse parties whose images, and so their maps, have different channels."""
    found = {name: party.shape[0] for name, party in parties.items()}
    widths = {name: party.recipe.model_options.get("width", 1) for name, party in parties.items()}
    for what, values in (("channels", found), ("model_options.width", widths)):
        if len(set(values.values())) > 1:
            listed = ", ".join(f"'{name}' {value:g}" for name, value in values.items())
            raise ConfigError([f"{what} must be the same at all parties, but differ: {listed}"])


def _check_networks(parties: Mapping[str, Party], need: Sequence[str]) -> None:
    """Check that each party's network can take its rows, without allocating weights."""
    problems: list[str] = []
    for name, party in parties.items():
        if not party.has_features:
            if name in need:
                problems.append(
                    f"party '{name}' brings no features, but its role '{party.role}' needs some: "
                    "give it columns, or choose a method whose label holder may bring labels only, "
                    "such as splitnn"
                )
            continue
        try:
            models.check(party.recipe.model, party.shape, **party.recipe.model_options)
        except ConfigError as error:
            problems += [f"party '{name}': {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
