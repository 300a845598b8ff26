"""The audit file of a run: one JSON object per line, for a program that collects events.

Every message, every denial and every control step is an event; docs/reference/audit.md has the
fields. Messages have no times of their own, since equal runs have equal ledgers: a seal says by
when they were on record.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from colonnade.errors import RunError
from colonnade.results.result import read_json
from colonnade.wire import ledger, seals
from colonnade.wire.seals import Seal

SCHEMA = "colonnade-audit-1"
Event = dict[str, Any]


def export(run: Path, file: Path) -> int:
    """Write the audit file of a run folder; how many events it has."""
    path = run / "ledger.jsonl"
    if not path.is_file():
        raise RunError(f"{run} has no ledger: give a run folder")
    draft, count = file.with_name(f"{file.name}.part"), 0
    try:
        with draft.open("w", encoding="utf-8") as out:
            for event in events(run):
                out.write(json.dumps(event, separators=(",", ":")) + "\n")
                count += 1
        draft.replace(file)
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
    return count


def events(run: Path) -> Iterator[Event]:
    """All events in their order: of the training, then of all predictions. A RunError where the
    chain of a ledger breaks, or where that of the training is not the one that its owner signed
    for."""
    yield from _trained(run)
    if (run / "ledger-predict.jsonl").is_file():
        yield from _predicted(run)


def _predicted(run: Path) -> Iterator[Event]:
    """What `colonnade predict` has sent and received; nobody signs for it."""
    manifest = _json(run / "run.json")
    owner = manifest.get("party")
    common = {
        "schema": SCHEMA,
        "run": manifest.get("run") or None,
        "party": owner,
        "task": "predict",
    }
    for row, digest in ledger.hashed(run / "ledger-predict.jsonl"):
        yield common | _of_row(row, owner) | _times([], row["row"]) | {"hash": digest}


def _trained(run: Path) -> Iterator[Event]:
    manifest, result = _json(run / "run.json"), _json(run / "result.json")
    owner, path = manifest.get("party"), run / "ledger.jsonl"
    common = {
        "schema": SCHEMA,
        "run": manifest.get("run") or None,
        "party": owner,
        "task": "train",
    }
    made = _placed(list(seals.read(seals.beside(path))), owner)
    clock = [
        (place, seal.statement.time) for place, seal in made if seal.statement.by == owner
    ]  # the rows that were there at a time
    signed = {0: ("", "")} | {
        seal.statement.rows: (seal.statement.head, seal.statement.time)
        for _, seal in made
        if seal.statement.by == owner and seal.holds()
    }
    finished = result.get("status") == "finished"
    end = result.get("wire", {}).get("head") if finished else None
    attempt, place, number = 0, 0, -1
    said: set[str] = set()
    for row, digest in ledger.hashed(path, end):
        number = row["row"]
        head, when = signed.get(number + 1, (digest, ""))
        if head != digest:
            raise _unsigned(path, owner, number + 1, when)
        while place < len(made) and made[place][0] <= number:
            yield from _of_seal(made[place][1], owner, common, said)
            place += 1
        times = _times(clock, number)
        if row.get("attempt", attempt) > attempt:
            attempt = row["attempt"]
            yield common | {"event": "attempt", "time": times["since"], "attempt": attempt}
        yield common | _of_row(row, owner) | times | {"hash": digest}
    if max(signed) > number + 1:
        raise _unsigned(path, owner, max(signed), signed[max(signed)][1])
    for _, seal in made[place:]:
        yield from _of_seal(seal, owner, common, said)
    if status := result.get("status"):
        yield common | {
            "event": "stop" if status == "stopped" else "end",
            "time": None,
            "status": status,
            "error": result.get("error") or None,
            "rows": number + 1,
        }


def _unsigned(path: Path, owner: Any, rows: int, when: str) -> RunError:
    return RunError(
        f"{path} is not the one that '{owner}' signed for at {when}: of its first {rows} rows some "
        "were removed, moved or changed. Compare it with a peer's: `colonnade ledger --reconcile`"
    )


def _of_row(row: Mapping[str, Any], owner: Any) -> Event:
    if "note" in row:
        return {"event": "note", "row": row["row"], "attempt": row["attempt"], "text": row["note"]}
    event = "denied" if "denied" in row else "message"
    kept = {key: value for key, value in row.items() if key not in ("previous", "denied")}
    way = {row["sender"]: "sent", row["receiver"]: "received"}.get(owner)
    why = {"why": row["denied"]} if "denied" in row else {}
    return {"event": event, "direction": way} | kept | why


def _of_seal(seal: Seal, owner: Any, common: Event, said: set[str]) -> Iterator[Event]:
    """A seal; the owner's first one at a checkpoint is the checkpoint's event, too."""
    one = seal.statement
    if one.at == "checkpoint" and one.by == owner and one.place not in said:
        said.add(one.place)
        yield common | {
            "event": "checkpoint",
            "time": one.time,
            "attempt": one.attempt,
            "place": one.place,
            "rows": one.rows,
        }
    yield common | {
        "event": "seal",
        "time": one.time,
        "attempt": one.attempt,
        "by": one.by,
        "to": one.to,
        "reason": one.at,
        "place": one.place or None,
        "rows": one.rows,
        "head": one.head,
        "key": seal.key,
        "signature": seal.signature,
        "holds": seal.holds(),
    }


def _placed(made: list[Seal], owner: Any) -> list[tuple[int, Seal]]:
    """Every seal, after which of the owner's rows: the answer of a peer beside the owner's seal
    before it, a peer's question beside the owner's answer."""
    own = [0, *(seal.statement.rows for seal in made if seal.statement.by == owner)]
    found: list[tuple[int, Seal]] = []
    place = 0
    for seal in made:
        mine, answer = seal.statement.by == owner, seal.statement.at == "answer"
        place += mine
        found.append((own[place if mine or answer else min(place + 1, len(own) - 1)], seal))
    return found


def _times(clock: list[tuple[int, str]], row: int) -> dict[str, str | None]:
    """By when a row was on record, and what time it was before it."""
    after = bisect_right(clock, row, key=lambda seal: seal[0])
    return {
        "time": clock[after][1] if after < len(clock) else None,
        "since": clock[after - 1][1] if after else None,
    }


def _json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
