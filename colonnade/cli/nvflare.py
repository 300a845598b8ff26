"""`colonnade nvflare`: a federation as jobs of NVFlare.

colonnade nvflare provision federation.toml            project file and startup kits, once
colonnade nvflare submit federation.toml               train: submit, follow, fetch the results
colonnade nvflare submit --resume runs/scores          go on with a job that was aborted
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from colonnade.cli.progress import Progress
from colonnade.config import federation
from colonnade.deploy.nvflare import job, kits, sitefile, submit
from colonnade.errors import RunError
from colonnade.results.result import Result

Command = Callable[[Any, str, Any, str], argparse.ArgumentParser]
Finish = Callable[[argparse.Namespace, Console, list[Result]], None]


def add(commands: Any, command: Command, finish: Finish) -> None:
    """Register `colonnade nvflare`; `finish` shows a result as `colonnade run` does."""
    summary = "a federation as jobs of the engine NVFlare"
    top = commands.add_parser("nvflare", help=summary, description=summary)
    actions = top.add_subparsers(title="actions", metavar="ACTION", required=True)

    sub = command(actions, "provision", _provision, "the project file and startup kits")
    sub.add_argument("federation", type=Path, metavar="FILE", help="the federation file")
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: kits/ beside the file")
    sub.add_argument(
        "--server",
        default="",
        metavar="HOST:PORT",
        help="the engine's server, as all sites see it; default: that of the kits which are there, "
        f"or {kits.SERVER}",
    )
    sub.add_argument(
        "--state",
        default="",
        metavar="DIR",
        help="where the server keeps jobs, on its machine; default: /var/tmp/nvflare-<federation>",
    )
    sub.add_argument(
        "--admin", default=kits.ADMIN, metavar="NAME", help="who submits; like an e-mail address"
    )

    sub = command(actions, "submit", _submit, "train: submit, follow, fetch the results")
    sub.add_argument(
        "federation",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="the federation file; not needed to resume",
    )
    sub.add_argument(
        "--kit", type=Path, metavar="DIR", help=f"default: kits/{kits.ADMIN} beside the file"
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="default: runs/<federation>")
    sub.add_argument("--overwrite", action="store_true", help="replace an older run there")
    sub.add_argument("--resume", type=Path, metavar="RUN", help="go on with a job that was aborted")
    sub.add_argument(
        "--relay",
        action="store_true",
        default=None,
        help="for sites that open no port: connections pass, sealed, through the engine",
    )
    sub.set_defaults(finish=finish)


def _provision(arguments: argparse.Namespace) -> None:
    shared = federation.load(arguments.federation)
    out = arguments.out or arguments.federation.parent / "kits"
    made = kits.provision(shared, out, arguments.server, arguments.admin, arguments.state)
    lines = [f"project      {out / 'project.yml'}"]
    lines += [_line(path, out, shared) for path in made]
    lines.append(f"authority    {out / kits.AUTHORITY}: keep it to yourself")
    console = Console(highlight=False, quiet=arguments.json or arguments.quiet)
    console.print(Text("\n".join(lines)), soft_wrap=True)
    if arguments.json:
        found = {path.relative_to(out).parts[0]: str(path) for path in made}
        sys.stdout.write(json.dumps({"kits": found}) + "\n")
    elif arguments.quiet:
        sys.stdout.write("".join(f"{path}\n" for path in made))


def _line(path: Path, out: Path, shared: federation.Federation) -> str:
    """Whom to send a kit to, or a folder for a kit that its owner has already."""
    kit = path.relative_to(out).parts[0]
    if (party := job.party_of(kit)) in shared.names:
        inside = f"local/{sitefile.FOLDER}/{shared.name}"
        if path.name != kit:
            return f"folder       {path}: send it to '{party}', who puts it at {inside} of its kit"
        return f"kit          {path}: send it to '{party}', who completes {inside}/site.toml"
    whose = "for who submits" if "@" in kit else "for the machine of the server"
    return f"kit          {path}: {whose}"


def _submit(arguments: argparse.Namespace) -> None:
    file = arguments.federation
    if file is None:
        if arguments.resume is None:
            raise RunError("colonnade nvflare submit: give a FILE, or --resume RUN to go on")
        file = arguments.resume / "federation.toml"
    console = Console(highlight=False, quiet=arguments.json or arguments.quiet)
    result = submit.submit(
        federation.load(file),
        arguments.kit or _kit(file, arguments.resume),
        out=arguments.out,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        relay=arguments.relay,
        observer=Progress(console),
    )
    arguments.finish(arguments, console, [result])


def _kit(file: Path, resume: Path | None) -> Path:
    """Where `provision` puts the kit of who submits; a resumed run remembers which it was."""
    return submit.kit_of(resume) if resume is not None else file.parent / "kits" / kits.ADMIN
