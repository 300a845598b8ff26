"""`colonnade run`: train one configuration."""

from __future__ import annotations

import argparse

from colonnade.cli.progress import Progress
from colonnade.cli.show import console_for, finish
from colonnade.deploy.supervisor import Options
from colonnade.errors import RunError
from colonnade.runs.run import run


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
