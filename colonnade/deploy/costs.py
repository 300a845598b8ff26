"""What a run will send of a party, as far as that is cheaply known before it begins.

scarce     limits in bytes that are too few if most rows turn out to be common
costs      a sentence for each Kind: how often each record leaves, and how many bytes that takes
oversized  embeddings far wider than the rows of which they are made
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from colonnade.align.points import POINTS
from colonnade.assembly import OwnRows, schedule_of
from colonnade.config import Config
from colonnade.config.federation import Federation
from colonnade.deploy.forecast import (
    Problem,
    bringing,
    points_bytes,
    releases_of,
    sends_of,
    width_of,
)
from colonnade.report import units
from colonnade.role.batches import spread
from colonnade.role.stopping import VERDICT
from colonnade.wire import DTYPES, Kind
from colonnade.wire.policy import Allow, Policy

MUCH_WIDER = 4  # times as many numbers as the row has


def costs(
    federation: Federation, name: str, policy: Policy | None, rows: OwnRows | None
) -> Iterator[str]:
    """What leaves a member, Kind by Kind, against its policy.

    rows  the party's own; None: not known yet
    """
    allow = {} if policy is None else policy.allow
    for kind in sends_of(federation, name):
        rule = allow.get(kind.name, Allow())
        needed = releases_of(federation, name, kind)
        if kind is POINTS and rows is not None:
            hops = len(bringing(federation))
            yield (
                f"{kind.name}: {units.size(hops * points_bytes(rows.count))} if the others bring "
                f"{rows.count:,} ids, too{_of_bytes(rule)}"
            )
        elif kind is VERDICT:
            said = "about all validation rows together"
            yield f"{kind.name}: two answers {said}, at most {needed:,} times"
        elif needed:
            count = 0 if rows is None else len(rows.splits.get("train", ()))
            common = federation.run.align is not None
            yield f"{kind.name}: {_of_batches(federation.run, kind, needed, rule, count, common)}"


def costs_of_run(settings: Config, cast: Mapping[str, str], rows: int) -> Iterator[tuple[str, str]]:
    """The same of all parties of a run on this machine, each with its name: there is no policy."""
    method, passives = settings.found.method, sum(role == "passive" for role in cast.values())
    for name, role in cast.items():
        if not method.roles[role].every_epoch:
            continue
        needed = settings.run.epochs * (1 if role == "passive" else passives)
        for kind in method.sent_by(role, settings.options, passives):
            if kind.about == "batch":
                yield name, f"{kind.name}: {_of_batches(settings, kind, needed, Allow(), rows)}"


def scarce(
    federation: Federation, name: str, policy: Policy, rows: OwnRows | None
) -> Iterator[Problem]:
    """Limits in bytes that would stop a run in the middle if most rows turn out to be common."""
    if federation.run.align is None or rows is None or "train" not in rows.splits:
        return
    count = len(rows.splits["train"])
    for kind in sends_of(federation, name):
        rule, needed = policy.allow.get(kind.name), releases_of(federation, name, kind)
        whole = needed * epoch_bytes(federation.run, kind, count)
        if rule is not None and needed and 0 < rule.bytes < whole:
            yield (
                f"allow.{kind.name} lets out {units.size(rule.bytes)}; if all {count:,} rows to "
                f"train on are common, {federation.run.run.epochs} epochs take more than "
                f"{units.size(whole)}",
                f"allow `bytes` for as many as may be common: it is enough for "
                f"{units.percent(rule.bytes / whole, 0)} of them",
            )


def epoch_bytes(settings: Config, kind: Kind, rows: int) -> int:
    """Bytes of a Kind that leaves with every batch, in one epoch over so many rows, to one peer."""
    width = width_of(kind, settings.options)
    size = DTYPES[kind.dtype].itemsize if kind.dtype in DTYPES else 1
    header = 3 + 8 * len(kind.shape or ())  # of a tensor: see wire/codec.py
    batches = spread(rows, settings.run.batch_size, schedule_of(settings).batching)
    return sum(header + width * size * count for count in batches)


def oversized(settings: Config, role: str, features: int) -> Iterator[tuple[str, str]]:
    """Embeddings that are far wider than the rows of the passive party that sends them; each with
    a move."""
    if role != "passive" or not features:
        return
    passives = max(1, len(settings.parties) - 1)
    for kind in settings.found.method.sent_by(role, settings.options, passives):
        width = width_of(kind, settings.options)
        options = [size for size in (kind.shape or ())[1:] if isinstance(size, str)]
        if kind.about == "batch" and options and width > MUCH_WIDER * features:
            key, table = options[0], settings.found.method.name
            yield (
                f"'{kind.name}' has {width} numbers about each row of {features}: that costs "
                "bytes, and may let the row be worked out from them",
                f"try {key} = {max(4, 2 * features)}, an option of {table}",
            )


def _of_batches(
    settings: Config,
    kind: Kind,
    needed: int,
    rule: Allow,
    count: int,
    common: bool = False,
) -> str:
    """One that leaves with every batch of every epoch."""
    allowed = f" of the {rule.releases:,} that may, in all runs" if rule.releases else ""
    most = "at most " if settings.run.patience else ""  # it may stop earlier
    said = f"each record that trains leaves {most}{needed:,} times{allowed}"
    width = width_of(kind, settings.options)
    if not width:
        return said
    said += f", {width:,} numbers each time"
    if not count:
        return said
    whole = needed * epoch_bytes(settings, kind, count)
    those = " if all are common" if common else ""
    return (
        f"{said}: {units.size(whole)} for {count:,} rows to train on{those}, without what is sent "
        f"to evaluate{_of_bytes(rule)}"
    )


def _of_bytes(rule: Allow) -> str:
    return f"; {units.size(rule.bytes)} may leave in a run" if rule.bytes else ""


def remarks(settings: Config, cast: Mapping[str, str], features: Mapping[str, int]) -> list[str]:
    """What a log says of embeddings that are far wider than the rows of their parties."""
    return [
        f"note: '{name}' sends more than it has. {said}: {move}"
        for name, width in features.items()
        for said, move in oversized(settings, cast[name], width)
    ]
