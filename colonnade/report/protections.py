"""What protected each party in a run, in one sentence about what each of them sent.

That a simulation's noise follows from a seed, so that nothing is protected, its warnings say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.report import units

Told = Mapping[str, Any]
OTHERS = "; with what all other runs have told of these rows under such noise"
PREPARATION = "its share in the means, spreads and categories by which columns were prepared"


def sentences(result: Told) -> list[str]:
    """One for all parties of which the same is to be said; none where nothing was asked for."""
    told = result.get("privacy") or {}
    said: dict[str, list[str]] = {}
    for party, protections in told.get("parties", {}).items():
        for what, of in WHAT.items():
            if what not in protections:  # labels are in protected.py
                continue
            try:
                text = of(protections[what])
            except (KeyError, TypeError, ValueError):  # each party speaks for itself
                text = f"The {what} of {{whom}} are said to be protected, and not how."
            said.setdefault(text, []).append(party)
    return [text.replace("{whom}", units.names(parties)) for text, parties in said.items()]


def of_predictions(parties: Mapping[str, Told]) -> list[str]:
    """What predicting has cost; by party, what its protections told after it."""
    said: dict[str, list[str]] = {}
    for party, told in parties.items():
        for what in ("embeddings", "sums"):
            if what in told:
                one = told[what]
                text = (
                    f"The vectors of {{whom}} left with ε = {_number(one['epsilon'])} at δ = "
                    f"{one['delta']:g} for the row that was predicted most often; the same row "
                    "under the same weights gets the same answer, and is counted once. With all "
                    f"runs ε = {_number(one['all_runs'])}."
                )
                said.setdefault(text, []).append(party)
    return [text.replace("{whom}", units.names(parties)) for text, parties in said.items()]


def _sums(told: Told) -> str:
    return _embeddings(told, "left, added up with those of others,")


def _embeddings(told: Told, left: str = "left") -> str:
    epsilon, planned, ever = (told[key] for key in ("epsilon", "planned", "all_runs"))
    early = f" of {_number(planned)} that were planned" if epsilon < 0.999 * planned else ""
    more = f"{OTHERS} ε = {_number(ever)}" * (ever > 1.001 * epsilon)
    return (
        f"The vectors of {{whom}} {left} with ε = {_number(epsilon)}{early} at δ = "
        f"{told['delta']:g} for each row in this run (Gaussian noise, {told['claim']}){more}."
        f"{_meaning(str(told['claim']))}"
    )


def _meaning(claim: str) -> str:
    """What a claim covers and what not, for somebody who has not read the guide."""
    if claim.startswith("per release"):
        said = (
            " This covers the row's own vectors. It does not cover what the networks have learnt "
            "from the row, which shows in the vectors of other rows, too."
        )
    elif claim.startswith("per record"):
        said = " This covers all that the vectors tell of the row"
        if "preparation given" in claim:
            said += f", but not {PREPARATION}"
        said += "."
        if "models added" in claim:
            said += " What the network has learnt from the row adds the ε of the models."
    else:
        return ""
    if "sum alone" in claim:
        said += " It is about the sum of the vectors: each leaves only under a mask."
    return f"{said} Labels are not part of it."


def _models(told: Told) -> str:
    epsilon, planned, ever = (told[key] for key in ("epsilon", "planned", "all_runs"))
    early = f" of {_number(planned)} that were planned" if epsilon < 0.999 * planned else ""
    more = f"{OTHERS} ε = {_number(ever)}" * (ever > 1.001 * epsilon)
    return (
        f"The models of {{whom}} were trained with ε = {_number(epsilon)}{early} at δ = "
        f"{told['delta']:g} for each training record in this run (clipped gradients, Gaussian "
        f"noise, {told['releases']} epochs){more}. "
        "This covers a record's features and its label, and nothing that leaves beside the models"
        f"{f', nor {PREPARATION}' if 'preparation given' in told.get('claim', '') else ''}."
    )


def _number(value: float) -> str:
    return f"{value:.3g}"


WHAT = {"embeddings": _embeddings, "sums": _sums, "models": _models}
