"""The run folders that a command is given: read and checked, whichever version has written them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colonnade import report
from colonnade.results.result import read


def results_of(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """What stands in every folder's result.json."""
    results = [read(folder).content for folder in runs]
    for result in results:
        report.check(result)
    return results
