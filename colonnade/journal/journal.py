"""The file of a party's journal: what must outlive every run folder and every checkpoint.

    journal.jsonl    one entry per line, each with a hash over it and the hash of the one before
    rows/            lists of records, as keyed names: see records.py
    left             digests of what has left with noise: see left.py

An entry is on the disk before `append` returns, so what depends on it may follow. A crash in the
middle of that leaves a line without its end. Nobody was told of that entry, so the next process
removes it. Anything else that does not fit the chain was cut or changed, and is refused. The chain
guards the middle; whoever keeps an anchor (how many entries there were, and the hash of the last)
can also tell that the end was cut, or that another journal lies in its place.

Several processes may share a journal: an entry is written under a lock, after reading what others
have added. The first entry holds a secret, from which all other secrets and the names of records
are derived.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import JournalError
from colonnade.journal.left import Left
from colonnade.journal.records import Lists, Names, named, named_by_content
from colonnade.owner import data_folder

FILE, ROWS = "journal.jsonl", "rows"
FORMAT = 1
# Entries that speak of records
LISTED = ("answered", "bare", "count", "exchange", "met", "release", "spent")
GENESIS = "0" * 64
LOCK_SECONDS = 30.0  # an entry takes milliseconds
SECRET_BYTES = 32
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Anchor:
    """How far a journal had come: kept elsewhere, it guards the journal's end."""

    entries: int
    hash: str

    def table(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return {"entries": self.entries, "hash": self.hash}

    @classmethod
    def of(cls, table: object) -> Anchor | None:
        """From plain data; None if that is not an anchor."""
        if not isinstance(table, Mapping):
            return None
        entries, last = table.get("entries"), table.get("hash")
        return cls(entries, last) if isinstance(entries, int) and isinstance(last, str) else None


class Journal:
    """A party's journal, for one thread of one process."""

    def __init__(
        self, folder: Path, anchor: Anchor | None = None, *, simulated: bool = False
    ) -> None:
        """
        anchor     what a run folder knows of this journal: a journal without it is refused
        simulated  a new journal says that it counts for nobody
        """
        self.folder, self._path = folder, folder / FILE
        self._entries: list[dict[str, Any]] = []
        self._hashes: list[str] = []
        self._end = 0  # bytes that were read or written
        self._turns = 0
        self._file = -1
        self._left: Left | None = None
        try:
            if not self._path.exists():
                self._refuse_lost(anchor)
                _bear(folder, simulated)  # unless somebody else was faster
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            self._lists = Lists(folder / ROWS)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            with self.turn():
                self._read_birth()
            if anchor is not None:
                self.check(anchor, "what is kept elsewhere")
        except JournalError:
            self.close()
            raise

    @property
    def anchor(self) -> Anchor:
        """How far it has come, as far as this process has read."""
        return Anchor(len(self._hashes), self._hashes[-1])

    @property
    def simulated(self) -> bool:
        """Whether it counts for nobody, because it lies in the folder of a simulation."""
        return bool(self._entries[0]["simulated"])

    def secret(self, purpose: str) -> bytes:
        """32 bytes that only this party has, the same as long as the journal lives."""
        return hmac.digest(self._secret, f"colonnade {purpose}".encode(), "sha256")

    def names(self, ids: Iterable[str]) -> Names:
        """What records with these ids, normalised, are called here."""
        return named(self.secret("rows"), ids)

    def names_of_rows(self, rows: NDArray[np.generic]) -> Names:
        """What records without ids, (records, …), are called here: by what is in them."""
        return named_by_content(self.secret("rows"), rows)

    def records(self) -> Names:
        """All records of which any entry speaks, sorted."""
        lists = {str(entry["rows"]) for what in LISTED for entry in self.entries(what)}
        found = [self._lists.read(one) for one in sorted(lists)]
        return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.uint64)

    @property
    def lists(self) -> Lists:
        """The lists of records that entries refer to."""
        return self._lists

    @property
    def left(self) -> Left:
        """What has left with noise; from its first use on it must be there."""
        if self._left is None:
            with self.turn():
                new = not any(True for _ in self.entries("left"))
                self._left = Left(self.folder, new=new, waits=not self.simulated)
                if new:
                    self.append("left")
        return self._left

    def entries(self, what: str, since: int = 0, **fields: object) -> Iterator[Entry]:
        """All entries of a sort with these fields, from number `since` on, oldest first."""
        for number in range(since, len(self._entries)):
            entry = self._entries[number]
            if entry["what"] == what and all(entry.get(k) == v for k, v in fields.items()):
                yield entry

    def append(self, what: str, **fields: Any) -> None:
        """Write an entry; it is on the disk when this returns."""
        with self.turn():
            text = _worded({"what": what, **fields})
            digest = _chained(self._hashes[-1], text)
            line = _line(digest, text)
            try:
                _write(self._file, line)
                os.fsync(self._file)
            except OSError as error:
                with suppress(OSError):
                    os.ftruncate(self._file, self._end)
                raise self._unwritable(error) from error
            self._take_in(digest, text, len(line))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Nobody else writes meanwhile, and all that others have written is known: to decide on
        what is there, and to append."""
        if not self._turns:
            self._lock()
        self._turns += 1
        try:
            if self._turns == 1:
                self._catch_up()
            yield
        finally:
            self._turns -= 1
            if not self._turns:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def check(self, anchor: Anchor, where: str) -> None:
        """Refuse a journal that does not contain what an anchor says it did."""
        known = self._hashes[: anchor.entries]
        if not 0 < anchor.entries <= len(self._hashes) or known[-1] != anchor.hash:
            raise JournalError(
                f"{self._path} is not the journal that {where} knows: that one had at least "
                f"{anchor.entries} entries, and this one has {len(self._hashes)} or other ones. It "
                f"was cut, changed or replaced, so what it has counted is not certain. "
                f"{self._way_out}"
            )

    def close(self) -> None:
        """Let the file go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._left is not None:
            self._left.close()
            self._left = None

    # ---- inner workings ----------------------------------------------------------------------

    @property
    def _way_out(self) -> str:
        return (
            "Bring it back from a backup, the whole folder. If there is none, what it counted must "
            f"be taken as spent: move {self.folder} aside, and begin a new run, with another --out,"
            " on rows that were never released"
        )

    def _refuse_lost(self, anchor: Anchor | None) -> None:
        had_one = anchor is not None or (self.folder / ROWS).exists()
        if had_one and not self._path.exists():  # another process may just have begun it
            raise JournalError(
                f"{self._path} is missing, and there was one: it held what this party has "
                f"released. {self._way_out}"
            )

    def _read_birth(self) -> None:
        first = self._entries[0] if self._entries else {}
        secret = first.get("secret")
        if first.get("what") != "born" or first.get("format") != FORMAT or not secret:
            raise JournalError(
                f"{self._path} is not a journal that this version of Colonnade wrote: use the "
                "version that began it"
            )
        self._secret = bytes.fromhex(str(secret))

    def _lock(self) -> None:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise JournalError(
                        f"{self._path} has been locked by another process for {LOCK_SECONDS:.0f} "
                        "s; each entry takes milliseconds. Is another run of this party stopped "
                        "in the middle? End it, and start again"
                    ) from None
                time.sleep(0.002)
            except OSError as error:
                raise self._unwritable(error) from error

    def _catch_up(self) -> None:
        """Read what other processes have added; remove a line that a crash has left unfinished."""
        try:
            now = os.fstat(self._file)
            if self._path.stat().st_ino != now.st_ino or now.st_size < self._end:
                raise FileNotFoundError
            if now.st_size == self._end:
                return
            added = os.pread(self._file, now.st_size - self._end, self._end)
            whole = added.rfind(b"\n") + 1
            if whole < len(added):  # nobody writes now, so its writer has died
                os.ftruncate(self._file, self._end + whole)
                os.fsync(self._file)
        except FileNotFoundError:
            raise JournalError(
                f"{self._path} was cut, removed or replaced while it was in use. {self._way_out}"
            ) from None
        except OSError as error:
            raise self._unwritable(error) from error
        for line in added[:whole].splitlines(keepends=True):
            self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        previous = self._hashes[-1] if self._hashes else GENESIS
        digest, text = _parts(line)
        fits = _line(digest, text) == line and _chained(previous, text) == digest
        if not fits or not _is_entry(text):
            raise JournalError(
                f"{self._path}: the chain breaks at entry {len(self._hashes)}: the journal was cut "
                f"or changed there. {self._way_out}"
            )
        self._take_in(digest, text, len(line))

    def _take_in(self, digest: str, text: bytes, size: int) -> None:
        self._entries.append(json.loads(text))
        self._hashes.append(digest)
        self._end += size

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"{self._path} cannot be written: {error.strerror}. Without its journal a party "
            "releases nothing: make room, or give its owner the right to write there, and start "
            "again"
        )


def default_place(federation: str, party: str) -> Path:
    """Where a party's journal lies unless its policy says otherwise: in the user's data folder."""
    return data_folder() / federation / party


def make_folder(folder: Path) -> None:
    """A folder, and those above it, that only their owner can read."""
    for one in reversed([folder, *folder.parents]):
        if not one.exists():
            with suppress(FileExistsError):
                one.mkdir(mode=0o700)


# ---- lines ---------------------------------------------------------------------------------------


def _bear(folder: Path, simulated: bool) -> None:
    """A new journal, whole or not at all; of two processes at once, the first wins."""
    make_folder(folder)
    secret = secrets.token_bytes(SECRET_BYTES).hex()
    text = _worded({"what": "born", "format": FORMAT, "simulated": simulated, "secret": secret})
    draft = folder / f".{secrets.token_hex(8)}"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write(file, _line(_chained(GENESIS, text), text))
        os.fsync(file)
        with suppress(FileExistsError):
            os.link(draft, folder / FILE)
    finally:
        os.close(file)
        draft.unlink()
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _worded(entry: Entry) -> bytes:
    return json.dumps(entry, separators=(",", ":"), allow_nan=False).encode()


def _chained(previous: str, text: bytes) -> str:
    return hashlib.sha256(previous.encode() + text).hexdigest()


def _line(digest: str, text: bytes) -> bytes:
    return b'{"hash":"%s","entry":%s}\n' % (digest.encode(), text)


def _parts(line: bytes) -> tuple[str, bytes]:
    """The hash and the text of an entry, if the line has the form of one."""
    start = len(b'{"hash":"')
    digest = line[start : start + 64].decode("ascii", "replace")
    return digest, line[start + 64 + len(b'","entry":') : -2]


def _is_entry(text: bytes) -> bool:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and isinstance(entry.get("what"), str)


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
