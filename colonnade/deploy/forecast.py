"""What a run will need of a party's policy, known before anybody is called.

    forbidden   what will certainly be denied, or refused later
    imitated    what only a simulation may ask for
    doubtful    what will be denied if the others bring as many ids as this party
    exhausted   what earlier runs have left too little of
    elsewhere   what runs of a federation of another name have counted, which is not looked at

Each is said with the next move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from math import prod
from typing import Any

import numpy as np

from colonnade.align import KINDS, kinds_of
from colonnade.align.ids import one_spelling
from colonnade.align.lists import CHUNK_BYTES
from colonnade.align.points import POINTS
from colonnade.align.ristretto import WIDTH
from colonnade.assembly import OwnRows, schedule_of
from colonnade.config.federation import Federation
from colonnade.errors import JournalError
from colonnade.journal import Journal, RunJournal, Tally, default_place
from colonnade.journal.journal import FILE
from colonnade.owner import data_folder
from colonnade.privacy.settings import DELTA as PROTECTED_DELTA
from colonnade.role.batches import spread
from colonnade.role.stopping import VERDICT
from colonnade.wire import DTYPES, Kind, codec
from colonnade.wire.policy import Allow, Policy

Problem = tuple[str, str]  # what is wrong, and what to do about it


def sends_of(federation: Federation, name: str) -> tuple[Kind, ...]:
    """What a member may send: what its policy must allow."""
    method, cast = federation.run.found.method, federation.cast
    sent = federation.run.sent_by(cast[name], cast[federation.holder], _passives(federation))
    if federation.run.align is None or not method.roles[cast[name]].rows:
        return sent
    return (*sent, *kinds_of(len(bringing(federation))))


def forbidden(
    federation: Federation, name: str, policy: Policy, rows: OwnRows | None = None
) -> Iterator[Problem]:
    """Why a policy does not let a party play its role.

    rows  the party's own; None: not known yet
    """
    members, sent = federation.names, sends_of(federation, name)
    for kind, rule in policy.allow.items():
        for peer in rule.to or ():
            if peer not in members:
                said = f"allow.{kind}.to names '{peer}', which is not a member"
                yield said, f"one of {', '.join(members)}"
        if rule.min_members > len(members):
            said = f"allow.{kind} asks for {rule.min_members} members; there are {len(members)}"
            yield said, "lower min_members, or let others join"
    for one in sent:
        if one.name in policy.allow:
            if not _reaches_others(name, policy.allow[one.name]):
                said = f"allow.{one.name}.to names nobody but '{name}' itself, which must send it"
                others = ", ".join(peer for peer in members if peer != name)
                yield said, f"name who may have it, of {others}"
            yield from _beyond(federation, name, one, policy.allow[one.name], rows)
    if denied := [one.name for one in sent if one.name not in policy.allow]:
        said = f"{policy.source} keeps inside {', '.join(denied)}, which this party must send"
        yield said, "add [allow.…] for each, or the run will stop"


def imitated(federation: Federation) -> Iterator[Problem]:
    """What only a simulation may ask of noise."""
    if (seed := federation.run.protect.simulate_noise_seed) is not None:
        yield (
            f"protect.simulate_noise_seed = {seed} in {federation.path}: all noise would follow "
            "from a number that everybody knows, and protect nobody",
            "remove it: between organisations each party draws its own noise",
        )


def doubtful(
    federation: Federation, name: str, policy: Policy, rows: OwnRows | None
) -> Iterator[Problem]:
    """What the alignment needs if the others have as many ids."""
    rule = policy.allow.get(POINTS.name)
    if rows is None or not rule or not rule.bytes or POINTS not in sends_of(federation, name):
        return
    hops = len(bringing(federation))
    needed = hops * points_bytes(rows.count)
    if points_bytes(rows.count) <= rule.bytes < needed:
        yield (
            f"allow.{POINTS.name} lets out {rule.bytes:,} bytes; the alignment needs {needed:,} if "
            f"all have {rows.count:,} ids, as here: each id passes {hops} parties",
            f"allow `bytes` = {needed}, for [allow.{POINTS.name}]",
        )


def exhausted(
    federation: Federation, name: str, policy: Policy, rows: OwnRows | None
) -> Iterator[Problem]:
    """What earlier runs have left too little of, for a run that begins now."""
    place = policy.journal or default_place(federation.name, name)
    limited = {k: r for k, r in policy.allow.items() if r.releases}
    if rows is None or not limited or not rows.names or not (place / FILE).exists():
        return
    train = rows.splits.get("train")
    if train is None:
        return
    with closing(Journal(place)) as journal:
        names = RunJournal(lambda: journal, "", one_spelling(rows.names)).names(train.ids, train.x)
        for kind in sends_of(federation, name):
            needed = releases_of(federation, name, kind)
            if kind.name not in limited or not needed:
                continue
            most = limited[kind.name].releases
            counts = Tally(journal, f"releases of {kind.name}", names).counts
            over = int(((counts > 0) & (counts + needed > most)).sum())
            if over:
                spent = int(counts.max())
                yield (
                    f"allow.{kind.name}.releases = {most}: earlier runs have released {over:,} of "
                    f"{len(names):,} records up to {spent} times, and this run needs {needed} more",
                    f"allow `releases` = {spent + needed}, or train on records that were not "
                    "released before",
                )


def elsewhere(
    federation: Federation, name: str, policy: Policy, rows: OwnRows | None
) -> Iterator[Problem]:
    """Other journals of a party of this name that know some of these records. Whoever writes the
    federation file chooses its name, and with it an empty journal."""
    place = policy.journal or default_place(federation.name, name)
    if rows is None or not rows.names:
        return
    ids = one_spelling(rows.names)
    for other in sorted(data_folder().glob(f"*/{name}/{FILE}")):
        if other.parent.resolve() == place.resolve():
            continue
        try:
            with closing(Journal(other.parent)) as journal:
                count = int(np.isin(journal.names(ids), journal.records()).sum())
        except JournalError:  # the matter of that federation
            continue
        if count:
            yield (
                f"runs of the federation '{other.parent.parent.name}' have counted {count:,} of "
                f"these {len(ids):,} records in {other.parent}; runs of '{federation.name}' count "
                f"in {place}, as if nothing had left",
                f'if these are the same people, write journal = "{other.parent}" into the policy',
            )


def fewest(federation: Federation, name: str, policy: Policy) -> int:
    """The fewest rows that a batch may have, as the policy wants it: 1 where it says nothing of
    that; 0 where nothing that is sent speaks of a batch."""
    sent = {kind.name for kind in sends_of(federation, name) if kind.about == "batch"}
    return max([1, *(r.min_batch for k, r in policy.allow.items() if k in sent)]) if sent else 0


def releases_of(federation: Federation, name: str, kind: Kind) -> int:
    """How often a training row leaves as this Kind in one run; 0: not known beforehand."""
    if kind is VERDICT:  # it may tell of any of them
        run = federation.run.run
        return -(-run.epochs // run.evaluate_every) * _passives(federation)
    if kind.about != "batch" or not federation.role(name).every_epoch:
        return 0
    peers = 1 if federation.cast[name] == "passive" else _passives(federation)
    return federation.run.run.epochs * peers


def _reaches_others(name: str, rule: Allow) -> bool:
    return rule.to is None or not set(rule.to) <= {name}


def _beyond(
    federation: Federation, name: str, kind: Kind, rule: Allow, rows: OwnRows | None
) -> Iterator[Problem]:
    """What of one Kind goes beyond its rule."""
    run, where = federation.run.run, f"allow.{kind.name}"
    if kind.about == "nothing" and (idle := rule.counts):
        said = f"{where} limits {', '.join(idle)}, by record, and the Kind says it speaks of none"
        move = "if that is true, remove that limit; if not, do not run that method"
        if kind in KINDS:
            move = (
                f"remove it: each alignment sends every id once, whatever comes of it. `bytes` "
                f"limits [{where}] in a run; `times` and `most_in_all` in [run.align] count over "
                "all runs"
            )
        yield said, move
    if why := rule.unprotected(federation.run.protect.guaranteed(kind)):
        yield f"{where}.epsilon {why}", _protecting(kind, rule)
    width = width_of(kind, federation.run.options)
    widest = rule.widest(None if rows is None else rows.width)
    if width > widest:
        said = f"{where} lets out {widest} numbers per row; {width} would be sent"
        yield said, "choose a smaller embedding, or change `width` or `width_ratio`"
    needed = releases_of(federation, name, kind)
    if rule.releases and needed > rule.releases:
        said = (
            f"{where}.releases = {rule.releases}; {run.epochs} epochs release a row {needed} times"
        )
        less = run.epochs * rule.releases // needed
        yield said, f"allow `releases` = {needed}" + (f", or train {less} epochs" if less else "")
    if rule.numbers and needed * width > rule.numbers:
        said = f"{where}.numbers = {rule.numbers}; {needed} releases of {width} numbers are"
        yield f"{said} {needed * width}", f"allow `numbers` = {needed * width}, or send fewer"
    if kind.about == "batch" and rule.min_batch > run.batch_size:
        said = f"{where}.min_batch = {rule.min_batch}, and no batch has more than {run.batch_size}"
        yield said, f"batch_size = {2 * rule.min_batch - 1} or more, or a lower `min_batch`"
    if rows is None:
        return
    if kind is POINTS and rule.bytes and rule.bytes < (least := points_bytes(rows.count)):
        said = f"{where} lets out {rule.bytes:,} bytes; {rows.count:,} own ids alone take {least:,}"
        hops = len(bringing(federation))
        yield said, f"allow `bytes` = {hops * least}: each id passes {hops} parties"
    if federation.run.align is None and "train" in rows.splits:
        yield from _of_known_rows(federation, kind, rule, rows, needed * width)


def _protecting(kind: Kind, rule: Allow) -> str:
    """How all parties may do what a policy asks for."""
    if kind.carries == "labels":
        return f"[run.protect] label_epsilon = {rule.epsilon:g} in the file of all parties"
    names = {"features": "embedding", "sums": "embedding", "models": "model"}
    if kind.carries not in names:
        return "nothing protects this Kind: remove `epsilon`, or choose another method"
    epsilon, delta = rule.within
    at = f" and delta = {delta:g}" if delta < PROTECTED_DELTA else ""
    name = names[kind.carries]
    return f"[run.protect] {name}_epsilon = {epsilon:g}{at} in the file of all parties"


def _of_known_rows(
    federation: Federation, kind: Kind, rule: Allow, rows: OwnRows, numbers: int
) -> Iterator[Problem]:
    """The same where nobody needs to find out which rows take part."""
    run, where, schedule = federation.run.run, f"allow.{kind.name}", schedule_of(federation.run)
    count = len(rows.splits["train"])
    size = DTYPES[kind.dtype].itemsize if kind.dtype in DTYPES else 1
    if rule.bytes and rule.bytes < (least := numbers * count * size):
        said = f"{where} lets out {rule.bytes:,} bytes; {run.epochs} epochs of {count:,} rows need"
        yield f"{said} more than {least:,}", "allow more `bytes`, or train for fewer epochs"
    smallest = min(spread(count, run.batch_size, schedule.batching), default=rule.min_batch)
    if kind.about == "batch" and smallest < rule.min_batch <= run.batch_size:
        said = f"{where}.min_batch = {rule.min_batch}, and {count:,} rows in batches of"
        move = f"batch_size = {2 * rule.min_batch - 1} or more, or a lower `min_batch`"
        yield f"{said} {run.batch_size} make one of {smallest}", move


def width_of(kind: Kind, options: Any) -> int:
    """Numbers per row of its messages, where the options name all dimensions; else 0."""
    first, *others = kind.shape or ("",)
    if first != "batch":
        return 0
    sizes = [size if isinstance(size, int) else getattr(options, size, 0) for size in others]
    return prod(size if isinstance(size, int) else 0 for size in sizes)


def points_bytes(ids: int) -> int:
    """Bytes of the messages with so many points."""
    import torch

    def size(points: int) -> int:
        return codec.size(torch.empty(points, WIDTH, dtype=torch.uint8)) if points else 0

    most = CHUNK_BYTES // WIDTH
    return ids // most * size(most) + size(ids % most)


def _passives(federation: Federation) -> int:
    return sum(role == "passive" for role in federation.cast.values())


def bringing(federation: Federation) -> list[str]:
    """The members that bring rows."""
    return [name for name in federation.names if federation.role(name).rows]
