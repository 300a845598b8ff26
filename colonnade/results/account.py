"""A party's account of its work at the end of a run: numbers, and nothing of its rows but what an
isotonic calibration shows, scores of single validation rows.

In one process the accounts are made and joined at once; with a process per party each writes its
own, and whoever joins them reads the files or hears them. An account speaks for its sender. Only
the label holder also speaks of others, since it alone can judge what they predict; where several
parties play its role, each judges itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from colonnade.config import Deciding
from colonnade.errors import CodecError, DataError, foreign
from colonnade.results import shape
from colonnade.results.quality import Ruling, decided, judged, measured, ruling
from colonnade.results.result import NOT_LOGGED
from colonnade.role.method import Method
from colonnade.role.party import Party
from colonnade.task import Task
from colonnade.task.calibration import WAYS, Calibration
from colonnade.task.curves import CURVES, IN_UNITS, LARGEST
from colonnade.task.intervals import bounds
from colonnade.task.measures import MEASURES
from colonnade.task.task import MOST_CLASSES

KEYS = frozenset(
    ("history", "scores", "decision", "spent", "remarks", "weights_sha256", "task", "warnings")
)
OPTIONAL = frozenset(("stopping", "protected"))
# In the metrics of a split: what only they may tell whose predictions count, and what nobody tells
RESERVED = ("measures", "curves", "confusion", "confusion_party")
DERIVED = ("accuracy", "metric", "value", "absent", "absent_value")
# How much one account may hold
ROWS, NUMBERS, ENTRIES, TEXTS, POINTS = 100_000, 2_000_000, 1000, 200, 256
SECONDS, EPOCHS, ROUNDING = 1e10, 1 << 40, 1e-6


def account(party: Party, holder: str, wish: Deciding | None = None) -> dict[str, Any]:
    """What one party can say at the end: plain values, ready for JSON.

    wish  how the run decides; None: it has not come to its end, and only what costs no time is
          measured
    """
    scores: dict[str, Any] = {}
    by = None if wish is None else ruling(party, holder, wish)
    for split, named in party.predictions.items():
        entry = scores[split] = {}
        counted = named.get("per_party", {})
        whose = judged(counted, party.name, holder)
        if party.task.kind != "regression":
            entry |= _shares(party, split, named, whose, by)
        if counted and wish is not None:
            entry |= measured(party, split, counted, whose, by, wish.rate)
    for name, number in party.figures.items():
        scores.setdefault("test", {})[name] = {party.name: number}
    stopping = party.stopping.told()
    protected = party.protection.told() if party.protection is not None else {}
    return {
        "history": party.history,
        "scores": scores,
        "decision": None if by is None else by.told(),
        "spent": dict(party.spent),
        "remarks": list(party.remarks),
        "weights_sha256": party.kept.sha256(),
        **({"stopping": stopping} if stopping else {}),
        **({"protected": dict(protected)} if protected else {}),
    }


def _shares(
    party: Party,
    split: str,
    named: Mapping[str, Mapping[str, Tensor]],
    whose: str,
    by: Ruling | None,
) -> dict[str, Any]:
    """How many rows are decided rightly, and which classes are mistaken."""
    labels = party.splits[split].y
    assert labels is not None
    found: dict[str, Any] = {}
    for measure, by_party in named.items():
        counts = measure == "per_party"
        codes = {
            name: decided(party, outputs, by if counts and name == whose else None)
            for name, outputs in by_party.items()
        }
        # The same fraction on any device.
        found[measure] = {n: int((said == labels).sum()) / len(labels) for n, said in codes.items()}
        if counts and whose:
            found["confusion"] = _confusion(labels, codes[whose], len(party.task.classes))
            found["confusion_party"] = whose
    return found


def _confusion(labels: Tensor, predicted: Tensor, classes: int) -> list[list[int]]:
    cells = torch.bincount((labels * classes + predicted).cpu(), minlength=classes * classes)
    table: list[list[int]] = cells.reshape(classes, classes).tolist()
    return table


# ---- whose word counts ---------------------------------------------------------------------------


def judge_of(method: Method, cast: Mapping[str, str], holder: str) -> str:
    """The party that judges everybody's predictions; "" where each judges its own."""
    alone = sum(role == cast[holder] for role in cast.values()) == 1
    return holder if alone and not method.rows.own_labels else ""


@dataclass(frozen=True)
class Speaker:
    """One party, and what it may speak of."""

    name: str
    parties: frozenset[str]  # of whom it may speak
    counts: bool  # whether its predictions make up the accuracy
    labelled: bool  # whether it can compare predictions with labels
    measures: frozenset[str]  # the method's scores that need labels, beside "per_party"

    @classmethod
    def of(
        cls, name: str, method: Method, options: object, cast: Mapping[str, str], holder: str
    ) -> Speaker:
        judges = judge_of(method, cast, holder) == name
        rows = method.rows
        everyone = rows.own_labels or rows.everyone_labelled(options)
        return cls(
            name,
            frozenset(cast) if judges else frozenset({name}),
            cast[name] == cast[holder],
            name == holder or everyone,
            frozenset(method.about.measures),
        )


def check(told: Mapping[str, Any], who: Speaker) -> Mapping[str, Any]:
    """Refuse an account that does not fit the schema or speaks for somebody else, and name its
    sender; returns the account."""
    try:
        if missing := sorted(KEYS - told.keys()):
            raise shape.Unfit(f"'{missing[0]}' is missing")
        if strange := sorted(told.keys() - KEYS - OPTIONAL):
            raise shape.Unfit(f"it has {len(strange)} unknown keys")
        _check_history(told["history"], who)
        _check_scores(told["scores"], who)
        _check_decision(told["decision"], who)
        for purpose, seconds in shape.table(told["spent"], "spent", ENTRIES).items():
            shape.name(purpose, "spent")
            shape.number(seconds, "spent", SECONDS)
        for key in ("remarks", "warnings"):
            shape.texts(told[key], key, TEXTS)
        _check_task(told["task"])
        _check_stopping(told.get("stopping"), who)
        shape.protections(told.get("protected", {}), "protected")
        digest = told["weights_sha256"]
        if not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
            raise shape.Unfit("weights_sha256 is not a digest")
    except shape.Unfit as why:
        raise CodecError(
            f"'{who.name}' sent an account of its work that is refused: {why}. Its program was "
            "changed, is of another version, or its method lets it speak for others"
        ) from None
    return told


def _check_task(told: object) -> None:
    try:
        if shape.table(told, "task", 4):
            Task.from_told(told)
    except DataError as why:
        raise shape.Unfit(f"task: {why}") from None


def _check_stopping(told: object, who: Speaker) -> None:
    if told is None:
        return
    if not (who.counts and who.labelled):
        raise shape.Unfit(
            "it tells when the training stopped, which only the label holder may tell"
        )
    found = shape.table(told, "stopping", 4)
    if found.keys() != {"best_epoch", "of", "metric", "value"}:
        raise shape.Unfit("stopping does not name best_epoch, of, metric and value")
    shape.count(found["of"], "stopping.of", EPOCHS)
    shape.count(found["best_epoch"], "stopping.best_epoch", found["of"])
    shape.name(found["metric"], "stopping.metric")
    shape.number(found["value"], "stopping.value", math.inf)


def _check_history(rows: object, who: Speaker) -> None:
    seen: set[tuple[str, int]] = set()
    numbers = 0
    for row in shape.sequence(rows, "history", ROWS):
        own = shape.table(row, "history", ENTRIES)
        shape.name(own.get("phase"), "history.phase")
        for key in ("epoch", "of"):
            shape.count(own.get(key), f"history.{key}", EPOCHS)
        shape.number(own.get("seconds"), "history.seconds", SECONDS)
        place = own["phase"], own["epoch"]
        if place in seen:
            raise shape.Unfit(f"history has epoch {own['epoch']} of one phase twice")
        seen.add(place)
        logged = {key: value for key, value in own.items() if key not in NOT_LOGGED}
        others = shape.table(own.get("others", {}), "history.others", ENTRIES)
        for whose, table in {who.name: logged, **others}.items():
            _subject(whose, "history", who)
            for name, value in shape.table(table, "history", ENTRIES).items():
                shape.name(name, "history")
                shape.loggable(value, "history")
                numbers += 1
        if numbers > NUMBERS:
            raise shape.Unfit(f"history has more than {NUMBERS} numbers")


def _check_scores(splits: object, who: Speaker) -> None:
    for split, measures in shape.table(splits, "scores", ENTRIES).items():
        shape.name(split, "scores")
        for measure, values in shape.table(measures, "scores", ENTRIES).items():
            shape.name(measure, "scores")
            where = f"scores.{measure}"
            if measure in DERIVED:
                raise shape.Unfit(f"scores hold '{measure}', which follows from the others")
            judged = measure == "per_party" or measure in {*who.measures, *RESERVED}
            if judged and not who.labelled:
                raise shape.Unfit(f"it tells scores '{measure}', and it holds no labels")
            if measure in ("per_party", *RESERVED) and not who.counts:
                raise shape.Unfit(f"it tells '{measure}', which only the label holder may tell")
            if measure == "confusion":
                _check_confusion(values)
            elif measure == "confusion_party":
                _subject(values, where, who)
            else:
                for whose, value in shape.table(values, where, ENTRIES).items():
                    _subject(whose, where, who)
                    if measure == "measures":
                        _check_measures(value)
                    elif measure == "curves":
                        _check_curves(value)
                    else:
                        shape.number(value, where, 1.0 if judged else math.inf)
        if ("confusion" in measures) != ("confusion_party" in measures):
            raise shape.Unfit("scores hold half of a confusion matrix")


def _check_measures(named: object) -> None:
    """Every measure with its interval; what rows do not define is null."""
    for name, found in shape.table(named, "scores.measures", ENTRIES).items():
        where = f"scores.measures.{shape.named(name)}"
        if name not in MEASURES:
            raise shape.Unfit(f"{where} is no measure")
        if shape.table(found, where, 3).keys() != {"value", "low", "high"}:
            raise shape.Unfit(f"{where} is not a value with the ends of its interval")
        least, most = bounds(name)
        for number in found.values():
            if number is not None:
                shape.loggable(number, where)
                if not (math.isnan(number) or least - ROUNDING <= number <= most + ROUNDING):
                    raise shape.Unfit(f"{where} is {number}, not from {least:g} to {most:g}")
        if None not in (found["low"], found["high"]) and found["low"] > found["high"]:
            raise shape.Unfit(f"{where} has an interval that ends before it begins")


def _check_curves(named: object) -> None:
    """Curves are short, and all axes of one are equally long (a histogram has one edge more)."""
    for name, axes in shape.table(named, "scores.curves", len(CURVES)).items():
        where = f"scores.curves.{shape.named(name)}"
        if name not in CURVES:
            raise shape.Unfit(f"{where} is no curve")
        if shape.table(axes, where, 4).keys() != set(CURVES[name]):
            raise shape.Unfit(f"{where} does not have the axes {', '.join(CURVES[name])}")
        for axis, numbers in axes.items():
            least, most = (-LARGEST, LARGEST) if axis in IN_UNITS.get(name, ()) else (0.0, 1.0)
            for number in shape.sequence(numbers, where, POINTS):
                shape.number(number, where, most, least)
        more = 1 if "edges" in axes else 0
        if len({len(numbers) - more * (axis == "edges") for axis, numbers in axes.items()}) > 1:
            raise shape.Unfit(f"{where} has axes of different lengths")


def _check_decision(told: object, who: Speaker) -> None:
    """How a party decides; of what it chose, that it can be applied."""
    if told is None:
        return
    if not (who.counts and who.labelled):
        raise shape.Unfit("it tells a decision, which only the label holder may tell")
    rule = shape.table(told, "decision", 4)
    if rule.keys() != {"threshold", "chosen_by", "positive", "calibration"}:
        raise shape.Unfit("decision does not have the keys of a decision")
    if rule["threshold"] is not None:  # nobody is flagged above 1
        shape.number(rule["threshold"], "decision.threshold", 2.0)
    if rule["chosen_by"] not in ("default", "fixed", "rate", "cost"):
        raise shape.Unfit("decision.chosen_by is not a way to decide")
    shape.count(rule["positive"], "decision.positive", ENTRIES, least=0)
    made = shape.table(rule["calibration"], "decision.calibration", 6)
    if made.keys() != Calibration().told().keys() or made["way"] not in WAYS:
        raise shape.Unfit("decision.calibration is not a calibration")
    shape.count(made["positive"], "decision.calibration", ENTRIES, least=0)
    for number in (made["slope"], made["offset"]):
        shape.number(number, "decision.calibration", math.inf)
    shape.texts([made["note"]], "decision.calibration", 1)
    for line in shape.sequence(made["lines"], "decision.calibration", ENTRIES):
        if len(shape.sequence(line, "decision.calibration", 2)) != 2:
            raise shape.Unfit("decision.calibration has a line that is none")
        for places in line:
            for number in shape.sequence(places, "decision.calibration", ROWS):
                shape.number(number, "decision.calibration", math.inf)
        if len(line[0]) != len(line[1]) or not line[0]:
            raise shape.Unfit("decision.calibration has a line that is none")


def _check_confusion(cells: object) -> None:
    rows = shape.sequence(cells, "scores.confusion", MOST_CLASSES)
    for row in rows:
        if len(shape.sequence(row, "scores.confusion", MOST_CLASSES)) != len(rows):
            raise shape.Unfit("scores.confusion is not square")
        for cell in row:
            shape.count(cell, "scores.confusion", EPOCHS, least=0)


def _subject(value: object, where: str, who: Speaker) -> None:
    shape.name(value, where)
    if value not in who.parties:
        raise shape.Unfit(f"{where} speaks of '{value}', and it may speak of itself alone")


# ---- texts of others -----------------------------------------------------------------------------


def attributed(
    accounts: Mapping[str, Mapping[str, Any]], own: frozenset[str], known: list[str]
) -> Iterator[str]:
    """Remarks and warnings, each with the name of who says so unless it is the reader's own party
    or the reader knows it anyhow."""
    texts = {
        party: [*told.get("remarks", ()), *told.get("warnings", ())]
        for party, told in accounts.items()
    }
    known = [*known, *(text for party in own for text in texts.get(party, ()))]
    for party, said in texts.items():
        for text in said:
            if party in own:
                yield text
            elif text not in known:
                yield f"'{party}' says: {foreign(text)}"
