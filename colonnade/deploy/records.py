"""The records that the process of one party keeps, all in one folder:

config.toml  run.json  ledger.jsonl  log.txt  checkpoints/     while it runs
weights.part/                                                  the same, if parties come and go
result.json  weights/  accounts.json                           when all have ended
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from colonnade.align.phase import COMMON
from colonnade.assembly import write_common
from colonnade.deploy.memory import ANCHOR, check_head, check_new, keep_anchor, keep_head
from colonnade.deploy.setup import Setup
from colonnade.errors import ColonnadeError, MethodError, RunError, Untrusted, printable
from colonnade.journal import Journal
from colonnade.results import folder as folders
from colonnade.results.account import Speaker, account, check
from colonnade.results.observer import Observer
from colonnade.results.result import read_json
from colonnade.results.writer import ResultFile, Status
from colonnade.role.party import Party
from colonnade.role.progress import Stopped
from colonnade.runtime.checkpoint import OwnCheckpoints
from colonnade.runtime.control import Place, Start
from colonnade.runtime.session import Session
from colonnade.task import Task
from colonnade.wire import Ledger, store

Say = Callable[[str], None]
REUSED = "aligned_before"  # in run.json: the digest of rows of an earlier alignment
LOG_BYTES = 32 << 20  # then another file begins, and the one before the last is removed
LINE_LETTERS = 20_000


class Log:
    """Lines with their time in log.txt, which becomes log.1.txt once it is full; also where the
    user looks. Any thread may write."""

    def __init__(self, path: Path, say: Say | None) -> None:
        self._path, self._say, self._lock = path, say, threading.Lock()

    def __call__(self, text: str) -> None:
        self.quietly(text)
        if self._say is not None:
            self._say(printable(text))

    def quietly(self, text: str) -> None:
        # Only what begins an entry stands where times stand, whatever others have said.
        entry = printable(text[:LINE_LETTERS]).replace("\n", "\n" + " " * 20)
        line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {entry}\n"
        with self._lock, suppress(OSError):  # a full disk must not hide what is said
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
                full = file.tell() > LOG_BYTES
            if full:
                self._path.replace(self._path.with_suffix(".1.txt"))


class Records:
    """The folder of one party, while its process works in it."""

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        manifest: Mapping[str, Any],
        journal: Journal,
        observer: Observer,
        say: Say | None,
    ) -> None:
        """manifest: run.json, as an earlier process has left it."""
        self._file = str(manifest.get("file_sha256", setup.rows.sha256))  # as the run began with
        if setup.settings.align is not None and self._file != setup.rows.sha256:
            raise RunError(
                f"{setup.rows.source} is not the file that the run in {folder} began with, and the "
                "rows that all have were found in that one. Bring it back, or begin a new run, "
                "with another --out, at every party"
            )
        self._reused = "" if setup.reused is None else setup.reused.digest
        if str(manifest.get(REUSED, self._reused)) != self._reused:
            raise RunError(
                f"the run in {folder} began with other rows of --aligned, or without: type the "
                "same command as then, or begin a new run, with another --out, at every party"
            )
        self._setup, self._folder, self._observer = setup, folder, observer
        self._journal = journal
        self._began = time.perf_counter()
        self._result = ResultFile.begin(
            folder, setup.settings, setup.runtime, setup.cast, setup.federation.holder
        )
        self.ready = 0.0  # seconds until the first role began
        self.party: Party | None = None  # whose role is under way, or has ended
        self.log = Log(folder / "log.txt", say)
        self.book = Ledger(folder / "ledger.jsonl", through=True)
        self.checkpoints = OwnCheckpoints(folder / "checkpoints", self._before_checkpoint)
        own = setup.rows.task
        self.task = manifest.get("task", {}) if own is None else own.told()  # as others hear it
        first = manifest.get("task")  # that the hub has told in this run
        self._heard = dict(first) if own is None and isinstance(first, dict) else {}
        self.run, self.attempt = str(manifest.get("run", "")), int(manifest["attempt"])
        self.absent: tuple[str, ...] = tuple(manifest.get("absent", ()))
        self.since = _since(manifest)  # from which step on they are
        ended = (folder / "weights").exists()
        self.accounts = read_json(folder / "accounts.json") if ended else None

    @contextmanager
    def kept(self, session: Session) -> Iterator[None]:
        """Whatever happens inside, the folder says what was reached."""
        try:
            if self.run:
                check_head(self._journal, self.run, self.book)
            yield
        except Stopped as stop:
            self._write_what_was_reached("stopped", "")
            stop.add_note(f"go on with the same command: its folder is {self._folder}")
            raise
        except ColonnadeError as error:
            self.log.quietly(f"{type(error).__name__}: {error}")
            self._write_what_was_reached("failed", str(error))
            if folders.never_began(self._folder):
                error.add_note(f"no run has begun: {self._folder} gives way to the next one")
            else:
                error.add_note(f"what was reached lies in {self._folder}")
            raise
        finally:
            self._observer.ended()
            self.book.close()
            for why, count in session.refused().items():
                self.log(f"refused {count} × {why}")

    def begin(self, party: Party) -> None:
        """A role is about to begin."""
        self.party = party
        party.on_epoch = self._observer.epoch
        if not self.ready:
            self.ready = time.perf_counter() - self._began
            self._observer.began(
                self._setup.settings, {party.name: party.progress.meter}, self.book
            )

    # ---- what the session asks for in the middle of things -------------------------------------

    def mark(self, start: Start) -> None:
        """Remember which attempt this is."""
        if self.run != start.run:  # it was not known before: is this folder the one it had?
            check_head(self._journal, start.run, self.book)
            check_new(self._journal, start.run)
            self.run = start.run
        more: dict[str, Any] = {"run": start.run, "party": self._setup.name}
        more |= {ANCHOR: self._journal.anchor.table(), "file_sha256": self._file}
        if self._setup.settings.align is not None:
            more[REUSED] = self._reused
        if self._setup.elastic:  # it may have to go on alone
            more |= {"elastic": True, "task": start.told.get("task", {})}
        elif self._heard:
            more["task"] = self._heard
        if start.absent:
            more |= {"absent": start.absent, "since": start.skip}
        with _writing(self._folder):
            folders.mark(self._folder, self._setup.settings, start.attempt, **more)

    def hear(self, task: Task) -> None:
        """The hub has told what is to be learnt: what was trained before a restart has outputs for
        that, so it stays as it was."""
        told, before = task.told(), self._heard
        if not told or self._setup.rows.task is not None:
            return
        if before and _outputs(before) != _outputs(told):
            raise Untrusted(
                f"'{self._setup.federation.hub}' says what is to be learnt, and another thing than "
                "was told before in this run. Its labels or its program were changed: bring them "
                "back there, or begin a new run, with another --out, at every party"
            )
        if not before:
            self._heard = told
            with _writing(self._folder):
                folders.remark(self._folder, task=told)

    def _before_checkpoint(self) -> None:
        """What a checkpoint builds upon comes to the disk before it."""
        self.book.flush()
        keep_head(self._journal, self.run, self.book)
        with _writing(self._folder):
            keep_anchor(self._folder, self._journal)

    def publish(self, party: Party) -> None:
        """Models to predict with, in the middle of the training."""
        reached = {"position": list(party.position), "epochs": party.progress.meter.epochs}
        with _writing(self._folder):
            folders.refresh_weights(party, self._folder, task=party.task.told(), **reached)

    def may_lose(self, absent: frozenset[str]) -> str:
        """Why the method cannot go on without these; nothing if it can."""
        setup = self._setup
        try:
            method = setup.settings.found.method
            method.check_absent(absent, setup.cast, setup.settings.options)
        except MethodError as error:
            return f"{error}. "
        return ""

    def check_account(self, sender: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a party tells of its own work; refused where it speaks for others."""
        setup, settings = self._setup, self._setup.settings
        method, holder = settings.found.method, setup.federation.holder
        return check(told, Speaker.of(sender, method, settings.options, setup.cast, holder))

    # ---- results -------------------------------------------------------------------------------

    def account(self, party: Party, leftover: list[str]) -> dict[str, Any]:
        """The role has ended: models to the disk, then what may be said about it."""
        told = account(party, self._setup.federation.holder, self._setup.settings.decision)
        told["task"] = party.task.told()
        told["warnings"] = leftover
        decision = folders.deciding(told["decision"])
        for remark in party.remarks:
            self.log.quietly(f"warning: {remark}")
        with _writing(self._folder):
            if self._setup.elastic:
                folders.refresh_weights(party, self._folder, **decision)
            else:
                folders.save_weights(party, self._folder / "weights.part", **decision)
            if self._setup.settings.found.method.rows.ids_only:
                write_common(party, self._folder)
            store.write_text(json.dumps(told), self._folder / "account.json")
        return told

    def conclude(self, accounts: Mapping[str, Any] | None, remarks: tuple[str, ...]) -> None:
        """All roles have ended: the result, from the accounts of all as far as they are known."""
        if (self._folder / "weights").exists():
            return
        accounts = dict(accounts or {}) or {
            self._setup.name: read_json(self._folder / "account.json")
        }
        with _writing(self._folder):
            store.write_text(json.dumps(accounts), self._folder / "accounts.json")
            self._write_result("finished", "", accounts, remarks)
            (self._folder / "weights.part").rename(self._folder / "weights")
        self.checkpoints.clear()
        self.log.quietly("finished")

    def _facts(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The `data` part of result.json; rows that were aligned are fewer."""
        facts = self._setup.rows.facts(None)
        facts |= {"classes": list(task.get("classes", ())), "task": dict(task)} if task else {}
        if self._setup.rows.sha256:
            facts["files_sha256"] = {self._setup.name: self._setup.rows.sha256}
        if self.party is not None and COMMON in self.party.state:
            splits = self.party.splits
            facts |= {f"{k}_rows": len(splits[k]) for k in ("train", "test") if k in splits}
            facts["own_rows"] = {self._setup.name: self._setup.rows.count}
            facts["common_rows"] = len(self.party.state[COMMON])
        return facts

    def _write_what_was_reached(self, status: Status, problem: str) -> None:
        """A full disk, which may be the very reason, must not hide it. What others do after the run
        has ended does not undo its result."""
        if self.accounts is not None:
            return
        try:
            if self.party is not None and not (self._folder / "weights.part").exists():
                told = account(self.party, self._setup.federation.holder)  # its role has not ended
                told |= {"task": self.party.task.told(), "warnings": []}
                store.write_text(json.dumps(told), self._folder / "account.json")
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
        setup, party = self._setup, self.party
        if accounts is None:
            accounts = {}
            if party is not None:
                accounts = {setup.name: account(party, setup.federation.holder)}
        own = accounts.get(setup.name, {})
        if setup.name != setup.federation.hub:
            accounts = {setup.name: own} if own else {}
        task = own.get("task") or (party.task.told() if party is not None else {})
        self._result.write(
            status,
            problem,
            data=self._facts(task),
            accounts=accounts,
            setup=self.ready,
            head=self.book.head,
            warnings=remarks,
            own=[setup.name],
        )


def _outputs(told: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """What models are made for; the mean and spread of numbers may differ in the last digits."""
    return told.get("kind"), list(told.get("classes", ()))


def _since(manifest: Mapping[str, Any]) -> Place | None:
    phase, epoch, step = manifest.get("since") or ("", 0, 0)
    return (str(phase), int(epoch), int(step)) if phase else None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A disk that is full or read-only is nothing a program can repair; say what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{folder} cannot be written: {error}. Make room, and start again with the same command"
        ) from error
