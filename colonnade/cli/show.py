"""Prints the commands' output: a table for a person, JSON for a program, one line for a script."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from colonnade import report
from colonnade.results.result import Result


def console_for(arguments: argparse.Namespace) -> Console:
    """Where a person reads; silent with --json and --quiet."""
    return Console(highlight=False, quiet=arguments.json or arguments.quiet)


def say(text: str) -> None:
    """The one thing a quiet command still prints."""
    sys.stdout.write(text + "\n")


def finish(arguments: argparse.Namespace, console: Console, results: Sequence[Result]) -> None:
    """The table, the sentence, and where the report lies."""
    contents = [result.content for result in results]
    first = results[0]
    page = report.write_report(contents, first.path / "report.html", [r.path for r in results])
    if arguments.json:
        say(json.dumps(first.content, indent=1))
    console.print()
    console.print(report.summary(contents))
    console.print(Text(report.sentences(first.content)))
    for warning in first.content["warnings"]:
        console.print(Text(f"warning: {warning}"))
    console.print(Text(f"\nresult  {first.path / 'result.json'}\nreport  {page}"), soft_wrap=True)
    if arguments.quiet and not arguments.json:
        say(str(first.path))
