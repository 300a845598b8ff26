"""Every error Colonnade raises on purpose.

ColonnadeError
├── InputError                what the user gave cannot be used        (exit code 2)
│   ├── ConfigError           the configuration: all its mistakes at once
│   ├── FederationError       a federation file, or parties that do not agree on one
│   ├── DataError             rows, columns, labels, files
│   │   ├── DataMissing       a data set that is not on this machine
│   │   └── DataCorrupt       a file that is not what its checksum or format says
│   ├── PartitionError        a split that the data does not allow
│   ├── MethodError           a method that cannot be found, loaded or cast
│   ├── CertificateError      a key or certificate that cannot be read, made or trusted
│   └── RunError              a run folder that cannot be read, written or resumed
├── WireError                 what crossed, or should have crossed, the wire
│   ├── KindError             a value that its Kind does not declare
│   ├── CodecError            bytes that are not a message
│   ├── PeerLost              a party that went away while another waited for it
│   └── Refused               a peer that would not talk to us, and why
├── SecurityError             what would weaken a protection; nothing is sent
│   ├── Untrusted             a key, signature or message that is not what it claims to be
│   ├── Denied                what the party's own policy does not let out
│   ├── MaskError             a value that no mask can hide, a mask that would be used twice
│   ├── BudgetSpent           a release that the privacy budget does not allow any more
│   ├── JournalError          a journal that was cut, changed or lost, or cannot be written
│   └── Diverged              numbers that no protection covers: the training has diverged
├── Deadlock                  every role waits for another
└── RoleFailed                a role raised: whose it was, and where

A message says who, what, why, and what to do next.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

LETTERS = 2000  # of another party's text
SHOWN = 20  # mistakes that fit a screen
LISTED = 40  # names that one message lists
OTHERWISE = {  # elsewhere so called
    "learning_rate": "lr",
    "network": "model",
    "dataset": "data",
    "batch": "batch_size",
}


class ColonnadeError(Exception):
    """The root: `except ColonnadeError` catches all of ours and nothing else."""


class InputError(ColonnadeError):
    """What the user gave cannot be used."""


class ConfigError(InputError):
    """All mistakes of a configuration, reported at once."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(_listed(problems, "the configuration"))


class FederationError(InputError):
    """A federation file, or parties that do not agree on one: all that is wrong, at once."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(_listed(problems, "the federation"))


class DataError(InputError):
    """Rows, columns, labels or files that cannot be used."""

    def __init__(self, said: str, problems: Sequence[str] = ()) -> None:
        """problems: one by one, where there are several"""
        self.problems = list(problems) or [said]
        super().__init__(said)


class DataMissing(DataError):
    """A data set that is not on this machine."""


class DataCorrupt(DataError):
    """A file that is not what its checksum or its format says."""


class PartitionError(InputError):
    """A split that the data does not allow."""


class MethodError(InputError):
    """A method that cannot be found, loaded or cast over these parties."""

    def __init__(self, said: str, move: str = "") -> None:
        """
        said  what is wrong
        move  what to do about it, where that is one thing to type
        """
        self.said, self.move = said, move
        super().__init__(f"{said}: {move}" if move else said)


class CertificateError(InputError):
    """A key or certificate that cannot be read, made or trusted."""


class RunError(InputError):
    """A run folder that cannot be read, written or resumed."""


class WireError(ColonnadeError):
    """Something about a message."""


class KindError(WireError):
    """A value that its Kind does not declare."""


class CodecError(WireError):
    """Bytes that are not a message."""


class PeerLost(WireError):
    """A party went away while another waited for it; thrown into the waiting role."""

    def __init__(self, waiter: str, peer: str, kind: str, step: int, why: str) -> None:
        self.waiter, self.peer, self.kind, self.step = waiter, peer, kind, step
        super().__init__(f"'{waiter}' waited for '{kind}' from '{peer}' at step {step}: {why}")


class Refused(WireError):
    """A peer that would not talk to us, and why."""


class SecurityError(ColonnadeError):
    """What would weaken a protection; nothing is sent."""


class Untrusted(SecurityError):
    """A key, a signature or a message that is not what it claims to be."""


class Denied(SecurityError):
    """What the party's own policy does not let out."""


class MaskError(SecurityError):
    """A value that no mask can hide, or a mask that would be used twice."""


class BudgetSpent(SecurityError):
    """A release that the privacy budget does not allow any more."""


class JournalError(SecurityError):
    """A party's journal, or what it anchors, that was cut, changed, lost, or cannot be written."""


class Diverged(SecurityError):
    """Numbers that are not finite, or too large to be protected: the training has diverged."""


class Deadlock(ColonnadeError):
    """Every role waits for another."""


class RoleFailed(ColonnadeError):
    """A role raised, here or at another party; here the cause is chained."""

    def __init__(self, said: str, party: str = "", error: str = "", text: str = "") -> None:
        """
        said   the whole sentence
        party  whose role it was, where that is known
        error  the type of its error
        text   what that error says
        """
        self.party, self.error, self.text = party, error, text
        super().__init__(said)


def foreign(text: object, most: int = LETTERS) -> str:
    """A text of another party: one line of limited length, without any effect on a terminal."""
    line = printable(" ".join(str(text)[: 4 * most].split()))
    return line if len(line) <= most else f"{line[:most]}…"


def printable(text: str) -> str:
    """Lines as a log or a terminal may show them: control and format characters, also those that
    turn the direction of writing, as escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` probably stands for."""
    lower = {other.casefold(): other for other in valid}
    if (other := OTHERWISE.get(name)) in lower:
        return other
    given = name.casefold()
    cutoff = 0.6 if len(given) < 5 else 0.7  # "aeg" for "age", but not "metrics" for "strict"
    near = get_close_matches(given, lower, n=1, cutoff=cutoff)
    if not near and len(given) > 2:  # "dimension" for "dim", "khan" for "microarray-khan"
        near = [other for other in lower if other in given or given in other]
    return lower[near[0]] if len(near) == 1 else None


def unknown(
    name: str,
    valid: Iterable[str],
    where: str = "",
    what: str = "key",
    elsewhere: Mapping[str, str] | None = None,
) -> str:
    """The one sentence about a name that does not exist.

    "no key 'epoch' at the top level: did you mean 'epochs'?", or which names there are.

    elsewhere  other names, and where these belong: "below [splitnn]"
    """
    names, other = sorted(valid), dict(elsewhere or {})
    spelt = get_close_matches(name.casefold(), other, n=1, cutoff=0.8)
    if name in other:
        hint = f"it belongs {other[name]}"
    elif near := nearest(name, names):
        hint = f"did you mean '{near}'?"
    elif spelt:
        hint = f"did you mean '{spelt[0]}', which belongs {other[spelt[0]]}?"
    else:
        between = "; " if any("," in each for each in names) else ", "  # names of a paper's rows
        more = f"{between}and {len(names) - LISTED} more" if len(names) > LISTED else ""
        hint = f"one of {between.join(names[:LISTED]) or 'none'}{more}"
    return f"no {what} '{name}'{' ' if where else ''}{where}: {hint}"


def listed(names: Sequence[str], most: int = 10, *, quoted: bool = True) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    shown = [short(name, 40) for name in names[:most]]
    return ", ".join(f"'{name}'" if quoted else name for name in shown) + more


def either(ways: Sequence[str]) -> str:
    """Ways of which one may be taken: "a, b or c"."""
    *first, last = ways
    return f"{', '.join(first)} or {last}" if first else last


def enumerated(problems: Sequence[str], where: str) -> str:
    """Mistakes one below the other; of very many, the first."""
    return _listed(list(problems), where)


def short(text: str, most: int) -> str:
    """A text that is cut where it is long."""
    return text if len(text) <= most else f"{text[:most]}…"


def _listed(problems: list[str], where: str) -> str:
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    shown = [f"  - {problem}" for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        shown.append(f"  and {len(problems) - SHOWN} more")
    return "\n".join([f"{count} in {where}", *shown])
