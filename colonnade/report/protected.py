"""What protected the labels of a run, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.report import units
from colonnade.report.overview import by_party

ALONE = ("per_party", "alone")  # what a party's own network scores


def labels(result: Mapping[str, Any]) -> str:
    """At what ε others know labels, and what a passive party's network guesses; empty where labels
    are as they were."""
    privacy = result.get("privacy") or {}
    told = {
        party: found["labels"]
        for party, found in privacy.get("parties", {}).items()
        if found.get("labels")
    }
    if not told:
        return ""
    try:
        said = _answered(told)
    except (KeyError, TypeError, ValueError):  # each party speaks for itself
        return "Labels are said to be protected, and not how."
    return f"{said}{_guessed(result, set(told))}"


def _answered(told: Mapping[str, Mapping[str, Any]]) -> str:
    first = max(told.values(), key=lambda one: float(one["epsilon"]))
    whose = "labels" if len(told) == 1 else "each client's labels"
    epsilon, answers = f"ε = {first['epsilon']:.3g}", "noisy answers"
    if "kept" in first:
        answers = "random answers"
        epsilon += f" (each is right with a probability of {units.percent(first['kept'], 1)})"
    asked = ""
    if first["epsilon"] != first["asked"]:
        asked = f"; ε = {first['asked']:.3g} was asked for, and earlier answers stay"
    return (
        f"In place of training and validation {whose}, {answers} were used, drawn once for all "
        f"runs within {epsilon}{asked}: whatever others have seen, the odds of one label against "
        f"another changed by at most a factor of {first['odds']:.3g} for them. This is a guarantee "
        "for labels, not for features. It does not cover rows that are for tests in any run, "
        "whose labels measure how good predictions are."
    )


def _guessed(result: Mapping[str, Any], holders: set[str]) -> str:
    """What a party without labels predicts by what it has learnt."""
    scores = [
        (share, party)
        for measure in ALONE
        for party, share in by_party(result, measure).items()
        if party not in holders
    ]
    if not scores:
        return (
            " A party may train a network on answers and its own features, and guess labels with "
            "it, also of people who had no part in the training: that follows from features, and "
            "is no label that leaked."
        )
    share, party = max(scores)
    return (
        f" With what it has learnt from answers, '{party}' predicts {units.percent(share, 1)} of "
        "the test rows rightly: that follows from features, also of people who had no part in the "
        "training, and is no label that leaked."
    )
