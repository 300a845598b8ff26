"""A run in plain words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from colonnade import methods
from colonnade.data import IN_MEMORY, OWN_FILES, OWN_PARTITION
from colonnade.report import measured, protected, protections, units
from colonnade.report.overview import (
    accuracy,
    by_party,
    constant,
    deciding,
    epochs,
    majority,
    per_party_accuracy,
    value,
)
from colonnade.report.units import names

DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cinic10": "CINIC-10",
    "fashionmnist": "Fashion-MNIST",
    "inmemory": "the parties' own arrays",
    "mnist": "MNIST",
    "mnistsample": "MNIST",
}
OWN_ROWS = "with rows of their own"
NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
FRACTIONS = ["", "", "half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth"]


UNKNOWN: dict[str, Any] = {  # of a run that says nothing about its method
    "trained": "",
    "repeats": True,
    "helpers": {},
    "own_labels": False,
    "labels": [],
    "alone": "",
    "measures": {},
    "numbers": {},
}


def about(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the run's method says of itself; of a run that did not keep it, the method is asked."""
    if "about" in result:
        return UNKNOWN | dict(result["about"])
    name = result["method"]
    if name not in methods.BUILT_IN:
        return UNKNOWN | {"title": name}
    method = methods.find(name).method
    roles = {party: role for party, role in result["roles"].items() if role in method.roles}
    holder = result["config"].get("label_holder") or next(iter(roles), "")
    try:
        return method.told(method.options(**result["config"].get(name, {})), roles, holder)
    except (TypeError, ValueError):  # options that are gone: nobody can repeat such a run
        return method.told(method.options(), roles, holder) | {"repeats": False}


def data_name(data: str) -> str:
    """`mnist` as its authors write it."""
    return DATA.get(_key(data), data)


def sentences(result: Mapping[str, Any]) -> str:
    """What was run and with what result, in two or three sentences; and what protected whom."""
    return " ".join(filter(None, [story(result), guarantees(result)]))


def story(result: Mapping[str, Any]) -> str:
    """What was run and with what result."""
    return f"{_who_did_what(result)}. {_aligned(result)}{_outcome(result)}{_flagged(result)}"


def guarantees(result: Mapping[str, Any]) -> str:
    """What protected whom, and what of that is covered; empty where nothing was asked for."""
    said = [*protections.sentences(result), protected.labels(result)]
    if any(said) and (result.get("privacy") or {}).get("simulated"):
        said.append("But all noise follows from simulate_noise_seed: nothing is protected.")
    return " ".join(filter(None, said))


def _flagged(result: Mapping[str, Any]) -> str:
    """From which probability on the label holder decides for the class that scores are about."""
    told, classes = result.get("decision") or {}, result["data"]["classes"]
    threshold, positive = told.get("threshold"), told.get("positive", 0)
    if threshold is None or positive >= len(classes):
        return ""
    return (
        f" A row is flagged as {units.plain(classes[positive])} from a probability of "
        f"{threshold:.3g} on."
    )


def counted(number: int, noun: str) -> str:
    """`one party`, `four parties`, `20 parties`."""
    if number != 1:
        noun = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{NUMBERS[number] if number < len(NUMBERS) else units.count(number)} {noun}"


def _aligned(result: Mapping[str, Any]) -> str:
    """How many rows all parties have in common, and how many each brought."""
    own = result["data"].get("own_rows")
    if not own:
        return ""
    brought = names([f"{name} ({units.count(rows)})" for name, rows in own.items()])
    whose = "of all parties" if len(own) < 2 else f"of {brought}"
    return f"{units.count(result['data']['common_rows'])} rows {whose} are common. "


def _who_did_what(result: Mapping[str, Any]) -> str:
    told, done = about(result), epochs(result)
    what = told["trained"] or f"with {told['title']}"
    parties = counted(len(_owners(result)), "party").capitalize()
    helpers = list(told["helpers"].values())
    who = names([parties, *helpers])
    span = _epochs(done)
    if before := sum(entry["phase"] == told["alone"] for entry in result["history"]):
        span = f"{_epochs(before)} alone and {span} together"
    alone = list(per_party_accuracy(result))
    if not result["wire"]["bytes"] and 0 < len(alone) < len(result["parties"]):
        part = "its own part" if len(alone) == 1 else "their own parts"
        if result["data"]["name"] == OWN_FILES:
            part = "its own file" if len(alone) == 1 else "their own files"
            return f"{names(alone)} trained alone on {part}"
        return f"{names(alone)} trained alone on {part} of {data_name(result['data']['name'])}"
    if result["status"] != "finished":
        did = f"set out to train {what}"
    else:
        did = f"trained {what} for {span}" if done else f"ran {told['title']}"
    labels = _labels(result)
    story = f"{who}, {_holding(result)}, {did}"
    if helpers and _holding(result) == OWN_ROWS:  # which the helpers have not
        story = f"{names([f'{parties} {OWN_ROWS}', *helpers])} {did}"
    story += f"; {labels}" if labels else ""
    if stopped := result.get("stopping"):
        story += f". {_stopped(stopped, result)}"
    if result["status"] != "finished":
        when = f"after {span}" if done else "before the first epoch was over"
        story += f". The run {result['status']} {when}"
    return story


def _stopped(told: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Which epoch the weights are of; of several parties, each of its own."""
    if len(parties := told.get("parties", {})) > 1:
        found = [f"{name} at {one['best_epoch']} of {one['of']}" for name, one in parties.items()]
        kept = f"kept its best epoch by {called(told['metric'])}"
        return f"Each stopped by itself, and {kept}: {names(found)}"
    ended = "Trained" if told["of"] == result["config"]["epochs"] else "Stopped"
    to = "to the last epoch," if ended == "Trained" else "after epoch"
    best = f"best epoch {told['best_epoch']} by {called(told['metric'])}"
    return f"{ended} {to} {told['of']}; {best}, and all parties have its weights"


def _epochs(number: int) -> str:
    return f"{units.count(number)} epoch{'' if number == 1 else 's'}"


def _holding(result: Mapping[str, Any]) -> str:
    parties, data = len(_owners(result)), data_name(result["data"]["name"])
    if result["data"]["name"] == OWN_FILES and parties == 1:
        return f"holding {data}"
    if result["data"]["name"] == IN_MEMORY:
        return "each holding columns of its own"
    if result["config"].get("label_only"):
        return f"all but one holding a part of {data}"
    if result["data"]["partition"] == OWN_PARTITION:
        return OWN_ROWS if about(result)["helpers"] else "each with columns of its own"
    if parties == 1:
        return f"holding all of {data}"
    partition = result["config"]["partition"]
    kind, parts = partition["kind"], math.prod(partition.get("grid") or [parties])
    if kind in {"tiles", "strips"} and parts == parties:
        part = FRACTIONS[parties] if parties < len(FRACTIONS) else f"{parties}th part"
        return f"each holding one {part} of every {data} image"
    if kind in {"columns", "rows"}:
        return f"each holding {kind} of {data} of its own"
    if kind == "hybrid":
        return f"each holding different rows and a different part of {data}"
    if kind == "rectangles":
        return f"each with its own view of every {data} image"
    return f"sharing {data} ({result['data']['partition']})"


def _owners(result: Mapping[str, Any]) -> list[str]:
    """The parties that hold anything."""
    return [p for p in result["parties"] if p not in about(result)["helpers"]]


def _labels(result: Mapping[str, Any]) -> str:
    told = about(result)
    if result["data"].get("labels_lent") and len(result["parties"]) > 1:
        return "the labels were lent to every party"
    if told["own_labels"] and len(_owners(result)) > 1:
        return "each knows the labels of its own rows"
    holders = told["labels"]
    if not holders or len(result["parties"]) == 1:
        return ""
    if len(holders) == len(result["parties"]):
        return "every party knows the labels"
    return f"only {names(holders)} {'knows' if len(holders) == 1 else 'know'} the labels"


def _outcome(result: Mapping[str, Any]) -> str:
    total, sent = accuracy(result), result["wire"]["bytes"]
    spent = f" {told}" if (told := budget(result)) else ""
    crossed = f"{units.size(sent)} crossed the wire" if sent else "nothing crossed the wire"
    if told := _measured(result):
        return f"{told}; {crossed}.{spent}"
    if total is None:
        return f"No test {called(deciding(result))} was measured; {crossed}.{spent}"
    each = list(per_party_accuracy(result).values())
    if len(each) > 1 and min(each) != max(each):
        low, high = 100 * min(each), 100 * max(each)
        shown = f"Mean test accuracy {units.percent(total, 1)} ({low:.1f} to {high:.1f} %)"
    else:
        shown = f"Test accuracy {units.percent(total, 1)}"
    return f"{shown}{_trivial(result)}, {crossed}.{spent}"


def called(metric: str) -> str:
    """The name of a measure inside a sentence: `accuracy`, `AUC`."""
    name = measured.column(metric)
    return name if name[1:2].isupper() else name.lower()


def _measured(result: Mapping[str, Any]) -> str:
    """What was reached by the measure that decides, where that is not the accuracy."""
    metric, total = deciding(result), accuracy(result)
    mine = value(result, metric)
    if metric == "accuracy" or mine is None:
        return ""
    told = list(result["metrics"]["test"]["measures"].values())
    mean = "Mean test" if len(told) > 1 else "Test"
    shown = f"{mean} {called(metric)} {measured.value(metric, mine)}"
    ends = told[0][metric] if len(told) == 1 else {}
    if within := measured.interval(metric, ends.get("low"), ends.get("high")):
        shown += f" (95 % interval {within})"
    if total is not None:
        shown += f", accuracy {units.percent(total, 1)}{_trivial(result)}"
    return shown


def _trivial(result: Mapping[str, Any]) -> str:
    """Said of an accuracy that needs no model."""
    said = constant(result, accuracy(result))
    known, classes = majority(result), result["data"]["classes"]
    if said and known and len(classes) == 2 and deciding(result) != "accuracy":
        (other,) = (name for name in classes if name != known[0])
        said += f", which finds no '{units.plain(other)}'"  # that costs accuracy
    return f" ({said})" if said else ""


def budget(result: Mapping[str, Any]) -> str:
    """The largest budget that a party has spent, where one was counted."""
    spent = by_party(result, "epsilon")
    if not spent:
        return ""
    delta = result["config"].get(result["method"], {}).get("delta")
    within = f", δ = {delta:g}" if delta is not None else ""
    told = f"Privacy budget spent: ε = {max(spent.values()):.3g}{within}"
    return f"{told} for a row at one client; a person at several clients spends at most their sum."


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
