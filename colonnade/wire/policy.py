"""What may leave a party. A Kind that its policy does not name stays inside.

    [allow.embedding]        # a Kind, by its name
    to = ["bank"]            # peers; omitted: any member
    bytes = "500 MB"         # in one run, to all peers together
    width = 128              # most numbers per row of a message
    width_ratio = 1.0        # the same, against the numbers per row of the party's own features
    releases = 20            # per record: rows sent so far / rows held, to all peers together
    min_batch = 8            # fewest rows in a message; the last batch of an epoch counts too
    min_members = 3          # fewest parties that take part

    journal = "journal"      # at the top: the folder of what this party must not forget, from the
                             # policy file; omitted: in the user's data folder

A limit that is 0 or omitted does not limit; to keep a Kind inside, omit its table. The rows of a
message are the first dimension of its tensor, or of the largest tensor of a tree.

The gate cannot see what is hidden inside a legitimate embedding, nor that packed codes hold several
numbers in one byte. `bytes` is the limit that holds for those too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from colonnade import toml
from colonnade.errors import ConfigError, Denied, unknown
from colonnade.journal import RunJournal
from colonnade.wire.kind import Kind, Value

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?b)", re.IGNORECASE)
NUMBERS = ("bool", "int", "float")  # the ledger's names for them
KNOWN_SHAPES = 4096  # verdicts that are remembered


@dataclass(frozen=True)
class Allow:
    """The limits of one Kind; a limit of 0 does not limit."""

    to: tuple[str, ...] | None = None  # None: any member
    bytes: int = 0
    width: int = 0
    width_ratio: float = 0.0
    releases: float = 0.0
    min_batch: int = 0
    min_members: int = 0

    def widest(self, features: int | None) -> float:
        """Most numbers per row of a message. features: the party's own; None: unknown."""
        limits = [self.width] if self.width else []
        if self.width_ratio and features is not None:
            limits.append(_times(self.width_ratio, features))
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

    @classmethod
    def load(cls, path: Path) -> Policy:
        """A policy from its TOML file."""
        table = toml.load(path)
        try:
            policy = cls.from_table(table)
            journal = None if policy.journal is None else path.parent / policy.journal
            return replace(policy, source=str(path), journal=journal)
        except ConfigError as error:
            raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str = "") -> Policy:
        """A policy from its table; `where` ("policy.") is the table's place in a larger file."""
        place = f"in [{where.rstrip('.')}]" if where else "at the top level"
        # No two parties share a journal, and each approves code for itself (config/code.py).
        known = ["allow"] if where else ["allow", "journal", "trust"]
        problems = [unknown(key, known, place) for key in table if key not in known]
        journal = table.get("journal")
        if "journal" in known and journal is not None and not (journal and type(journal) is str):
            problems.append(f'journal = {journal!r}: must be the path of a folder, "journal"')
        rules = table.get("allow", {})
        if not isinstance(rules, Mapping):
            problems.append(f"{where}allow = {rules!r}: must be tables, [{where}allow.embedding]")
            rules = {}
        allow = {
            name: _allow(rule, f"{where}allow.{name}", problems) for name, rule in rules.items()
        }
        if problems:
            raise ConfigError(problems)
        return cls(allow, journal=None if journal is None else Path(journal))

    @classmethod
    def allowing(cls, kinds: Iterable[Kind]) -> Policy:
        """A policy that allows every declared Kind without limits: for simulations."""
        return cls({kind.name: Allow() for kind in kinds})

    @staticmethod
    def template(kinds: Iterable[Kind]) -> str:
        """A policy file to start from: every Kind, what it reveals, and the possible limits."""
        parts = [
            "# What may leave this party: a Kind not named here stays. An omitted limit is none.\n"
        ]
        for kind in kinds:
            reveals = "".join(c if c.isprintable() else " " for c in kind.reveals)
            parts.append(
                f"# {kind.name} ({kind.describe()}) reveals: {reveals}\n"
                f"[allow.{_key(kind.name)}]\n"
                '# to = ["bank"]       # peers; omitted: any member\n'
                '# bytes = "500 MB"    # in one run\n'
                "# width = 128         # most numbers per row\n"
                "# width_ratio = 1.0   # most numbers per row, against the party's own features\n"
                "# releases = 20       # how often a record may leave\n"
                "# min_batch = 8       # fewest rows in a message\n"
                "# min_members = 3     # fewest parties that take part\n"
            )
        return "\n".join(parts)

    def only(self, kinds: Iterable[str]) -> Policy:
        """The part of the policy about these Kinds."""
        kept = set(kinds)
        return replace(self, allow={k: rule for k, rule in self.allow.items() if k in kept})

    def table(self) -> dict[str, Any]:
        """The policy as a table, as in the file."""
        journal = {} if self.journal is None else {"journal": str(self.journal)}
        return journal | {"allow": {name: rule.table() for name, rule in self.allow.items()}}

    def dumps(self) -> str:
        """The policy as TOML."""
        import tomli_w

        return tomli_w.dumps(self.table())

    def check_kinds(self, kinds: Iterable[str]) -> None:
        """Refuse names that the method does not declare: a typing error would deny silently."""
        valid = set(kinds)
        problems = [
            unknown(name, valid, f"to allow, in {self.source}", "Kind")
            for name in self.allow
            if name not in valid
        ]
        if problems:
            raise ConfigError(problems)


@dataclass(slots=True)
class _Account:
    """How much has left as one Kind, and how much may."""

    messages: int = 0
    bytes: int = 0
    rows: int = 0
    most_bytes: float = math.inf
    most_rows: float = math.inf
    widest: float = math.inf  # against the party's own features


class Gate:
    """Every message of one party passes here before it leaves, and is counted.

    rows      records that the party holds
    features  numbers per row of its own features
    members   parties that take part, itself included
    """

    def __init__(self, owner: str, policy: Policy, rows: int, features: int, members: int) -> None:
        self.owner, self.policy = owner, policy
        self._held, self._features, self._members = rows, features, members
        self.journal: RunJournal | None = None  # set by the run
        self._accounts: dict[str, _Account] = {}
        # (receiver, Kind, shape) of messages that only the budget can deny -> (rows, account)
        self._known: dict[tuple[str, Kind, Sequence[int]], tuple[int, _Account]] = {}

    def check(self, receiver: str, kind: Kind, value: Value, size: int) -> None:
        """Let a message of `size` bytes pass and count it, or raise Denied and count nothing."""
        if isinstance(value, Tensor):
            key = (receiver, kind, value.shape)
            found = self._known.get(key)
            if found is None:
                found = self._judge(receiver, kind, value)
                if len(self._known) >= KNOWN_SHAPES:
                    self._known.clear()
                self._known[key] = found
        else:
            found = self._judge(receiver, kind, value)
        rows, account = found
        if account.bytes + size > account.most_bytes or account.rows + rows > account.most_rows:
            self._deny_budget(receiver, kind, rows, size, account)
        account.messages += 1
        account.bytes += size
        account.rows += rows

    def attend(self, members: int) -> None:
        """From now on so many take part: others were left out."""
        self._members = members
        self._known.clear()

    def spent(self) -> dict[str, dict[str, int]]:
        """What has left so far, by Kind."""
        return {
            name: {"messages": one.messages, "bytes": one.bytes, "rows": one.rows}
            for name, one in self._accounts.items()
            if one.messages
        }

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count again from the ledger: a restart does not give back what a party has spent."""
        self._accounts.clear()
        self._known.clear()
        for row in rows:
            if row.get("sender") != self.owner or "denied" in row:
                continue
            account = self._account(row["kind"])
            account.messages += 1
            account.bytes += row["bytes"]
            account.rows += _measure(_described(row["shape"]))[0]

    def _judge(self, receiver: str, kind: Kind, value: Value) -> tuple[int, _Account]:
        """Apply all rules that depend on the message alone."""
        rule = self.policy.allow.get(kind.name)
        if rule is None:
            self._deny(
                receiver,
                kind,
                f"its policy does not name that Kind, which reveals: {kind.reveals}. If it may "
                f"leave, add [allow.{_key(kind.name)}] to {self.policy.source}",
            )
        if rule.to is not None and receiver not in rule.to:
            allowed = ", ".join(f"'{name}'" for name in rule.to) or "nobody"
            self._deny(
                receiver,
                kind,
                f"its policy allows that to {allowed} only. If '{receiver}' may have it, name it "
                f"in `to`, in {self.policy.source}",
            )
        if self._members < rule.min_members:
            self._deny(
                receiver,
                kind,
                f"its policy requires {rule.min_members} members and {self._members} take part. "
                "Let others join",
                "min_members",
            )
        rows, width = _measure(_shapes(value))
        if rows < rule.min_batch:
            self._deny(
                receiver,
                kind,
                f"its policy requires {rule.min_batch} rows in a message and this one has {rows}. "
                "Choose a batch_size that leaves no smaller rest",
                "min_batch",
            )
        if rule.width and width > rule.width:
            self._deny(
                receiver,
                kind,
                f"its policy allows {rule.width} numbers per row and this message has {width}. "
                "Choose a smaller embedding",
                "width",
            )
        account = self._account(kind.name)
        if width > account.widest:
            self._deny(
                receiver,
                kind,
                f"its policy allows {rule.width_ratio:g} times as many numbers per row as the "
                f"party's features have ({self._features}), and this message has {width}. Choose "
                "a smaller embedding",
                "width_ratio",
            )
        return rows, account

    def _account(self, kind: str) -> _Account:
        account = self._accounts.get(kind)
        if account is None:
            rule = self.policy.allow.get(kind, Allow())  # the ledger may hold a Kind now denied
            account = self._accounts[kind] = _Account()
            if rule.bytes:
                account.most_bytes = rule.bytes
            if rule.releases:
                account.most_rows = _times(rule.releases, self._held)
            if rule.width_ratio:
                account.widest = _times(rule.width_ratio, self._features)
        return account

    def _deny_budget(
        self, receiver: str, kind: Kind, rows: int, size: int, account: _Account
    ) -> NoReturn:
        rule = self.policy.allow[kind.name]
        if account.bytes + size > account.most_bytes:
            self._deny(
                receiver,
                kind,
                f"its policy allows {rule.bytes:,} bytes in a run, {account.bytes:,} have left, "
                f"and this message has {size:,}. Train for fewer epochs",
                "bytes",
            )
        self._deny(
            receiver,
            kind,
            f"its policy allows {rule.releases:g} releases of each of its {self._held:,} records, "
            f"{account.rows:,} rows have left, and this message has {rows:,}. Train for fewer "
            "epochs",
            "releases",
        )

    def _deny(self, receiver: str, kind: Kind, why: str, limit: str = "") -> NoReturn:
        move = f", or change `{limit}` in {self.policy.source}" if limit else ""
        raise Denied(f"'{self.owner}' does not send '{kind.name}' to '{receiver}': {why}{move}")


# ---- rows and numbers ----------------------------------------------------------------------------


def _shapes(value: Value) -> Iterator[Sequence[int]]:
    """The shape of every tensor. A number counts as a tensor without dimensions, text does not."""
    if isinstance(value, Tensor):
        yield value.shape
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _shapes(child)
    elif isinstance(value, int | float):  # also True and False
        yield ()


def _described(shape: Any) -> Iterator[Sequence[int]]:
    """The shapes from a row of the ledger."""
    if isinstance(shape, Mapping):
        for child in shape.values():
            yield from _described(child)
    elif isinstance(shape, list):
        yield shape
    elif shape in NUMBERS:
        yield ()


def _measure(shapes: Iterable[Sequence[int]]) -> tuple[int, int]:
    """Rows of a message, and its numbers per row in all its tensors, lest a row be divided."""
    numbers, largest, rows = 0, -1, 0
    for shape in shapes:
        count = math.prod(shape)
        numbers += count
        if shape and (count, shape[0]) > (largest, rows):
            largest, rows = count, shape[0]
    return rows, -(-numbers // max(rows, 1))


def _times(ratio: float, number: int) -> int:
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
        read = {"to": _peers, "bytes": _size, "width_ratio": _ratio, "releases": _ratio}
        try:
            values[key] = read.get(key, _whole)(value)
        except TypeError as error:
            problems.append(f"{where}.{key} = {value!r}: {error}")
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


def _key(name: str) -> str:
    """A name as TOML writes it between dots."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
