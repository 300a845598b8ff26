"""All parties of a run on this machine, each in a process of its own.

    runs/x/federation.toml   the file that real organisations would share
    runs/x/keys/             an authority and keys for this run alone; removed at its end
    runs/x/parties/bank/     what the process of 'bank' keeps: see records.py

The processes are those of `colonnade party`, and know of each other only what a federation file
says. This one starts them, starts those again that die, and joins what they leave into one result.
Where parties may come and go, one that dies too often stays away, and the others go on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from colonnade.align.phase import common_in_clear
from colonnade.assembly import Assembly, OwnRows, ids_of, save_rows
from colonnade.config import Config
from colonnade.config import federation as federations
from colonnade.config.federation import Member
from colonnade.data.own import OwnFile
from colonnade.errors import ConfigError, InputError, RoleFailed
from colonnade.net import certs
from colonnade.results.observer import Observer, Sums
from colonnade.results.result import Result, read_json
from colonnade.results.writer import ResultFile, Status
from colonnade.role.progress import Meter
from colonnade.wire import Ledger, ledger
from colonnade.wire.policy import Policy

STOP_SECONDS = 5.0
LAST_SECONDS = 30.0  # between the ends of the first and the last process
TYPED, STOPPED = (1, 2), 130  # exit codes of a process that said what was wrong; that was stopped


def party_program() -> tuple[str, ...]:
    """The command that starts a party; the tests have a quicker one."""
    # -P: modules are not looked for in the working folder, which somebody else may have filled.
    return (sys.executable, "-P", "-m", "colonnade", "party")


@dataclass(frozen=True)
class Options:
    """How processes are looked after."""

    restarts: int = 3  # of each party, after its process died
    on_lost: federations.OnLost = "wait"
    deadline: float = 60.0
    program: tuple[str, ...] = field(default_factory=lambda: party_program())


class Driver(Protocol):
    """Whoever sees the parties of a run to their end."""

    ready: float  # seconds until the first role began
    warnings: list[str]

    def run(self) -> None: ...


@dataclass(eq=False)
class Child:
    """The process of one party."""

    name: str
    process: subprocess.Popen[str]
    started: int = 1
    errors: list[str] = field(default_factory=list)
    failed: str = ""  # which party has failed of its own accord, as this one says; "": nothing
    readers: list[threading.Thread] = field(default_factory=list)

    def close(self) -> None:
        """Its process has ended: read what it still said, and let its pipes go."""
        for thread in self.readers:
            thread.join(2.0)
        self.readers.clear()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def train_in_processes(
    settings: Config,
    assembly: Assembly,
    folder: Path,
    observer: Observer,
    options: Options,
    attempt: int,
    drive: Callable[..., Driver] | None = None,
    runtime: str = "process",
) -> Result:
    """Train with one process per party in a run folder.

    drive  who starts the processes and sees them to their end; default: this module
    """
    file = ResultFile.begin(folder, settings, runtime, assembly.cast, assembly.holder)
    hand_out(settings, assembly, folder, options)
    supervisor = (drive or _Supervisor)(settings, assembly, folder, observer, options)
    status: Status = "failed"
    problem = ""
    try:
        supervisor.run()
        status = "finished"
        for name in assembly.parties:  # handed over for this run alone
            for end in ("json", "safetensors"):
                (folder / "parties" / f"{name}-rows.{end}").unlink(missing_ok=True)
    except KeyboardInterrupt:
        status = "stopped"
        raise
    except (RoleFailed, InputError) as error:
        problem = str(error)
        raise
    finally:
        observer.ended()
        shutil.rmtree(folder / "keys", ignore_errors=True)
        result = _joined(file, assembly, supervisor, status, problem)
    return result


def hand_out(settings: Config, assembly: Assembly, folder: Path, options: Options) -> None:
    """Rows, keys and the federation file: what the parties of a run on this machine begin with."""
    keys = folder / "keys"
    shutil.rmtree(keys, ignore_errors=True)
    certs.init(keys)
    members = []
    for name, address in zip(assembly.parties, _addresses(len(assembly.parties)), strict=True):
        certs.party(keys, name)
        public = certs.public_text(keys / name / f"{name}.sign")
        members.append(Member(name, address, "", public))
    method = settings.found.method
    run = settings.resolved() | {"label_holder": assembly.holder, "name": settings.run.name}
    for table in run.get("parties", {}).values():  # whose rows are handed out below
        for key in fields(OwnFile):
            table.pop(key.name, None)
    if method.rows.own_labels:  # no party sees all of them
        task = assembly.parties[assembly.holder].task
        numbers = {"mean": task.mean, "spread": task.spread}
        run["data"] |= {"classes": list(task.classes)} if task.classes else numbers
    federations.write(
        folder / "federation.toml",
        settings.run.name,
        members,
        run,
        options.on_lost,
        options.deadline,
        policy=Policy.allowing(settings.kinds.values()),
        pins=settings.pins(),
    )
    for name, party in assembly.parties.items():
        place = folder / "parties" / f"{name}-rows"
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.with_suffix(".json").exists() or not method.roles[assembly.cast[name]].rows:
            continue  # of an earlier attempt; or a server
        ids = b"".join(split.ids.cpu().numpy().tobytes() for split in party.splits.values())
        named = ids_of(list(party.names)) if party.names else ids.hex().encode()
        mine = OwnRows(
            party.splits,
            party.preparation,
            party.task if name == assembly.holder or method.rows.own_labels else None,
            named,
            sum(len(split) for split in party.splits.values()),
            assembly.data["name"],
            party.view,
            sha256=assembly.data.get("files_sha256", {}).get(name, ""),
        )
        save_rows(mine, place)


def _addresses(count: int) -> list[str]:
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def hub_of(settings: Config, assembly: Assembly) -> str:
    """Whose process the others talk with."""
    method = settings.found.method
    hub = method.membership.hub
    if not hub:
        return assembly.holder
    playing = [name for name, role in assembly.cast.items() if role == hub]
    if not playing:
        raise ConfigError(
            [
                f"nobody plays '{hub}' in {method.name} with these options, so there is "
                "nobody to talk with: use --runtime local"
            ]
        )
    return playing[0]


class _Supervisor:
    def __init__(
        self,
        settings: Config,
        assembly: Assembly,
        folder: Path,
        observer: Observer,
        options: Options,
    ) -> None:
        self.settings, self.assembly, self.folder = settings, assembly, folder
        self.observer, self.options = observer, options
        self.hub = hub_of(settings, assembly)
        self.elastic = settings.found.method.membership.elastic
        self.finished: set[str] = set()
        self.began = time.perf_counter()
        self.ready = 0.0
        self.events: SimpleQueue[tuple[Child, dict[str, Any]]] = SimpleQueue()
        self.meters = {name: Meter(party.labelled) for name, party in assembly.parties.items()}
        self.ledger = Sums()
        self.children: dict[str, Child] = {}
        self.warnings: list[str] = []
        self.ended = 0.0  # when the first process had nothing left to do

    def run(self) -> None:
        """Start all, and see them to their end."""
        try:
            for name in self.assembly.parties:
                self.children[name] = Child(name, self._start(name))
                self._listen(self.children[name])
            while self.children:
                self._look(self.children)
                self._hear(0.1)
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            for child in self.children.values():
                child.process.kill()
                child.process.wait()
                child.close()
            self._hear(0.0)

    def _start(self, name: str) -> subprocess.Popen[str]:
        command = [
            *self.options.program,
            "--federation",
            os.fspath(self.folder / "federation.toml"),
            "--name",
            name,
            "--keys",
            os.fspath(self.folder / "keys" / name),
            "--out",
            os.fspath(self.folder / "parties" / name),
            "--events",
        ]
        rows = self.folder / "parties" / f"{name}-rows.json"
        if rows.exists():
            command += ["--data", os.fspath(rows)]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # when this process ends, so do they
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )

    def _listen(self, child: Child) -> None:
        process = child.process
        assert process.stdout is not None and process.stderr is not None

        def events(stream: Any) -> None:
            for line in stream:
                try:
                    self.events.put((child, json.loads(line)))
                except ValueError:
                    child.errors.append(line.rstrip())

        def errors(stream: Any) -> None:
            for line in stream:
                child.errors.append(line.rstrip())
                del child.errors[:-40]

        for read, stream in ((events, process.stdout), (errors, process.stderr)):
            thread = threading.Thread(target=read, args=(stream,), daemon=True)
            child.readers.append(thread)
            thread.start()

    def _look(self, children: dict[str, Child]) -> None:
        """Who has ended, and how."""
        for name, child in list(children.items()):
            code = child.process.poll()
            if code is None:
                if self.ended and time.monotonic() - self.ended > LAST_SECONDS:
                    child.process.kill()  # started again, it finds that it has finished
                continue
            child.close()
            if code == 0:
                del children[name]
                self.finished.add(name)
                if not self.elastic:  # else each may take its own time
                    self.ended = self.ended or time.monotonic()
            elif self._may_stay_away(child, code):
                del children[name]  # the others wait for it, and then go on
            elif code == STOPPED:  # by somebody else; it has told the others
                raise KeyboardInterrupt(f"the process of '{name}' was stopped")
            elif code in TYPED or child.started > self.options.restarts:
                raise self._failure(child, code)
            else:
                self._tell_of(child, code)
                child.started += 1
                child.process = self._start(name)
                self._listen(child)

    def _may_stay_away(self, child: Child, code: int) -> bool:
        out_of_starts = code not in (*TYPED, STOPPED) and child.started > self.options.restarts
        if child.name == self.hub:
            return False
        if self.elastic:
            others = {*self.children, *self.finished} - {child.name, self.hub}
            may = (out_of_starts or code == STOPPED) and bool(others)
        else:
            may = out_of_starts and self.options.on_lost == "continue"
        if may:
            how = "was stopped" if code == STOPPED else "died and is not started again"
            self._say(f"the process of '{child.name}' {how}")
        return may

    def _tell_of(self, child: Child, code: int) -> None:
        how = signal.Signals(-code).name if code < 0 else f"code {code}"
        self._say(
            f"the process of '{child.name}' was ended by {how} and started again "
            f"({child.started} of {self.options.restarts})"
        )

    def _say(self, text: str) -> None:
        self.warnings.append(text)
        self.observer.note(text)

    def _failure(self, child: Child, code: int) -> RoleFailed:
        """The first party that says something of its own, not that another has failed."""
        self._hear(0.0)
        texts = {c.name: "\n".join(c.errors).strip() for c in self.children.values()}
        others = {c.name for c in self.children.values() if c.failed not in ("", c.name)}
        own = {n: t for n, t in texts.items() if t and n not in others}
        name, text = next(iter(own.items()), (child.name, texts.get(child.name, "")))
        if code < 0 and not own:
            text = f"its process was ended by {signal.Signals(-code).name}"
            name = child.name
        again = f" (started {child.started} times)" if child.started > 1 else ""
        text = text or f"its process ended with code {code}"
        return RoleFailed(f"'{name}'{again}: {text}", name, text=text)

    def _hear(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            try:
                child, event = self.events.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                return
            if "failed" in event:
                child.failed = event["failed"]["party"]
            if "began" in event and not self.ready:
                self.ready = time.perf_counter() - self.began
                self.observer.began(self.settings, self.meters, self.ledger)
            if "bytes" in event:
                self.ledger.set(child.name, event["bytes"])
            if "epoch" in event:
                self.observer.epoch(child.name, event["epoch"])
            if "meter" in event:
                meter = self.meters[child.name]
                meter.phase, meter.share, meter.epochs, meter.points = event["meter"]

    def _stop(self) -> None:
        """Let all save themselves; the hub's process tells the others, if they listen to it."""
        self.observer.note("stopping: every party finishes its step and saves itself")
        for name, child in self.children.items():
            if name == self.hub or self.elastic:
                child.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        for child in self.children.values():
            try:
                child.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()


def _joined(
    file: ResultFile, assembly: Assembly, driver: Driver, status: Status, problem: str
) -> Result:
    """One result from what every party has left: its account, its ledger, its weights."""
    settings, folder = file.settings, file.folder
    places = {name: folder / "parties" / name for name in assembly.parties}
    accounts: dict[str, Mapping[str, Any]] = {}
    for name, place in places.items():
        if (place / "account.json").exists():
            accounts[name] = read_json(place / "account.json")
    head = _merge(places, folder / "ledger.jsonl")
    finished = [place for place in places.values() if (place / "weights").exists()]
    if finished:
        target = folder / "weights.part"
        target.mkdir(exist_ok=True)
        for place in finished:
            shutil.copytree(place / "weights", target, dirs_exist_ok=True)
    if settings.align is not None:  # as the processes have done with their copies
        names = {name: party.names for name, party in assembly.parties.items() if party.names}
        for name, common in common_in_clear(names, settings.align).items():
            assembly.parties[name].take(common)
    hub = hub_of(settings, assembly)
    told: dict[str, list[str]] = {
        name: read_json(place / "result.json")["warnings"]
        for name, place in places.items()
        if (place / "result.json").exists()
    }
    if settings.found.method.membership.elastic:  # else the hub's has all it heard
        others = {name: {"warnings": told[name]} for name in told.keys() - {hub}}
        accounts = {n: {**a, **others.get(n, {})} for n, a in accounts.items()}
    return file.write(
        status,
        problem,
        data=assembly.facts(),
        accounts=accounts,
        setup=driver.ready,
        head=head,
        warnings=[*driver.warnings, *assembly.warnings, *told.get(hub, ())],
        own=[hub],
    )


def _merge(places: Mapping[str, Path], target: Path) -> str:
    """One ledger of all that was sent, from the ledgers of all senders; returns its last hash."""
    target.unlink(missing_ok=True)
    target.touch()
    book = Ledger(target)
    for name, place in places.items():
        path = place / "ledger.jsonl"
        for row in ledger.read(path) if path.exists() else ():
            if row.get("sender") == name or "note" in row:
                book.copy(row)
    book.close()
    return book.head
