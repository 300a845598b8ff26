"""`colonnade align`: which rows all parties have, and nothing more."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from colonnade import assembly, config, plugin
from colonnade.align import Alignment
from colonnade.align.phase import fingerprint
from colonnade.cli import party
from colonnade.cli.progress import Progress
from colonnade.config import code, federation
from colonnade.deploy import member
from colonnade.deploy.setup import read_rows
from colonnade.deploy.supervisor import Options
from colonnade.errors import ConfigError, RoleFailed, RunError
from colonnade.report import units
from colonnade.results.result import Result
from colonnade.runs.run import run


def main(arguments: argparse.Namespace) -> None:
    console = Console(highlight=False, quiet=arguments.json or arguments.quiet)
    if arguments.name is not None:
        result, options = _with_others(arguments, console)
        places = {arguments.name: result.path}
    else:
        result, options = _here(arguments, console)
        places = {name: result.path / "parties" / name for name in result.content["parties"]}
    found = {name: _found(name, place, result.content, options) for name, place in places.items()}
    if len({one["order"] for one in found.values()}) > 1:
        raise RoleFailed(
            f"the parties found different rows, or a different order: see {result.path}"
        )
    if arguments.json:
        sys.stdout.write(json.dumps({"path": str(result.path), "parties": found}, indent=1) + "\n")
    elif arguments.quiet:
        sys.stdout.write(f"{result.path}\n")
    table = Table("Party", "Rows", "Ids", "Common", "Order", "Sent", "Received", "Time", box=None)
    for name, one in found.items():
        table.add_row(
            name,
            *(units.count(one[key]) for key in ("rows", "ids", "common")),
            one["order"],
            *(units.size(one[key]) for key in ("sent_bytes", "received_bytes")),
            units.duration(one["seconds"]),
        )
    console.print()
    console.print(table)
    for warning in result.content["warnings"]:
        console.print(Text(f"warning: {warning}"))
    console.print()
    for place in places.values():
        console.print(Text(f"rows    {place / assembly.COMMON_FILE}"), soft_wrap=True)
    console.print(Text(f"result  {result.path / 'result.json'}"), soft_wrap=True)


def _here(arguments: argparse.Namespace, console: Console) -> tuple[Result, Alignment]:
    """All parties of a run file, on this machine."""
    for option in ("data", "id", "label", "keys", "policy"):
        if getattr(arguments, option) is not None:
            raise RunError(
                f"colonnade align: --{option} is of one party of a federation: say whose with "
                "--name. In a run file, [parties.NAME] names the files"
            )
    settings = config.load(arguments.file, arguments.overrides, rule=plugin.own).to_align()
    if not settings.files:
        raise ConfigError(
            [
                f"{arguments.file} names no files of the parties' own, so there is nothing to "
                'align: [parties.NAME] data = "bank.csv"'
            ]
        )
    result = run(
        settings,
        out=arguments.out,
        overwrite=arguments.overwrite,
        observer=Progress(console),
        runtime=arguments.runtime,
        processes=Options(),
    )
    return result, settings.align or Alignment()


def _with_others(arguments: argparse.Namespace, console: Console) -> tuple[Result, Alignment]:
    """One party of a federation, whose others type the same."""
    if arguments.runtime or arguments.overrides:
        raise RunError(
            "colonnade align: --runtime and --set are for a run file; what a federation does, its "
            "file says"
        )
    shared = federation.load_alignment(arguments.file, code.trusted_by(arguments.policy))
    shared.member(arguments.name)
    own = read_rows(party.own_file(arguments), shared, arguments.name)
    setup = party.prepared(arguments, shared, own)
    out = arguments.out or Path("runs") / f"{shared.name}-{arguments.name}"

    def say(text: str) -> None:
        console.print(Text(f"  {text}"), soft_wrap=True)

    result = member.take_part(setup, out, Progress(console), say)
    return result, shared.run.align or Alignment()


def _found(
    name: str, folder: Path, content: Mapping[str, Any], options: Alignment
) -> dict[str, Any]:
    """What one party has found, from what it has written."""
    common = assembly.read_common(folder)
    crossed = content["wire"]["by_party"][name]
    brought = content["data"]["own_rows"][name]
    return {
        "rows": brought,
        "ids": brought,  # an id that comes twice is refused when the file is read
        "common": len(common),
        "order": fingerprint(common, name, options),
        "sent_bytes": crossed["sent_bytes"],
        "received_bytes": crossed["received_bytes"],
        "seconds": content["timing"]["by_phase"]["align"],
        "file": str(folder / assembly.COMMON_FILE),
    }
