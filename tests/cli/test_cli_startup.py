"""What needs no PyTorch does not wait for it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

import pytest

import colonnade
from colonnade.cli.options import parser

HEAVY = ("torch", "sklearn", "matplotlib", "pandas", "scipy")
SCRIPT = f"""
import sys
from colonnade.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
heavy = [name for name in {HEAVY} if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else code)
"""
EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"
OLD = Path(__file__).parents[1] / "results" / "old" / "jovefl"


def light(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a new interpreter, which fails if it imports what takes seconds."""
    command = [sys.executable, "-c", SCRIPT, *map(os.fspath, map(str, arguments))]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [("--version",), ("--help",), ("certs", "--help"), ("run", "--help"), ("reproduce", "--help")],
)
def test_help_is_light(arguments: tuple[str, ...]) -> None:
    done = light(*arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_certificates_are_light(tmp_path: Path) -> None:
    for arguments in (
        ("certs", "init", tmp_path / "authority"),
        ("certs", "request", tmp_path / "keys", "--party", "bank"),
        (*("certs", "issue", tmp_path / "authority"), tmp_path / "keys/bank.csr", "--name", "bank"),
        ("certs", "revoke", tmp_path / "authority", "bank"),
        ("certs", "issued", tmp_path / "authority"),
        ("certs", "show", tmp_path / "authority" / "ca.pem"),
    ):
        done = light(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments


@pytest.mark.parametrize("chosen", [None, "DEBUG"])
def test_grpc_says_nothing_of_its_own_unless_the_user_wants_it(chosen: str | None) -> None:
    choice = {} if chosen is None else {"GRPC_VERBOSITY": chosen}
    plain = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    code = "import os, sys, colonnade; assert 'grpc' not in sys.modules; "
    code += "print(os.environ['GRPC_VERBOSITY'])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=plain | choice, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (chosen or "NONE")


def test_trust_is_light() -> None:
    done = light("trust", EXAMPLE, "--yes")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_ledger_is_light(tmp_path: Path) -> None:
    for more in ((), ("--export", tmp_path / "audit.jsonl")):
        done = light("ledger", OLD, *more)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "audit.jsonl").stat().st_size > 0
    assert "the chain of hashes holds" in done.stdout


def leaves(of: ArgumentParser) -> Iterator[ArgumentParser]:
    """The parsers of commands that do something."""
    actions = [a for a in of._actions if isinstance(a, _SubParsersAction)]
    for action in actions:
        for sub in action.choices.values():
            yield from leaves(sub)
    if not actions:
        yield of


def test_every_command_is_there() -> None:
    for command in leaves(parser()):
        module = importlib.import_module(f"colonnade.cli.{command.get_default('module')}")
        assert callable(getattr(module, command.get_default("function"))), command.prog


def test_the_public_names_come_when_they_are_used() -> None:
    assert set(colonnade.__all__) == set(dir(colonnade))
    assert all(getattr(colonnade, name) is not None for name in colonnade.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = colonnade.nothing
