"""The control messages of a federation's processes.

Each word is a type below. It travels as its name and its fields in JSON; a word that does not fit a
frame travels in pieces. protocol.py defines who may send which word and how a session handles it;
choice.py defines how the hub chooses where all begin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from colonnade.errors import CodecError, ColonnadeError, RoleFailed, foreign
from colonnade.net.frame import HEAD_BYTES, Control

Place = tuple[str, int, int]  # phase, epoch, step
RunName = str  # 16 hexadecimal digits
OldName = str  # the same, or nothing: of the run that a folder holds
Label = str  # of a checkpoint
Said = TypeVar("Said")

TICK = 0.2  # seconds between two looks at the clock
WAIT_NOTE_SECONDS = 30.0  # between two notes of who is waited for
MORE = "more of "  # marks a piece of a word that another piece follows
WORD_BYTES = HEAD_BYTES // 2  # of a piece that another one follows
WORDS_BYTES = 16 << 20  # of all the words that one party has begun
MOST_VALUES = 1 << 20  # in the JSON of a word
MOST_COUNTED, MOST_NAMES = 1 << 40, 1 << 16  # numbers and lists beyond that are nonsense
TEXT_CHARACTERS = 2000  # of an error that others are told of
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)


class GoBack(BaseException):
    """Not an error: this party starts again from a checkpoint. No role may catch it."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a lost party, and what to do then."""

    on_lost: Literal["wait", "stop", "continue"] = "wait"
    deadline: float = 600.0  # seconds without a connection
    silence: float = 3600.0  # seconds without a message, although connected


# ---- the words -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Join:
    """I am here, and this is what I hold."""

    life: str
    run: OldName
    attempt: int
    held: tuple[Label, ...]
    finished: bool
    fresh: Place | None = None  # the first step that it has never begun, with whatever members


@dataclass(frozen=True)
class Start:
    """Everybody begins here."""

    run: RunName
    attempt: int
    label: Label | None  # of the common checkpoint; None: from the beginning
    absent: tuple[str, ...] = ()
    skip: Place | None = None  # after a loss: nothing before it is done again
    lives: Mapping[str, str] = field(default_factory=dict)  # which process of each party it is
    told: Mapping[str, Any] = field(default_factory=dict)  # by the hub: the classes
    ended: bool = False  # only the results are missing


@dataclass(frozen=True)
class Halt:
    """Everybody goes back to the last common checkpoint, and joins again."""

    why: str


@dataclass(frozen=True)
class Saved:
    """I have written this checkpoint."""

    label: Label


@dataclass(frozen=True)
class Commit:
    """All have written this checkpoint: drop what is older."""

    label: Label


@dataclass(frozen=True)
class Countersign:
    """What my ledger says of the two of us, signed; through the hub where we have no link."""

    seal: Mapping[str, Any]
    asks: int = 0  # for the same in return: the number of the question
    answers: int = 0  # to which question


@dataclass(frozen=True)
class Waiting:
    """My role has been waiting for this for some time."""

    what: str


@dataclass(frozen=True)
class Going:
    """My role waits no longer."""


@dataclass(frozen=True)
class Done:
    """My role has ended, and this is its account."""

    account: Mapping[str, Any]


@dataclass(frozen=True)
class End:
    """All roles have ended: write your results."""


@dataclass(frozen=True)
class Bye:
    """My results are on disk; I need nobody any more."""


@dataclass(frozen=True)
class Stop:
    """I was asked to stop; have everybody save themselves and stop."""

    why: str


@dataclass(frozen=True)
class StopAt:
    """Everybody saves themselves after so many steps, and stops."""

    steps: int
    why: str


@dataclass(frozen=True)
class Quit:
    """I have stopped: whoever still runs should stop, too."""


@dataclass(frozen=True)
class Failure:
    """A party has failed of its own accord: nobody needs to wait for it."""

    party: str
    error: str  # the type of it
    text: str
    refused: bool = False  # it is the one who hears this that may not take part

    @classmethod
    def of(cls, error: ColonnadeError, me: str) -> Failure:
        """What others should know of an error at `me`, which may only pass on another party's."""
        if isinstance(error, RoleFailed) and error.party not in ("", me):
            return cls(error.party, error.error, error.text)
        return cls(me, type(error).__name__, str(error)[:TEXT_CHARACTERS])

    def as_error(self) -> RoleFailed:
        """The same, as an error of the party that has heard of it."""
        said = f"'{self.party}' has stopped: {self.error}: {self.text}"
        return RoleFailed(said, self.party, self.error, self.text)


# ---- from JSON and to frames ---------------------------------------------------------------------


def read(word: type[Said], content: Mapping[str, Any]) -> Said:
    """A word of this type from its fields; raises one of NONSENSE."""
    parts: Any = fields(word)  # type: ignore[arg-type]
    return word(**{part.name: _READERS[part.type](content[part.name]) for part in parts})


def parsed(text: str) -> dict[str, Any]:
    """The fields of a word; counted first, because a short text can make a million objects."""
    values = text.count(",") + text.count("[") + text.count("{")
    if values > MOST_VALUES:
        raise ValueError(f"{values} values; {MOST_VALUES} at most")
    return _table(json.loads(text))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.50} is not a text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_COUNTED:
        raise TypeError(f"{value!r:.50} is not a count")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.50} is neither true nor false")
    return value


def _run(value: Any) -> str:
    if re.fullmatch("[0-9a-f]{16}", _text(value)) is None:
        raise ValueError(f"{value!r:.50} is not the name of a run")
    return str(value)


def _label(value: Any) -> str:
    if re.fullmatch(r"[\w-]{1,100}", _text(value)) is None:
        raise ValueError(f"{value!r:.50} is not the name of a checkpoint")
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_NAMES:
        raise TypeError(f"{value!r:.50} is not a list of names")
    return tuple(_text(name) for name in value)


def _place(value: Any) -> Place:
    phase, epoch, step = value
    return _label(phase), _count(epoch), _count(step)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a table")
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {  # by the annotation of a field
    "str": lambda value: foreign(_text(value)),
    "int": _count,
    "bool": _truth,
    "RunName": _run,
    "OldName": lambda value: value if value == "" else _run(value),
    "Label": _label,
    "Label | None": lambda value: None if value is None else _label(value),
    "tuple[Label, ...]": lambda value: tuple(_label(name) for name in _names(value)),
    "Place | None": lambda value: None if value is None else _place(value),
    "tuple[str, ...]": _names,
    "Mapping[str, str]": lambda value: {k: _text(v) for k, v in _table(value).items()},
    "Mapping[str, Any]": _table,
}


def frames(name: str, said: Any) -> Iterator[Control]:
    """The frames of a word: several for the account of a long run."""
    text = json.dumps({one.name: getattr(said, one.name) for one in fields(said)})
    while len(text) > WORD_BYTES:
        yield Control(MORE + name, text[:WORD_BYTES])
        text = text[WORD_BYTES:]
    yield Control(name, text)


class Pieces:
    """Joins the pieces of words; pieces of different words may alternate."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, str], list[str]] = {}  # by sender and name: more will come

    def take(self, sender: str, control: Control) -> tuple[str, str] | None:
        """The name and the whole text of a word, once its last piece has come."""
        name = control.word.removeprefix(MORE)
        if control.word == name:
            return name, "".join((*self._begun.pop((sender, name), ()), control.content))
        if len(control.content) != WORD_BYTES:
            raise CodecError(f"'{sender}' sent a piece of {len(control.content)} bytes of a word")
        self._begun.setdefault((sender, name), []).append(control.content)
        pieces = sum(len(begun) for (who, _), begun in self._begun.items() if who == sender)
        if pieces * WORD_BYTES > WORDS_BYTES:
            raise CodecError(f"'{sender}' does not come to an end: {pieces * WORD_BYTES} bytes")
        return None

    def forget(self, sender: str) -> None:
        """Forget the pieces of a process that is gone."""
        self._begun = {key: texts for key, texts in self._begun.items() if key[0] != sender}
