"""The doctor on the machine: the folder of the run, the disk, and the software."""

from __future__ import annotations

import platform
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

from colonnade.deploy.doctor.check import Case, Check
from colonnade.errors import RunError
from colonnade.report import units
from colonnade.results import folder as folders
from colonnade.version import __version__

PACKAGES = ("torch", "grpcio")
LITTLE_DISK, NO_DISK = 10**9, 10**8  # bytes


def run_folder(case: Case) -> Check:
    """The folder of the party's run: new, or one to go on with."""
    out = case.out
    if not out.exists():
        return Check("run folder", "ok", f"{out} will be made")
    if not (out / "run.json").exists():
        if out.is_dir() and not any(out.iterdir()):
            return Check("run folder", "ok", f"{out} is empty")
        said = f"{out} exists and is not a run"
        return Check("run folder", "problem", said, "choose another --out")
    try:
        manifest = folders.check_format(out)
    except RunError as error:
        return Check("run folder", "problem", str(error), "choose another --out")
    if folders.never_began(out):
        said = f"{out} was made for a run that has not begun: a new one will take its place"
        return Check("run folder", "ok", said)
    if (out / "weights").exists():
        move = "for a new run give another --out, at every party"
        return Check("run folder", "warning", f"{out} holds a finished run", move)
    if manifest.get("config_sha256") != case.federation.run.sha256():
        said = f"{out} holds a run of other settings"
        return Check("run folder", "problem", said, "choose another --out")
    return Check("run folder", "ok", f"{out}: will go on after attempt {manifest['attempt']}")


def disk(out: Path) -> Check:
    """The disk that the run will be written to."""
    out = out.absolute()
    place = next(folder for folder in (out, *out.parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    said = f"{units.size(free)} free at {place}"
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        said = f"{place} cannot be written: {error.strerror}"
        return Check("disk", "problem", said, "choose another --out, or change its rights")
    if free < LITTLE_DISK:
        move = "make room: without ledger and checkpoints nothing is sent"
        return Check("disk", "problem" if free < NO_DISK else "warning", said, move)
    return Check("disk", "ok", said)


def software() -> Check:
    """The versions of what matters to others."""
    said = [f"python {platform.python_version()}", f"colonnade {__version__}"]
    said += [f"{package} {metadata.version(package)}" for package in PACKAGES]
    return Check("software", "ok", ", ".join(said))
