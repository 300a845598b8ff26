"""The ledger: one row for every message that crossed the wire, each chained to the one before.

A row's hash covers its text, which holds the previous row's hash: removing, adding or changing
a row breaks the chain at that place. `rounds` and all tables of bytes come from here, never
from a formula.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from colonnade.errors import RunError

if TYPE_CHECKING:  # a ledger is read without PyTorch
    from colonnade.wire.kind import Kind, Value

GENESIS = "0" * 64
FLUSH_ROWS = 4096
FIELDS: dict[str, tuple[type, ...]] = {  # of a message's row
    "attempt": (int,),
    "sender": (str,),
    "receiver": (str,),
    "kind": (str,),
    "shape": (list, dict, str),
    "dtype": (str,),
    "sequence": (int,),
    "phase": (str,),
    "epoch": (int,),
    "step": (int,),
    "hop": (int,),
    "bytes": (int,),
    "sha256": (str, type(None)),
}
# Of a written message: attempt, description, sequence, phase, epoch, step, hop, bytes, sha256
Entry = tuple[int, str, int, str, int, int, int, int, str | None]
SCALARS = (bool, int, float, str, bytes)  # every other value is a tensor, or a tree of them


@dataclass(slots=True)
class Message:
    """One value on its way from one party to another."""

    sender: str
    receiver: str
    kind: Kind
    value: Value
    sequence: int  # counts within (sender, receiver, Kind)
    phase: str  # setup, train or eval
    epoch: int
    step: int
    hop: int  # how many messages had to be waited for, one after the other, before this one
    at: float  # the sender's virtual clock


class Ledger:
    """Writes rows and keeps the sums that the report needs."""

    def __init__(self, path: Path | None, attempt: int = 1, *, through: bool = False) -> None:
        """through: an outgoing message is in the file before `write` returns; a received one may
        follow a little later."""
        self._attempt = attempt
        self._count, self._head, self.bytes = (0, GENESIS, 0) if path is None else _end_of(path)
        self._path = path
        self._file = None if path is None else path.open("ab", buffering=0 if through else -1)
        self._most = 1 if through else FLUSH_ROWS
        self._pending: list[Entry] = []
        self._followed: list[Entry] | None = None

    @property
    def path(self) -> Path | None:
        return self._path

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._count + len(self._pending)

    @property
    def attempt(self) -> int:
        return self._attempt

    @attempt.setter
    def attempt(self, number: int) -> None:
        self._write_out()  # earlier records belong to the previous attempt
        self._attempt = number

    def write(
        self,
        message: Message,
        description: str,
        size: int,
        digest: str | None,
        received: bool = False,
        attempt: int | None = None,
    ) -> int:
        """Record one message and return its row number; called before the message leaves.

        attempt  of the two parties, where each pair counts its own; without it, of the run

        Rows are formatted and chained many at a time: in the middle of a training step, with cold
        caches, the same work takes five times as long.
        """
        m = message
        attempt = self._attempt if attempt is None else attempt
        self._pending.append(
            (attempt, description, m.sequence, m.phase, m.epoch, m.step, m.hop, size, digest)
        )
        self.bytes += size
        number = self._count + len(self._pending) - 1
        if len(self._pending) >= (FLUSH_ROWS if received else self._most):
            self._write_out()
        return number

    def deny(
        self, message: Message, description: str, why: str, attempt: int | None = None
    ) -> None:
        """Record a message that the policy denied, and that has not left."""
        denied = f'{description},"denied":{json.dumps(why)}'
        self.write(message, denied, 0, None, attempt=attempt)
        self._write_out()

    def follow(self) -> list[Entry]:
        """From now on each message that is written is put here as well: whoever takes them out
        need not read them from the file."""
        self._write_out()
        self._followed = []
        return self._followed

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the file, checked against the chain."""
        self._write_out()
        return iter(()) if self._path is None else read(self._path)

    def note(self, text: str, **more: str) -> None:
        """Record a note between the messages, such as who was absent from here on.

        more  what a program is to read of it: away="shop", which was away at the end
        """
        self._write_out()
        said = {"row": self._count, "attempt": self.attempt, "note": text, **more}
        self._append([json.dumps(said, separators=(",", ":"))[:-1]])

    def copy(self, row: Mapping[str, Any]) -> None:
        """A row of another ledger, chained again."""
        kept = {key: value for key, value in row.items() if key not in ("row", "previous")}
        text = json.dumps({"row": self._count, **kept}, separators=(",", ":"))
        self._append([text[:-1]])
        self.bytes += row.get("bytes", 0)

    @property
    def head(self) -> str:
        """The hash of the last row. A copy kept elsewhere also guards the end of the chain."""
        self._write_out()
        return self._head

    def flush(self) -> None:
        """Write everything recorded so far to the disk."""
        if self._file is not None:
            self._write_out()
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None

    def _write_out(self) -> None:
        if not self._pending:
            return
        if len(self._pending) == 1:
            self._append([_worded(self._count, *self._pending[0])])
        else:
            numbered = enumerate(self._pending, self._count)
            self._append([_worded(number, *row) for number, row in numbered])
        if self._followed is not None:
            self._followed += self._pending
        self._pending.clear()

    def _append(self, rows: Iterable[str]) -> None:
        """Chain rows, which lack only the previous row's hash, and write them."""
        lines, head = [], self._head
        for row in rows:
            line = f'{row},"previous":"{head}"}}\n'.encode()
            head = hashlib.sha256(line).hexdigest()
            lines.append(line)
        self._head = head
        self._count += len(lines)
        if self._file is not None and lines:
            try:
                text = b"".join(lines)
                while text:  # on a disk that fills up, the rest fails
                    text = text[self._file.write(text) :]
            except OSError as error:
                raise RunError(
                    f"{self._path} cannot be written: {error.strerror}. Without a ledger nothing "
                    "is sent; make room, and resume the run"
                ) from error


def read(path: Path, end: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a ledger, each checked against the chain; `end` is the last row's hash."""
    return (row for row, _ in hashed(path, end))


def hashed(path: Path, end: str | None = None) -> Iterator[tuple[dict[str, Any], str]]:
    """The same, each with its own hash."""
    head, number = GENESIS, -1
    with _opened(path) as file:
        for number, line in enumerate(file):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or row.get("row") != number or row.get("previous") != head:
                raise RunError(
                    f"{path}: the chain breaks at row {number}: the ledger was cut or changed there"
                )
            if not _is_ours(row):
                raise RunError(f"{path}: Colonnade did not write row {number}")
            head = hashlib.sha256(line).hexdigest()
            yield row, head
    if end is not None and head != end:
        raise RunError(
            f"{path}: row {number} is not the one the run ended with: the ledger was cut or "
            "changed at its end"
        )


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None


def _is_ours(row: Mapping[str, Any]) -> bool:
    """Whether a row has the fields of a message, or of a note, and no others' values in them."""
    if "note" in row:
        return type(row["note"]) is str and type(row.get("attempt")) is int
    return all(type(row.get(name)) in types for name, types in FIELDS.items())


def summarise(rows: Iterable[Mapping[str, Any]], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The `wire` part of result.json."""
    by_kind: dict[str, dict[str, Any]] = {}
    by_party: dict[str, dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(
            ("sent_bytes", "sent_messages", "received_bytes", "received_messages"), 0
        )
    )
    by_phase = {phase: {"bytes": 0, "messages": 0} for phase in ("setup", "train", "eval")}
    flows: dict[tuple[str, str, str], dict[str, Any]] = {}
    hops: set[int] = set()
    for row in rows:
        if "denied" in row or "note" in row:
            continue
        size, name = row["bytes"], row["kind"]
        if name not in by_kind:
            kind = kinds.get(name)
            by_kind[name] = {
                "bytes": 0,
                "messages": 0,
                "shape": kind.describe() if kind else "unknown",
                "dtype": kind.dtype if kind else "unknown",
                "reveals": kind.reveals if kind else "unknown",
            }
        key = (row["sender"], row["receiver"], name)
        flow = flows.setdefault(
            key,
            {"sender": key[0], "receiver": key[1], "kind": name, "messages": 0, "bytes": 0},
        )
        for total in (by_kind[name], by_phase[row["phase"]], flow):
            total["bytes"] += size
            total["messages"] += 1
        sender, receiver = by_party[row["sender"]], by_party[row["receiver"]]
        sender["sent_bytes"] += size
        sender["sent_messages"] += 1
        receiver["received_bytes"] += size
        receiver["received_messages"] += 1
        if row["phase"] == "train" and not (name in kinds and kinds[name].paces):
            hops.add(row["hop"])
    return {
        "bytes": sum(phase["bytes"] for phase in by_phase.values()),
        "messages": sum(phase["messages"] for phase in by_phase.values()),
        "rounds": len(hops),
        "by_kind": by_kind,
        "by_party": dict(by_party),
        "by_phase": by_phase,
        "flows": list(flows.values()),
    }


def describe(message: Message) -> str:
    """The part of a row that all messages of one sort share: sender, receiver, Kind."""
    value = message.value
    if isinstance(value, Mapping):
        dtype = "tree"
    else:
        dtype = "scalar" if isinstance(value, SCALARS) else str(value.dtype).removeprefix("torch.")
    named = {
        "sender": message.sender,
        "receiver": message.receiver,
        "kind": message.kind.name,
        "shape": _shape(value),
        "dtype": dtype,
    }
    return json.dumps(named, separators=(",", ":"))[1:-1]


def _worded(
    number: int,
    attempt: int,
    description: str,
    sequence: int,
    phase: str,
    epoch: int,
    step: int,
    hop: int,
    size: int,
    digest: str | None,
) -> str:
    """A row without the previous row's hash."""
    told = "null" if digest is None else f'"{digest}"'
    return (
        f'{{"row":{number},"attempt":{attempt},{description},'
        f'"sequence":{sequence},"phase":"{phase}","epoch":{epoch},"step":{step},'
        f'"hop":{hop},"bytes":{size},'
        f'"sha256":{told}'
    )


def _shape(value: Value) -> Any:
    """The shape of a tensor, the shapes of a tree's tensors, or the type of a scalar."""
    if isinstance(value, Mapping):
        return {name: _shape(child) for name, child in value.items()}
    return type(value).__name__ if isinstance(value, SCALARS) else list(value.shape)


def _end_of(path: Path) -> tuple[int, str, int]:
    """Where to continue: rows, last hash, bytes. A last line that a crash cut short is dropped."""
    whole = path.read_bytes() if path.exists() else b""
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        os.truncate(path, end)
    if not end:
        return 0, GENESIS, 0
    sizes = [row.get("bytes", 0) for row in read(path)]
    last = whole[whole.rfind(b"\n", 0, end - 1) + 1 : end]
    return len(sizes), hashlib.sha256(last).hexdigest(), sum(sizes)
