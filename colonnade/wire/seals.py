"""Seals: what two parties sign about their ledgers, each for the other.

A seal is a statement with its signer's Ed25519 signature. The peer keeps it, so its signer cannot
write its own ledger again without being found out. Signatures and times stay outside the row chain:
equal runs have equal ledgers.

    ledger-seals.jsonl     beside ledger.jsonl: seals of the peers, and those that they were given

    rows, head             the rows of the signer's whole ledger, and the hash of the last of them
    flows                  by attempt, what it has sent to its peer and received from it: how many
                           messages, and a running hash over what both ledgers say of each
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from colonnade.errors import CodecError, RunError
from colonnade.wire.ledger import Entry

At = Literal["checkpoint", "block", "end", "stop", "answer"]
SAID = ("kind", "sequence", "shape", "dtype", "phase", "epoch", "step", "bytes", "sha256")
PREFIX = b"a seal of Colonnade, 1\n"  # no signature for another purpose is one of a seal
MOST_FLOWS = 1 << 16  # attempts of one statement
MOST_TEXT = 200
KNOWN_SORTS = 1 << 12  # of messages, read from what the ledger says of them
# One text for equal contents: the shapes of a tree may come in another order.
_text = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


# ---- what is counted -----------------------------------------------------------------------------


class Chain:
    """Messages in one direction between two parties, in one attempt."""

    __slots__ = ("_first", "_heads")

    def __init__(self) -> None:
        self._first, self._heads = 0, [bytes(32)]  # the running hash after _first, _first + 1, …

    @property
    def count(self) -> int:
        return self._first + len(self._heads) - 1

    def add(self, text: str) -> None:
        """text: what SAID names of a message, as one list of JSON"""
        heads = self._heads
        heads.append(hashlib.sha256(heads[-1] + text.encode()).digest())

    def head(self, count: int) -> str | None:
        """The running hash over the first messages; None where it is not known any more, or yet."""
        place = count - self._first
        return self._heads[place].hex() if 0 <= place < len(self._heads) else None

    def forget(self, count: int) -> None:
        """Nobody will ask for the hash over fewer messages."""
        drop = min(count, self.count) - self._first
        if drop > 0:
            del self._heads[:drop]
            self._first += drop


@dataclass(frozen=True, slots=True)
class Both:
    """Both directions between a party and a peer, in one attempt."""

    sent: Chain
    received: Chain

    def flow(self, attempt: int) -> Flow:
        sent, received = self.sent, self.received
        heads = [chain.head(chain.count) or "" for chain in (sent, received)]
        return Flow(attempt, sent.count, heads[0], received.count, heads[1])


@dataclass(frozen=True, slots=True)
class Sort:
    """What messages with one description have in common."""

    peer: str
    sent: bool  # to the peer, not received from it
    kind: str  # JSON, as the two that follow
    shape: str
    dtype: str


class Traffic:
    """A party's messages, pair by pair and attempt by attempt, from the rows of its ledger."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._pairs: dict[tuple[str, int], Both] = {}
        self._sorts: dict[str, Sort] = {}
        self._lanes: dict[tuple[str, int], tuple[Sort, Chain]] = {}  # by description and attempt

    def add(self, row: Mapping[str, Any]) -> str:
        """Count a row that was read; returns whom it was exchanged with, "" if no message was."""
        if "note" in row or "denied" in row:
            return ""
        sends = row["sender"] == self._me
        peer: str = row["receiver"] if sends else row["sender"]
        both = self.between(peer, row["attempt"])
        (both.sent if sends else both.received).add(_text([row[part] for part in SAID]))
        return peer

    def add_written(self, entry: Entry) -> str:
        """The same of a row that this process has written itself, without reading it again."""
        attempt, description, sequence, phase, epoch, step, _, size, digest = entry
        lane = self._lanes.get((description, attempt))
        if lane is None:
            sort = self._sorts.get(description) or self._sort(description)
            if sort is None:
                return ""
            both = self.between(sort.peer, attempt)
            lane = sort, both.sent if sort.sent else both.received
            if len(self._lanes) >= KNOWN_SORTS:
                self._lanes.clear()
            self._lanes[description, attempt] = lane
        sort, chain = lane
        told = "null" if digest is None else f'"{digest}"'
        chain.add(
            f'[{sort.kind},{sequence},{sort.shape},{sort.dtype},"{phase}",{epoch},{step},{size},'
            f"{told}]"
        )
        return sort.peer

    def _sort(self, description: str) -> Sort | None:
        row = json.loads(f"{{{description}}}")
        if "denied" in row:
            return None
        sends = row["sender"] == self._me
        peer = row["receiver"] if sends else row["sender"]
        sort = Sort(peer, sends, *(_text(row[part]) for part in ("kind", "shape", "dtype")))
        if len(self._sorts) >= KNOWN_SORTS:
            self._sorts.clear()
        self._sorts[description] = sort
        return sort

    def between(self, peer: str, attempt: int) -> Both:
        key = peer, attempt
        if key not in self._pairs:
            self._pairs[key] = Both(Chain(), Chain())
        return self._pairs[key]

    def flows(self, peer: str) -> list[Flow]:
        found = [(attempt, both) for (name, attempt), both in self._pairs.items() if name == peer]
        return [both.flow(attempt) for attempt, both in sorted(found, key=lambda one: one[0])]


# ---- what is signed ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flow:
    """What a party says of one attempt with its peer."""

    attempt: int
    sent: int
    sent_head: str
    received: int
    received_head: str


@dataclass(frozen=True)
class Statement:
    """What one party says to another about its ledger."""

    run: str
    by: str
    to: str
    attempt: int  # the one that the two are in
    at: At  # why it was made
    place: str  # of a checkpoint: its label
    time: str  # of the signer's clock, UTC
    rows: int
    head: str
    flows: tuple[Flow, ...]  # those that have changed since the last statement

    @property
    def now(self) -> Flow:
        """The attempt that the two are in."""
        return next(flow for flow in self.flows if flow.attempt == self.attempt)

    def text(self) -> bytes:
        """What is signed."""
        return PREFIX + _text(asdict(self)).encode()


@dataclass(frozen=True)
class Seal:
    statement: Statement
    key: str  # the signer's public key, 64 hex digits
    signature: str

    def content(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return asdict(self.statement) | {"key": self.key, "signature": self.signature}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Seal:
        """From what somebody else has written; raises a CodecError."""
        try:
            flows = content["flows"]
            if not isinstance(flows, list) or len(flows) > MOST_FLOWS:
                raise TypeError("its flows")
            read = tuple(Flow(*(_part(flow, part) for part in fields(Flow))) for flow in flows)
            simple = [part for part in fields(Statement) if part.name != "flows"]
            told = {part.name: _part(content, part) for part in simple}
            statement = Statement(**told, flows=read)
            if statement.at not in get_args(At):
                raise ValueError(f"it was made at '{statement.at}'")
            datetime.fromisoformat(statement.time)
            attempts = [flow.attempt for flow in read]
            if attempts != sorted({*attempts}) or attempts[-1:] != [statement.attempt]:
                raise ValueError(f"it is of attempt {statement.attempt}, and speaks of others")
            return cls(statement, str(content["key"])[:64], str(content["signature"])[:128])
        except (ValueError, KeyError, TypeError) as error:
            raise CodecError(f"a malformed seal: {error}") from None

    def holds(self) -> bool:
        """Whether the signature is one of the key over this very statement."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key))
            key.verify(bytes.fromhex(self.signature), self.statement.text())
        except (ValueError, InvalidSignature):
            return False
        return True


def _part(content: Mapping[str, Any], part: Any) -> Any:
    value = content[part.name]
    if part.type == "int":
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise ValueError(f"{part.name} = {value!r:.50}")
    elif not isinstance(value, str) or len(value) > MOST_TEXT or not value.isprintable():
        raise ValueError(f"{part.name} = {value!r:.50}")
    return value


# ---- where they lie ------------------------------------------------------------------------------


def beside(ledger: Path) -> Path:
    """The file with the seals of a ledger."""
    return ledger.with_name(f"{ledger.stem}-seals.jsonl")


def read(path: Path) -> Iterator[Seal]:
    """All seals of a file; a last line that a crash cut short is omitted."""
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines[:-1], 1):
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise CodecError("it is not a table")
            yield Seal.read(content)
        except (ValueError, RecursionError, CodecError) as error:
            raise RunError(f"{path}, line {number} is not a seal: {error}") from None


def append(path: Path, made: Iterable[Seal]) -> None:
    """Add seals, and bring them to the disk."""
    text = "".join(json.dumps(one.content(), separators=(",", ":")) + "\n" for one in made)
    try:
        with path.open("ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror}. A checkpoint counts once its seals are "
            "on the disk; make room, and go on with the same command"
        ) from error


def mend(path: Path) -> None:
    """Drop a last line that a crash cut short: nobody was told of it."""
    if path.exists():
        whole = path.read_bytes()
        if (end := whole.rfind(b"\n") + 1) < len(whole):
            os.truncate(path, end)
