"""`colonnade reproduce`: a paper's table, ours against theirs."""

from __future__ import annotations

import argparse
import json

from rich.text import Text

from colonnade import reproduce
from colonnade.cli.show import console_for, say


def main(arguments: argparse.Namespace) -> None:
    console = console_for(arguments)
    if arguments.name is None:
        rows = reproduce.shelf()
        if arguments.json:
            say(json.dumps(rows))
        reproduce.show_shelf(rows, console)
        return
    request = reproduce.Request(
        arguments.name,
        size="full" if arguments.full else "fast",
        seeds=arguments.seeds,
        only=tuple(arguments.only),
        jobs=arguments.jobs,
        device=arguments.device,
        out=arguments.out,
        reuse=tuple(arguments.reuse),
    )
    content, folder = reproduce.reproduce(request, reproduce.Screen(console))
    reproduce.show(content, console)
    table, page = folder / "table.md", folder / "report.html"
    console.print(Text(f"\ntable   {table}\nreport  {page}"), soft_wrap=True)
    if arguments.json:
        say(json.dumps(content))
    elif arguments.quiet:
        say(str(folder))
    reproduce.check(content, folder)
