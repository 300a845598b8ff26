"""The documentation keeps its word: its code runs, its links lead somewhere, its names exist."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import colonnade
from colonnade import assembly, config, data
from colonnade.role.method import (
    About,
    Circumstances,
    Membership,
    Method,
    Network,
    RowRules,
)
from colonnade.role.party import Party

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.md")),
]
PUBLIC = {
    "Batch",
    "ColonnadeError",
    "Config",
    "Kind",
    "Learning",
    "Method",
    "Observer",
    "Party",
    "Peer",
    "Prediction",
    "Result",
    "Role",
    "Seeds",
    "Trained",
    "__version__",
    "load",
    "recv_any",
    "run",
    "run_seeds",
}


def blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of a page in one language; "" for those that name none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for named, block in fenced if named == language]


def test_the_guide_shows_the_whole_method_file() -> None:
    file = (ROOT / "examples" / "my_method.py").read_bytes().decode()
    guide = (ROOT / "docs" / "guides" / "own-method.md").read_text(encoding="utf-8")
    assert file in blocks(guide, "python")


def test_the_readme_example_in_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (snippet,) = (block for block in blocks(README, "python") if "colonnade.run(" in block)
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(compile(snippet, "README.md", "exec"), found)
    result = found["result"]
    assert isinstance(result, colonnade.Result)
    assert result.accuracy is not None and result.accuracy > 0.9
    assert "runs/splitnn" in capsys.readouterr().out


def test_the_readme_config_runs(tmp_path: Path) -> None:
    (text,) = blocks(README, "toml")
    path = tmp_path / "file.toml"
    path.write_text(text, encoding="utf-8")
    result = colonnade.run(
        path,
        overrides=["epochs=1", "data.train_rows=400", "data.test_rows=100"],
        out=tmp_path / "r",
    )
    assert result.content["parties"] == ["bank", "shop", "post", "port"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_readme_shows_the_report() -> None:
    assert "](docs/images/report.png)" in README


def test_the_readme_tree_names_every_package_and_module() -> None:
    (tree,) = (block for block in blocks(README, "") if block.startswith("colonnade/"))
    named = set(re.findall(r"[a-z]+", tree))
    there = {
        path.stem
        for path in (ROOT / "colonnade").iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__"))
        or (path / "__init__.py").exists()
    }
    assert there - named == set()
    packages = re.findall(r"^  ([a-z]+)/", tree, re.M)
    assert [name for name in packages if not (ROOT / "colonnade" / name).is_dir()] == []


def test_the_public_names_are_the_listed_ones() -> None:
    assert set(colonnade.__all__) == PUBLIC
    assert all(hasattr(colonnade, name) for name in colonnade.__all__)


def test_every_member_of_a_party_is_explained() -> None:
    text = (ROOT / "docs" / "concepts" / "roles.md").read_text(encoding="utf-8")
    (anybody,) = assembly.from_catalogue(config.load({"method": "centralised"})).parties.values()
    members = {name for name in {*vars(Party), *vars(anybody)} if not name.startswith("_")}
    assert {name for name in members if f"me.{name}" not in text} == set()
    assert len([name for name in vars(Party) if not name.startswith("_")]) <= 25


@pytest.mark.parametrize("group", [Method, RowRules, Network, Membership, About, Circumstances])
def test_every_field_of_a_method_is_explained(group: type) -> None:
    text = (ROOT / "docs" / "concepts" / "roles.md").read_text(encoding="utf-8")
    start = text.index(f"| field of `{group.__name__}` |")
    table = text[start : text.index("\n\n", start)]
    cells = [line.split(" | ")[0] for line in table.splitlines()]
    told = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {group.__name__}
    assert told == {field.name for field in fields(group)}
    assert len(told) <= 14


def test_every_partition_of_the_guide_can_be_made() -> None:
    text = (ROOT / "docs" / "guides" / "data.md").read_text(encoding="utf-8")
    examples = [block for block in blocks(text, "toml") if "[partition]" in block]
    here = {row.name for row in data.available() if row.status in ("here", "embedded")}
    kinds = set()
    for block in examples:
        tree = tomllib.loads(block) | {"method": "local"}
        if tree["data"]["name"] not in here:
            config.load(tree)  # the settings are right; its files are on few machines
            continue
        federation = assembly.from_catalogue(config.load(tree))
        assert federation.partition is not None
        kinds.add(federation.partition.kind)
    assert kinds == {"tiles", "strips", "rectangles", "columns", "rows", "hybrid", "whole"}
