"""`colonnade reproduce`: a paper's table, ours against theirs."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.text import Text

from colonnade import reproduce
from colonnade.cli.show import console_for, say
from colonnade.errors import ColonnadeError


def main(arguments: argparse.Namespace) -> None:
    console = console_for(arguments)
    if arguments.missing:
        _missing(arguments, console)
        return
    if arguments.name is None:
        rows = reproduce.shelf()
        if arguments.json:
            say(json.dumps(rows))
        reproduce.show_shelf(rows, console)
        return
    request = reproduce.Request(
        arguments.name,
        size="full" if arguments.full else "fast",
        seeds=arguments.seeds,
        only=tuple(arguments.only),
        jobs=arguments.jobs,
        device=arguments.device,
        out=arguments.out,
        reuse=tuple(arguments.reuse),
        recorded=arguments.recorded,
    )
    content, folder = reproduce.reproduce(request, reproduce.Screen(console))
    reproduce.show(content, console)
    table, page = folder / "table.md", folder / "report.html"
    console.print(Text(f"\ntable   {table}\nreport  {page}"), soft_wrap=True)
    if arguments.json:
        say(json.dumps(content))
    elif arguments.quiet:
        say(str(folder))
    reproduce.check(content, folder)


def _missing(arguments: argparse.Namespace, console: Console) -> None:
    """The queue over all papers."""
    device = arguments.device or reproduce.device_for("full")
    papers = arguments.out or reproduce.folder()
    jobs = reproduce.missing(arguments.name, device, papers)
    if arguments.json:
        say(json.dumps([job.line() for job in jobs]))
    reproduce.show_missing(jobs, console)
    ready = [job for job in jobs if not job.held]
    if arguments.list or not ready:
        return
    number = arguments.jobs or reproduce.jobs_for(device)
    failed = 0
    for job, error in reproduce.perform(ready, papers, number, arguments.minutes):
        failed += bool(error)
        console.print(Text(f"  {job.name}  {error or 'recorded'}"), soft_wrap=True)
    left = len(reproduce.missing(arguments.name, device, papers))
    console.print(Text(f"{left} runs are missing; the same command goes on. Records: {papers}"))
    if failed:
        raise ColonnadeError(f"{failed} runs failed, see above; the same command tries them again")
