"""Processes of Colonnade without the seconds that importing PyTorch takes.

One process imports everything and then forks a child whenever a stub asks for one: a real process
with its own memory, sockets and death, in 20 ms instead of three seconds. What is slow and is
tested elsewhere (the start of Python itself) is all that is left out.

    with Nursery(folder) as nursery:
        nursery.command()           # the command `colonnade`, for subprocess.Popen
        nursery.program(plan)       # a party with faults, for supervisor.Options(program=…)
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
CHILD = HERE.parent / "chaos" / "child.py"  # a party with faults
COLONNADE = "colonnade"  # instead of a file: the command itself


class Nursery:
    """Starts the forking process, and ends it with all that it forked."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "nursery"

    def __enter__(self) -> Nursery:
        alone = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # threads do not survive fork
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py"), str(self._socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | alone,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the nursery did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)

    def command(self) -> tuple[str, ...]:
        """The command `colonnade`; its arguments follow."""
        return (*self._stub(), COLONNADE)

    def program(self, plan: Path) -> tuple[str, ...]:
        """The command that starts a party with the faults of a plan (see child.py)."""
        return (*self._stub(), str(CHILD), str(plan))

    def _stub(self) -> tuple[str, ...]:
        return (sys.executable, "-S", "-E", str(HERE / "stub.py"), str(self._socket))


def cold(plan: Path) -> tuple[str, ...]:
    """The same without a nursery: a Python of its own, as in real life."""
    return (sys.executable, str(CHILD), str(plan))


# ---- the process that forks ----------------------------------------------------------------------


def main() -> None:
    import torch
    from sklearn import datasets

    import colonnade.cli.party
    import colonnade.runs.run  # noqa: F401

    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimiser imports half of torch
    datasets.load_digits = functools.cache(datasets.load_digits)
    datasets.load_digits()
    os.fsync = lambda file: None  # a party that is killed is not the power cut that this is for
    with socket.socket(socket.AF_UNIX) as door, selectors.DefaultSelector() as events:
        door.bind(sys.argv[1])
        door.listen(64)
        events.register(door, selectors.EVENT_READ, "door")
        events.register(sys.stdin, selectors.EVENT_READ, "end")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        alive: set[int] = set()
        while True:
            for key, _ in events.select():
                if key.data == "end":  # whoever started us has gone
                    for pid in alive:
                        os.kill(pid, signal.SIGKILL)
                    return
                if key.data == "door":
                    _born(door.accept()[0], events, alive)
                elif isinstance(key.data, int):
                    _word(key.fileobj, key.data, alive)
                else:
                    _died(key.fileobj, *key.data, events, alive)


def _born(stub: socket.socket, events: Any, alive: set[int]) -> None:
    data, files, _, _ = socket.recv_fds(stub, 1 << 20, 3)
    wish = json.loads(data)
    pid = os.fork()
    if not pid:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, 4096)
        os.chdir(wish["folder"])
        os.environ.clear()
        os.environ.update(wish["environment"])
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        code = 1
        try:
            code = _play(wish["arguments"])
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:  # noqa: BLE001 - as Python itself would end
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for file in files:
        os.close(file)
    alive.add(pid)
    watch = os.pidfd_open(pid)
    events.register(stub, selectors.EVENT_READ, pid)
    events.register(watch, selectors.EVENT_READ, (stub, pid))


def _play(arguments: list[str]) -> int:
    """Be what the stub stands for: the command, or the `main` of a file beside the tests."""
    what, *rest = arguments
    if what == COLONNADE:
        return main_of_colonnade(rest)
    sys.path.insert(0, str(Path(what).parent))
    code: int = importlib.import_module(Path(what).stem).main(rest)
    return code


def main_of_colonnade(arguments: list[str]) -> int:
    from colonnade.cli.main import main as colonnade

    sys.argv = [COLONNADE, *arguments]
    return colonnade(arguments)


def _word(stub: Any, pid: int, alive: set[int]) -> None:
    """A signal to pass on; a stub that was killed takes its party with it."""
    if pid not in alive:
        return  # it died in the same moment
    try:
        got = stub.recv(1)
    except OSError:
        got = b""
    os.kill(pid, got[0] if got else signal.SIGKILL)


def _died(watch: Any, stub: socket.socket, pid: int, events: Any, alive: set[int]) -> None:
    _, status = os.waitpid(pid, 0)
    events.unregister(watch)
    events.unregister(stub)
    os.close(watch)
    alive.remove(pid)
    with contextlib.suppress(OSError):
        stub.send(str(status).encode())
    stub.close()


if __name__ == "__main__":
    main()
