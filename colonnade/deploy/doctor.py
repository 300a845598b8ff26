"""Everything that can be known about a run before it begins, with what to do about it.

    a run file   its settings, every party's own file, what these have in common
    a site.toml  the same as of a party, with the certificate of its startup kit, and its engine
    the file     members, links, method, what crosses and what that reveals, one digest of it all
    the party    certificate, keys, policy, rows, run folder, disk
    the network  its own port, and whoever it would dial

Files are read, a port is bound for a moment, and peers are dialled as far as the TLS handshake.
Nobody is told anything and no frame is sent, so a federation that runs does not notice.
"""

from __future__ import annotations

import errno
import platform
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import combinations
from math import prod
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from colonnade import assembly, toml
from colonnade import config as configuration
from colonnade.align import KINDS
from colonnade.align.phase import keep, plainly
from colonnade.assembly import OwnRows
from colonnade.config import Config
from colonnade.config import federation as federations
from colonnade.config.federation import Federation, Member
from colonnade.data import own
from colonnade.data.own import OwnFile
from colonnade.deploy.setup import forbidden, prepare, read_rows, sends_of
from colonnade.errors import ColonnadeError, ConfigError, FederationError, RunError
from colonnade.net import certs
from colonnade.net.diagnose import diagnose
from colonnade.report import units
from colonnade.results.result import read_json
from colonnade.version import __version__
from colonnade.wire.policy import Policy

if TYPE_CHECKING:
    from colonnade.net.mesh import Keys

T = TypeVar("T")
SECONDS = 2.0  # for everything that waits for a network
FEW_DAYS = 30
MOST_NOTES = 24  # lines about one party's file
LITTLE_DISK, NO_DISK = 10**9, 10**8  # bytes
NOT_YET = "nothing listens there yet"  # as diagnose says it
NO_ANSWER = f"no answer within {SECONDS:g} s"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    about: str
    verdict: Literal["ok", "warning", "problem"]
    found: str
    move: str = ""  # what to do next, where not all is well


@dataclass(frozen=True)
class Mine:
    """What one party would bring to the federation."""

    name: str
    keys: Path
    rows: Callable[[Federation], OwnRows] | None  # None: the file was not named
    policy: Path | None
    out: Path | None  # None: runs/<federation>-<party>
    tls: Keys | None = None  # of a startup kit; None: its certificate lies with its keys
    server: str = ""  # HOST:PORT of an engine that starts it; empty: nobody does


def examine(path: Path, mine: Mine | None = None) -> list[Check]:
    """All checks of a federation file, and of one party where it is given."""
    try:
        federation = federations.load(path)
    except ColonnadeError as error:
        move = f"correct {path}; every party needs the same one"
        return [*(Check("file", "problem", said, move) for said in _problems(error)), *_software()]
    checks = list(_file(federation))
    if mine is not None:
        try:
            me = federation.member(mine.name)
        except FederationError as error:
            (said,) = error.problems
            checks.append(Check("name", "problem", said, "give the --name of a member"))
        else:
            checks += _Own(federation, me, mine).checks()
    return [*checks, *_software()]


# ---- a run file ----------------------------------------------------------------------------------


def is_run(path: Path) -> bool:
    """Whether it says what to run on this machine, and is no federation file."""
    try:
        return "method" in toml.load(path)
    except ConfigError:
        return False  # which a federation file's reader explains


def examine_run(path: Path) -> list[Check]:
    """All checks of a run file: settings, every party's own file, what they have in common."""
    try:
        run = configuration.load(path)
    except ColonnadeError as error:
        move = f"correct {path}"
        return [*(Check("file", "problem", said, move) for said in _problems(error)), *_software()]
    method, checks = run.found.method, list[Check]()
    said = f"{method.name}, {run.run.epochs} epochs, batches of {run.run.batch_size}"
    checks.append(Check("run", "ok", f"{said}, seed {run.run.seed}"))
    for party, file in run.files.items():
        checks += _own_file(party, file)
    if all(check.verdict == "ok" for check in checks):
        checks += _rows_of(run)
    return [*checks, *_software()]


def _own_file(party: str, file: OwnFile) -> Iterator[Check]:
    try:
        notes = own.read(file, Path()).notes
    except ColonnadeError as error:
        yield Check(party, "problem", str(error), f"correct the file, or [parties.{party}]")
        return
    yield Check(party, "ok", f"{file.data}: {notes[0]}")
    for note in notes[1:MOST_NOTES]:
        yield Check(party, "ok", note)
    if len(notes) > MOST_NOTES:
        yield Check(party, "ok", f"and {len(notes) - MOST_NOTES} further columns")


def _rows_of(run: Config) -> Iterator[Check]:
    """What would be trained on, and what would cross."""
    try:
        federation = assembly.from_files(run) if run.files else assembly.from_catalogue(run)
        names = {n: party.names for n, party in federation.parties.items() if party.names}
        if run.align is not None and names:
            common = plainly(names, run.align)
            count = len(next(iter(common.values())))
            shares = ", ".join(f"{count / len(own):.0%} of {name}'s" for name, own in names.items())
            if count < run.align.minimum:
                move = "are the ids the same ones, written alike? [align] minimum sets the limit"
                said = f"{count} rows are common, fewer than the minimum of {run.align.minimum}"
                yield Check("alignment", "problem", said, move)
                return
            yield Check("alignment", "ok", f"{count} rows are common: {shares}")
            for name, rows in common.items():
                keep(federation.parties[name], rows)
    except ColonnadeError as error:
        for said in _problems(error):
            yield Check("rows", "problem", said, "see `colonnade run`, which would stop here")
        return
    facts = federation.facts()
    said = f"{facts['train_rows']} rows to train on, {facts['test_rows']} to test"
    method, classes = run.found.method, ", ".join(facts["classes"])
    labels = f"{federation.holder} holds the labels, {classes}"
    if method.own_labels:
        labels = f"all rows come with labels, of {classes}"
    yield Check("rows", "ok", f"{said}; {labels}")
    for warning in federation.warnings:
        yield Check("rows", "warning", warning, "see whether that is meant")
    for name, party in federation.parties.items():
        what = f"{prod(party.shape)} numbers per row" if party.has_features else "no features"
        yield Check(name, "ok", f"{party.role}, {what}")
    cast, sent = federation.cast, list(KINDS if run.align is not None else ())
    for role in cast.values():
        passives = sum(other == "passive" for other in cast.values())
        sent += method.sent_by(role, run.options, passives)
    for kind in dict.fromkeys(sent):
        yield Check("may cross", "ok", f"{kind.name} ({kind.describe()}) reveals {kind.reveals}")


# ---- a site of an engine -------------------------------------------------------------------------


def is_site(path: Path) -> bool:
    """Whether it says what a site brings to a federation of NVFlare."""
    return path.name == "site.toml"


def examine_site(path: Path) -> list[Check]:
    """All checks of what one site brings: its site.toml lies in its startup kit."""
    if why := _network():
        return [Check("file", "problem", why, "pip install 'colonnade[nvflare]'")]
    from colonnade.deploy.nvflare import job, sitefile

    folder = path.absolute().parent
    kit = folder.parent.parent.parent
    place = sitefile.Workplace(kit / "local", kit / "startup", kit / "runs")
    try:
        file, _, shared = sitefile.federation_of(place, folder.name)
        name = job.party_of(certs.facts(place.keys.certificate).party)
        server = read_json(kit / "startup" / "fed_client.json")["servers"][0]["service"]["target"]
    except ColonnadeError as error:
        move = f"it belongs into local/{sitefile.FOLDER}/<federation>/ of a startup kit, complete"
        return [*(Check("file", "problem", said, move) for said in _problems(error)), *_software()]

    def rows(federation: Federation) -> OwnRows:
        return read_rows(folder / file.data, federation, name)

    mine = Mine(
        name,
        folder / file.keys,
        rows if file.data else None,
        folder / file.policy if file.policy else None,
        sitefile.run_folder(place, file, folder, "any").parent,
        place.keys,
        server,
    )
    return [_may_build(kit, job.SITE), *examine(shared.path, mine)]


def _may_build(kit: Path, component: str) -> Check:
    """Whether the engine's site lets a job name our component."""
    file = kit / "local" / "resources.json"
    if file.exists() and component in read_json(file).get("class_allow_list", ()):
        return Check("components", "ok", f"{file} lets jobs name {component}")
    move = f'add "{component}" to class_allow_list there; resources.json.default is the original'
    return Check("components", "problem", f"{file} does not let jobs name {component}", move)


# ---- the file ------------------------------------------------------------------------------------


def _file(federation: Federation) -> Iterator[Check]:
    """What all parties agree on: nothing here can be wrong, or it could not have been read."""
    run, hub, method = federation.run, federation.hub, federation.run.found.method
    labels = f"{federation.holder} holds the labels"
    if method.own_labels:
        labels = f"all rows come with labels, of {', '.join(run.data.classes)}"
    labels += f"; {hub} is the hub" if method.hub else ""
    yield Check("members", "ok", f"{', '.join(federation.names)}; {labels}")
    listening = [m for m in federation.members if federation.listens(m.name)]
    yield Check("listening", "ok", ", ".join(f"{m.name} at {m.address}" for m in listening))
    links = {
        (a, b): federation.dials(a, b)
        for a, b in combinations(federation.names, 2)
        if b in federation.linked(a)
    }
    dialling = [f"{who} → {b if who == a else a}" for (a, b), who in links.items() if who]
    yield Check("dialling", "ok", ", ".join(dialling))
    relayed = [f"{a} – {b}" for (a, b), who in links.items() if who is None]
    if relayed:
        said = f"{', '.join(relayed)}, through {hub}, which can read what is not masked"
        yield Check("relayed", "ok", said)
    yield Check(
        "run",
        "ok",
        f"{run.found.method.name}, {run.run.epochs} epochs, batches of {run.run.batch_size}, "
        f"seed {run.run.seed}",
    )
    said = (
        f"on_lost = {federation.on_lost}, after {federation.deadline:g} s without a connection or "
        f"{federation.patience:g} s of silence"
    )
    if method.loose:
        when = {"continue": f"after {federation.deadline:g} s with those who are there"}
        said = f"parties may come and go; it begins {when.get(federation.on_lost, 'with all')}"
    yield Check("lost party", "ok", said)
    for name in federation.names:
        for kind in sends_of(federation, name):
            said = f"{kind.name} ({kind.describe()}) reveals {kind.reveals}"
            yield Check(f"{name} sends", "ok", said)
    digest = federation.sha256
    parts = " ".join(digest[at : at + 8] for at in range(0, len(digest), 8))
    yield Check("sha256", "ok", f"{parts}: must be equal everywhere; compare it by telephone")


# ---- the party -----------------------------------------------------------------------------------


class _Own:
    """One party's own files, its machine, and whom it would talk to."""

    def __init__(self, federation: Federation, me: Member, mine: Mine) -> None:
        self.federation, self.me, self.mine = federation, me, mine
        self.names = {
            end: mine.keys / f"{me.name}.{end}" for end in ("pem", "key", "sign")
        }  # fmt: skip
        self.authority, self.called = mine.keys / "ca.pem", me.name
        if mine.tls is not None:
            self.names |= {"pem": mine.tls.certificate, "key": mine.tls.key}
            self.authority, self.called = mine.tls.authority, mine.tls.common_name(me.name)
        self.out = mine.out or Path("runs") / f"{federation.name}-{me.name}"
        self.rows: OwnRows | None = None
        self.policy: Policy | None = None

    def checks(self) -> list[Check]:
        data = self._data()  # which the policy's limits refer to
        found = [
            *self._certificates(),
            *self._key_files(),
            self._signing_key(),
            *self._policy(),
            data,
        ]
        if self.rows is not None and all(check.verdict != "problem" for check in found):
            found.append(self._together(self.rows))
        if not self.mine.server:  # whose jobs have each a folder of their own
            found.append(self._folder())
        found.append(self._disk())
        if _network() is not None:
            return found  # said once, with the versions
        usable = all(c.verdict != "problem" for c in found if c.about in ("certificate", "keys"))
        others = self._server(usable) if self.mine.server else self._peers(usable)
        return [*found, *self._port(usable), *others]

    # ---- keys ----------------------------------------------------------------------------------

    def _certificates(self) -> Iterator[Check]:
        try:
            own = certs.check(self.names["pem"], self.authority, self.called)
            issuer = certs.facts(self.authority)
        except ColonnadeError as error:
            move = (
                f"`colonnade certs request {self.mine.keys} --party {self.me.name}`, send the .csr "
                "to the authority, and put what comes back there"
            )
            if self.mine.tls is not None:
                move = "ask whoever made the startup kit for another"
            yield Check("certificate", "problem", str(error), move)
            return
        for about, facts, who in (
            ("certificate", own, f"of '{own.party}', by '{issuer.party}'"),
            ("authority", issuer, f"'{issuer.party}'"),
        ):
            yield _dates(about, facts, who)

    def _key_files(self) -> Iterator[Check]:
        good = True
        for path in (self.names["key"], self.names["sign"]):
            try:
                mode = path.stat().st_mode
            except OSError as error:
                move = (
                    "`colonnade certs request` makes it; if it is lost, ask for a new certificate"
                )
                yield Check("keys", "problem", f"{path}: {error.strerror}", move)
                good = False
                continue
            if mode & 0o077:
                said = f"{path} can be read or written by others than its owner"
                move = f"chmod 600 {path}; if somebody may have read it, make new keys"
                yield Check("keys", "problem", said, move)
                good = False
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_cert_chain(self.names["pem"], self.names["key"], password="")
        except OSError as error:  # also ssl.SSLError
            said = f"{self.names['key']} is not the key of {self.names['pem']} ({error})"
            if self.names["key"].exists() and self.names["pem"].exists():
                move = "use the pair that belongs together; keys with a passphrase cannot be used"
                yield Check("keys", "problem", said, move)
                good = False
        if (self.mine.keys / "ca.key").exists():
            said = f"{self.mine.keys / 'ca.key'} lies with the party's own keys"
            move = "keep the authority's key elsewhere: whoever has it can be any party"
            yield Check("keys", "warning", said, move)
        elif good:
            yield Check("keys", "ok", "readable by their owner alone, and fit the certificate")

    def _signing_key(self) -> Check:
        try:
            public = certs.public_text(self.names["sign"])
        except ColonnadeError as error:
            return Check("signing key", "problem", str(error), "`colonnade certs request` makes it")
        if public != self.me.signing_key:
            return Check(
                "signing key",
                "problem",
                f"{self.names['sign']} is not the one that {self.federation.path} pins",
                "is it the right folder of keys? Only if the key was renewed, and all know so by "
                f'telephone: signing_key = "{public}" in [parties.{self.me.name}], everywhere',
            )
        return Check("signing key", "ok", f"{public[:16]}…, as the federation file pins it")

    # ---- what may leave, and what there is -----------------------------------------------------

    def _policy(self) -> Iterator[Check]:
        kinds = self.federation.run.kinds
        try:
            given = self.mine.policy
            policy = self.federation.policy if given is None else Policy.load(given)
            if policy is not None:
                policy.check_kinds(kinds)
        except ConfigError as error:
            for said in error.problems:
                yield Check("policy", "problem", said, "correct the policy")
            return
        if policy is None:
            said = "there is none, so nothing may leave"
            yield Check("policy", "problem", said, "give --policy FILE, or [policy] in the file")
            return
        self.policy = policy
        needed = [kind.name for kind in sends_of(self.federation, self.me.name)]
        features = None if self.rows is None else self.rows.width
        bad = list(forbidden(self.federation, self.me.name, policy, features))
        for said, move in bad:
            yield Check("policy", "problem", said, move)
        if not bad:
            said = f"{policy.source} allows what is sent: {', '.join(needed) or 'nothing'}"
            yield Check("policy", "ok", said)
        spare = [name for name in policy.allow if name in kinds and name not in needed]
        if spare and given is not None:  # a policy for all parties allows what others send
            said = f"{policy.source} also allows {', '.join(spare)}, which is never sent here"
            yield Check("policy", "warning", said, "take it out: what is not needed stays inside")

    def _data(self) -> Check:
        brings = self.federation.role(self.me.name).rows
        if self.mine.rows is None and brings:
            return Check("data", "warning", "not looked at", "give --data FILE")
        if not brings:
            role = self.federation.cast[self.me.name]
            said = f"'{self.me.name}' plays '{role}', which brings no rows"
            if self.mine.rows is not None:
                return Check("data", "problem", said, "leave --data away")
            self.rows = assembly.no_rows(self.federation.run.data.classes)
            return Check("data", "ok", said)
        assert self.mine.rows is not None
        try:
            rows = self.rows = self.mine.rows(self.federation)
        except ColonnadeError as error:
            return Check("data", "problem", str(error), "correct the file, or give another --data")
        parts = ", ".join(f"{len(split):,} for {key}" for key, split in rows.splits.items())
        said = f"{rows.source}: {rows.count:,} rows ({parts}), {rows.width} numbers each"
        if rows.classes:
            said += f", {len(rows.classes)} classes ({units.shorten(', '.join(rows.classes), 60)})"
        if self.federation.run.align is not None:
            said += "; the rows that all have are found first, privately"
        elif self.federation.run.found.method.aligned(self.federation.run.options):
            digest = rows.digest(self.federation.row_key())
            said += (
                f"; ids and their order: {digest[:8]} {digest[8:16]}, must be equal everywhere: "
                "compare it by telephone"
            )
        if rows.warnings:
            said = "; ".join([said, *rows.warnings])
            return Check("data", "warning", said, "see whether that is meant")
        return Check("data", "ok", said)

    def _together(self, rows: OwnRows) -> Check:
        """Whatever else `colonnade party` would refuse before it calls anybody."""
        mine = self.mine
        try:
            setup = prepare(
                self.federation, self.me.name, rows, mine.keys, self.policy, tls=mine.tls
            )
        except ColonnadeError as error:
            return Check(
                "role", "problem", "; ".join(_problems(error)), "change [run], or the data"
            )
        recipe = setup.settings.parties.get(self.me.name, setup.settings.recipe)
        network = f", with the network '{recipe.model}'" if rows.count else ""
        return Check("role", "ok", f"{setup.cast[self.me.name]}{network}")

    # ---- the machine ---------------------------------------------------------------------------

    def _folder(self) -> Check:
        out = self.out
        if not out.exists():
            return Check("run folder", "ok", f"{out} will be made")
        if not (out / "run.json").exists():
            if out.is_dir() and not any(out.iterdir()):
                return Check("run folder", "ok", f"{out} is empty")
            said = f"{out} exists and is not a run"
            return Check("run folder", "problem", said, "choose another --out")
        try:
            manifest = read_json(out / "run.json")
        except RunError as error:
            return Check("run folder", "problem", str(error), "choose another --out")
        if (out / "weights").exists():
            move = "for a new run give another --out, at every party"
            return Check("run folder", "warning", f"{out} holds a finished run", move)
        if manifest.get("config_sha256") != self.federation.run.sha256():
            said = f"{out} holds a run of other settings"
            return Check("run folder", "problem", said, "choose another --out")
        return Check("run folder", "ok", f"{out}: will go on after attempt {manifest['attempt']}")

    def _disk(self) -> Check:
        out = self.out.absolute()
        place = next(folder for folder in (out, *out.parents) if folder.is_dir())
        free = shutil.disk_usage(place).free
        said = f"{units.size(free)} free at {place}"
        try:
            with tempfile.TemporaryFile(dir=place):
                pass
        except OSError as error:
            said = f"{place} cannot be written: {error.strerror}"
            return Check("disk", "problem", said, "choose another --out, or change its rights")
        if free < LITTLE_DISK:
            move = "make room: without ledger and checkpoints nothing is sent"
            return Check("disk", "problem" if free < NO_DISK else "warning", said, move)
        return Check("disk", "ok", said)

    # ---- the network ---------------------------------------------------------------------------

    def _port(self, usable: bool) -> Iterator[Check]:
        me = self.me
        if not self.federation.listens(me.name):
            yield Check("own port", "ok", f"none: {me.name} dials out")
            return
        error = _in_time({me.name: partial(_bind, me.binds)}).get(me.name, TimeoutError(NO_ANSWER))
        if error is not None:
            yield self._cannot_bind(error, usable)
        else:
            yield Check("own port", "ok", f"{me.binds} is free; a firewall must let others in")

    def _cannot_bind(self, error: OSError, usable: bool) -> Check:
        me = self.me
        if error.errno == errno.EADDRINUSE:
            host, port = federations.split_address(me.binds)
            here = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if not host.strip("0.:"):  # all of the machine's addresses
                here = f"[::1]:{port}" if ":" in host else f"127.0.0.1:{port}"
            if usable and not self._knock({me.name: here})[me.name]:
                said = f"{me.binds}: a process of '{me.name}' listens there already"
                move = "leave it running, or stop it before another one is started"
                return Check("own port", "warning", said, move)
            move = "stop what uses it, or agree on another port"
            return Check("own port", "problem", f"{me.binds} is taken", move)
        moves = {
            errno.EADDRNOTAVAIL: f'it is not this machine\'s: add listen = "0.0.0.0:…" to '
            f"[parties.{me.name}]",
            errno.EACCES: "choose a port from 1024 on, or run with more rights",
        }
        said = f"{me.binds} cannot be bound: {error.strerror or error}"
        return Check("own port", "problem", said, moves.get(error.errno or 0, "correct `listen`"))

    def _peers(self, usable: bool) -> Iterator[Check]:
        linked = self.federation.linked(self.me.name)
        others = [m for m in self.federation.members if m.name in linked]
        dials = {m.name: self.federation.dials(self.me.name, m.name) for m in others}
        called = {m.name: m.address for m in others if dials[m.name] == self.me.name}
        answers = self._knock(called) if usable else {}
        for other in others:
            about, who = f"peer {other.name}", f"'{other.name}' at {other.address}"
            if dials[other.name] is None:
                said = f"reached through '{self.federation.hub}'"
                yield Check(about, "ok", said)
            elif dials[other.name] == other.name:
                yield Check(
                    about, "ok", f"dials this party, which must listen at {self.me.address}"
                )
            elif not usable:
                move = "correct this party's own keys first"
                yield Check(about, "warning", f"{who}: not dialled", move)
            elif not (said := answers[other.name]):
                yield Check(about, "ok", f"{who} answers, and each accepts the other's certificate")
            elif said == NOT_YET:
                move = f"start '{other.name}'; this party will go on dialling until it answers"
                yield Check(about, "warning", f"{who}: {said}", move)
            else:
                move = "compare address, firewall, ca.pem and clocks of both parties"
                yield Check(about, "problem", f"{who}: {said}", move)

    def _server(self, usable: bool) -> Iterator[Check]:
        """The engine's. Peers are there while a job runs, and not before."""
        address = self.mine.server
        host = address.rpartition(":")[0]
        said = self._knock({host: address})[host] if usable else "not dialled"
        if not said:
            found = f"the server at {address} answers, and each accepts the other's certificate"
            yield Check("engine", "ok", found)
        elif said in (NOT_YET, "not dialled"):
            move = "start the engine's server" if usable else "correct this site's own keys first"
            yield Check("engine", "warning", f"the server at {address}: {said}", move)
        else:
            move = "is it the kit of this server? Compare address, firewall and clocks"
            yield Check("engine", "problem", f"the server at {address}: {said}", move)

    def _knock(self, addresses: Mapping[str, str]) -> dict[str, str]:
        """What `diagnose` says about each peer."""
        from colonnade.net.mesh import Keys

        keys = self.mine.tls or Keys.of(self.mine.keys, self.me.name)
        # Longer than it is waited for: a time-out in the handshake looks like success.
        works = {
            peer: partial(diagnose, address, peer, keys, 2 * SECONDS)
            for peer, address in addresses.items()
        }
        return dict.fromkeys(addresses, NO_ANSWER) | _in_time(works)


# ---- inner workings ------------------------------------------------------------------------------


def _dates(about: str, facts: certs.Facts, who: str) -> Check:
    now = datetime.now(UTC)
    days = (facts.until - now).days
    said = f"{who}, {facts.since:%Y-%m-%d} to {facts.until:%Y-%m-%d}, {days} days left"
    if not facts.since <= now <= facts.until:
        move = f"here it is {now:%Y-%m-%d %H:%M} UTC: is the clock right? Else ask for another"
        return Check(about, "problem", said, move)
    if days < FEW_DAYS:
        return Check(about, "warning", said, "ask the authority for another in time")
    return Check(about, "ok", said)


def _bind(address: str) -> OSError | None:
    """Bind and let go again, without listening: a peer that dials now is not answered."""
    host, port = federations.split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error
    return None


def _in_time(works: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """What each returns, as far as it does so in time: a name that does not resolve can take
    minutes, and nothing can interrupt that."""
    answers: SimpleQueue[tuple[str, T]] = SimpleQueue()

    def do(name: str, work: Callable[[], T]) -> None:
        answers.put((name, work()))

    for one in works.items():
        threading.Thread(target=do, args=one, daemon=True).start()
    found: dict[str, T] = {}
    until = time.monotonic() + SECONDS
    try:
        while len(found) < len(works):
            name, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
            found[name] = answer
    except Empty:
        pass
    return found


def _network() -> str | None:
    """Why processes cannot talk to each other here; None: they can."""
    try:
        import colonnade.net.mesh  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def _software() -> Iterator[Check]:
    said = [f"python {platform.python_version()}", f"colonnade {__version__}"]
    for package in ("torch", "grpcio", "protobuf"):
        try:
            said.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            said.append(f"no {package}")
    if why := _network():
        move = "pip install 'colonnade[net]'"
        yield Check("software", "problem", f"{', '.join(said)}: {why}", move)
    else:
        yield Check("software", "ok", ", ".join(said))


def _problems(error: Any) -> list[str]:
    return list(getattr(error, "problems", [str(error)]))
