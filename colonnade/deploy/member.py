"""One party of a federation, from its own files to its own results: what `colonnade party` does.

It needs its rows (a server: none), its keys, its policy and the shared federation file, and
nothing of anybody else. Everything it keeps lies in one folder:

    config.toml  run.json  ledger.jsonl  log.txt  checkpoints/     while it runs
    weights.part/                                                  the same, if parties come and go
    result.json  weights/  accounts.json                           when all have ended

A process that died is started again with the same command: it finds its folder and rejoins.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError

from colonnade import assembly, models, store
from colonnade.align import KINDS
from colonnade.align.phase import COMMON, aligned
from colonnade.assembly import OwnRows, schedule_of, write_common
from colonnade.config import Config
from colonnade.config.federation import Federation
from colonnade.data import own
from colonnade.data.own import OwnFile
from colonnade.errors import (
    ColonnadeError,
    ConfigError,
    DataError,
    FederationError,
    MethodError,
    RunError,
)
from colonnade.net import certs
from colonnade.net.greeting import ANY
from colonnade.net.mesh import Keys, Mesh
from colonnade.partition import View
from colonnade.results import folder as folders
from colonnade.results.account import account
from colonnade.results.observer import Observer
from colonnade.results.result import Result, read_json
from colonnade.results.writer import ResultFile, Status
from colonnade.role.identity import Identity
from colonnade.role.method import bind
from colonnade.role.party import Party
from colonnade.role.progress import Stopped
from colonnade.runtime.checkpoint import OwnCheckpoints
from colonnade.runtime.control import Patience, Place, Start, Work
from colonnade.runtime.drive import reproducible
from colonnade.runtime.elastic import LooseSession
from colonnade.runtime.network import Network
from colonnade.runtime.post import Post
from colonnade.runtime.session import Session
from colonnade.version import __version__
from colonnade.wire import Kind, Ledger, Peer, Wire
from colonnade.wire.policy import Gate, Policy

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setup:
    """Everything one party brings to a federation, checked before anything is written."""

    federation: Federation
    name: str
    rows: OwnRows
    keys: Keys
    policy: Policy
    settings: Config
    identity: Callable[[str], Identity]  # for a session
    task: Literal["train", "predict"] = "train"
    runtime: str = "process"  # for result.json
    addresses: Mapping[str, str] = field(default_factory=dict)  # instead of the federation file's
    token: str = ""  # of an engine's job: parties of another one are refused

    @property
    def sends(self) -> tuple[Kind, ...]:
        """What this party may send in its role, with these settings."""
        return sends_of(self.federation, self.name)

    @property
    def cast(self) -> dict[str, str]:
        return self.federation.cast

    @property
    def elastic(self) -> bool:
        """Whether parties may come and go."""
        return self.federation.elastic


def prepare(
    federation: Federation,
    name: str,
    rows: OwnRows,
    keys: Path,
    policy: Policy | None = None,
    device: Literal["cpu", "cuda"] | None = None,
    tls: Keys | None = None,
) -> Setup:
    """Check what one party brings; nothing is written and nobody is called.

    keys  the folder of its signing key, and of its certificate unless `tls` says where that lies
    """
    me = federation.member(name)
    tls = tls or Keys.of(keys, name)
    certs.check(tls.certificate, tls.authority, tls.common_name(name))
    key = certs.signing_key(keys / f"{name}.sign")
    if key.public_key().public_bytes_raw() != me.public_key:
        raise FederationError(
            [
                f"{keys / name}.sign is not the key that {federation.path} pins for '{name}': "
                f"`colonnade certs show {name}.sign` prints what must stand there"
            ]
        )
    method = federation.run.found.method
    policy = policy or federation.policy
    if policy is None:
        raise ConfigError(
            [
                f"'{name}' has no policy, so nothing may leave it. Give --policy FILE, or [policy] "
                "in the federation file. To begin with, this is what it sends; set the limits:\n\n"
                + Policy.template(sends_of(federation, name))
            ]
        )
    policy.check_kinds(federation.run.kinds)
    settings = federation.run
    if settings.run.record:
        raise ConfigError(["record keeps what parties send, which only a simulation may do"])
    if device is not None:
        settings = replace(settings, run=replace(settings.run, device=device))
    if settings.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(['device = "cuda": this machine has no CUDA device; use "cpu"'])
    trusted = {member.name: member.public_key for member in federation.members}
    setup = Setup(
        federation,
        name,
        rows,
        tls,
        policy,
        settings,
        lambda session: Identity(name, session, trusted, key),
    )
    if why := method.simulated(settings.options):
        raise ConfigError([f"{why}: only a simulation may do that"])
    role = federation.role(name)
    if role.features and not rows.width:
        raise MethodError(f"'{name}' brings no features, but its role in {method.name} needs some")
    _check_network(setup)
    return setup


def party_of(setup: Setup, classes: tuple[str, ...], view: View | None) -> Party:
    """The party with its rows, before it has learnt anything."""
    settings = setup.settings
    return Party(
        setup.name,
        setup.cast[setup.name],
        settings.parties.get(setup.name, settings.recipe),
        schedule_of(settings),
        setup.rows.splits,
        setup.rows.preparation,
        classes,
        torch.device(settings.run.device),
        view,
        setup.rows.names if settings.align is not None else (),
    )


def read_rows(file: OwnFile | Path | None, shared: Federation, name: str) -> OwnRows:
    """A party's rows, if its role has any."""
    check_data(file, shared, name)
    if file is None:
        return assembly.no_rows(shared.run.data.classes)
    file = own.described(file) if isinstance(file, Path) else file
    path = Path(file.data)
    if path.suffix == ".json":  # handed over by a supervisor of this machine
        return assembly.load_rows(path.with_suffix(""))
    if path.suffix not in (".csv", ".tsv", ".txt", ".gz", ".parquet", ".npz"):
        raise DataError(
            f"--data {path}: give a .csv or .parquet file with the columns id and label, images as "
            ".npz, or a .toml file that names them"
        )
    method = shared.run.found.method
    everyone = method.rows.own_labels or method.rows.everyone_labelled(shared.run.options)
    return assembly.from_file(file, name, shared.run, labelled=everyone or name == shared.holder)


def check_data(file: OwnFile | Path | None, shared: Federation, name: str) -> None:
    """Whether --data is there where it is needed, and only there."""
    needed = shared.role(name).rows
    if needed and file is None:
        raise RunError(f"colonnade party: give --data FILE, the rows of '{name}', .csv or .npz")
    if file is not None and not needed:
        raise RunError(
            f"colonnade party: '{name}' plays '{shared.cast[name]}', which brings no rows: leave "
            "--data away"
        )


def sends_of(federation: Federation, name: str) -> tuple[Kind, ...]:
    """What a member may send: what its policy must allow."""
    method, options = federation.run.found.method, federation.run.options
    cast = federation.cast
    passives = sum(role == "passive" for role in cast.values())
    sent = method.sent_by(cast[name], options, passives)
    aligns = federation.run.align is not None and method.roles[cast[name]].rows
    return (*sent, *KINDS) if aligns else sent


def forbidden(
    federation: Federation, name: str, policy: Policy, features: int | None = None
) -> Iterator[tuple[str, str]]:
    """Why a policy does not let a party play its role, and what to do about it, as far as that is
    known before the first message. What `bytes` and `releases` leave over is counted at the gate.

    features  numbers per row of the party's own features; None: not known yet
    """
    members, sent = federation.names, sends_of(federation, name)
    for kind, rule in policy.allow.items():
        for peer in rule.to or ():
            if peer not in members:
                said = f"allow.{kind}.to names '{peer}', which is no member"
                yield said, f"one of {', '.join(members)}"
        if rule.min_members > len(members):
            said = f"allow.{kind} asks for {rule.min_members} members; there are {len(members)}"
            yield said, "lower min_members, or let others join"
    for one in sent:
        width = _width(one, federation.run.options)
        most = policy.allow[one.name].widest(features) if one.name in policy.allow else width
        if width > most:
            said = f"allow.{one.name} lets out {most} numbers per row; {width} would be sent"
            yield said, "choose a smaller embedding, or change `width` or `width_ratio`"
    if denied := [one.name for one in sent if one.name not in policy.allow]:
        said = f"{policy.source} keeps inside {', '.join(denied)}, which this party must send"
        yield said, "add [allow.…] for each, or the run will stop"


def _width(kind: Kind, options: Any) -> int:
    """Numbers per row of its messages, where the options name all dimensions; else 0."""
    first, *others = kind.shape or ("",)
    if first != "batch":
        return 0
    sizes = [size if isinstance(size, int) else getattr(options, size, 0) for size in others]
    return prod(size if isinstance(size, int) else 0 for size in sizes)


def take_part(
    setup: Setup, out: Path, observer: Observer | None = None, say: Say | None = None
) -> Result:
    """Train with the others; returns when all have ended."""
    folder = out
    settings = setup.settings
    if (folder / "weights").exists() and setup.name != setup.federation.hub:
        if say is not None:
            say(f"{folder} is finished; nothing was done. For a new run give another --out")
        return Result(read_json(folder / "result.json"), folder)
    with reproducible(settings.run.threads, settings.run.device == "cuda"):
        if (folder / "run.json").exists():
            ended = (folder / "weights").exists()
            manifest = read_json(folder / "run.json")
            if not ended:
                manifest = folders.reopen(folder, settings)
        else:
            ended = False
            _make(folder, setup)
            manifest = {"run": "", "attempt": 0}
        with folders.alone(folder):
            return _Member(setup, folder, observer or Observer(), say).serve(manifest, ended)


def _make(folder: Path, setup: Setup) -> None:
    """A new folder, whole or not at all: a process that dies here can be started again."""
    begun = folder.with_name(f"{folder.name}.begun")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise RunError(f"{folder} exists and is not a run: choose another --out")
        shutil.rmtree(begun, ignore_errors=True)
        folders.create(begun, setup.settings, overwrite=False, run="", party=setup.name)
        begun.replace(folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error.strerror}; choose another --out") from None


class Log:
    """Lines with their time in a file; also where the user looks. Any thread may write."""

    def __init__(self, path: Path, say: Say | None) -> None:
        self._path, self._say, self._lock = path, say, threading.Lock()

    def __call__(self, text: str) -> None:
        self.quietly(text)
        if self._say is not None:
            self._say(text)

    def quietly(self, text: str) -> None:
        line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text}\n"
        with self._lock, suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(line)  # a full disk must not hide what is said


def connect(
    setup: Setup,
    book: Ledger,
    checkpoints: OwnCheckpoints,
    work: Work,
    run: str = "",
    attempt: int = 0,
    absent: Collection[str] = (),
) -> Session:
    """The session of a party, with its links and its post; nobody is called yet."""
    federation = setup.federation
    me = federation.member(setup.name)
    others = [name for name in federation.linked(setup.name) if name not in absent]
    dialler = {name: federation.dials(setup.name, name) for name in others}
    mesh = Mesh(
        setup.name,
        setup.keys,
        hub=federation.hub,
        listen=setup.addresses.get(me.name, me.binds) if federation.listens(me.name) else None,
        dial={
            n: setup.addresses.get(n, federation.member(n).address)
            for n in others
            if dialler[n] == setup.name
        },
        accept=frozenset(n for n in others if dialler[n] == n),
        relayed=frozenset(n for n in others if dialler[n] is None),
        agreed=agreed(setup) | ({"absent": ", ".join(sorted(absent))} if absent else {}),
        log=work.log,
    )
    rows = sum(len(split) for split in setup.rows.splits.values())
    gate = Gate(setup.name, setup.policy, rows, setup.rows.width, len(federation.names))
    gate.restore(row for row in book.rows() if row.get("sender") == setup.name)
    post = Post(
        setup.name,
        frozenset({setup.name, *federation.linked(setup.name)}),
        setup.settings.kinds,
        book,
        gate,
        Network(mesh),
    )
    return (LooseSession if setup.elastic else Session)(
        setup.name,
        federation.names,
        federation.hub,
        mesh,
        post,
        checkpoints,
        Patience(federation.on_lost, federation.deadline, federation.patience),
        work,
        run,
        attempt,
        absent,
        _fresh(book) if federation.on_lost == "continue" else None,
    )


def _fresh(book: Ledger) -> Place | None:
    """The first step of which the ledger knows nothing."""
    return max(
        (
            ("train", row["epoch"] + 1, 0)
            if row["phase"] == "eval"
            else ("train", row["epoch"], row["step"] + 1)
            for row in book.rows()
            if row.get("phase") in ("train", "eval")
        ),
        default=None,
    )


def _since(manifest: Mapping[str, Any]) -> Place | None:
    """From which step on some are absent."""
    phase, epoch, step = manifest.get("since") or ("", 0, 0)
    return (str(phase), int(epoch), int(step)) if phase else None


class _Member:
    """The process of one party: its session, and what it writes."""

    def __init__(self, setup: Setup, folder: Path, observer: Observer, say: Say | None) -> None:
        self.setup, self.folder, self.observer = setup, folder, observer
        self.began = time.perf_counter()
        self.result = ResultFile.begin(
            folder, setup.settings, setup.runtime, setup.cast, setup.federation.holder
        )
        self.ready = 0.0  # seconds until the first role began
        self.log = Log(folder / "log.txt", say)
        self._party: Party | None = None
        self.book = Ledger(folder / "ledger.jsonl", through=True)

    def serve(self, manifest: Mapping[str, Any], ended: bool) -> Result:
        setup = self.setup
        self._classes = list(setup.rows.classes or manifest.get("classes", ()))
        work = Work(
            party=self._new_party,
            role=self._role,
            mark=self._mark,
            account=self._account,
            conclude=self._conclude,
            may_lose=self._may_lose,
            told={"classes": self._classes},
            log=self.log,
            publish=self._publish,
        )
        session = self._session = connect(
            setup,
            self.book,
            OwnCheckpoints(self.folder / "checkpoints", self.book.flush),
            work,
            str(manifest.get("run", "")),
            int(manifest["attempt"]),
        )
        session.leave_out(manifest.get("absent", ()), _since(manifest))
        accounts = read_json(self.folder / "accounts.json") if ended else None
        with signals(session.stop):
            try:
                session.serve(accounts)
            except Stopped as stop:
                self._write_what_was_reached("stopped", "")
                stop.add_note(f"go on with the same command: its folder is {self.folder}")
                raise
            except ColonnadeError as error:
                self.log.quietly(f"{type(error).__name__}: {error}")
                self._write_what_was_reached("failed", str(error))
                error.add_note(f"what was reached lies in {self.folder}")
                raise
            finally:
                self.observer.ended()
                self.book.close()
                for why, count in session.refused().items():
                    self.log(f"refused {count} × {why}")
        return Result(read_json(self.folder / "result.json"), self.folder)

    # ---- what the session asks for -------------------------------------------------------------

    def _role(self, party: Party, wire: Wire, absent: frozenset[str]) -> Coroutine[Any, Any, Any]:
        setup, settings = self.setup, self.setup.settings
        roles = settings.found.method.roles
        role = bind(
            roles[party.role].train, party, setup.cast, wire, settings.options, absent=absent
        )
        if settings.align is None:
            return role
        bringing = [name for name, part in setup.cast.items() if roles[part].rows]
        peers = [Peer(name, wire, name not in absent) for name in bringing if name != party.name]
        return aligned(role, party, peers, settings.align)

    def _new_party(self, start: Start) -> Party:
        setup, settings = self.setup, self.setup.settings
        classes = tuple(str(name) for name in start.told.get("classes", self._classes))
        party = party_of(setup, classes, setup.rows.view)
        if settings.found.method.signs(settings.options):
            party.identity = setup.identity(f"run {start.run} attempt {start.attempt}")
        party.on_epoch = self.observer.epoch
        self._party = party
        if not self.ready:
            self.ready = time.perf_counter() - self.began
            self.observer.began(settings, {party.name: party.progress.meter}, self.book)
        return party

    def _mark(self, start: Start) -> None:
        more: dict[str, Any] = {"run": start.run, "party": self.setup.name}
        if self.setup.elastic:  # it may have to go on alone
            more |= {"elastic": True, "classes": start.told["classes"]}
        if start.absent:
            more |= {"absent": start.absent, "since": start.skip}
        with _writing(self.folder):
            folders.mark(self.folder, self.setup.settings, start.attempt, **more)

    def _account(self, party: Party) -> dict[str, Any]:
        """The role has ended: models to the disk, then what may be said about it."""
        told = account(party, self.setup.federation.holder)
        told["classes"] = list(party.classes)
        told["warnings"] = self._session.post.leftover()
        with _writing(self.folder):
            if self.setup.elastic:
                folders.refresh_weights(party, self.folder)
            else:
                folders.save_weights(party, self.folder / "weights.part")
            if self.setup.settings.found.method.rows.ids_only:
                write_common(party, self.folder)
            store.write_text(json.dumps(told), self.folder / "account.json")
        return told

    def _publish(self, party: Party) -> None:
        """Models to predict with, in the middle of the training."""
        reached = {"position": list(party.position), "epochs": party.progress.meter.epochs}
        with _writing(self.folder):
            folders.refresh_weights(party, self.folder, classes=list(party.classes), **reached)

    def _conclude(self, accounts: Mapping[str, Any], warnings: tuple[str, ...]) -> None:
        if (self.folder / "weights").exists():
            return
        accounts = dict(accounts) or {self.setup.name: read_json(self.folder / "account.json")}
        with _writing(self.folder):
            store.write_text(json.dumps(accounts), self.folder / "accounts.json")
            self._write_result("finished", "", accounts, warnings)
            (self.folder / "weights.part").rename(self.folder / "weights")
        OwnCheckpoints(self.folder / "checkpoints", self.book.flush).clear()
        self.log.quietly("finished")

    def _may_lose(self, absent: frozenset[str]) -> str:
        """Why the method cannot go on without these; nothing if it can."""
        setup = self.setup
        try:
            method = setup.settings.found.method
            method.check_absent(absent, setup.cast, setup.settings.options)
        except MethodError as error:
            return f"{error}. "
        return ""

    # ---- results -------------------------------------------------------------------------------

    def _facts(self, classes: Iterable[str]) -> dict[str, Any]:
        """The `data` part of result.json; rows that were aligned are fewer."""
        facts = self.setup.rows.facts(classes)
        if self.setup.rows.sha256:
            facts["files_sha256"] = {self.setup.name: self.setup.rows.sha256}
        if self._party is not None and COMMON in self._party.state:
            splits = self._party.splits
            facts |= {f"{k}_rows": len(splits[k]) for k in ("train", "test") if k in splits}
            facts["own_rows"] = {self.setup.name: self.setup.rows.count}
            facts["common_rows"] = len(self._party.state[COMMON])
        return facts

    def _write_what_was_reached(self, status: Status, problem: str) -> None:
        """A full disk, which may be the very reason, must not hide it."""
        try:
            if self._party is not None and not (self.folder / "weights.part").exists():
                told = account(self._party, self.setup.federation.holder)  # its role has not ended
                told["classes"] = list(self._party.classes)
                store.write_text(json.dumps(told), self.folder / "account.json")
            self._write_result(status, problem)
        except (OSError, RunError) as error:
            self.log(f"result.json cannot be written: {error}")

    def _write_result(
        self,
        status: Status,
        problem: str,
        accounts: Mapping[str, Any] | None = None,
        remarks: tuple[str, ...] = (),
    ) -> None:
        """result.json; the hub's shows what everybody has told, others their own."""
        setup, party = self.setup, self._party
        if accounts is None:
            accounts = {}
            if party is not None:
                accounts = {setup.name: account(party, setup.federation.holder)}
        own = accounts.get(setup.name, {})
        if setup.name != setup.federation.hub:
            accounts = {setup.name: own} if own else {}
        classes = own.get("classes") or (party.classes if party is not None else ())
        warnings = [line for told in accounts.values() for line in told.get("warnings", [])]
        self.result.write(
            status,
            problem,
            data=self._facts(classes),
            accounts=accounts,
            setup=self.ready,
            head=self.book.head,
            warnings=[*warnings, *remarks],
        )


def agreed(setup: Setup) -> dict[str, str]:
    """What must be equal at all parties, name by name, so that a difference can be named."""
    federation = setup.federation
    method = setup.settings.found.method
    facts = facts_of(federation, setup.task)
    if method.rows.aligned(setup.settings.options) and setup.settings.align is None:
        brings = method.roles[setup.cast[setup.name]].rows
        digest = setup.rows.digest(federation.row_key())
        facts["number of rows"] = str(setup.rows.count) if brings else ANY
        facts["order and ids of the rows (keyed digest)"] = digest if brings else ANY
    return facts | ({"run": setup.token} if setup.token else {})


def facts_of(federation: Federation, task: str = "train") -> dict[str, str]:
    """The part of it that a federation file says, and nobody's rows."""
    settings = federation.run
    run = settings.resolved()
    for key in ("device", "threads", "name"):  # each party's own matter
        run.pop(key, None)
    facts = {
        "version of Colonnade": __version__,
        "task": task,
        "federation": federation.name,
        "members": ", ".join(federation.names),
        "on_lost": federation.on_lost,
        "deadline": f"{federation.deadline:g}",
        "patience": f"{federation.patience:g}",
        "method file": settings.found.sha256[:16],
    }
    for member in federation.members:
        facts[f"address of '{member.name}'"] = member.address or "none"
        facts[f"signing key of '{member.name}'"] = member.signing_key[:16]
    for model in settings.own_models():
        facts[f"network file {Path(models.path_of(model)).name}"] = models.sha256_of(model)[:16]
    return facts | {f"[run] {key}": value for key, value in _flat(run)}


def _flat(tree: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", json.dumps(value)


def _check_network(setup: Setup) -> None:
    """Whether the party's network can take its rows, found without making a single weight."""
    recipe = setup.settings.parties.get(setup.name, setup.settings.recipe)
    if not setup.rows.width:
        return
    shape = tuple(next(iter(setup.rows.splits.values())).x.shape[1:])
    try:
        models.check(recipe.model, shape, **recipe.model_options)
    except ConfigError as error:
        raise ConfigError([f"party '{setup.name}': {p}" for p in error.problems]) from None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A disk that is full or read-only is nothing a program can repair; say what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{folder} cannot be written: {error}. Make room, and start again with the same command"
        ) from error


@contextmanager
def signals(stop: Callable[[str], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C save everybody's state and stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    words = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
    before = {
        number: signal.signal(number, lambda got, _: stop(words[signal.Signals(got)]))
        for number in words
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
