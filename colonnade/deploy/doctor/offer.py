"""The doctor on what a party brings: what may leave, which rows there are, and whether both fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from colonnade.align import ristretto
from colonnade.assembly import OwnRows, no_rows
from colonnade.deploy.costs import costs, oversized, scarce
from colonnade.deploy.doctor.check import Case, Check, problems
from colonnade.deploy.doctor.learnt import learnt
from colonnade.deploy.forecast import (
    doubtful,
    elsewhere,
    exhausted,
    forbidden,
    imitated,
    sends_of,
)
from colonnade.deploy.setup import prepare
from colonnade.deploy.spending import spends, unguarded
from colonnade.errors import ColonnadeError, ConfigError, MethodError
from colonnade.report import units
from colonnade.results.folder import never_began
from colonnade.wire.policy import Policy


def permissions(case: Case, rows: OwnRows | None) -> tuple[Policy | None, list[Check]]:
    """The party's policy: whether it lets out what the method sends, and what else."""
    kinds, given = case.federation.run.kinds, case.mine.policy
    policy, wrongly = case.federation.policy, list[str]()
    try:
        if given is not None:
            policy, wrongly = Policy.read(given)
    except ConfigError as error:
        return None, [
            Check("policy", "problem", said, "correct the policy") for said in error.problems
        ]
    if policy is None:
        said = "there is none, so nothing may leave"
        return None, [
            Check("policy", "problem", said, "give --policy FILE, or [policy] in the file")
        ]
    wrongly += policy.strangers(kinds)
    policy = policy.only(kinds)  # the rest is looked at, too
    needed = [kind.name for kind in sends_of(case.federation, case.me.name)]
    about = (case.federation, case.me.name, policy, rows)
    begun = (case.out / "run.json").exists() and not never_began(case.out)  # its own releases
    wrong = [*imitated(case.federation), *forbidden(*about), *doubtful(*about)]
    wrong += unguarded(case.federation, case.me.name, policy)
    wrong += [] if begun else [*exhausted(*about), *spends(*about).problems]
    found = [Check("policy", "problem", said, "correct the policy") for said in wrongly]
    found += [Check("policy", "problem", said, move) for said, move in wrong]
    if not found:
        said = f"{policy.source} allows what is sent: {', '.join(needed) or 'nothing'}"
        found.append(Check("policy", "ok", said))
    few = scarce(*about)
    found += [Check("policy", "warning", said, move) for said, move in few]
    apart = elsewhere(case.federation, case.me.name, policy, rows)
    found += [Check("journal", "warning", said, move) for said, move in apart]
    spare = [name for name in policy.allow if name in kinds and name not in needed]
    if spare and given is not None:  # a policy for all parties allows what others send
        said = f"{policy.source} also allows {', '.join(spare)}, which is never sent here"
        move = "remove it: what is not needed should stay inside"
        found.append(Check("policy", "warning", said, move))
    return policy, found


def mistakes(path: Path) -> list[Check]:
    """What is wrong with a policy file, whatever the method sends."""
    try:
        _, found = Policy.read(path)
    except ConfigError as error:
        found = error.problems
    return [Check("policy", "problem", said, "correct the policy") for said in found]


def forecast(case: Case, policy: Policy | None, rows: OwnRows | None) -> Iterator[Check]:
    """What will leave in the run, as far as that is known before it, and what is more than is
    needed."""
    for said in costs(case.federation, case.me.name, policy, rows):
        yield Check("will send", "note", said)
    for said in spends(case.federation, case.me.name, policy, rows).notes:
        yield Check("will spend", "note", said)
    if rows is not None:
        role = case.federation.cast[case.me.name]
        for said, move in oversized(case.federation.run, role, rows.width):
            yield Check("width", "note", said, move)


def data(case: Case) -> tuple[OwnRows | None, list[Check]]:
    """The party's rows, as far as they can be read."""
    brings = case.federation.role(case.me.name).rows
    if case.mine.rows is None and brings:
        return None, [Check("data", "warning", "not looked at", "give --data FILE")]
    if not brings:
        role = case.federation.cast[case.me.name]
        said = f"'{case.me.name}' plays '{role}', which brings no rows"
        if case.mine.rows is not None:
            return None, [Check("data", "problem", said, "omit --data")]
        return no_rows(), [Check("data", "ok", said)]
    assert case.mine.rows is not None
    try:
        rows = case.mine.rows(case.federation)
    except ColonnadeError as error:
        move = "correct the file, or say with --data, --id and --label what is meant"
        return None, [Check("data", "problem", said, move) for said in problems(error)]
    parts = ", ".join(f"{len(split):,} for {key}" for key, split in rows.splits.items())
    said = f"{rows.source}: {rows.count:,} rows ({parts}), {rows.width} numbers each"
    if rows.task is not None and rows.task.kind == "regression":
        said += f", numbers of {rows.task.mean:,.6g} ± {rows.task.spread:,.6g} to learn"
    elif rows.task is not None and rows.task.classes:
        classes = rows.task.classes
        said += f", {len(classes)} classes ({units.shorten(', '.join(classes), 60)})"
    if case.federation.run.align is not None:
        said += "; the rows that all have are found first, privately"
    elif case.federation.run.found.method.rows.aligned(case.federation.run.options):
        digest = rows.digest(case.federation.row_key())
        said += (
            f"; ids and their order: {digest[:8]} {digest[8:16]}, must be equal everywhere: "
            "compare it by telephone"
        )
    found = [Check("data", "ok", said)]
    train = rows.splits.get("train")
    if rows.task is not None and train is not None and train.y is not None:
        found += learnt(rows.task, [train.y], case.federation.run.decision)
    found += [Check("data", "warning", w, "see whether that is meant") for w in rows.warnings]
    return rows, found


def alignment(case: Case) -> list[Check]:
    """Whether the common rows can be found on this machine."""
    if case.federation.run.align is None or not case.federation.role(case.me.name).rows:
        return []
    try:
        ristretto.library()
    except MethodError as error:
        return [Check("alignment", "problem", error.said, error.move)]
    return []


def together(case: Case, rows: OwnRows, policy: Policy | None) -> Check:
    """Whatever else `colonnade party` would refuse before it calls anybody."""
    mine = case.mine
    try:
        setup = prepare(case.federation, case.me.name, rows, mine.keys, policy, tls=mine.tls)
    except ColonnadeError as error:
        return Check("role", "problem", "; ".join(problems(error)), "change [run], or the data")
    recipe = setup.settings.parties.get(case.me.name, setup.settings.recipe)
    network = f", with the network '{recipe.model}'" if rows.count else ""
    return Check("role", "ok", f"{setup.cast[case.me.name]}{network}")
