"""What belongs to the user of this process alone: how files are written, and the data folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private() -> Iterator[None]:
    """What is written inside can be read by its owner alone, whatever the user's umask says.

    Every command runs in it, and so does every function of the library that writes a run folder.
    The umask is the process's: files that its other threads make meanwhile are private, too.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def data_folder() -> Path:
    """Where journals and approved code are kept, for all runs of this user."""
    home = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not home.is_absolute():  # as the standard for these folders says
        home = Path.home() / ".local" / "share"
    return home / "colonnade"
