"""`colonnade methods`: the methods there are."""

from __future__ import annotations

import argparse
import json

from rich.table import Table

from colonnade import methods
from colonnade.cli.show import console_for, say


def main(arguments: argparse.Namespace) -> None:
    found = [methods.find(name).method for name in methods.names()]
    if arguments.json:
        rows = [
            {"name": m.name, "summary": m.summary, "reference": m.about.reference} for m in found
        ]
        say(json.dumps(rows))
        return
    table = Table("Method", "What it is", "Roles", "Messages", box=None)
    for method in found:
        kinds = ", ".join(kind.name for kind in method.kinds) or "none"
        table.add_row(method.name, method.summary, ", ".join(method.roles), kinds)
    console_for(arguments).print(table)
