"""One piece of work as a configuration that crosses processes: a training run or a study's unit.

A unit's configuration has the key `study`; nothing else here tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade import config as configuration
from colonnade import report
from colonnade.plugin import own
from colonnade.reproduce import enrichment
from colonnade.runs.run import run


def digest(config: Mapping[str, Any]) -> str:
    """Equal for work with the same result."""
    if "study" in config:
        return enrichment.digest(config)
    return configuration.load(config, rule=own).sha256()


def start(config: Mapping[str, Any]) -> str:
    """Equal for runs that begin with the same local training; empty where there is none."""
    if "study" in config:
        return ""
    return configuration.load(config, rule=own).start_sha256()


def perform(config: dict[str, Any], folder: Path, starts: Path) -> None:
    """Leave result.json in `folder`; `starts` keeps local training that runs share."""
    if "study" in config:
        enrichment.perform(config, folder)
    else:
        run(config, out=folder, starts=starts)


def check(result: Mapping[str, Any]) -> None:
    """Raise RunError unless this version wrote the result."""
    if result.get("kind") != enrichment.KIND:
        report.check(result)
