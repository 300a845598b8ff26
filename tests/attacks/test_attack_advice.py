"""What an error advises can be done: the command it names goes on, and breaks nothing."""

from __future__ import annotations

import json
import re
import shlex
import signal
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from federations import Field, toy, wait_for
from nursery import Nursery

import colonnade
from colonnade.cli.main import main

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
        path = tmp_path / "small.toml"
        path.write_text(tomli_w.dumps(SMALL | changes))
        return path

    return write


class Stop(colonnade.Observer):
    def epoch(self, party: str, row: Any) -> None:
        raise KeyboardInterrupt


def stopping(path: Path, folder: Path) -> None:
    colonnade.run(path, out=folder, observer=Stop())


def stopped(folder: Path, path: Path) -> None:
    """A simulation that is stopped in the middle."""
    with pytest.raises(KeyboardInterrupt):
        stopping(path, folder)


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


def test_a_run_that_was_stopped_goes_on(
    config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the note of the stop says, and as `predict` says of a run without models."""
    folder = tmp_path / "run"
    stopped(folder, config())
    assert main(["predict", str(folder)]) == 2
    (command,) = commands(capsys.readouterr().err)
    path = config(epochs=1)
    with pytest.raises(KeyboardInterrupt) as caught:
        stopping(path, tmp_path / "other")
    (again,) = commands("\n".join(caught.value.__notes__))
    for one, place in ((command, folder), (again, tmp_path / "other")):
        assert one == ["run", "--resume", str(place)]
        assert main([*one, "--quiet"]) == 0
    assert main(["predict", str(folder)]) == 0


def test_an_older_run_is_replaced_only_when_one_says_so(
    config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(config(epochs=1)), "--out", str(tmp_path / "run"), "--quiet"]
    assert main(command) == 0 and main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0


def test_damaged_models_are_trained_again(
    config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert main(["run", str(config(epochs=1)), "--out", str(folder), "--quiet"]) == 0
    weights = folder / "weights" / "party1.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    capsys.readouterr()
    assert main(["predict", str(folder)]) != 0
    (command,) = commands(capsys.readouterr().err)
    assert command == ["run", str(folder / "config.toml")]
    assert main([*command, "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert main(["predict", str(tmp_path / "again")]) == 0


def test_a_run_of_another_version_can_be_shown(
    config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    stopped(folder, config())
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(manifest | {"format": 1}))
    before = files(folder)
    assert main(["run", "--resume", str(folder)]) == 2
    assert files(folder) == before
    (command,) = commands(capsys.readouterr().err)
    assert command == ["report", str(folder)] and main(command) == 0


def test_the_config_of_a_run_is_no_study(
    config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(epochs=1)
    assert main(["reproduce", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"colonnade run {path}" in said
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--quiet"]) == 0


def test_a_data_set_that_was_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch"]) == 2
    assert "See colonnade data list" in capsys.readouterr().err
    assert main(["data", "list"]) == 0


def test_a_request_is_issued_to_whom_one_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, keys = tmp_path / "authority", tmp_path / "keys"
    assert main(["certs", "init", str(authority)]) == 0
    assert main(["certs", "request", str(keys), "--party", "bank"]) == 0
    command = ["certs", "issue", str(authority), str(keys / "bank.csr")]
    capsys.readouterr()
    assert main(command) == 2
    assert "--name" in capsys.readouterr().err
    assert main([*command, "--name", "bank"]) == 0


def test_the_policy_that_an_error_shows_is_one() -> None:
    """It allows what the role sends; what it leaves open is to be limited by its owner."""
    from colonnade.methods import find
    from colonnade.wire.policy import Policy

    method = find("splitnn").method
    policy = Policy.from_table(tomllib.loads(Policy.template(method.kinds)))
    assert policy.allow.keys() >= {kind.name for kind in method.kinds}


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
    assert "was begun with another federation file" in told
    assert "colonnade run" not in told and "Go on with those" in told

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
