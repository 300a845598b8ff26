"""`colonnade compare`: several runs side by side."""

from __future__ import annotations

import argparse

from rich.text import Text

from colonnade import report
from colonnade.cli.folders import results_of
from colonnade.cli.show import console_for, say


def main(arguments: argparse.Namespace) -> None:
    results = results_of(arguments.runs)
    if arguments.json:
        say(report.as_json(results))
    console = console_for(arguments)
    console.print(report.comparison(results))
    if said := report.different_data(results):
        console.print(Text(f"warning: {said}"), soft_wrap=True)
