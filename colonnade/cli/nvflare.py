"""`colonnade nvflare`: a federation as jobs of NVFlare.

colonnade nvflare provision federation.toml            project file and startup kits, once
colonnade nvflare submit federation.toml               train: submit, follow, fetch the results
colonnade nvflare submit --resume runs/scores          go on with a job that was aborted
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.text import Text

from colonnade.cli.progress import Progress
from colonnade.cli.show import console_for, finish
from colonnade.config import federation
from colonnade.deploy.nvflare import job, kits, sitefile
from colonnade.deploy.nvflare import submit as jobs
from colonnade.deploy.nvflare.defaults import ADMIN
from colonnade.errors import RunError


def provision(arguments: argparse.Namespace) -> None:
    shared = federation.load(arguments.federation)
    out = arguments.out or arguments.federation.parent / "kits"
    made = kits.provision(shared, out, arguments.server, arguments.admin, arguments.state)
    lines = [f"project      {out / 'project.yml'}"]
    lines += [_line(path, out, shared) for path in made]
    lines.append(f"authority    {out / kits.AUTHORITY}: keep it to yourself")
    console = console_for(arguments)
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


def submit(arguments: argparse.Namespace) -> None:
    file = arguments.federation
    if file is None:
        if arguments.resume is None:
            raise RunError("colonnade nvflare submit: give a FILE, or --resume RUN to go on")
        file = arguments.resume / "federation.toml"
    console = console_for(arguments)
    result = jobs.submit(
        federation.load(file),
        arguments.kit or _kit(file, arguments.resume),
        out=arguments.out,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        relay=arguments.relay,
        observer=Progress(console),
    )
    finish(arguments, console, [result])


def _kit(file: Path, resume: Path | None) -> Path:
    """Where `provision` puts the kit of who submits; a resumed run remembers which it was."""
    return jobs.kit_of(resume) if resume is not None else file.parent / "kits" / ADMIN
