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
    data = {tuple(r["data"][key] for key in ("name", "train_rows", "test_rows")) for r in results}
    if len(data) > 1:
        kinds = "; ".join(f"{name}, {train} + {test} rows" for name, train, test in sorted(data))
        console.print(Text(f"warning: the runs are of different data ({kinds})"), soft_wrap=True)
