"""`colonnade report`: one self-contained HTML file."""

from __future__ import annotations

import argparse
import json

from colonnade import report
from colonnade.cli.folders import results_of
from colonnade.cli.show import say
from colonnade.errors import RunError


def main(arguments: argparse.Namespace) -> None:
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
