"""`colonnade doctor`: what would go wrong, before it does."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from colonnade.cli.party import own_file
from colonnade.config import federation
from colonnade.deploy import doctor
from colonnade.deploy.setup import read_rows
from colonnade.errors import RunError

COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


def main(arguments: argparse.Namespace) -> int:
    """1 where there is a problem."""
    mine = _mine(arguments)
    plain = mine is None and not doctor.is_site(arguments.federation)
    if arguments.overrides and not (plain and doctor.is_run(arguments.federation)):
        raise RunError(
            "colonnade doctor: --set is for a run file; all parties need the same federation file, "
            "so change that"
        )
    if doctor.is_site(arguments.federation):
        if mine is not None:
            raise RunError("colonnade doctor: a site.toml says all of it itself: omit --name")
        checks = doctor.examine_site(arguments.federation)
    elif mine is None and doctor.is_run(arguments.federation):
        checks = doctor.examine_run(arguments.federation, arguments.overrides)
    else:
        checks = doctor.examine(arguments.federation, mine)
    worst = max((check.verdict for check in checks), key=list(COLOURS).index)
    worst = "ok" if worst == "note" else worst  # nothing has to be done about it
    if arguments.json:
        content = {"verdict": worst, "checks": [asdict(check) for check in checks]}
        sys.stdout.write(json.dumps(content, indent=1) + "\n")
    else:
        _show([c for c in checks if c.verdict not in ("ok", "note") or not arguments.quiet])
    return 1 if worst == "problem" else 0


def _mine(arguments: argparse.Namespace) -> doctor.Mine | None:
    name = arguments.name
    if name is None:
        options = ("keys", "data", "id", "label", "policy", "out")
        given = [o for o in options if getattr(arguments, o) is not None]
        if given:
            raise RunError(f"colonnade doctor: --{given[0]} is of one party: say whose with --name")
        return None

    def rows(shared: federation.Federation) -> Any:
        return read_rows(own_file(arguments), shared, name)

    return doctor.Mine(
        name,
        arguments.keys or arguments.federation.parent / "keys",
        None if arguments.data is None else rows,
        arguments.policy,
        arguments.out,
    )


def _show(checks: list[doctor.Check]) -> None:
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for check in checks:
        found = Text(check.found)
        if check.move:
            found.append(f"\n→ {check.move}")
        table.add_row(Text(check.verdict, COLOURS[check.verdict]), Text(check.about), found)
    Console(highlight=False).print(table)
