"""The command line: arguments in, library calls, text out.

A command's module is imported when the command was chosen: `colonnade --version` does not wait for
PyTorch. Its arguments are declared in `options.py`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from colonnade.cli.options import parser
from colonnade.errors import ColonnadeError, InputError, printable, short
from colonnade.owner import private

LETTERS = 10_000  # of an error; --traceback shows all of it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 is success, 2 a mistake in the input, 1 a failure, 130 Ctrl-C."""
    parsed = parser().parse_args(arguments)
    try:
        with private():
            command = importlib.import_module(f"colonnade.cli.{parsed.module}")
            code: int | None = getattr(command, parsed.function)(parsed)
    except ColonnadeError as error:
        if parsed.traceback:
            raise
        _complain(f"{type(error).__name__}: {error}{_notes(error)}")
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt as stop:
        _complain("stopped" + _notes(stop))
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has left; there is nobody to tell
        return 1
    return code or 0


def _complain(text: str) -> None:
    from rich.console import Console  # needed by most commands, but not by --version
    from rich.text import Text

    shown = short(printable(text), LETTERS)
    Console(stderr=True, highlight=False).print(Text(shown), soft_wrap=True)


def _notes(error: BaseException) -> str:
    return "".join(f"\n  {note}" for note in getattr(error, "__notes__", []))


if __name__ == "__main__":
    sys.exit(main())
