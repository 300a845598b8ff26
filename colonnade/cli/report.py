"""`colonnade report`: one self-contained HTML file."""

from __future__ import annotations

import argparse
import json

from colonnade import report
from colonnade.cli.folders import results_of
from colonnade.cli.show import say
from colonnade.errors import RunError
from colonnade.report.seeds import write_page
from colonnade.runs.seeds import is_seeds, read_seeds


def main(arguments: argparse.Namespace) -> None:
    if is_seeds(arguments.runs[0]):
        if len(arguments.runs) > 1:
            raise RunError("a report of several seeds is of one folder: give that one alone")
        out = arguments.out or arguments.runs[0] / "report.html"
        say(str(write_page(read_seeds(arguments.runs[0]), out)))
        return
    results = results_of(arguments.runs)
    out = arguments.out or arguments.runs[0] / "report.html"
    try:
        page = report.write_report(results, out, arguments.runs)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror}") from None
    if arguments.json:
        say(json.dumps({"report": str(page)}))
    else:
        say(str(page))
