"""What sites tell through the engine, checked: each speaks of itself, within bounds.

Whoever submits a job reads this, and the engine's server passes it on; neither trusts a site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from colonnade.config.federation import Federation
from colonnade.errors import CodecError, DataError
from colonnade.results.account import Speaker, check
from colonnade.task import Task

LETTERS, LOG_LETTERS, LINES, FLOWS = 2000, 64 << 10, 1000, 10_000
PHASES = ("setup", "train", "eval")
COUNTS = ("bytes", "messages")
DATA = {  # of result.json, by the type of the value
    "name": str,
    "train_rows": int,
    "test_rows": int,
    "classes": list,
    "task": dict,
    "partition": str,
    "own_rows": dict,
    "common_rows": int,
    "files_sha256": dict,
    "labels_lent": bool,
}


def progress(text: object) -> dict[str, Any]:
    """How far a site says it is; what makes no sense is left out."""
    told = _parsed(text)
    meter, epoch, crossed = told.get("meter"), told.get("epoch"), told.get("bytes")
    found: dict[str, Any] = {key: True for key in ("began", "ended") if told.get(key) is True}
    if _count(crossed):
        found["bytes"] = crossed
    parts = meter if isinstance(meter, list) else []
    if [type(part) for part in parts] in ([str, float, int], [str, int, int]):
        found["meter"] = [parts[0][:LETTERS], float(parts[1]), parts[2]]
    if isinstance(epoch, dict) and _count(crossed) and len(json.dumps(epoch)) <= LOG_LETTERS:
        found["epoch"] = epoch
    return found


def answer(text: object, otherwise: str) -> dict[str, Any]:
    """A site's answer to a task."""
    if not text:
        return {"problem": otherwise}
    told = _parsed(text)
    return told or {"problem": "its answer makes no sense: its program was changed"}


def checked(site: object, name: str, federation: Federation) -> dict[str, Any]:
    """All that one site has told at the end. What it may not say is replaced by its problem."""
    told = site if isinstance(site, dict) else {}
    found: dict[str, Any] = {
        "log": _text(told.get("log"), LOG_LETTERS),
        "warnings": [_text(line, LETTERS) for line in _list(told.get("warnings"))[:LINES]],
        "rounds": told["rounds"] if _count(told.get("rounds")) else 0,
    }
    if not isinstance(site, dict):
        told = {"problem": "what it tells makes no sense: its program was changed"}
    if "problem" in told:
        found["problem"] = _text(told["problem"], LETTERS)
    settings = federation.run
    who = Speaker.of(
        name, settings.found.method, settings.options, federation.cast, federation.holder
    )
    try:
        if told.get("account") is not None:
            if not isinstance(told["account"], dict):
                raise CodecError(f"'{name}' sent an account that is not a table")
            found["account"] = check(told["account"], who)
        found["wire"] = _wire(told.get("wire") or {}, name, federation)
        found["data"] = _data(told.get("data") or {}, name)
    except (CodecError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = str(error) if isinstance(error, CodecError) else "what it tells makes no sense"
        found["problem"] = f"{type(error).__name__}: {why}"
        found |= {"account": None, "wire": {}, "data": {}}
    return found


def _wire(told: Mapping[str, Any], name: str, federation: Federation) -> dict[str, Any]:
    """What a site has sent. Everything is summed from its flows, which are its own."""
    kinds = federation.run.kinds
    flows: list[dict[str, Any]] = []
    by_kind: dict[str, dict[str, Any]] = {}
    by_party: dict[str, dict[str, int]] = {}
    for flow in _list(told.get("flows"))[:FLOWS]:
        kind, receiver = kinds[flow["kind"]], flow["receiver"]
        if flow["sender"] != name or receiver not in federation.names:
            raise CodecError(f"'{name}' tells of messages that it has not sent")
        size, count = flow["bytes"], flow["messages"]
        if not (_count(size) and _count(count)):
            raise ValueError
        flows.append({"sender": name, "receiver": receiver, "kind": kind.name, "messages": count})
        flows[-1]["bytes"] = size
        declared = {"shape": kind.describe(), "dtype": kind.dtype, "reveals": kind.reveals}
        one = by_kind.setdefault(kind.name, {"bytes": 0, "messages": 0, **declared})
        for whose, way in ((name, "sent"), (receiver, "received")):
            nothing = {f"{w}_{c}": 0 for w in ("sent", "received") for c in COUNTS}
            party = by_party.setdefault(whose, nothing)
            party[f"{way}_bytes"] += size
            party[f"{way}_messages"] += count
        one["bytes"] += size
        one["messages"] += count
    total = {key: sum(flow[key] for flow in flows) for key in COUNTS}
    phases = told.get("by_phase") or {}
    by_phase = {p: {key: phases.get(p, {}).get(key, 0) for key in COUNTS} for p in PHASES}
    for key in COUNTS:
        parts = [by_phase[phase][key] for phase in PHASES]
        if not all(map(_count, parts)) or sum(parts) != total[key]:
            raise CodecError(f"'{name}' tells of phases that do not add up to what it has sent")
    return {**total, "by_kind": by_kind, "by_party": by_party, "by_phase": by_phase, "flows": flows}


def _data(told: Mapping[str, Any], name: str) -> dict[str, Any]:
    for key, value in told.items():
        if type(value) is not DATA.get(key) or len(json.dumps(value)) > LOG_LETTERS:
            raise CodecError(f"'{name}' tells something unknown of its data")
    if told.get("task"):
        try:
            Task.from_told(told["task"])
        except DataError as why:
            raise CodecError(f"'{name}' tells of a task that is refused: {why}") from None
    return dict(told)


def _parsed(text: object) -> dict[str, Any]:
    try:
        told = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _text(value: object, most: int) -> str:
    return value[-most:] if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
