"""docs/guides/nvflare.md, followed word for word in three folders of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from colonnade.deploy.nvflare.defaults import ADMIN
from colonnade.deploy.nvflare.submit import Console
from colonnade.errors import RunError

pytest.importorskip("nvflare")

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "nvflare.md"
SECONDS = 120
FOLDERS = ("lead", "bank", "shop")


class Block(NamedTuple):
    language: str
    who: str  # lead, bank, shop, or all: the folder above
    text: str


def blocks() -> list[Block]:
    """What the guide says is to be typed, in its order."""
    text = GUIDE.read_text(encoding="utf-8")
    fenced = re.findall(r"^```(bash|python) (lead|bank|shop|all)\n(.*?)^```$", text, re.M | re.S)
    # The two words that may not fit this machine: somebody else may have the ports.
    for port in ("7443", "8002"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            new = str(free.getsockname()[1])
        fenced = [(kind, who, block.replace(port, new)) for kind, who, block in fenced]
    return [Block(*block) for block in fenced]


def end(process: subprocess.Popen[str]) -> None:
    """A server or site that runs on, with what it has started for jobs."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def await_sites(folder: Path) -> None:
    """As a reader would, until the two sites are connected."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with suppress(RunError), Console(folder / "lead" / "kits" / ADMIN, 5.0) as session:
            if session.sites() >= {"bank", "shop"}:
                return
        time.sleep(0.3)
    pytest.fail("the sites did not connect")


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder at the end of the guide, and all that was printed."""
    folder = tmp_path_factory.mktemp("guide")
    for name in FOLDERS:
        (folder / name).mkdir()
    path = os.pathsep.join([os.fspath(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "COLUMNS": "100"}
    running: list[subprocess.Popen[str]] = []
    said = ""

    def end_of(process: subprocess.Popen[str], text: str) -> str:
        out, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, f"{text}\n{out}"
        return out

    try:
        for kind, who, text in blocks():
            first = [sys.executable, "-c"]
            if kind == "bash":
                first = [shutil.which("bash") or "bash", "-e", "-c"]
            stays = "sub_start.sh" in text
            if "nvflare submit" in text:
                await_sites(folder)
            process = subprocess.Popen(
                [*first, text],
                cwd=folder if who == "all" else folder / who,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if stays else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            running.append(process)
            if len(running) == 1:
                alone = process, text  # nothing after it needs it, so it goes on meanwhile
            elif not stays:
                said += end_of(process, text)
        end_of(*alone)
        yield folder, said
    finally:
        for process in running:
            end(process)


def test_every_step_is_for_somebody() -> None:
    found = blocks()
    assert all(block.who in block.text.splitlines()[0] for block in found if block.who != "all")
    assert {block.who for block in found} == {*FOLDERS, "all"}


def test_the_engine_and_one_process_agree(followed: tuple[Path, str]) -> None:
    folder, _ = followed
    engine, alone = (
        json.loads((folder / "lead" / "runs" / name / "result.json").read_text())
        for name in ("engine", "alone")
    )
    assert engine["runtime"] == "nvflare" and alone["runtime"] == "local"
    assert engine["weights_sha256"] == alone["weights_sha256"]
    left = {path.name for path in (folder / "lead" / "runs" / "engine" / "engine").iterdir()}
    logs = {"bank.txt", "shop.txt", "party-server.txt", "localhost.txt"}
    assert left == logs  # no key, no workspace


def test_the_job_has_finished(followed: tuple[Path, str]) -> None:
    folder, said = followed
    run = folder / "lead" / "runs" / "scores"
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "finished" and result["metrics"]["test"]["accuracy"] > 0.85
    assert set(result["weights_sha256"]) == {"bank", "shop"}
    assert (run / "report.html").exists()
    (kept,) = (folder / "shop" / "kit" / "runs").iterdir()  # where the weights stay
    assert (kept / "weights" / "shop.safetensors").exists()
    guide = GUIDE.read_text(encoding="utf-8")
    for line in said.splitlines():
        if line.startswith(("project ", "kit ", "authority  ")) and "keys/" not in line:
            assert line in guide
