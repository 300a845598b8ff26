"""`colonnade ledger`: what left each party."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from colonnade.cli.folders import results_of
from colonnade.cli.show import console_for, say
from colonnade.errors import RunError, printable
from colonnade.report import flows_table, units
from colonnade.results import audit
from colonnade.wire import ledger
from colonnade.wire.reconcile import Reconciliation, reconcile

SHOWN = 10  # rows of each sort that fit a screen


def main(arguments: argparse.Namespace) -> int:
    if (arguments.run is None) == (arguments.reconcile is None):
        raise RunError("colonnade ledger: give either a RUN, or --reconcile A B")
    if arguments.reconcile is not None:
        if arguments.export is not None:
            raise RunError("colonnade ledger: --export is of one RUN; omit --reconcile")
        return _reconcile(arguments)
    if arguments.export is not None:
        return _export(arguments)
    path = arguments.run / "ledger.jsonl"
    (result,) = results_of([arguments.run])
    if not path.exists():
        raise RunError(f"{arguments.run} has no ledger")
    rows = ledger.read(path, result["wire"].get("head"))  # reading checks the chain
    wire = ledger.summarise(rows, {})
    for name, kind in wire["by_kind"].items():
        declared = result["wire"]["by_kind"].get(name, {})
        kind |= {key: declared[key] for key in ("shape", "dtype", "reveals") if key in declared}
    if arguments.json:
        say(json.dumps(wire))
        return 0
    console = console_for(arguments)
    console.print(flows_table(wire["flows"], result["wire"]["by_kind"]))
    console.print(
        f"{units.count(wire['messages'])} messages, {units.size(wire['bytes'])}; "
        "the chain of hashes holds"
    )
    return 0


def _export(arguments: argparse.Namespace) -> int:
    """The audit file of a run."""
    count = audit.export(arguments.run, arguments.export)
    if arguments.json:
        say(json.dumps({"file": str(arguments.export), "events": count}))
    text = f"{units.count(count)} events in {arguments.export}; the chain of hashes holds"
    console_for(arguments).print(Text(text), soft_wrap=True)
    return 0


def _reconcile(arguments: argparse.Namespace) -> int:
    """Two ledgers side by side; 1 where they do not fit."""
    found = reconcile(*arguments.reconcile)
    one, other = found.owners
    if not found.matched and not found.unreceived and not found.faults:
        raise RunError(f"nothing to compare: '{one}' and '{other}' record no message between them")
    lines = [f"{one} and {other}"]
    if not found.broken:
        lines.append(
            f"  matched              {units.count(found.matched)}, {units.size(found.bytes)}"
        )
    for what, rows in (("sent, not received", found.unreceived), ("never sent", found.unsent)):
        lines += [f"  {what:20} {len(rows)}"] if rows else []
        lines += [f"    {_row(row)}" for row in rows[:SHOWN]]
    for mine, its in found.different[:SHOWN]:
        lines += [f"  different            {_row(mine)}"]
        lines += [
            f"    {part:18} {mine[part]} at {one}, {its[part]} at {other}"
            for part in mine
            if part != "row" and mine[part] != its[part]
        ]
    if len(found.different) > SHOWN:
        lines.append(f"  different            {len(found.different) - SHOWN} more")
    if not found.broken:
        lines.append(f"  sealed               {_sealed(found)}")
    lines += [f"fault: {fault}" for fault in found.faults]
    if not found.faults:
        why = "; what did not arrive was done again, or is of an unfinished run"
        agree = "the two ledgers agree"
        if found.unreceived and found.open:
            agree, why = "no fault is found, but not all that was sent is sealed", ""
        lines.append(f"{agree}{why if found.unreceived else ''}")
    if arguments.json:
        say(json.dumps(found.content()))
    # One of the two ledgers is of somebody else, who may have written anything into it.
    shown = "\n".join(printable(line.replace("\n", "\\n")) for line in lines)
    console_for(arguments).print(Text(shown), soft_wrap=True)
    return 1 if found.faults else 0


def _sealed(found: Reconciliation) -> str:
    """How far both have signed."""
    if not found.sealed:
        return "nothing: no word of the two is signed"
    rest = f"; {units.count(found.open)} that are not" if found.open else ""
    return f"{units.count(found.sealed)}, signed by both{rest}"


def _row(row: Mapping[str, Any]) -> str:
    return (
        f"{row['sender']} → {row['receiver']}, {row['kind']} {row['sequence']} of attempt "
        f"{row['attempt']}: {units.count(row['bytes'])} bytes (row {row['row']})"
    )
