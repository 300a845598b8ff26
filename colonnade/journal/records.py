"""Records as a journal knows them: by a keyed digest, never by an id.

A name is 64 bits of HMAC-SHA256 under a secret of the journal, over

    the normalised id     where rows have ids: the same record in another file, order or run
    the row's content     where they have none: equal rows share a name, whatever their place

Two records that share a name are counted together, so a count is never too small. Of ten million
records two share one by chance about once in 400,000 journals.

A list of records is a file of its own, named by its sha256: entries that speak of the same records
refer to the same file, and a changed list is noticed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import JournalError

Names = NDArray[np.uint64]  # one per record
NAME_BYTES = 8


def named(key: bytes, ids: Iterable[str]) -> Names:
    """The names of records with these ids, which must be normalised."""
    return _names(key, (b"id " + text.encode() for text in ids))


def named_by_content(key: bytes, rows: NDArray[np.generic]) -> Names:
    """The names of records without ids, (records, …): of what is in them, wherever they lie."""
    sort = f"content {rows.dtype.str} {rows.shape[1:]} ".encode()
    return _names(key, (sort + row.tobytes() for row in rows))


def _names(key: bytes, contents: Iterable[bytes]) -> Names:
    digests = b"".join(hmac.digest(key, one, "sha256")[:NAME_BYTES] for one in contents)
    return np.frombuffer(digests, dtype="<u8")


class Lists:
    """Sets of records on disk, each written once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Names] = {}
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)

    def keep(self, names: Names) -> str:
        """Bring a set of records to the disk; returns what entries call it."""
        unique: Names = np.unique(names)
        called = self.put(unique.astype("<u8").tobytes())
        self._known[called] = unique
        return called

    def read(self, called: str) -> Names:
        """The records of a list, sorted."""
        if called not in self._known:
            self._known[called] = np.frombuffer(self.get(called), dtype="<u8")
        return self._known[called]

    def put(self, data: bytes) -> str:
        """Bring something else about records to the disk, likewise."""
        called = hashlib.sha256(data).hexdigest()
        place = self._folder / called
        if called not in self._known and not place.exists():
            self._write(place, data)
        return called

    def get(self, called: str) -> bytes:
        """What was put there; refused if it is not that."""
        try:
            data = (self._folder / called).read_bytes()
        except OSError:
            data = None
        if data is None or hashlib.sha256(data).hexdigest() != called:
            raise JournalError(
                f"{self._folder / called} is missing or was changed: it says which records "
                "were released. Bring the whole folder of the journal back from a backup"
            )
        return data

    def _write(self, place: Path, data: bytes) -> None:
        draft = place.with_name(f".{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            draft.replace(place)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise JournalError(
                f"{place} cannot be written: {error.strerror}. Make room, and start again"
            ) from error
