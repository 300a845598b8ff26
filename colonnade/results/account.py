"""A party's account of its work at the end of a run: numbers, and nothing of its rows.

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

from colonnade.errors import CodecError, DataError, foreign
from colonnade.results.result import NOT_LOGGED
from colonnade.role.method import Method
from colonnade.role.party import Party
from colonnade.task import Task

KEYS = frozenset(("history", "scores", "spent", "remarks", "weights_sha256", "task", "warnings"))
RESERVED = ("accuracy", "confusion", "confusion_party")  # in the metrics of a split
# How much one account may hold
ROWS, NUMBERS, ENTRIES, TEXTS, LETTERS, NAME_LETTERS = 100_000, 2_000_000, 1000, 200, 2000, 200
SECONDS, EPOCHS = 1e10, 1 << 40


def account(party: Party, holder: str) -> dict[str, Any]:
    """What one party can say at the end: plain values, ready for JSON."""
    scores: dict[str, Any] = {}
    for split, measures in party.predictions.items():
        labels = party.splits[split].y
        assert labels is not None
        entry = scores[split] = {
            measure: {
                # The same fraction on any device.
                name: int((outputs.argmax(1) == labels).sum()) / len(labels)
                for name, outputs in by_party.items()
            }
            for measure, by_party in measures.items()
        }
        counted = measures.get("per_party", {})
        if counted:
            whose = holder if holder in counted else next(iter(counted))
            entry["confusion"] = _confusion(
                labels, counted[whose].argmax(1), len(party.task.classes)
            )
            entry["confusion_party"] = whose
    for name, number in party.figures.items():
        scores.setdefault("test", {})[name] = {party.name: number}
    return {
        "history": party.history,
        "scores": scores,
        "spent": dict(party.spent),
        "remarks": list(party.remarks),
        "weights_sha256": party.kept.sha256(),
    }


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


class _Unfit(Exception):
    """What is wrong with an account."""


def check(told: Mapping[str, Any], who: Speaker) -> Mapping[str, Any]:
    """Refuse an account that does not fit the schema or speaks for somebody else, and name its
    sender; returns the account."""
    try:
        if missing := sorted(KEYS - told.keys()):
            raise _Unfit(f"'{missing[0]}' is missing")
        if strange := sorted(told.keys() - KEYS):
            raise _Unfit(f"it has {len(strange)} unknown keys")
        _check_history(told["history"], who)
        _check_scores(told["scores"], who)
        for purpose, seconds in _table(told["spent"], "spent", ENTRIES).items():
            _name(purpose, "spent")
            _number(seconds, "spent", SECONDS)
        for key in ("remarks", "warnings"):
            _texts(told[key], key, TEXTS)
        _check_task(told["task"])
        digest = told["weights_sha256"]
        if not (isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
            raise _Unfit("weights_sha256 is not a digest")
    except _Unfit as why:
        raise CodecError(
            f"'{who.name}' sent an account of its work that is refused: {why}. Its program was "
            "changed, is of another version, or its method lets it speak for others"
        ) from None
    return told


def _check_task(told: object) -> None:
    try:
        if _table(told, "task", 4):
            Task.from_told(told)
    except DataError as why:
        raise _Unfit(f"task: {why}") from None


def _check_history(rows: object, who: Speaker) -> None:
    seen: set[tuple[str, int]] = set()
    numbers = 0
    for row in _list(rows, "history", ROWS):
        own = _table(row, "history", ENTRIES)
        _name(own.get("phase"), "history.phase")
        for key in ("epoch", "of"):
            _count(own.get(key), f"history.{key}", EPOCHS)
        _number(own.get("seconds"), "history.seconds", SECONDS)
        place = own["phase"], own["epoch"]
        if place in seen:
            raise _Unfit(f"history has epoch {own['epoch']} of one phase twice")
        seen.add(place)
        logged = {key: value for key, value in own.items() if key not in NOT_LOGGED}
        others = _table(own.get("others", {}), "history.others", ENTRIES)
        for whose, table in {who.name: logged, **others}.items():
            _subject(whose, "history", who)
            for name, value in _table(table, "history", ENTRIES).items():
                _name(name, "history")
                _loggable(value, "history")
                numbers += 1
        if numbers > NUMBERS:
            raise _Unfit(f"history has more than {NUMBERS} numbers")


def _check_scores(splits: object, who: Speaker) -> None:
    for split, measures in _table(splits, "scores", ENTRIES).items():
        _name(split, "scores")
        for measure, values in _table(measures, "scores", ENTRIES).items():
            _name(measure, "scores")
            judged = measure == "per_party" or measure in {*who.measures, *RESERVED}
            if judged and not who.labelled:
                raise _Unfit(f"it tells scores '{measure}', and it holds no labels")
            if measure in ("per_party", *RESERVED) and not who.counts:
                raise _Unfit(f"it tells '{measure}', which only the label holder may tell")
            if measure == "confusion":
                _check_confusion(values)
            elif measure == "confusion_party":
                _subject(values, f"scores.{measure}", who)
            elif measure in RESERVED:
                raise _Unfit(f"scores hold '{measure}', which follows from the others")
            else:
                for whose, value in _table(values, f"scores.{measure}", ENTRIES).items():
                    _subject(whose, f"scores.{measure}", who)
                    _number(value, f"scores.{measure}", 1.0 if judged else math.inf)
        if ("confusion" in measures) != ("confusion_party" in measures):
            raise _Unfit("scores hold half of a confusion matrix")


def _check_confusion(cells: object) -> None:
    rows = _list(cells, "scores.confusion", ENTRIES)
    for row in rows:
        if len(_list(row, "scores.confusion", ENTRIES)) != len(rows):
            raise _Unfit("scores.confusion is not square")
        for cell in row:
            _count(cell, "scores.confusion", EPOCHS, least=0)


def _table(value: object, where: str, most: int) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or len(value) > most:
        raise _Unfit(f"{where} is not a table of at most {most} entries")
    return value


def _list(value: object, where: str, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise _Unfit(f"{where} is not a list of at most {most} entries")
    return value


def _texts(value: object, where: str, most: int) -> None:
    for text in _list(value, where, most):
        if not isinstance(text, str) or len(text) > LETTERS:
            raise _Unfit(f"{where} holds something that is not a text of at most {LETTERS} letters")


def _name(value: object, where: str) -> None:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= NAME_LETTERS:
        raise _Unfit(
            f"{where} has a name that is not a printable text of 1 to {NAME_LETTERS} letters"
        )


def _subject(value: object, where: str, who: Speaker) -> None:
    _name(value, where)
    if value not in who.parties:
        raise _Unfit(f"{where} speaks of '{value}', and it may speak of itself alone")


def _number(value: object, where: str, most: float) -> None:
    """A measure that is no fraction may be any number that is finite."""
    _loggable(value, where)
    least = -math.inf if most == math.inf else 0.0
    if not (isinstance(value, int | float) and math.isfinite(value) and least <= value <= most):
        raise _Unfit(f"{where} holds {value}, which is not between {least:g} and {most:g}")


def _loggable(value: object, where: str) -> None:
    """A loss may also be NaN or infinite; a result shows it as null."""
    if type(value) not in (int, float) or (isinstance(value, int) and abs(value) >= 1 << 63):
        raise _Unfit(f"{where} holds something that is not a number")


def _count(value: object, where: str, most: int, least: int = 1) -> None:
    if type(value) is not int or not least <= value <= most:
        raise _Unfit(f"{where} is not a whole number from {least} to {most}")


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
