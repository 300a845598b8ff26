"""Measures what each passive party contributes: how good the predictions are without it.

Every row is evaluated with the same weights once with and once without a party. The difference is
that party's embedding, also under masks, so this is for parties that live in one process anyhow;
over a network it must never be done.

Vectors that [protect] covers are clipped and noised here, too, since the others were trained on
such ones. They stay in this process, so nothing is booked.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from torch import Tensor

from colonnade.assembly import Assembly
from colonnade.config import Config
from colonnade.errors import MethodError
from colonnade.privacy.protection import protect
from colonnade.results.quality import Ruling, decided, judged, known
from colonnade.results.result import headline
from colonnade.role import identity
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.runtime import local
from colonnade.task.measures import measures
from colonnade.wire import Ledger, Wire

MOST_PARTIES = 8  # it takes as many evaluations as there are passive parties


Weights = Mapping[str, Mapping[str, Tensor]]


def measure(
    settings: Config,
    assembly: Assembly,
    weights: Mapping[str, Weights],
    result: Mapping[str, Any],
) -> dict[str, dict[str, dict[str, float | None]]]:
    """By split and absent party: the mean over those who still predict, of the measure that decides
    (`absent_value`) and of the accuracy (`absent`), where there are classes.

    weights  of every party, as trained
    result   of the run: the splits that were evaluated, whose predictions count, how they decide
    A party without which the method would not go on is left out.
    """
    cast, holder = assembly.cast, assembly.parties[assembly.holder]
    passives = [name for name in cast if _may_be_absent(name, settings, cast)]
    asked = settings.run.absence and settings.found.method.membership.absent
    if not asked or not passives or len(cast) > MOST_PARTIES:
        return {}
    members = {name: _copy(p, weights[name]) for name, p in assembly.parties.items()}
    for member in members.values():  # as in training; nothing leaves, so nothing is counted
        protect(member, settings.protect, booked=False)
    told = result.get("decision")
    by = None if told is None else Ruling.from_told(told)
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for split, metrics in result["metrics"].items():
        for absent in passives:
            outputs = _predict(settings, members, cast, absent, split)
            outputs = {n: each for n, each in outputs.items() if n in metrics["measures"]}
            for name, value in _left(holder, split, outputs, metrics["metric"], by).items():
                found.setdefault(split, {}).setdefault(name, {})[absent] = value
    return found


def _left(
    holder: Party, split: str, outputs: Mapping[str, Tensor], metric: str, by: Ruling | None
) -> dict[str, float | None]:
    """What these predictions are worth, as the label holder can tell."""
    if not outputs:
        return {}
    whose = judged(outputs, holder.name, holder.name)
    shares, values = list[float](), dict[str, Any]()
    labels = holder.splits[split].y
    assert labels is not None
    for name, each in outputs.items():
        rule = by if name == whose else None
        if holder.task.kind != "regression":
            shares.append(int((decided(holder, each, rule) == labels).sum()) / len(labels))
        rows = known(holder, split, each, rule)
        values[name] = {metric: {"value": measures(rows, [metric])[metric]}}
    accuracy = {"absent": fmean(shares)} if shares else {}
    return {**accuracy, "absent_value": headline(values, metric)}


def _may_be_absent(name: str, settings: Config, cast: Mapping[str, str]) -> bool:
    try:
        settings.found.method.check_absent({name}, cast, settings.options)
    except MethodError:
        return False
    return True


def _predict(
    settings: Config,
    members: Mapping[str, Party],
    cast: Mapping[str, str],
    absent: str,
    split: str,
) -> dict[str, Tensor]:
    """What every predicting party but the absent one makes of a split, (rows, classes) each."""
    method = settings.found.method
    there = {name: party for name, party in members.items() if name != absent}
    if method.membership.signs(settings.options):
        session = f"{settings.sha256()} without {absent} {secrets.token_hex(8)}"
        for name, known in identity.simulated(list(there), session).items():
            there[name].identity = known

    def start(party: Party, wire: Wire) -> Any:
        program = method.roles[party.role].predict
        return bind(program, party, cast, wire, settings.options, {absent}, split=split)

    mail = local.Mailboxes({kind.name: kind for kind in method.kinds}, Ledger(None))
    answers = local.run(there, start, mail)
    return {name: logits for name, logits in answers.items() if isinstance(logits, Tensor)}


def _copy(party: Party, weights: Weights) -> Party:
    """A copy of the party, so that measuring does not change the result."""
    copy = Party(
        party.name,
        party.role,
        party.recipe,
        party.schedule,
        party.splits,
        party.preparation,
        party.task,
        party.device,
        party.view,
    )
    copy.window, copy.journal = party.window, party.journal
    copy.kept.load(weights)
    return copy
