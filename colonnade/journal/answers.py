"""What stands in for labels, in all runs of a party: each row is answered once, and never again.

    answers = Answers(journal, "3f…", ("no", "yes"))
    with journal.turn():
        known = answers.known(names, numbers)      # of these rows, as far as they were answered
        answers.keep(more)                         # on the disk before anybody uses it

A row is its record's name and a number, which tells records of one name apart. An entry says which
classes there were, and refers to a table beside the lists of records, by its digest:

    name u64 · number u32 · groups u16 · size u16 · answer f64     one line per row
    class u16 …                                                    those of all answers in turn

An answer is a number, a class, or one of several groups of classes: then the table has all classes
of that group, and the answer is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import JournalError
from colonnade.journal.journal import Journal
from colonnade.journal.records import Names

LINE = np.dtype(
    [("name", "<u8"), ("number", "<u4"), ("groups", "<u2"), ("size", "<u2"), ("answer", "<f8")]
)
OTHER = (
    "A party's journal keeps one answer for each row and for good. If these are other labels, "
    "train on them in a federation of another name, which has another journal"
)
ALL = 0  # groups: each class by itself, or no classes
OTHERS = -1  # since: answered in another run
Row = tuple[int, int]  # a record's name, and its number among those of that name


@dataclass(frozen=True)
class Known:
    """The answers of some rows, in their order."""

    answers: NDArray[np.float64]  # a class or a number; NaN: not answered
    epsilon: NDArray[np.float64]
    groups: NDArray[np.int64]  # how many there were; 0: each class by itself, or no classes
    members: list[NDArray[np.uint16]]  # all classes of the answered group; empty: that one alone
    since: NDArray[np.int64]  # the epoch of this run from which they count; -1: of another run

    @property
    def there(self) -> NDArray[np.bool_]:
        """Which rows were answered."""
        return ~np.isnan(self.answers)


class Answers:
    """Of one party, as one run sees them."""

    def __init__(self, journal: Journal, run: str, classes: Sequence[str]) -> None:
        """classes: of the labels; none: these are numbers"""
        self.journal, self._run, self._classes = journal, run, tuple(classes)

    def known(self, names: Names, numbers: NDArray[np.integer]) -> Known:
        """What was answered for these rows, in any run."""
        count = len(names)
        places: dict[Row, int] = {
            row: place
            for place, row in enumerate(zip(names.tolist(), numbers.tolist(), strict=True))
        }
        answers, epsilon = np.full(count, np.nan), np.zeros(count)
        since, groups = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        none = np.empty(0, dtype=np.uint16)
        members = [none] * count
        for entry in self.journal.entries("answered"):
            lines, classes = self._read(str(entry["table"]))
            codes = self._codes(entry["classes"])
            ends = np.cumsum(lines["size"], dtype=np.int64)
            first = int(entry["epoch"]) if entry["run"] == self._run else OTHERS
            for line, row in enumerate(
                zip(lines["name"].tolist(), lines["number"].tolist(), strict=True)
            ):
                place = places.get(row, -1)
                if place < 0 or not np.isnan(answers[place]):
                    continue  # the first answer counts
                size, said = lines["size"][line], lines["answer"][line]
                answers[place] = codes[int(said)] if len(codes) else said
                epsilon[place], since[place] = float(entry["epsilon"]), first
                groups[place] = lines["groups"][line]
                members[place] = codes[classes[ends[line] - size : ends[line]]] if size else none
                if groups[place] == ALL and len(codes) < len(self._classes):
                    groups[place] = len(codes)  # there were fewer classes then
        return Known(answers, epsilon, groups, members, since)

    def keep(
        self,
        names: Names,
        numbers: NDArray[np.integer],
        answers: NDArray[np.generic],
        epsilon: float,
        groups: NDArray[np.integer] | None = None,
        members: NDArray[np.bool_] | None = None,
        epoch: int = 0,
    ) -> None:
        """Answers of rows that had none; they are on the disk when this returns.

        groups   of each row; None: each class is a group
        members  (rows, classes): all classes of the answered group
        epoch    of this run from which on they are used
        """
        lines = np.zeros(len(names), dtype=LINE)
        lines["name"], lines["number"], lines["answer"] = names, numbers, answers
        classes = b""
        if groups is not None and members is not None:
            lines["groups"], lines["size"] = groups, members.sum(1)
            classes = np.nonzero(members)[1].astype("<u2").tobytes()
        count = len(lines).to_bytes(8, "little")
        table = self.journal.lists.put(count + lines.tobytes() + classes)
        self.journal.append(
            "answered",
            run=self._run,
            classes=list(self._classes),
            epsilon=epsilon,
            epoch=epoch,
            table=table,
            rows=self.journal.lists.keep(names),
        )

    def _codes(self, before: Sequence[str]) -> NDArray[np.uint16]:
        """What the classes of then are called now."""
        places = {name: code for code, name in enumerate(self._classes)}
        if bool(before) != bool(places):
            then, now = ("classes", "numbers") if before else ("numbers", "classes")
            raise JournalError(
                f"labels of these rows were answered as {then} before, and are {now} now. {OTHER}"
            )
        if lost := [name for name in before if name not in places]:
            raise JournalError(
                f"labels were answered before among classes with '{lost[0]}', which no label is "
                f"now. {OTHER}"
            )
        return np.array([places[name] for name in before], dtype=np.uint16)

    def _read(self, called: str) -> tuple[NDArray[np.void], NDArray[np.uint16]]:
        data = self.journal.lists.get(called)
        end = 8 + int.from_bytes(data[:8], "little") * LINE.itemsize
        if len(data) < end:
            raise JournalError(f"the answers {called} of the journal are of another version")
        return np.frombuffer(data[8:end], LINE), np.frombuffer(data[end:], "<u2")
