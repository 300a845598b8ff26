"""`colonnade trust`: approve the bytes of a method or a network that somebody else has written.

It shows what the file declares, and executes nothing of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from colonnade import plugin
from colonnade.errors import RunError
from colonnade.plugin import Declared, Source


def main(arguments: argparse.Namespace) -> int:
    """1 where the user says no."""
    console = Console(highlight=False, quiet=arguments.json or arguments.quiet)
    shown: list[dict[str, Any]] = []
    for path in arguments.files:
        source = plugin.read(path, "file", RunError)
        found = plugin.declared(source)
        if found.beside:
            raise RunError(
                f"{path} imports {', '.join(found.beside)} from beside it, and an approval covers "
                "one file. Put all of it into that file, or install the rest as a package"
            )
        known = source.sha256 in plugin.approvals()
        console.print(Text(_text(source, found)), soft_wrap=True)
        if not known and not arguments.yes and not _agreed(path.name):
            console.print(Text("not approved"))
            return 1
        plugin.approve(source)
        console.print(Text("approved already" if known else "approved"))
        shown.append({"file": str(path), "sha256": source.sha256, "declares": found.sentence})
    if arguments.json:
        sys.stdout.write(json.dumps(shown, indent=1) + "\n")
    elif arguments.quiet:
        sys.stdout.write("".join(f"{one['sha256']}\n" for one in shown))
    return 0


def _text(source: Source, found: Declared) -> str:
    lines = [
        f"file         {source.path}",
        f"sha256       {source.sha256}",
        f"             {found.sentence}",
        "             it is not executed now; once approved, it can do whatever you can",
        "in the federation file, below [code]:",
        f'"{source.path.name}" = "{source.sha256}"',
    ]
    if found.invisible:
        lines.insert(3, f"             it holds {found.invisible} invisible characters: beware")
    return "\n".join(lines)


def _agreed(name: str) -> bool:
    if not sys.stdin.isatty():
        raise RunError("there is nobody to ask: read the file, then say --yes")
    sys.stdout.write(f"Have you read {name}, and may it be executed here? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
