"""`colonnade compare`: several runs side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.text import Text

from colonnade import report
from colonnade.cli.folders import results_of
from colonnade.cli.show import console_for, say
from colonnade.errors import RunError
from colonnade.report import seeds
from colonnade.runs.seeds import is_seeds, read_seeds


def main(arguments: argparse.Namespace) -> None:
    several = [folder for folder in arguments.runs if is_seeds(folder)]
    if several:
        _seeds(arguments, several)
        return
    results = results_of(arguments.runs)
    if arguments.json:
        say(report.as_json(results))
    console = console_for(arguments)
    console.print(report.comparison(results))
    if said := report.different_data(results):
        console.print(Text(f"warning: {said}"), soft_wrap=True)


def _seeds(arguments: argparse.Namespace, several: list[Path]) -> None:
    """Several seeds of each: differences seed by seed."""
    if single := [str(folder) for folder in arguments.runs if folder not in several]:
        raise RunError(
            f"{single[0]} is one run, and {several[0]} holds several seeds: compare either runs or "
            "several seeds of each"
        )
    contents = [read_seeds(folder) for folder in several]
    if arguments.json:
        say(json.dumps(contents, indent=1))
    console = console_for(arguments)
    console.print(seeds.comparison(contents))
    numbers = {"rmse" in content["measures"]: str(content["name"]) for content in contents}
    if len(numbers) == 2:
        said = report.incomparable(numbers[True], numbers[False])
        console.print(Text(f"warning: {said}"), soft_wrap=True)
