"""docs/guides/own-files.md, followed word for word beside a copy of the examples."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "own-files.md").read_text(encoding="utf-8")
SECONDS = re.compile(r"[0-9.]+ m?s\b")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All that is printed, one space between words."""
    folder = tmp_path_factory.mktemp("guide")
    ignored = shutil.ignore_patterns("*.csv")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignored)
    path = os.pathsep.join([os.fspath(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "COLUMNS": "140"}
    text = ""
    for language, block in re.findall(r"^```(bash|python)\n(.*?)^```$", GUIDE, re.M | re.S):
        program = ["bash", "-e", "-c"] if language == "bash" else [sys.executable, "-c"]
        done = subprocess.run(
            [*program, block],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}"
        text += done.stdout
    return " ".join(text.split())


def test_what_it_shows_is_printed(said: str) -> None:
    """Times differ from run to run."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.M | re.S)
    shown = [block for language, block in fenced if not language]
    assert len(shown) == 3
    for line in "".join(shown).splitlines():
        for part in SECONDS.split(line.strip("… ")):
            assert " ".join(part.split()) in said, line


def test_what_it_says_about_accuracies_is_so(said: str) -> None:
    for name, method, share in (("09-own-files", "SplitNN", 86), ("09-alone", "Local", 59)):
        (found,) = re.findall(rf"{name} {method} 2 [0-9.]+ ([0-9.]+) %", said)
        assert round(float(found)) == share and f"{share} %" in GUIDE


def test_its_file_is_the_example() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", GUIDE, re.M | re.S)
    example = tomllib.loads((ROOT / "examples" / "09-own-files.toml").read_text(encoding="utf-8"))
    shown = tomllib.loads(text)
    assert {key: example[key] for key in shown} == shown


def test_rows_that_nobody_shares(said: str) -> None:
    (found,) = re.findall(r"09-enriched VFedTrans 4 [0-9.]+ ([0-9.]+) %", said)
    assert abs(float(found) - 58) < 5 and "about 58 % with it" in GUIDE  # under noise
    assert "Two parties with rows of their own, a server and a key generator trained" in said
