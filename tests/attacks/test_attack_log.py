"""Nobody fills a party's disk with its log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from colonnade.deploy import records
from colonnade.deploy.records import Log
from colonnade.net import certs
from colonnade.net.keys import Keys
from colonnade.net.mesh import Mesh

MB = 1_000_000


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mesh, list[str]]:
    folder, lines = tmp_path_factory.mktemp("authority"), list[str]()
    certs.init(folder)
    certs.party(folder, "bank")
    made: dict[str, Any] = {"dial": {}, "accept": frozenset({"shop"}), "relayed": frozenset()}
    keys = Keys.of(folder / "bank", "bank")
    return Mesh("bank", keys, hub="bank", listen=None, agreed={}, log=lines.append, **made), lines


def test_refusals_for_ever_new_reasons_are_counted_not_told(mesh: tuple[Mesh, list[str]]) -> None:
    """10,000 refused hellos, each with another long reason: the log names the peer, says how much
    is left out, and stays below a megabyte."""
    it, lines = mesh
    for number in range(10_000):
        it._refuse("shop", f"{number} is {'x' * 900} at 'shop'", "y" * 900)
    assert sum(map(len, lines)) < MB
    assert any("refused 'shop': 0 is xxx" in line for line in lines)
    time.sleep(1.1)
    it._refuse("shop", "the last one")
    assert "9," in lines[-2] and "left out" in lines[-2] and "the last one" in lines[-1]


def test_a_log_has_one_older_file_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LOG_BYTES", 100_000, raising=False)
    log = Log(tmp_path / "log.txt", None)
    for number in range(5000):
        log(f"line {number} {'x' * 100}")
    log("x" * MB)
    log("line 5000 is the last")
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sum(sizes.values()) < 250_000, sizes
    assert "log.1.txt" in sizes and len(sizes) <= 2
    whole = (tmp_path / "log.1.txt").read_text() + (tmp_path / "log.txt").read_text()
    numbers = [int(line.split()[3]) for line in whole.splitlines() if " line " in line]
    assert numbers == list(range(numbers[0], 5001))  # the newest, without a gap
