"""The federation file: its members, their addresses, and the run on which they agree.

    name = "bank-and-shop"
    on_lost = "wait"                    # wait, stop or continue, when a party goes away
    deadline = 600.0                    # seconds to wait for it
    patience = 3600.0                   # seconds of silence until a connected party counts as stuck
    [run]                               # as in the file of a run
    method = "splitnn"
    [parties.bank]                      # the first, or run.label_holder, holds the labels: the hub,
                                        # unless the method names another, such as a server
    address = "bank.example.org:7443"   # if omitted, it dials out
    listen = "0.0.0.0:7443"             # what it binds, if other than its address
    signing_key = "ab12…"               # see: colonnade certs show bank.sign
    tls_keys = ["01ab…"]                # optional: only these keys; see: colonnade certs show
    [parties.shop]
    signing_key = "cd34…"
    [policy.allow.embedding]            # optional, for all; a party's own file replaces it
    [code]                              # the sha256 of every Python file that [run] names
    "my_method.py" = "ef56…"            # see: colonnade trust my_method.py

Every organisation can read it. Its sha256 covers what all must agree on, so that two parties with
different files refuse each other before anything is sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from colonnade import toml
from colonnade.config import code, reader
from colonnade.config import federation_checks as checks
from colonnade.config.checks import check_name, same_but_for_case
from colonnade.config.federation_checks import OnLost
from colonnade.config.member import Entry, Member, split_address
from colonnade.config.settings import Config, Run
from colonnade.errors import ConfigError, FederationError, unknown
from colonnade.plugin import Rule, pinned
from colonnade.role.method import Role
from colonnade.role.recipe import Recipe
from colonnade.toml import Bounds
from colonnade.wire import store
from colonnade.wire.policy import Policy

__all__ = [
    "Federation",
    "Member",
    "OnLost",
    "load",
    "load_alignment",
    "split_address",
    "write",
]


@dataclass(frozen=True)
class Federation:
    """A complete federation file, checked."""

    name: str
    members: tuple[Member, ...]
    on_lost: OnLost
    deadline: float
    patience: float
    run: Config  # names every member, so that a simulation has the same parties
    policy: Policy | None
    path: Path
    sha256: str  # of `agreed`

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def holder(self) -> str:
        """The label holder, unless every party brings its own labels."""
        return self.run.run.label_holder or self.members[0].name

    @property
    def cast(self) -> dict[str, str]:
        """Which party plays which role."""
        return self.run.found.method.cast(list(self.names), self.holder, self.run.options)

    @property
    def hub(self) -> str:
        """The member to which all others have a link, and which relays where two have none: the
        label holder, or the party whose role the method names."""
        role = self.run.found.method.membership.hub
        return next(n for n, r in self.cast.items() if r == role) if role else self.holder

    @property
    def elastic(self) -> bool:
        """Whether its parties may come and go."""
        return self.run.found.method.membership.elastic

    def role(self, name: str) -> Role:
        return self.run.found.method.roles[self.cast[name]]

    def linked(self, name: str) -> list[str]:
        """The members with which a member talks, directly or through the hub; in an elastic run,
        the hub alone."""
        others = [other for other in self.names if other != name]
        alone = self.elastic and name != self.hub
        return [self.hub] if alone else others

    def member(self, name: str) -> Member:
        for member in self.members:
            if member.name == name:
                return member
        raise FederationError([unknown(name, self.names, f"in {self.path}", "member")])

    def listens(self, name: str) -> bool:
        """Whether others dial it; in an elastic run only the hub is dialled."""
        dialled = not self.elastic or name == self.hub
        return dialled and bool(self.member(name).address)

    def dials(self, a: str, b: str) -> str | None:
        """Which of two members dials the other; None: neither can, and the hub relays.

        The earlier one in the file listens if it has an address, otherwise the later one. In an
        elastic run the hub listens.
        """
        first, second = sorted((self.member(a), self.member(b)), key=self.members.index)
        if first == second:
            raise FederationError([f"'{a}' needs no link to itself"])
        if self.elastic and second.name == self.hub:
            first, second = second, first
        if first.address:
            return second.name
        return first.name if second.address else None

    @property
    def pins(self) -> dict[str, tuple[str, ...]]:
        """The TLS keys that count, of every member that names some."""
        return {member.name: member.tls_keys for member in self.members if member.tls_keys}

    def row_key(self) -> bytes:
        """The key for the digest of the rows' ids: known to members, whatever the settings."""
        known = [self.name, *(f"{m.name} {m.signing_key}" for m in self.members)]
        return "\n".join(known).encode()

    def agreed(self) -> dict[str, Any]:
        """The facts that must be the same at all parties; `listen` may differ."""
        return {
            "name": self.name,
            "members": [[m.name, m.address, m.signing_key, *m.tls_keys] for m in self.members],
            "on_lost": self.on_lost,
            "deadline": self.deadline,
            "patience": self.patience,
            "run": self.run.sha256(),
        }


def load(path: str | Path, trusted: Collection[str] = ()) -> Federation:
    """Load a federation from its file; all mistakes are reported at once.

    trusted  digests of code that a party's own policy approves: see colonnade/config/code.py
    """
    path = Path(path)
    return _loaded(toml.load(path, FederationError), path, trusted)


def _loaded(tree: Mapping[str, Any], path: Path, trusted: Collection[str]) -> Federation:
    problems: list[str] = []
    tables = {"run", "parties", "policy", "code"}
    keys = {"name", "on_lost", "deadline", "patience"}
    problems += [
        unknown(k, keys | tables, "at the top level", elsewhere=_HOMES)
        for k in tree
        if k not in keys | tables
    ]
    top = toml.read(_Top, {k: v for k, v in tree.items() if k in keys}, "", problems)
    if "name" not in tree:
        problems.append("name is missing: it names the federation and its runs")
    elif isinstance(tree["name"], str):
        problems += check_name(top.name, "name")
    members = _members(toml.table(tree, "parties", problems), problems)
    rule = pinned(code.pins(tree, problems), str(path), trusted)
    run = _run(tree, top.name, [m.name for m in members], path.parent, rule, problems)
    policy = _policy(tree, path, problems)
    if run is not None:
        checks.check_run(run, members, top.on_lost, problems)
        if policy is not None:
            checks.check_policy(policy, run, members, problems)
    if problems:
        raise FederationError(problems)
    assert run is not None
    federation = Federation(
        top.name, tuple(members), top.on_lost, top.deadline, top.patience, run, policy, path, ""
    )
    return replace(federation, sha256=_sha256(federation))


def load_members(path: Path, reader: str) -> Federation:
    """What a file says of its members, whatever it says of the run, which may need code that
    nobody has approved: for the doctor. All its other mistakes are reported at once.

    reader  whose own rows will be looked at, as rows without labels
    """
    tree = toml.load(path, FederationError)
    problems: list[str] = []
    parties = toml.table(tree, "parties", problems)
    others = [name for name in parties if name != reader]
    run: dict[str, Any] = {"method": "splitnn", "label_holder": next(iter(others), "")}
    if isinstance(table := tree.get("run"), dict) and "align" in table:
        run["align"] = table["align"]
    return _loaded({**tree, "run": run, "policy": {}}, path, ())


def load_alignment(path: str | Path, trusted: Collection[str] = ()) -> Federation:
    """The same federation, only to find the common rows of the members that bring rows."""
    whole = load(path, trusted)
    members = tuple(member for member in whole.members if whole.role(member.name).rows)
    names = [member.name for member in members]
    holder = whole.holder if whole.holder in names else names[0]
    problems: list[str] = []
    checks.check_reach(holder, False, members, problems)
    if problems:
        raise FederationError(problems)
    run = whole.run.to_align()
    federation = replace(
        whole,
        name=f"{whole.name[:58]}-align",
        members=members,
        on_lost="wait" if whole.on_lost == "continue" else whole.on_lost,
        run=replace(
            run,
            run=replace(run.run, label_holder=holder),
            parties={name: recipe for name, recipe in run.parties.items() if name in names},
        ),
        policy=None if whole.policy is None else whole.policy.only(run.kinds),
    )
    return replace(federation, sha256=_sha256(federation))


def write(
    path: Path,
    name: str,
    members: Sequence[Member],
    run: Mapping[str, Any],
    on_lost: OnLost = "wait",
    deadline: float = 600.0,
    patience: float = 3600.0,
    policy: Policy | None = None,
    pins: Mapping[str, str] | None = None,
) -> Path:
    """Write a federation file; `run` is a table as in a run file. `load` checks it.

    pins  the sha256 of every file with code that the run names
    """
    import tomli_w

    parties = {
        member.name: {
            key: getattr(member, key)
            for key in ("address", "listen", "signing_key", "tls_keys")
            if getattr(member, key)
        }
        for member in members
    }
    tree = {"name": name, "on_lost": on_lost, "deadline": deadline, "patience": patience}
    tree |= {"run": run, "parties": parties}
    if policy is not None:
        tree["policy"] = policy.table()
    if pins:
        tree["code"] = dict(pins)
    try:
        store.write_text(tomli_w.dumps(tree), path)
    except OSError as error:
        raise FederationError([f"{path} cannot be written: {error.strerror or error}"]) from None
    return path


# ---- inner workings ------------------------------------------------------------------------------


def _of_this_file(problem: str) -> str:
    """What a run file's reader says, where a federation file is read."""
    own = problem.replace(
        "it belongs below [parties.NAME]", "each party says it of its own file, --data FILE.toml"
    )
    return own.replace("it belongs below [", "it belongs below [run.")


_HOMES = {key.name: "below [run]" for cls in (Run, Recipe) for key in fields(cls)}
_HOMES |= {key.name: "below [parties.NAME]" for key in fields(Entry)}


@dataclass(frozen=True)
class _Top:
    """The top level of the file. All fields have defaults, so that all are checked."""

    name: str = ""
    on_lost: OnLost = "wait"
    deadline: Annotated[float, Bounds(least=1)] = 600.0  # seconds
    patience: Annotated[float, Bounds(least=1)] = 3600.0  # seconds


def _sha256(federation: Federation) -> str:
    content = json.dumps(federation.agreed(), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _members(tables: Mapping[str, Any], problems: list[str]) -> list[Member]:
    """The members, including those with mistakes, so that the rest of the file is checked too."""
    members: list[Member] = []
    problems += same_but_for_case(tables)
    if len(tables) < 2:
        problems.append(f"[parties]: {len(tables)} given; a federation has at least two")
    for name, table in tables.items():
        problems += check_name(name, "party name")
        if not isinstance(table, dict):
            problems.append(f"parties.{name} = {table!r}: must be a table, [parties.{name}]")
            continue
        entry = toml.read(Entry, table, f"parties.{name}.", problems)
        checks.check_entry(name, entry, problems)
        if "signing_key" not in table:
            problems.append(f"parties.{name}.signing_key is missing: `colonnade certs` makes one")
        pins = tuple(key.lower() for key in entry.tls_keys)
        key = entry.signing_key.lower()
        members.append(Member(name, entry.address, entry.listen, key, pins))
    for what in ("signing_key", "address"):
        owners: dict[str, str] = {}
        for member in members:
            value = getattr(member, what).lower()
            if value and (other := owners.setdefault(value, member.name)) != member.name:
                problems.append(
                    f"'{other}' and '{member.name}' have one {what}: each needs its own"
                )
    return members


def _run(
    tree: Mapping[str, Any],
    name: str,
    names: Sequence[str],
    folder: Path,
    rule: Rule,
    problems: list[str],
) -> Config | None:
    """[run], completed with the federation's name and all members in their order."""
    if "run" not in tree:
        problems.append('[run] is missing: describe the run there, such as method = "splitnn"')
        return None
    table = toml.table(tree, "run", problems)
    parties = table.get("parties", {})
    if isinstance(parties, dict):
        problems += [
            unknown(party, names, "in [run.parties]", "member")
            for party in parties
            if party not in names
        ]
        parties = {party: parties.get(party, {}) for party in names}
    try:
        tables = {"name": name, **table, "parties": parties}
        found = reader.load(tables, folder=folder, rule=rule)
        if found.files:
            problems.append(
                "[run.parties] names files: each party names its own file, "
                "colonnade party --data FILE"
            )
        return found
    except ConfigError as error:
        problems += [
            f"[run] {_of_this_file(problem)}"
            for problem in error.problems
            if problem not in problems
        ]
        return None


def _policy(tree: Mapping[str, Any], path: Path, problems: list[str]) -> Policy | None:
    if "policy" not in tree:
        return None
    try:
        policy = Policy.from_table(toml.table(tree, "policy", problems), "policy.")
    except ConfigError as error:
        problems += error.problems
        return None
    return replace(policy, source=str(path))
