"""Measures what each passive party contributes: the accuracy without it.

Every row is evaluated with the same weights once with and once without a party. The difference is
that party's embedding, also under masks, so this is for parties that live in one process anyhow;
over a network it must never be done.
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
from colonnade.role import identity
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.runtime import local
from colonnade.wire import Ledger, Wire

MOST_PARTIES = 8  # it takes as many evaluations as there are passive parties


Weights = Mapping[str, Mapping[str, Tensor]]


def measure(
    settings: Config,
    assembly: Assembly,
    weights: Mapping[str, Weights],
    metrics: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, float]]:
    """By split and absent party: the mean accuracy of those who still predict.

    weights  of every party, as trained
    metrics  of the run: the splits that were evaluated, and whose predictions count
    A party without which the method would not go on is left out.
    """
    cast, holder = assembly.cast, assembly.parties[assembly.holder]
    passives = [name for name in cast if _may_be_absent(name, settings, cast)]
    asked = settings.run.absence and settings.found.method.membership.absent
    if not asked or not passives or len(cast) > MOST_PARTIES:
        return {}
    members = {name: _copy(p, weights[name]) for name, p in assembly.parties.items()}
    found: dict[str, dict[str, float]] = {}
    for split, measured in metrics.items():
        labels = holder.splits[split].y
        assert labels is not None
        for absent in passives:
            logits = _predict(settings, members, cast, absent, split)
            shares = [
                int((each.argmax(1) == labels).sum()) / len(labels)
                for name, each in logits.items()
                if name in measured["per_party"]
            ]
            if shares:
                found.setdefault(split, {})[absent] = fmean(shares)
    return found


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
