"""docs/guides/two-organisations.md, followed word for word in two folders of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from colonnade.journal import Journal, default_place
from colonnade.wire.reconcile import reconcile

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "two-organisations.md"
SECONDS = 60


class Block(NamedTuple):
    language: str
    who: str  # bank, shop, or both: the folder above
    text: str

    @property
    def first(self) -> str:
        """Its first command; a comment says for the reader's eye whose it is."""
        return self.text.splitlines()[1]


def blocks() -> list[Block]:
    """What the guide says is to be typed, in its order."""
    text = GUIDE.read_text(encoding="utf-8")
    fenced = re.findall(r"^```(bash|python) (bank|shop|both)\n(.*?)^```$", text, re.M | re.S)
    # The one word that may not fit this machine: somebody else may have the port.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    return [Block(kind, who, block.replace("7443", port)) for kind, who, block in fenced]


def command(block: Block) -> list[str]:
    if block.language == "python":
        return [sys.executable, "-c", block.text]
    return [shutil.which("bash") or "bash", "-e", "-c", block.text]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folder at the end of the guide, and what was printed, by the first words of a command."""
    folder = tmp_path_factory.mktemp("guide")
    for name in ("bank", "shop"):
        (folder / name).mkdir()
    path = os.pathsep.join([os.fspath(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "COLUMNS": "100"}
    said: dict[str, str] = {}
    running: list[tuple[Block, subprocess.Popen[str]]] = []

    def finish() -> None:
        for block, process in running:
            text, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, f"{block.who}: {block.text}\n{text}"
            said[f"{block.who}: {' '.join(block.first.split()[:2])}"] = text
        running.clear()

    try:
        for block in blocks():
            party = block.first.startswith(("colonnade party", "colonnade align"))
            if not party or (running and running[0][0].first.split()[1] != block.first.split()[1]):
                finish()
            process = subprocess.Popen(
                command(block),
                cwd=folder if block.who == "both" else folder / block.who,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            running.append((block, process))
            if not party:  # the two parties run side by side
                finish()
        finish()
        yield folder, said
    finally:
        for _, process in running:
            process.kill()
            process.communicate()


def test_every_step_is_for_somebody() -> None:
    found = blocks()
    assert all(block.who in block.text.splitlines()[0] for block in found if block.who != "both")
    assert [block.who for block in found if block.language == "python"] == ["both"]
    for who in ("bank", "shop"):
        text = "".join(block.text for block in found if block.who == who)
        for words in ("certs request", "doctor", "party --federation", "policy.toml"):
            assert f"colonnade {words}" in text or words in text, (who, words)


def test_both_sides_have_finished(followed: tuple[Path, dict[str, str]]) -> None:
    folder, _ = followed
    results = {
        name: json.loads((folder / name / "runs" / f"scores-{name}" / "result.json").read_text())
        for name in ("bank", "shop")
    }
    assert {result["status"] for result in results.values()} == {"finished"}
    test = results["bank"]["metrics"]["test"]
    assert test["metric"] == "auc" and test["value"] > 0.95
    assert results["bank"]["decision"]["chosen_by"] == "cost"
    assert 0 < results["bank"]["decision"]["threshold"] < 1
    assert results["shop"]["metrics"] == {} and list(results["shop"]["weights_sha256"]) == ["shop"]
    for name in ("bank", "shop"):
        place = folder / name / "runs" / f"scores-{name}"
        assert (place / "report.html").exists()
        assert [path.name for path in (place / "weights").glob("*.json")] == [f"{name}.json"]


def test_the_books_agree(followed: tuple[Path, dict[str, str]]) -> None:
    folder, said = followed
    runs = [folder / name / "runs" / f"scores-{name}" for name in ("bank", "shop")]
    found = reconcile(*runs)
    assert found.faults == [] and not found.unreceived
    epochs = json.loads((runs[0] / "result.json").read_text())["stopping"]["of"]
    # embeddings, gradients, a batch each to validate and test, a verdict; before, the alignment
    assert found.matched == epochs * (10 + 10 + 2 + 1) + 14
    assert "the two ledgers agree" in said["bank: colonnade ledger"]


def test_the_shop_remembers_how_often_each_record_left(
    followed: tuple[Path, dict[str, str]],
) -> None:
    """A release in every epoch, of every row that trained, and of every row that was evaluated."""
    folder, _ = followed
    result = json.loads((folder / "shop" / "runs" / "scores-shop" / "result.json").read_text())
    epochs = len(result["timing"]["seconds_per_epoch"])
    with closing(Journal(default_place("scores", "shop"))) as journal:
        entries = list(journal.entries("count", name="releases of embedding"))
        rows = {str(e["rows"]): len(journal.lists.read(str(e["rows"]))) for e in entries}
    assert len(entries) == 3 * epochs and {e["times"] for e in entries} == {1}
    assert 5 < epochs <= 10 and len(rows) == 3 and sum(rows.values()) == 414


def test_both_sides_found_the_same_rows(followed: tuple[Path, dict[str, str]]) -> None:
    folder, said = followed
    lines = {
        name: (folder / name / "runs" / f"scores-align-{name}" / "common.csv").read_text().split()
        for name in ("bank", "shop")
    }
    ids = {name: [line.partition(",")[0] for line in own] for name, own in lines.items()}
    assert ids["bank"] == ids["shop"] and len(ids["bank"]) == 1 + 414
    rows = (folder / "shop" / "shop.csv").read_text().splitlines()[1:]
    for line in lines["shop"][1:]:
        name, number = line.split(",")
        assert rows[int(number)].split(",")[0] == name
    (order,) = {re.findall(r"414 +([0-9a-f]{8} [0-9a-f]{8})", said[f"{name}: colonnade align"])[0]
                for name in ("bank", "shop")}  # fmt: skip
    assert order in GUIDE.read_text(encoding="utf-8")
    for name in ("bank", "shop"):
        result = json.loads((folder / name / "runs" / f"scores-{name}" / "result.json").read_text())
        assert result["data"]["common_rows"] == 414


def test_the_guide_shows_what_is_printed(followed: tuple[Path, dict[str, str]]) -> None:
    """Digests and seconds differ from run to run; the words do not."""
    _, said = followed
    guide = " ".join(GUIDE.read_text(encoding="utf-8").split())
    for who in ("bank", "shop"):
        assert said[f"{who}: colonnade doctor"].count("problem") == 0
    shop = " ".join(said["shop: colonnade doctor"].split())
    for words in (
        "ok policy policy.toml allows what is sent: embedding, psi_opening, psi_announcement",
        "nothing listens there yet",
        "483 rows (340 for train, 58 for validation, 85 for test), 20 numbers each; the rows that",
        "each record that trains leaves at most 10 times of the 15 that may, in all runs",
    ):
        assert words in shop and words in guide
    assert " ".join(said["bank: colonnade ledger"].split()) in guide
    bank = " ".join(said["bank: colonnade party"].split())
    told = bank[bank.index("Two parties, each") :].partition(" result ")[0]
    assert "Test AUC 0." in told and "flagged as malignant from a probability" in told
    assert told in guide
