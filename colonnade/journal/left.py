"""What has left with noise already, so that the same again is known as such, after a crash too.

    left.get(place)          # the digest of what has left at a place; None: nothing has
    left.put(place, digest)  # before it leaves

Both are 16 bytes of a keyed digest, so the file says nothing of any record. It is appended to, and
a process that is killed loses nothing of it; a party among strangers also waits for its disk. Of
several processes each knows what all have put: whoever puts what it did not find has looked in the
same turn of the journal.
"""

from __future__ import annotations

import os
from pathlib import Path

from colonnade.errors import JournalError

FILE, HALF = "left", 16
ENTRY = 2 * HALF


class Left:
    """Of one journal, for one thread of one process."""

    def __init__(self, folder: Path, *, new: bool, waits: bool) -> None:
        """
        new    nothing can have left yet; else a missing file is refused
        waits  until an entry is on the disk
        """
        self._path, self._waits = folder / FILE, waits
        self._known: dict[bytes, bytes] = {}
        try:
            if not new and not self._path.exists():
                raise FileNotFoundError(2, "it is missing, and there was one")
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
            data = self._path.read_bytes()
            if rest := len(data) % ENTRY:  # a crash cut it: nobody was told of that entry
                os.ftruncate(self._file, len(data) - rest)
        except OSError as error:
            raise self._trouble(error) from error
        self._end = 0
        self._take_in(data)

    def get(self, place: bytes) -> bytes | None:
        """What is known, or was put by another process since."""
        known = self._known.get(place)
        try:
            if known is None and (added := os.fstat(self._file).st_size - self._end) > 0:
                self._take_in(os.pread(self._file, added, self._end))
                known = self._known.get(place)
        except OSError as error:
            raise self._trouble(error) from error
        return known

    def put(self, *entries: tuple[bytes, bytes]) -> None:
        try:
            data = b"".join(place + digest for place, digest in entries)
            if (wrote := os.write(self._file, data)) != len(data):
                os.ftruncate(self._file, os.fstat(self._file).st_size - wrote)
                raise OSError(28, "there is no room left")
            if self._waits:
                os.fdatasync(self._file)
        except OSError as error:
            raise self._trouble(error) from error
        self._known.update(entries)

    def _take_in(self, data: bytes) -> None:
        """Entries from the end of what is known; one without its end waits."""
        for start in range(0, len(data) - ENTRY + 1, ENTRY):
            middle = start + HALF
            self._known[data[start:middle]] = data[middle : middle + HALF]
            self._end += ENTRY

    def close(self) -> None:
        os.close(self._file)

    def _trouble(self, error: OSError) -> JournalError:
        return JournalError(
            f"{self._path}: {error.strerror}. It holds what has left this party with noise, and "
            "nothing leaves without it. Make room, or bring the whole folder of the journal back "
            "from a backup"
        )
