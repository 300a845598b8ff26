"""Compares two parties' ledgers: does one record as sent what the other records as received?

A chain of hashes shows that no part of a ledger was changed; its owner could still rewrite it from
the beginning, but not what it has signed for and its peer has kept (seals.py). A message is
identified by (sender, receiver, attempt, Kind, sequence), and both ledgers must agree about it.

    matched     both ledgers have it and agree
    unreceived  sent, but not in the receiver's ledger. What the receiver has signed for is a fault.
                A process that dies loses the last rows it received, so what it has not signed for
                is a fault only in the last attempt of a finished run. In elastic runs each pair
                counts its own attempts, and messages lost with a party that was away at the end
                are no fault; a message overtaken by a later one always is
    unsent      received, but not in the sender's ledger, although nothing leaves unrecorded
    different   both ledgers have it and disagree
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.errors import RunError
from colonnade.wire import ledger, seals
from colonnade.wire.seals import Seal, Traffic

KEY = ("sender", "receiver", "attempt", "kind", "sequence")
SAID = ("shape", "dtype", "phase", "epoch", "step", "bytes", "sha256")
Key = tuple[str, str, int, str, int]
_AWAY = re.compile("'(.*)' was away at the end")  # in notes of older ledgers
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Book:
    """One party's ledger, and the facts in the files beside it."""

    path: Path
    owners: frozenset[str]  # the possible owners; one, if it can be determined
    rows: Mapping[Key, Row]
    heads: list[str]  # the hash after so many rows
    seals: list[Seal]  # in the file beside it
    attempts: int
    finished: bool
    elastic: bool  # its method lets parties come and go
    begun: int  # the last attempt that its owner has begun with any party; 0: unknown
    away: frozenset[str]  # who was away at the end, as its notes say
    run: str  # empty: unknown
    broken: str  # why it cannot be trusted; empty: it can


@dataclass(frozen=True)
class Reconciliation:
    """The result of comparing two ledgers."""

    owners: tuple[str, str]
    matched: int = 0
    bytes: int = 0  # of the matched ones
    unreceived: list[Row] = field(default_factory=list)
    excused: bool = True  # whether all of `unreceived` can be explained
    unsent: list[Row] = field(default_factory=list)
    different: list[tuple[Row, Row]] = field(default_factory=list)  # in the owners' order
    broken: list[str] = field(default_factory=list)
    signed: list[str] = field(default_factory=list)  # what does not fit what was signed for
    sealed: int = 0  # messages that both have signed for
    open: int = 0  # the others: of before the first seal, or after the last
    keys: Mapping[str, str] = field(default_factory=dict)  # with which the owners have signed

    @property
    def faults(self) -> list[str]:
        """The differences that no process's death explains, in words."""
        found = [*self.broken, *self.signed]
        if not self.excused:
            found.append("messages of a finished run were sent and never received")
        if self.unsent:
            found.append("messages were received that their sender's ledger does not have")
        if self.different:
            found.append("the two ledgers disagree about a message")
        return found

    def content(self) -> dict[str, Any]:
        """The result, ready for JSON."""
        one, other = self.owners
        return {
            "owners": [one, other],
            "agree": not self.faults,
            "faults": self.faults,
            "matched": self.matched,
            "bytes": self.bytes,
            "unreceived": [dict(row) for row in self.unreceived],
            "unsent": [dict(row) for row in self.unsent],
            "different": [{one: dict(mine), other: dict(its)} for mine, its in self.different],
            "sealed": self.sealed,
            "open": self.open,
            "keys": dict(self.keys),
        }


def reconcile(one: Path, other: Path) -> Reconciliation:
    """Compare two parties' run folders, or two ledger.jsonl files."""
    books = _open(one), _open(other)
    broken = [book.broken for book in books if book.broken]
    if broken:
        a, b = (next(iter(k.owners)) if len(k.owners) == 1 else str(k.path) for k in books)
        return Reconciliation((a, b), broken=broken)
    if books[0].run != books[1].run and all(book.run for book in books):
        raise RunError(
            f"{one} is of run {books[0].run}, {other} of {books[1].run}: give folders of one run"
        )
    return _compare(_owners(*books), *books)


def _compare(owners: tuple[str, str], one: Book, other: Book) -> Reconciliation:
    mine, its = (
        {key: row for key, row in book.rows.items() if {key[0], key[1]} == set(owners)}
        for book in (one, other)
    )
    as_sent = {owners[0]: (mine, its), owners[1]: (its, mine)}
    unreceived: list[Row] = []
    unsent: list[Row] = []
    different: list[tuple[Row, Row]] = []
    size = matched = 0
    for key in dict.fromkeys((*mine, *its)):
        sent, received = (rows.get(key) for rows in as_sent[key[0]])
        if sent is None and received is not None:
            unsent.append(received)
        elif received is None and sent is not None:
            unreceived.append(sent)
        elif any(mine[key][part] != its[key][part] for part in SAID):
            different.append((mine[key], its[key]))
        else:
            matched += 1
            size += mine[key]["bytes"]
    oath = Oath(owners, one, other)
    lost = [row for row in unreceived if not oath.excuses(row)]
    last = max(one.attempts, other.attempts)
    finished = one.finished and other.finished
    overtaken = False
    if one.elastic or other.elastic:
        last = max([min(one.begun, other.begun), *(key[2] for key in (*mine, *its))])
        finished = finished and not set(owners) & (one.away | other.away)
        overtaken = bool(_overtaken(unreceived, as_sent))
    in_time = not finished or all(row["attempt"] < last for row in lost)
    return Reconciliation(
        owners,
        matched,
        size,
        unreceived,
        in_time and not overtaken,
        unsent,
        different,
        signed=oath.faults(unreceived),
        sealed=oath.sealed(),
        open=oath.open(),
        keys=oath.keys,
    )


def _overtaken(
    unreceived: list[Row], as_sent: Mapping[str, tuple[Mapping[Key, Row], Mapping[Key, Row]]]
) -> list[Row]:
    """Messages not received although a later message of the same Kind was. Links keep the order, so
    neither a death nor a broken connection explains this."""
    newest: dict[tuple[Any, ...], int] = {}
    for sender, (_, received) in as_sent.items():
        for key in received:
            if key[0] == sender:
                newest[key[:-1]] = max(key[-1], newest.get(key[:-1], -1))
    return [row for row in unreceived if row["sequence"] < newest.get(_key(row)[:-1], -1)]


# ---- what the two have signed for ----------------------------------------------------------------


class Oath:
    """The seals of two parties, beside what their ledgers say today."""

    def __init__(self, owners: tuple[str, str], one: Book, other: Book) -> None:
        self._books = dict(zip(owners, (one, other), strict=True))
        self._of = {owners[0]: owners[1], owners[1]: owners[0]}
        self._traffic = {name: Traffic(name) for name in owners}
        self._place: dict[Key, int] = {}  # of a message within its direction, at its sender
        counts: Counter[tuple[str, str, int]] = Counter()
        for name, book in self._books.items():
            for key, row in book.rows.items():
                self._traffic[name].add(row)
                if key[0] == name:
                    self._place[key] = counts[key[:3]]
                    counts[key[:3]] += 1
        found = {seal: None for book in (one, other) for seal in book.seals}
        self._forged = [seal for seal in found if not seal.holds()]
        true = [seal for seal in found if seal not in self._forged]
        self._seals = {name: [s for s in true if s.statement.by == name] for name in owners}
        self.keys = {name: made[0].key for name, made in self._seals.items() if made}

    def _statements(self, name: str) -> Iterable[seals.Statement]:
        """What an owner has said to the other one."""
        said = (seal.statement for seal in self._seals[name])
        return (one for one in said if one.to == self._of[name])

    def _counts(self, name: str, what: str) -> Counter[int]:
        """How many messages an owner has signed for, by attempt: those `sent` or `received`."""
        found: Counter[int] = Counter()
        for said in self._statements(name):
            for flow in said.flows:
                found[flow.attempt] = max(found[flow.attempt], getattr(flow, what))
        return found

    def excuses(self, row: Row) -> bool:
        """Whether the receiver had signed, later and in time, that it never got this message: all
        have begun again since."""
        said = self._statements(row["receiver"])
        return any(one.attempt > row["attempt"] for one in said)

    def sealed(self) -> int:
        return sum(sum(both.values()) for both in self._both().values())

    def open(self) -> int:
        """How many messages nobody has signed for, or one of the two alone, and that no later
        seal has closed."""
        both, found = self._both(), 0
        for sender, receiver in self._of.items():
            closed = min((self._newest(name) for name in self._of), default=0)
            rows = [
                {key[2:] for key in book.rows if key[:2] == (sender, receiver)}
                for book in self._books.values()
            ]
            here = Counter(attempt for attempt, _, _ in rows[0] | rows[1])
            found += sum(
                max(0, count - both[sender][attempt])
                for attempt, count in here.items()
                if attempt >= closed
            )
        return found

    def _newest(self, name: str) -> int:
        return max((said.attempt for said in self._statements(name)), default=0)

    def _both(self) -> dict[str, Counter[int]]:
        """By sender and attempt, what both have signed for."""
        return {
            sender: self._counts(sender, "sent") & self._counts(receiver, "received")
            for sender, receiver in self._of.items()
        }

    def faults(self, unreceived: list[Row]) -> list[str]:
        """What does not fit, in words."""
        found = [
            f"a seal of '{seal.statement.by}' for '{seal.statement.to}' does not bear its signature"
            for seal in self._forged
        ]
        runs = {seal.statement.run for made in self._seals.values() for seal in made}
        runs |= {book.run for book in self._books.values() if book.run}
        if len(runs) > 1:
            found.append(f"there are seals of several runs: {', '.join(sorted(runs))}")
        for name in self._of:
            keys = sorted({seal.key for seal in self._seals[name]})
            if len(keys) > 1:
                found.append(
                    f"there are seals of '{name}' with different keys, {' and '.join(keys)}: the "
                    "federation file says which is its own"
                )
            found += self._broken_word(name)
        for sender, receiver in self._of.items():
            signed, gone = self._counts(receiver, "received"), Counter[int]()
            after, last = 0, self._last_words(sender)
            for row in unreceived:
                if row["sender"] == sender:
                    place = self._place[_key(row)]
                    gone[row["attempt"]] += place < signed[row["attempt"]]
                    after += place >= last.get(row["attempt"], place + 1)
            found += [
                f"'{receiver}' signed for {count} messages of '{sender}' in attempt {attempt} that "
                "its ledger does not have any more"
                for attempt, count in gone.items()
                if count
            ]
            if after:
                text = f"'{sender}' signed its last message, and {after} came into its ledger after"
                found.append(text)
        return found

    def _last_words(self, name: str) -> dict[int, int]:
        """By attempt in which its role has ended, how many messages it has sent."""
        said = [one for one in self._statements(name) if one.at == "end"]
        return {one.attempt: one.now.sent for one in said}

    def _broken_word(self, name: str) -> list[str]:
        """Whether an owner's ledger is still the one that it has signed for."""
        book, other = self._books[name], self._of[name]
        for seal in sorted(self._seals[name], key=lambda seal: seal.statement.rows):
            said = seal.statement
            when = f"{said.time} ({' '.join((said.at, said.place)).strip()})"
            if said.rows >= len(book.heads) or book.heads[said.rows] != said.head:
                return [
                    f"the ledger of '{name}' is not the one that it signed for '{said.to}' at "
                    f"{when}: of its first {said.rows} rows some were removed, moved or changed"
                ]
            for flow in said.flows if said.to == other else ():
                here = self._traffic[name].between(other, flow.attempt)
                heads = here.sent.head(flow.sent), here.received.head(flow.received)
                if heads != (flow.sent_head, flow.received_head):
                    return [
                        f"'{name}' signed for messages with '{other}' in attempt {flow.attempt}, "
                        f"at {when}, that its ledger never had"
                    ]
        return []


# ---- one ledger, and whose it is -----------------------------------------------------------------


def _open(place: Path) -> Book:
    """Read a ledger and check how far it can be trusted."""
    path = place / "ledger.jsonl" if place.is_dir() else place
    if not path.is_file():
        raise RunError(f"{place} has no ledger: give a party's run folder, or its ledger.jsonl")
    # A ledger of another name is a copy that somebody sent: the files beside it do not describe it.
    beside = path.parent if path.name == "ledger.jsonl" else None
    if beside is not None and (beside / "parties").is_dir():
        raise RunError(
            f"{beside} is the folder of all parties together: give two of those in "
            f"{beside / 'parties'}"
        )
    result, manifest = _json(beside, "result.json"), _json(beside, "run.json")
    finished = result.get("status") == "finished"
    rows: dict[Key, Row] = {}
    heads = [ledger.GENESIS]
    ends: set[str] | None = None  # of every message so far
    away: set[str] = set()
    attempts, broken = 0, ""
    try:
        end = result.get("wire", {}).get("head") if finished else None
        for row, head in ledger.hashed(path, end):
            heads.append(head)
            attempts = max(attempts, row["attempt"])
            if "note" in row:
                away.add(_away(row))
                continue
            key = _key(row)
            its = {row["sender"]} if "denied" in row else {row["sender"], row["receiver"]}
            ends = its if ends is None else ends & its
            if "denied" in row:
                continue
            if key in rows:
                raise RunError(f"{path}: rows {rows[key]['row']} and {row['row']} are one message")
            rows[key] = {part: row[part] for part in ("row", *KEY, *SAID)}
    except RunError as error:
        broken = str(error)
    begun = manifest.get("attempt")
    return Book(
        path,
        _owner(ends, result, manifest),
        rows,
        heads,
        list(seals.read(seals.beside(path))),
        attempts,
        finished,
        manifest.get("elastic", manifest.get("loose")) is True,  # "loose" in older runs
        begun if isinstance(begun, int) else 0,
        frozenset(away),
        str(manifest.get("run", "")),
        broken,
    )


def _away(note: Row) -> str:
    """Who was away at the end, if a note says so; in older ledgers only its text does."""
    told = _AWAY.fullmatch(str(note["note"]))
    return str(note.get("away", told[1] if told else ""))


def _key(row: Row) -> Key:
    return row["sender"], row["receiver"], row["attempt"], row["kind"], row["sequence"]


def _owner(ends: set[str] | None, result: Row, manifest: Row) -> frozenset[str]:
    """The party that sent or received every message; between two, the files beside it decide."""
    candidates = set(result.get("parties", [])) if ends is None else ends
    told = list(result.get("weights_sha256", {}))
    if len(told) > 1:  # the label holder keeps everybody's
        told = [result["config"].get("label_holder") or result["parties"][0]]
    if "party" in manifest:
        told = [manifest["party"]]
    if len(candidates) > 1 and len(told) == 1:
        candidates = candidates & set(told)
    return frozenset(candidates)


def _owners(one: Book, other: Book) -> tuple[str, str]:
    """The owners of the two ledgers, who are different parties."""
    pairs = [(a, b) for a in one.owners for b in other.owners if a != b]
    if len(pairs) == 1:
        return pairs[0]
    for book in (one, other):
        if not book.owners:
            raise RunError(
                f"{book.path} holds messages between several parties, so no single party owns it: "
                "give two parties' own folders"
            )
    if not pairs:
        raise RunError(f"{one.path} and {other.path} are both of '{next(iter(one.owners))}'")
    raise RunError(
        f"{one.path} and {other.path}: the rows of two parties do not show who owns which ledger. "
        "Give the run folder of at least one of them, with its result.json"
    )


def _json(folder: Path | None, name: str) -> dict[str, Any]:
    """A JSON file beside the ledger; empty if there is none."""
    try:
        content = json.loads((folder / name).read_text("utf-8")) if folder is not None else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
