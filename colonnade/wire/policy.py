"""What may leave a party. A Kind that its policy does not name stays inside.

    [allow.embedding]        # a Kind, by its name
    to = ["bank"]            # peers; omitted: any member
    bytes = "500 MB"         # in one run, to all peers together
    width = 128              # most numbers in a message about one record
    width_ratio = 1.0        # the same, against the numbers per row of the party's own features
    releases = 20            # how often each record may leave in trainings, to all peers together
    predictions = 5          # the same, when it is predicted
    numbers = 4000           # most numbers about one record, in trainings and predictions together
    min_batch = 8            # fewest rows in a message of a training
    min_prediction = 8       # the same, of a prediction
    min_members = 3          # fewest parties that take part
    epsilon = 8              # it leaves only if [protect] lets it tell of a record, in a run, …
    delta = 1e-5             # … within this ε and δ, or less

    [privacy]                # what all runs together may tell of one record: see limits.py
    features = 20            # ε, at `delta`; `labels` likewise

    journal = "journal"      # at the top: the folder of what this party must not forget, from the
                             # policy file; omitted: in the user's data folder

A limit that is 0 or omitted does not limit; to keep a Kind inside, omit its table. Which records a
message speaks of, its Kind says (`about`): those of the batch at hand, or all training rows. Eight
bytes of text, or of a name in a tree, count as a number. `releases`, `predictions` and `numbers`
are kept in the party's journal and count over all its runs; what a crash makes it do again counts
once.

The gate cannot see what is hidden inside a legitimate embedding, nor that packed codes hold several
numbers in one byte. `bytes` is the limit that holds for those too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from colonnade import toml
from colonnade.errors import ConfigError, unknown
from colonnade.wire import limits
from colonnade.wire.kind import Kind
from colonnade.wire.limits import Limits

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
DELTA = 1e-5  # where a rule names an ε alone
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?b)", re.IGNORECASE)


@dataclass(frozen=True)
class Allow:
    """The limits of one Kind; a limit of 0 does not limit."""

    to: tuple[str, ...] | None = None  # None: any member
    bytes: int = 0
    width: int = 0
    width_ratio: float = 0.0
    releases: int = 0
    predictions: int = 0
    numbers: int = 0
    min_batch: int = 0
    min_prediction: int = 0
    min_members: int = 0
    epsilon: float = 0.0
    delta: float = 0.0

    @property
    def counts(self) -> list[str]:
        """The limits that are counted per record."""
        return [n for n in ("releases", "predictions", "numbers") if getattr(self, n)]

    @property
    def within(self) -> tuple[float, float]:
        """(ε, δ) within which it must be protected; an ε of 0 asks for nothing."""
        return self.epsilon, self.delta or DELTA

    def unprotected(self, promised: tuple[float, float] | None) -> str:
        """Why a Kind that is protected like this may not leave; empty: it may.

        promised  (ε, δ) of one record in a run; None: it is not protected
        """
        epsilon, delta = self.within
        if not epsilon or (promised and promised[0] <= epsilon and promised[1] <= delta):
            return ""
        has = f"is to leave with ε = {promised[0]:g} at δ = {promised[1]:g}" if promised else ""
        return (
            f"asks for ε = {epsilon:g} or less, at δ = {delta:g} or less, of each record in a run, "
            f"and it {has or 'leaves as it is, without noise'}"
        )

    def widest(self, features: int | None) -> float:
        """Most numbers per row of a message. features: the party's own; None: unknown."""
        limits = [self.width] if self.width else []
        if self.width_ratio and features is not None:
            limits.append(times(self.width_ratio, features))
        return min(limits, default=math.inf)

    def table(self) -> dict[str, Any]:
        """The table as in the file, without values at their defaults."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        given["to"] = None if self.to is None else list(self.to)
        return {key: value for key, value in given.items() if value not in (None, 0)}


@dataclass(frozen=True)
class Policy:
    """The Kinds that may leave a party, and within which limits."""

    allow: Mapping[str, Allow]
    source: str = field(default="its policy file", compare=False)  # where to change it
    journal: Path | None = None  # None: in the user's data folder
    privacy: Limits = limits.NONE  # of all runs together, on one record

    @classmethod
    def load(cls, path: Path) -> Policy:
        """A policy from its TOML file."""
        policy, problems = cls.read(path)
        if problems:
            raise ConfigError(problems)
        return policy

    @classmethod
    def read(cls, path: Path) -> tuple[Policy, list[str]]:
        """The same, with what is wrong with its tables: these are then read as far as they can."""
        policy, problems = cls._parsed(toml.load(path))
        journal = None if policy.journal is None else path.parent / policy.journal
        read = replace(policy, source=str(path), journal=journal)
        return read, [f"{path}: {problem}" for problem in problems]

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str = "") -> Policy:
        """A policy from its table; `where` ("policy.") is the table's place in a larger file."""
        policy, problems = cls._parsed(table, where)
        if problems:
            raise ConfigError(problems)
        return policy

    @classmethod
    def _parsed(cls, table: Mapping[str, Any], where: str = "") -> tuple[Policy, list[str]]:
        at = f"in [{where.rstrip('.')}]" if where else "at the top level"
        # No two parties share a journal, and each approves code for itself (config/code.py).
        known = ["allow", "privacy"] if where else ["allow", "journal", "privacy", "trust"]
        problems = [unknown(key, known, at) for key in table if key not in known]
        journal = table.get("journal")
        if "journal" in known and journal is not None and not (journal and type(journal) is str):
            problems.append(f'journal = {journal!r}: must be the path of a folder, "journal"')
            journal = None
        rules = table.get("allow", {})
        if not isinstance(rules, Mapping):
            problems.append(f"{where}allow = {rules!r}: must be tables, [{where}allow.embedding]")
            rules = {}
        allow = {
            name: _allow(rule, f"{where}allow.{name}", problems) for name, rule in rules.items()
        }
        privacy = limits.read(table.get("privacy", {}), f"{where}privacy", problems)
        place = None if journal is None else Path(journal)
        return cls(allow, journal=place, privacy=privacy), problems

    @classmethod
    def allowing(cls, kinds: Iterable[Kind]) -> Policy:
        """A policy that allows every declared Kind without limits: for simulations."""
        return cls({kind.name: Allow() for kind in kinds})

    @staticmethod
    def template(kinds: Iterable[Kind], peer: str = "bank") -> str:
        """A policy file to start from: every Kind, what it reveals, and the possible limits."""
        parts = [
            "# What may leave this party: only the Kinds named here, each within its limits.\n"
        ]
        for kind in kinds:
            reveals = "".join(c if c.isprintable() else " " for c in kind.reveals)
            records = kind.about != "nothing"  # the others hold only where records are spoken of
            limits = (
                f"# to = {json.dumps([peer])}       # peers; omitted: any member\n"
                '# bytes = "500 MB"    # in one run\n'
                "# width = 128         # most numbers in a message about one record\n",
                "# width_ratio = 1.0   # the same, against the party's own features\n"
                "# releases = 20       # how often each record may leave in trainings\n"
                "# predictions = 5     # how often each record may leave to be predicted\n"
                "# numbers = 4000      # most numbers about one record, in all runs together\n"
                "# min_batch = 8       # fewest rows in a message of a training\n"
                "# min_prediction = 8  # fewest rows in a message of a prediction\n"
                "# epsilon = 8         # only if noise keeps it within this ε of a record\n",
                "# min_members = 3     # fewest parties that take part\n",
            )
            parts.append(
                f"# {kind.name} ({kind.describe()}) reveals: {reveals}\n"
                f"[allow.{quoted(kind.name)}]\n" + "".join(limits if records else limits[::2])
            )
        return "\n".join(parts)

    def only(self, kinds: Iterable[str]) -> Policy:
        """The part of the policy about these Kinds."""
        kept = set(kinds)
        return replace(self, allow={k: rule for k, rule in self.allow.items() if k in kept})

    def table(self) -> dict[str, Any]:
        """The policy as a table, as in the file."""
        more: dict[str, Any] = {} if self.journal is None else {"journal": str(self.journal)}
        more |= {"privacy": self.privacy.table()} if self.privacy.given else {}
        return more | {"allow": {name: rule.table() for name, rule in self.allow.items()}}

    def dumps(self) -> str:
        """The policy as TOML."""
        import tomli_w

        return tomli_w.dumps(self.table())

    def check_kinds(self, kinds: Iterable[str]) -> None:
        """Refuse names that the method does not declare: a typing error would deny silently."""
        if problems := self.strangers(kinds):
            raise ConfigError(problems)

    def strangers(self, kinds: Iterable[str]) -> list[str]:
        """What is wrong with the names that the method does not declare."""
        valid = set(kinds)
        return [
            unknown(name, valid, f"to allow, in {self.source}", "Kind")
            for name in self.allow
            if name not in valid
        ]


def times(ratio: float, number: int) -> int:
    """The product, rounded down. Exact for ratios such as 0.29: 100 times that is 29."""
    return math.floor(Fraction(str(ratio)) * number)


# ---- reading -------------------------------------------------------------------------------------


def _allow(table: Any, where: str, problems: list[str]) -> Allow:
    """Read one rule; the table's mistakes go to `problems`."""
    if not isinstance(table, Mapping):
        problems.append(f"{where} = {table!r}: must be a table, [{where}]")
        return Allow()
    valid = [f.name for f in fields(Allow)]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in valid:
            problems.append(unknown(key, valid, f"in [{where}]"))
            continue
        read = {
            "to": _peers,
            "bytes": _size,
            "width_ratio": _ratio,
            "epsilon": _ratio,
            "delta": _ratio,
        }
        try:
            values[key] = read.get(key, _whole)(value)
        except TypeError as error:
            problems.append(f"{where}.{key} = {value!r}: {error}")
    if values.get("delta") and not values.get("epsilon"):
        problems.append(f"{where}.delta belongs to an epsilon: give both, or omit delta")
    return Allow(**values)


def _peers(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TypeError('must be a list of members, ["bank"]')
    if not value:
        raise TypeError("names nobody; omit `to` for any member, or the whole table for nobody")
    return tuple(value)


def _size(value: Any) -> int:
    if not isinstance(value, str):
        return _whole(value)
    written = SIZE.fullmatch(value)
    if written is None:
        raise TypeError('must be a whole number of bytes, or a text such as "500 MB"')
    size = math.floor(Fraction(written[1]) * UNITS[written[2].lower()])
    if size == 0:  # a limit was meant, and 0 does not limit
        raise TypeError("less than a byte; for no limit omit it")
    return _whole(size)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise TypeError("must be a whole number from 0")
    return value


def _ratio(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < 1e18:  # neither infinite nor NaN
        raise TypeError("must be a number from 0")
    return float(value)


def quoted(name: str) -> str:
    """A name as TOML writes it between dots."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
