"""`colonnade data`: the data sets there are; fetch one, or check its files."""

from __future__ import annotations

import argparse
import json

from rich.text import Text

from colonnade import data
from colonnade.cli.show import console_for, say
from colonnade.errors import DataError
from colonnade.report import units


def main(arguments: argparse.Namespace) -> None:
    console = console_for(arguments)
    if arguments.action == "list":
        rows = data.available()
        if arguments.json:
            say(json.dumps([vars(row) for row in rows]))
            return
        for row in rows:
            size = units.size(row.bytes) if row.bytes else ""
            line = f"{row.name:20} {row.status:14} {size:>8}  {row.description}"
            if row.status in ("can be fetched", "place by hand"):
                line += f"\n{'':21}{row.where}"
            console.print(Text(line), soft_wrap=True)
        return
    if not arguments.name:
        raise DataError(f"colonnade data {arguments.action}: which one? See colonnade data list")
    if arguments.action == "fetch":
        here = [row for row in data.available() if row.name == arguments.name]
        if here and here[0].status in ("here", "embedded"):
            folder = here[0].where
        else:
            folder = str(data.fetch(arguments.name))
        if arguments.json:
            say(json.dumps({"folder": str(folder)}))
        console.print(Text(f"'{arguments.name}' lies in {folder}"), soft_wrap=True)
        return
    checked = data.check(arguments.name)
    if arguments.json:
        say(json.dumps([{"path": str(c.path), "verdict": c.verdict} for c in checked]))
    for one in checked:
        console.print(Text(f"{one.verdict:12} {one.path}"), soft_wrap=True)
    if any(one.verdict == "wrong" for one in checked):
        raise DataError(
            f"'{arguments.name}': a file is not the published one; fetch or place it again"
        )
