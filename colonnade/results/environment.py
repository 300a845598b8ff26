"""On what a run ran: versions, device, and the commit of the source tree."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from colonnade.config import Config
from colonnade.errors import InputError
from colonnade.version import __version__

COMMIT = "COLONNADE_COMMIT"  # the environment variable that names it where there is no repository


def environment(settings: Config) -> dict[str, Any]:
    device = settings.run.device
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": settings.run.threads,
        "platform": f"{platform.system()} {platform.machine()}",
        "colonnade": __version__,
        "commit": commit(),
    }


def commit() -> str:
    """The commit of the source tree, with a + where it was changed; empty where nobody knows.

    A copy of the tree without its repository is told: COLONNADE_COMMIT. Where there is a
    repository, that says it, and the variable counts for nothing.
    """
    source = Path(__file__).resolve().parents[2]
    if not (source / ".git").exists():
        return _handed_over()
    git = shutil.which("git")
    if git is None:
        return ""
    show = subprocess.run(
        [git, "-C", os.fspath(source), "describe", "--always", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return show.stdout.strip()


def _handed_over() -> str:
    named = os.environ.get(COMMIT, "")
    if named and not re.fullmatch(r"[0-9a-f]{7,40}\+?", named):
        raise InputError(
            f"{COMMIT} is {named!r}, which is no commit: give 7 to 40 of 0-9 and a-f, and a + "
            "behind them where files were changed since"
        )
    return named
