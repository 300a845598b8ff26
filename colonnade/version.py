"""The version, in the one place where it stands, and how to install what is missing here."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

__version__ = "0.1.0"


def installing(extra: str) -> str:
    """The command that adds an extra to this very installation, whatever folder it is typed in: of
    a checkout by its folder, else by where the package came from."""
    root = Path(__file__).resolve().parents[1]
    source, flag = f"colonnade[{extra}]", ""
    if (root / "pyproject.toml").exists():
        source, flag = f"{root}[{extra}]", "--editable "
    elif origin := _origin():
        source = f"{source} @ {origin}" if "://" in origin else f"{origin}[{extra}]"
    return f"{shlex.quote(sys.executable)} -m pip install {flag}{shlex.quote(source)}"


def _origin() -> str:
    """Where pip has found the package, a folder or a URL; empty: in an index, or nobody knows."""
    try:
        told = json.loads(metadata.distribution("colonnade").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    url = str(told.get("url", ""))
    return unquote(urlsplit(url).path) if "dir_info" in told else url
