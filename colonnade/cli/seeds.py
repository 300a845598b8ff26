"""Prints several runs of one configuration: apart from show.py, which must not wait for PyTorch."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.text import Text

from colonnade import report
from colonnade.cli.show import say
from colonnade.report import seeds as several
from colonnade.results.result import SEEDS
from colonnade.runs.seeds import Seeds


def finish_seeds(arguments: argparse.Namespace, console: Console, done: Seeds) -> None:
    """The means over several seeds, and a report of each and of all."""
    for result in done.results:
        report.write_report([result.content], result.path / "report.html", [result.path])
    page = several.write_page(done.content, done.path / "report.html")
    if arguments.json:
        say(json.dumps(done.content, indent=1))
    console.print()
    console.print(several.summary(done.content))
    console.print(Text(several.spoken(done.content)), soft_wrap=True)
    for warning in dict.fromkeys(w for each in done.results for w in each.content["warnings"]):
        console.print(Text(f"warning: {warning}"))
    console.print(Text(f"\nresult  {done.path / SEEDS}\nreport  {page}"), soft_wrap=True)
    if arguments.quiet and not arguments.json:
        say(str(done.path))
