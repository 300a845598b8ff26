"""What an error advises can be done: the command it names goes on, and breaks nothing."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from child import Plan
from federations import Field, toy, wait_for
from nursery import Nursery

import colonnade
from colonnade.cli.main import main
from colonnade.errors import ColonnadeError

SMALL = toy("splitnn", parties=2, epochs=2)


def commands(said: str) -> list[list[str]]:
    """Those that a text names, as words: in backticks, or from `colonnade` to the line's end."""
    quoted = re.findall(r"`(colonnade [^`]+)`", said)
    plain = re.findall(r": (colonnade [^`\n]+?)[.;]?$", said, re.M)
    return [shlex.split(command)[1:] for command in [*quoted, *plain]]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """A config file of a small run."""

    def write(**changes: Any) -> Path:
        import tomli_w

        path = tmp_path / "small.toml"
        path.write_text(tomli_w.dumps(SMALL | changes))
        return path

    return write


def stopped(folder: Path, path: Path) -> None:
    """A simulation that is stopped in the middle."""

    class Stop(colonnade.Observer):
        def epoch(self, party: str, row: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        colonnade.run(path, out=folder, observer=Stop())


def test_a_simulation_goes_on_after_its_config_was_changed(
    config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    stopped(folder, config())
    before = files(folder)
    assert main(["run", str(config(epochs=3)), "--resume", str(folder), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert files(folder) == before
    (command,) = commands(said)
    assert command == ["run", "--resume", str(folder)]
    assert main([*command, "--quiet"]) == 0


# ---- one party's folder --------------------------------------------------------------------------


@pytest.fixture
def field(nursery: Nursery, tmp_path: Path) -> Iterator[tuple[Field, Any]]:
    """Two parties of a federation, stopped in the middle."""
    tree = toy("splitnn", parties=2, epochs=60, evaluate_every=60)
    made = Field(tmp_path / "field", tree)
    program = (*nursery.command(), "party")
    for name in made.names:
        made.start(name, program)
    wait_for(lambda: list((made.out("party1") / "checkpoints").glob("*.json")), 30)
    made.processes["party1"].send_signal(signal.SIGTERM)
    assert set(made.wait().values()) == {130}
    yield made, program
    made.close()


@pytest.mark.slow
@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_a_party_goes_on_after_its_federation_was_changed(
    field: tuple[Field, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names what goes on. Whoever types `colonnade run --resume` all the same is told the
    same, and nothing in the folder changes; what the error names is then done, and the run ends."""
    made, program = field
    folder = made.out("party2")
    before = files(folder)
    changed = tmp_path / "field" / "changed.toml"
    with made.changed(changed) as content:
        content["run"]["epochs"] = 61
    made.start("party2", program, file=changed)
    assert made.processes["party2"].wait(30) == 2
    told = made.shown("party2")
    assert "was made by another configuration" in told
    assert "colonnade run" not in told and "the same command" in told

    assert main(["run", "--resume", str(folder)]) == 2
    said = capsys.readouterr().err
    after = files(folder)
    assert {name: after[name] for name in before if name != "lock"} == {
        name: content for name, content in before.items() if name != "lock"
    }
    assert f"colonnade party --name party2 --out {folder}" in said and "Traceback" not in said

    for name in made.names:
        made.start(name, program)
    assert set(made.wait().values()) == {0}
    assert {made.result(name)["status"] for name in made.names} == {"finished"}
