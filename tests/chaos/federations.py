"""Whole federations for the tests, in a folder as organisations would have theirs.

The only file here that knows where the package keeps its launcher and its federation file.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from colonnade import assembly, config
from colonnade.config.federation import load as load_federation
from colonnade.deploy.supervisor import Options, hand_out, hub_of
from colonnade.deploy.supervisor import _addresses as free_addresses
from colonnade.plugin import own
from colonnade.runs.run import run
from colonnade.wire import ledger

__all__ = ["Field", "Options", "free_addresses", "load_federation", "run", "toy", "wait_for"]

COMMAND = (sys.executable, "-m", "colonnade", "party")


def toy(method: str, parties: int = 3, **changes: Any) -> dict[str, Any]:
    """Ten steps an epoch, a checkpoint every third, and small networks."""
    base: dict[str, Any] = {
        "method": method,
        "name": "toy",
        "seed": 3,
        "epochs": 2,
        "batch_size": 20,
        "model_options": {"hidden": [16]},
        "data": {"name": "digits", "train_rows": 200, "test_rows": 60},
        "partition": {"kind": "columns", "parties": parties},
        "checkpoint": {"steps": 3},
        "absence": False,
    }
    if method in ("splitnn", "easter"):
        base[method] = {"dim": 8}
    return base | changes


class Field:
    """A federation on this machine without a supervisor: every party is started by hand."""

    def __init__(
        self,
        folder: Path,
        tree: Mapping[str, Any],
        *,
        on_lost: str = "wait",
        deadline: float = 20.0,
        silent: Sequence[str] = (),
        through: Mapping[str, Callable[[int], int]] | None = None,
    ) -> None:
        """
        silent   parties without an address
        through  by party, what gives the port of a proxy in front of the port it listens at
        """
        settings = config.load(dict(tree), rule=own)
        made = assembly.from_catalogue(settings)
        self.folder, self.names, self.hub = folder, list(made.parties), hub_of(settings, made)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True)
        if settings.run.method.endswith(".py"):
            shutil.copy(settings.found.path, folder)
        hand_out(settings, made, folder, Options(on_lost=on_lost, deadline=deadline))  # type: ignore[arg-type]
        self.file = folder / "federation.toml"
        with self.changed() as content:
            for name in silent:
                del content["parties"][name]["address"]
            for name, proxy in (through or {}).items():
                entry = content["parties"][name]
                entry["listen"] = entry["address"]
                entry["address"] = f"127.0.0.1:{proxy(int(entry['listen'].rpartition(':')[2]))}"

    def changed(self, path: Path | None = None) -> _Change:
        """`with field.changed() as content:` the federation file, or a copy of it, edited."""
        return _Change(self.file, path or self.file)

    def out(self, name: str) -> Path:
        return self.folder / "parties" / name

    def start(
        self,
        name: str,
        program: Sequence[str] = COMMAND,
        *more: str,
        file: Path | None = None,
        rows: Path | None = None,
        keys: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        rows = rows or self.folder / "parties" / f"{name}-rows.json"
        command = [*program, "--federation", os.fspath(file or self.file), "--name", name]
        command += ["--keys", os.fspath(keys or self.key(name)), "--out", os.fspath(self.out(name))]
        command += ["--data", os.fspath(rows), *more] if rows.exists() else more
        if name in self.processes:
            _end(self.processes[name])
        with (self.folder / f"{name}.txt").open("ab") as shown:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=shown, stderr=shown, start_new_session=True
            )
        self.processes[name] = process
        return process

    def start_all(self, program: Sequence[str], *more: str) -> None:
        for name in self.names:
            self.start(name, program, "--events", *more)

    def key(self, name: str) -> Path:
        return self.folder / "keys" / name

    def wait(self, seconds: float = 60.0) -> dict[str, int]:
        """Exit codes; whoever has not ended in time is killed, and an error names it."""
        until = time.monotonic() + seconds
        codes: dict[str, int] = {}
        try:
            for name, process in self.processes.items():
                codes[name] = process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = [n for n, p in self.processes.items() if p.poll() is None]
            logs = "".join(f"\n{n}:\n{self.log(n)[-1500:]}" for n in self.names)
            raise AssertionError(f"{late} did not end in {seconds} s{logs}") from None
        finally:
            self.close()
        return codes

    def close(self) -> None:
        for process in self.processes.values():
            _end(process)

    def shown(self, name: str) -> str:
        """What a party's process has said on its terminal."""
        path = self.folder / f"{name}.txt"
        return path.read_text() if path.exists() else ""

    def log(self, name: str) -> str:
        path = self.out(name) / "log.txt"
        return path.read_text() if path.exists() else ""

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out(name) / "result.json").read_text())
        return found

    def weights(self) -> dict[str, str]:
        """Of all who have finished, as they say themselves."""
        found = {}
        for name in self.names:
            if (self.out(name) / "weights").exists():
                found |= {name: self.result(name)["weights_sha256"][name]}
        return found

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A party's ledger, its chain checked."""
        return list(ledger.read(self.out(name) / "ledger.jsonl"))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


class _Change:
    def __init__(self, source: Path, target: Path) -> None:
        self._content, self._target = tomllib.loads(source.read_text()), target

    def __enter__(self) -> dict[str, Any]:
        return self._content

    def __exit__(self, *_: object) -> None:
        self._target.write_text(tomli_w.dumps(self._content))


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Until something is so; an error if it never is."""
    until = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > until:
            raise AssertionError(f"still not so after {seconds} s")
        time.sleep(0.01)
    return found


def listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
