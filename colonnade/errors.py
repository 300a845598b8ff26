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
│   └── BudgetSpent           a release that the privacy budget does not allow any more
├── Deadlock                  every role waits for another
└── RoleFailed                a role raised: whose it was, and where

A message says who, what, why, and what to do next.
"""

SHOWN = 20  # mistakes that fit a screen


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


class DataMissing(DataError):
    """A data set that is not on this machine."""


class DataCorrupt(DataError):
    """A file that is not what its checksum or its format says."""


class PartitionError(InputError):
    """A split that the data does not allow."""


class MethodError(InputError):
    """A method that cannot be found, loaded or cast over these parties."""


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


class Deadlock(ColonnadeError):
    """Every role waits for another."""


class RoleFailed(ColonnadeError):
    """A role raised; the cause is chained."""


def _listed(problems: list[str], where: str) -> str:
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    shown = [f"  - {problem}" for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        shown.append(f"  and {len(problems) - SHOWN} more")
    return "\n".join([f"{count} in {where}", *shown])
