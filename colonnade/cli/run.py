"""`colonnade run`: train one configuration."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from colonnade.cli.progress import Progress
from colonnade.cli.seeds import finish_seeds
from colonnade.cli.show import console_for, finish
from colonnade.deploy.supervisor import Options
from colonnade.errors import RunError
from colonnade.runs.run import run
from colonnade.runs.seeds import run_seeds


def main(arguments: argparse.Namespace) -> None:
    console = console_for(arguments)
    overrides = list(arguments.overrides)
    if arguments.device:
        overrides.append(f"device={arguments.device}")
    file = arguments.file
    if file is None:
        if arguments.resume is None:
            raise RunError("colonnade run: give a FILE, or --resume DIR to go on with a run")
        file = arguments.resume / "config.toml"
    if arguments.seeds is not None:
        _several(arguments, file, overrides, console)
        return
    result = run(
        file,
        overrides=overrides,
        out=arguments.out,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        observer=Progress(console),
        runtime=arguments.runtime,
        processes=Options(arguments.restarts, arguments.on_lost, arguments.deadline),
    )
    finish(arguments, console, [result])


def _several(
    arguments: argparse.Namespace, file: Path, overrides: Sequence[str], console: Console
) -> None:
    """A run for each of several seeds."""
    if arguments.resume is not None:
        raise RunError("--seeds goes on by itself: repeat the command that was stopped")
    done = run_seeds(
        file,
        arguments.seeds,
        overrides=overrides,
        out=arguments.out,
        overwrite=arguments.overwrite,
        observer=Progress(console),
        runtime=arguments.runtime,
        processes=Options(arguments.restarts, arguments.on_lost, arguments.deadline),
    )
    finish_seeds(arguments, console, done)
