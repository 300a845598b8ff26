"""The federation file: who takes part, where they are reached, and the one run they agree on.

    name = "bank-and-shop"
    on_lost = "wait"                    # wait, stop or continue, when a party goes away
    deadline = 600.0                    # seconds that it is waited for
    patience = 3600.0                   # seconds of silence until a connected party counts as stuck
    [run]                               # as in the file of a run
    method = "splitnn"
    [parties.bank]                      # the first, or run.label_holder, holds the labels: the hub,
                                        # where the method names no other, such as a server
    address = "bank.example.org:7443"   # left away: it dials out
    listen = "0.0.0.0:7443"             # what it binds, if other than its address
    signing_key = "ab12…"               # see: colonnade certs show bank.sign
    [parties.shop]
    signing_key = "cd34…"
    [policy.allow.embedding]            # optional, for all; a party's own file replaces it

Every organisation can read it. Its sha256 covers what all must agree on, so that two parties with
different files refuse each other before anything is sent.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from colonnade import config, store
from colonnade.config import Config, check_name, read, same_but_for_case, unknown
from colonnade.errors import ConfigError, FederationError, InputError
from colonnade.role.method import Role
from colonnade.wire.policy import Policy

OnLost = Literal["wait", "stop", "continue"]

ADDRESS = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([0-9]{1,5})")
LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
SIGNING_KEY = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class Member:
    """One party, as all others know it."""

    name: str
    address: str  # host:port; empty: it dials out
    listen: str  # host:port that it binds; empty: its address
    signing_key: str  # 64 hex digits, Ed25519

    @property
    def binds(self) -> str:
        """Where it listens on its own machine; empty: nowhere."""
        return self.listen or self.address

    @property
    def public_key(self) -> bytes:
        """The raw key that its signatures are checked with."""
        return bytes.fromhex(self.signing_key)


@dataclass(frozen=True)
class Federation:
    """A whole federation file, checked."""

    name: str
    members: tuple[Member, ...]
    on_lost: OnLost
    deadline: float
    patience: float
    run: Config  # names every member, so that a simulation of it has the same parties
    policy: Policy | None
    path: Path
    sha256: str  # of `agreed`

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def holder(self) -> str:
        """Who holds the labels, where not every party brings its own."""
        return self.run.run.label_holder or self.members[0].name

    @property
    def cast(self) -> dict[str, str]:
        """Who plays what."""
        return self.run.found.method.cast(list(self.names), self.holder, self.run.options)

    @property
    def hub(self) -> str:
        """Everybody has a link to it, and it relays where there is no other: the label holder, or
        who plays the role that the method names."""
        role = self.run.found.method.membership.hub
        return next(n for n, r in self.cast.items() if r == role) if role else self.holder

    @property
    def elastic(self) -> bool:
        """Whether its parties may come and go."""
        return self.run.found.method.membership.elastic

    def role(self, name: str) -> Role:
        return self.run.found.method.roles[self.cast[name]]

    def linked(self, name: str) -> list[str]:
        """With whom a member talks, directly or through the hub: where parties come and go, with
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
        """Whether others dial it; where parties come and go, only the hub is dialled."""
        dialled = not self.elastic or name == self.hub
        return dialled and bool(self.member(name).address)

    def dials(self, a: str, b: str) -> str | None:
        """Which of two members dials the other; None: neither can, and the hub relays.

        The earlier one in the file listens if it has an address, else the later one. Where parties
        come and go, the hub listens.
        """
        first, second = sorted((self.member(a), self.member(b)), key=self.members.index)
        if first == second:
            raise FederationError([f"'{a}' needs no link to itself"])
        if self.elastic and second.name == self.hub:
            first, second = second, first
        if first.address:
            return second.name
        return first.name if second.address else None

    def row_key(self) -> bytes:
        """For the digest of the rows' ids: known to members, and not changed by a setting."""
        known = [self.name, *(f"{m.name} {m.signing_key}" for m in self.members)]
        return "\n".join(known).encode()

    def agreed(self) -> dict[str, Any]:
        """What must be the same at all parties; `listen` is a party's own matter."""
        return {
            "name": self.name,
            "members": [[m.name, m.address, m.signing_key] for m in self.members],
            "on_lost": self.on_lost,
            "deadline": self.deadline,
            "patience": self.patience,
            "run": self.run.sha256(),
        }


def load(path: str | Path) -> Federation:
    """A federation from its file; all mistakes at once."""
    path = Path(path)
    tree = _read_file(path)
    problems: list[str] = []
    tables = {"run", "parties", "policy"}
    keys = {"name", "on_lost", "deadline", "patience"}
    problems += [
        unknown(k, keys | tables, "at the top level") for k in tree if k not in keys | tables
    ]
    top = read(_Top, {k: v for k, v in tree.items() if k in keys}, "", problems)
    if "name" not in tree:
        problems.append("name is missing: it names the federation and its runs")
    elif isinstance(tree["name"], str):
        problems += check_name(top.name, "name")
    for key in ("deadline", "patience"):
        if getattr(top, key) < 1:
            problems.append(f"{key} = {getattr(top, key):g}: at least 1 second")
    members = _members(_table(tree, "parties", problems), problems)
    run = _run(tree, top.name, [m.name for m in members], path.parent, problems)
    policy = _policy(tree, path, problems)
    if run is not None:
        _check_run(run, members, top.on_lost, problems)
        if policy is not None:
            _check_policy(policy, run, members, problems)
    if problems:
        raise FederationError(problems)
    assert run is not None
    federation = Federation(
        top.name, tuple(members), top.on_lost, top.deadline, top.patience, run, policy, path, ""
    )
    return replace(federation, sha256=_sha256(federation))


def load_alignment(path: str | Path) -> Federation:
    """The same federation, to find the common rows of those who bring any, and no more."""
    whole = load(path)
    members = tuple(member for member in whole.members if whole.role(member.name).rows)
    names = [member.name for member in members]
    holder = whole.holder if whole.holder in names else names[0]
    problems: list[str] = []
    _check_reach(holder, False, members, problems)
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
) -> Path:
    """A federation file; `run` is a table in the form of a run file. `load` checks it."""
    import tomli_w

    parties = {
        member.name: {
            key: getattr(member, key)
            for key in ("address", "listen", "signing_key")
            if getattr(member, key)
        }
        for member in members
    }
    tree = {"name": name, "on_lost": on_lost, "deadline": deadline, "patience": patience}
    tree |= {"run": run, "parties": parties}
    if policy is not None:
        tree["policy"] = policy.table()
    try:
        store.write_text(tomli_w.dumps(tree), path)
    except OSError as error:
        raise FederationError([f"{path} cannot be written: {error.strerror or error}"]) from None
    return path


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "bank.example.org:7443" or "[::1]:7443"; ValueError says what is wrong."""
    found = ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError("write host:port, such as bank.example.org:7443 or [::1]:7443")
    six, host, port = found[1], found[2], int(found[3])
    if not 1 <= port <= 65535:
        raise ValueError(f"the port is {port}; 1 to 65535 exist")
    if six is not None:
        ipaddress.IPv6Address(six)
    elif host.rpartition(".")[2].isdecimal():  # no name ends in a number
        ipaddress.IPv4Address(host)
    elif len(host) > 253 or not all(LABEL.fullmatch(label) for label in host.split(".")):
        raise ValueError(f"'{host}' is no name of a machine")
    return six or host, port


# ---- inner workings ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Top:
    """The top level of the file. All fields have defaults, so that all are checked."""

    name: str = ""
    on_lost: OnLost = "wait"
    deadline: float = 600.0
    patience: float = 3600.0


@dataclass(frozen=True)
class _Entry:
    """[parties.bank]"""

    address: str = ""
    listen: str = ""
    signing_key: str = ""


def _sha256(federation: Federation) -> str:
    content = json.dumps(federation.agreed(), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FederationError([f"{path}: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise FederationError([f"{path}: not a text file"]) from None
    except RecursionError:
        raise FederationError([f"{path} is nested too deeply"]) from None
    except tomllib.TOMLDecodeError as error:
        twice = re.search(r"Cannot declare \('parties', '(.+)'\) twice", str(error))
        why = f"two parties are called '{twice[1]}'" if twice else f"not valid TOML: {error}"
        raise FederationError([f"{path}: {why}"]) from None


def _table(tree: Mapping[str, Any], key: str, problems: list[str]) -> dict[str, Any]:
    value = tree.get(key, {})
    if not isinstance(value, dict):
        problems.append(f"{key} = {value!r}: must be a table, [{key}]")
        return {}
    return value


def _members(tables: Mapping[str, Any], problems: list[str]) -> list[Member]:
    """The members, also those with mistakes, so that the rest of the file is checked as well."""
    members: list[Member] = []
    problems += same_but_for_case(tables)
    if len(tables) < 2:
        problems.append(f"[parties]: {len(tables)} given; a federation has at least two")
    for name, table in tables.items():
        problems += check_name(name, "party name")
        if not isinstance(table, dict):
            problems.append(f"parties.{name} = {table!r}: must be a table, [parties.{name}]")
            continue
        entry = read(_Entry, table, f"parties.{name}.", problems)
        _check_entry(name, entry, problems)
        if "signing_key" not in table:
            problems.append(f"parties.{name}.signing_key is missing: `colonnade certs` makes one")
        members.append(Member(name, entry.address, entry.listen, entry.signing_key.lower()))
    for what in ("signing_key", "address"):
        owners: dict[str, str] = {}
        for member in members:
            value = getattr(member, what).lower()
            if value and (other := owners.setdefault(value, member.name)) != member.name:
                problems.append(
                    f"'{other}' and '{member.name}' have one {what}: each needs its own"
                )
    return members


def _check_entry(name: str, entry: _Entry, problems: list[str]) -> None:
    where = f"parties.{name}"
    if entry.signing_key and not SIGNING_KEY.fullmatch(entry.signing_key):
        problems.append(
            f"{where}.signing_key = {entry.signing_key!r}: give 64 hex digits, as `colonnade "
            f"certs show {name}.sign` prints them"
        )
    for key in ("address", "listen"):
        text = getattr(entry, key)
        try:
            host, _ = split_address(text) if text else ("", 0)
        except ValueError as error:
            problems.append(f"{where}.{key} = {text!r}: {error}")
            continue
        if key == "address" and text and not host.strip("0.:"):
            problems.append(f"{where}.address = {text!r}: nobody can dial that; is it `listen`?")
    if entry.listen and not entry.address:
        problems.append(f"{where}.listen without address: where would the others find '{name}'?")


def _run(
    tree: Mapping[str, Any], name: str, names: Sequence[str], folder: Path, problems: list[str]
) -> Config | None:
    """[run], completed: it is named like the federation and lists all members in their order."""
    if "run" not in tree:
        problems.append('[run] is missing: write there what all train, such as method = "splitnn"')
        return None
    table = _table(tree, "run", problems)
    parties = table.get("parties", {})
    if isinstance(parties, dict):
        problems += [
            unknown(party, names, "in [run.parties]", "member")
            for party in parties
            if party not in names
        ]
        parties = {party: parties.get(party, {}) for party in names}
    try:
        found = config.load({"name": name, **table, "parties": parties}, folder=folder)
        if found.files:
            problems.append(
                "[run.parties] names files: whose rows lie where is each party's own matter, "
                "colonnade party --data FILE"
            )
        return found
    except ConfigError as error:
        problems += [f"[run] {problem}" for problem in error.problems if problem not in problems]
        return None


def _policy(tree: Mapping[str, Any], path: Path, problems: list[str]) -> Policy | None:
    if "policy" not in tree:
        return None
    try:
        policy = Policy.from_table(_table(tree, "policy", problems), "policy.")
    except ConfigError as error:
        problems += error.problems
        return None
    return replace(policy, source=str(path))


def _check_run(
    run: Config, members: Sequence[Member], on_lost: OnLost, problems: list[str]
) -> None:
    method, names = run.found.method, [member.name for member in members]
    holder = run.run.label_holder or next(iter(names), "")
    if holder not in names:
        if run.run.label_holder:
            problems.append(unknown(holder, names, "as run.label_holder", "member"))
        return
    _check_classes(run, problems)
    if method.membership.elastic and on_lost == "stop":
        problems.append(
            f'on_lost = "stop": the parties of {method.name} may come and go; choose "wait", to '
            'begin with all of them, or "continue", to begin after `deadline` with those that are '
            "there"
        )
    if on_lost == "continue" and not (method.membership.absent or method.membership.elastic):
        problems.append(
            f'on_lost = "continue": {method.name} cannot go on without a party; choose "wait" or '
            '"stop"'
        )
    if why := method.simulated(run.options):
        problems.append(f"[run] {why}: only a simulation may do that")
    if method.rows.pooled(run.options):
        problems.append(f"[run] {method.name} needs all rows in one place: it has no parties")
        return
    if len(names) < 2:
        return
    try:
        cast = method.cast(names, holder, run.options)
    except InputError as error:
        problems.append(f"[run] {error}")
        if method.membership.hub:
            return
        cast = dict.fromkeys(names, "")
    hub = _check_hub(run, cast, names, problems) if method.membership.hub else holder
    if hub:
        _check_reach(hub, method.membership.elastic, members, problems)


def _check_hub(
    run: Config, cast: Mapping[str, str], names: Sequence[str], problems: list[str]
) -> str:
    """The one member that plays the hub's role; empty, and a problem, where there is none."""
    method = run.found.method
    hub = method.membership.hub
    playing = [name for name, role in cast.items() if role == hub]
    missing = [name for name in cast if name not in names]  # a simulation would add them
    for name in missing:
        rows = "" if method.roles[cast[name]].rows else ", and needs no --data"
        problems.append(
            f"[run] {method.name} needs a member '{name}', which plays '{cast[name]}': add "
            f"[parties.{name}] with an address and the signing_key that `colonnade certs` makes "
            f"for it; it is started like the others{rows}"
        )
    problems += [
        f"[run] '{name}' has nothing to do in {method.name} with these options: take it out"
        for name in names
        if name not in cast
    ]
    if not playing:
        problems.append(
            f"[run] nobody plays '{hub}', whom all others of {method.name} would talk with: "
            "choose options with which somebody does, or run it in one process"
        )
    if len(playing) > 1:
        problems.append(
            f"[run] {', '.join(map(repr, playing))} all play '{hub}': {method.name} has one "
            "hub; name the others differently"
        )
    return playing[0] if len(playing) == 1 and playing[0] in names else ""


def _check_reach(hub: str, elastic: bool, members: Sequence[Member], problems: list[str]) -> None:
    """Everybody must be able to reach the hub, or be reached by it."""
    if next(member for member in members if member.name == hub).address:
        return
    silent = [member.name for member in members if not member.address and member.name != hub]
    if elastic:
        problems.append(
            f"'{hub}' cannot be dialled, and the others come and go: give [parties.{hub}] an "
            "address"
        )
    elif silent:
        problems.append(
            f"neither '{hub}', who holds the labels, nor {', '.join(map(repr, silent))} can be "
            f"dialled: give [parties.{hub}] an address"
        )


def _check_classes(run: Config, problems: list[str]) -> None:
    """Where every party brings labels, no one of them knows all classes."""
    method, classes = run.found.method, run.data.classes
    if method.rows.own_labels and not classes:
        problems.append(
            f"[run] data.classes is missing: in {method.name} every party brings labels of its "
            'own, and all must mean the same by them: [run.data] classes = ["no", "yes"]'
        )
    elif classes and not method.rows.own_labels:
        problems.append(
            f"[run] data.classes: in {method.name} the label holder's rows say which classes there "
            "are; leave it out"
        )


def _check_policy(
    policy: Policy, run: Config, members: Sequence[Member], problems: list[str]
) -> None:
    names = [member.name for member in members]
    try:
        policy.check_kinds(run.kinds)
    except ConfigError as error:
        problems += error.problems
    for kind, rule in policy.allow.items():
        problems += [
            unknown(peer, names, f"in policy.allow.{kind}.to", "member")
            for peer in rule.to or ()
            if peer not in names
        ]
