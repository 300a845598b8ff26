"""All of it on one machine: `colonnade run --runtime nvflare`.

    runs/x/federation.toml, runs/x/parties/   as with a process per party, see supervisor.py
    runs/x/engine/                            kits and workspaces; removed at the end but for logs

The same steps as between organisations: provision, start the server and every site, submit one
job, collect, stop. Each site is a process of its own that knows its kit and its own rows.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from colonnade.assembly import Assembly
from colonnade.config import Config
from colonnade.config import federation as federations
from colonnade.deploy.nvflare import job, kits, sitefile
from colonnade.deploy.nvflare.defaults import ADMIN
from colonnade.deploy.nvflare.submit import Console
from colonnade.deploy.supervisor import Options
from colonnade.errors import FederationError, RoleFailed, RunError
from colonnade.results.observer import Observer
from colonnade.wire import store

if TYPE_CHECKING:
    import psutil

HOST = "localhost"
START_SECONDS = 60.0
PROGRAM = "nvflare.private.fed.app"


@dataclass
class Engine:
    """An NVFlare server and its sites on this machine, from their kits; `with` starts and stops
    them."""

    folder: Path  # of the kits
    parties: tuple[str, ...]
    # Replaced, never changed: another thread may be looking through them
    processes: Mapping[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kit(self) -> Path:
        """The startup kit of the user who submits."""
        return self.folder / ADMIN

    def __enter__(self) -> Engine:
        try:
            self._start(HOST, "server")
            for party in self.parties:
                self._start(party, "client")
            self._await()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the processes that were started here, and those that they have started for jobs."""
        import psutil  # NVFlare brings it

        for process in [*self.jobs(), *self.processes.values()]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in self.processes.values():
            process.wait()
        self.processes = {}

    def jobs(self, name: str = "") -> list[psutil.Process]:
        """The processes of running jobs: at one site, or everywhere."""
        import psutil

        found: list[psutil.Process] = []
        for owner, process in self.processes.items():
            if name in ("", owner):
                with suppress(psutil.NoSuchProcess):
                    found += psutil.Process(process.pid).children(recursive=True)
        return found

    def _start(self, name: str, kind: str) -> None:
        site = job.site_of(name)
        kit = (self.folder / site).resolve()
        named = [f"uid={site}"] if kind == "client" else []
        command = [sys.executable, "-u", "-m", f"{PROGRAM}.{kind}.{kind}_train", "-m", str(kit)]
        command += ["-s", f"fed_{kind}.json", "--set", "secure_train=true", *named]
        command += [f"org={name.replace('-', '_')}", "config_folder=config"]
        with (kit / "said.txt").open("wb") as said:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                # Modules are not looked for in the working folder, which somebody else may have
                # filled; nor by the processes that these start for jobs.
                env=os.environ | {"PYTHONSAFEPATH": "1"},
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
        self.processes = {**self.processes, name: process}

    def _await(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RunError(f"the engine's '{name}' ended at once: {self._said(name)}")
            with suppress(RunError), Console(self.kit, 5.0) as session:
                if session.sites() >= set(self.parties):
                    return
            time.sleep(0.2)
        raise RunError(f"the engine did not start within {START_SECONDS:g} s: {self._said(HOST)}")

    def _said(self, name: str) -> str:
        text = (self.folder / job.site_of(name) / "said.txt").read_text(
            encoding="utf-8", errors="replace"
        )
        return " ".join(text.split()[-40:])


def provision(folder: Path, shared: federations.Federation) -> None:
    """Kits for sites of this machine, on a port that is free now, with all state in `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    kept = folder.resolve() / HOST / "state"
    kits.provision(shared, folder, f"{HOST}:{port}", state_folder=str(kept))


def settle(folder: Path, federation: str, files: Mapping[str, str]) -> None:
    """Write every site's own file for a federation, by party."""
    for party, text in files.items():
        place = folder / job.site_of(party) / "local" / sitefile.FOLDER / federation
        place.mkdir(parents=True, exist_ok=True)
        store.write_text(text, place / sitefile.FILE)


def site_file(run: Path, name: str) -> str:
    """The site.toml of a party, from what supervisor.py has handed out."""
    parties = (run / "parties").resolve()
    rows = parties / f"{name}-rows.json"
    entries = {
        "federation": (run / "federation.toml").resolve(),
        "keys": (run / "keys" / name).resolve(),
        "out": parties,
        "run": name,
    } | ({"data": rows} if rows.exists() else {})
    return "".join(f"{key} = {json.dumps(str(value))}\n" for key, value in entries.items())


class Machine:
    """Drives the parties of a run as sites of NVFlare on this machine, for supervisor.py."""

    def __init__(
        self,
        settings: Config,
        assembly: Assembly,
        folder: Path,
        observer: Observer,
        options: Options,
    ) -> None:
        self.folder, self.observer, self.names = folder, observer, tuple(assembly.parties)
        self.ready, self.warnings = 0.0, list[str]()

    def run(self) -> None:
        """Provision, start, submit, follow, stop."""
        shared = federations.load(self.folder / "federation.toml")
        place = self.folder / "engine"
        shutil.rmtree(place, ignore_errors=True)
        try:
            provision(place, shared)
            settle(place, shared.name, {name: site_file(self.folder, name) for name in self.names})
            with Engine(place, self.names) as engine, Console(engine.kit) as session:
                outcome = session.run(shared, shared.name, False, place, self.observer)
        finally:
            self._tidy(place)
        self.ready = outcome.ready
        if outcome.refused:
            raise FederationError(outcome.refused)
        told = outcome.sites
        problems = [
            f"'{name}': {told[name]['problem']}" for name in told if "problem" in told[name]
        ]
        if problems or told.keys() != set(self.names):
            raise RoleFailed("; ".join(problems) or outcome.why)

    def _tidy(self, place: Path) -> None:
        """Keys and workspaces go; what the processes said stays."""
        logs = {path.parent.name: path.read_bytes() for path in place.glob("*/said.txt")}
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(exist_ok=True)
        for name, text in logs.items():
            (place / f"{name}.txt").write_bytes(text)
