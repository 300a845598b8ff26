"""The reference pages name everything there is, with its default; the leakage guide's code runs."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from colonnade import methods, models
from colonnade.config import FITS, Checkpoint, Data, Deciding, Run
from colonnade.errors import ConfigError
from colonnade.models.registry import BUILDERS
from colonnade.partition import Partition
from colonnade.privacy.settings import Protect
from colonnade.role.recipe import Recipe
from colonnade.task.measures import MEASURES, SAID

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETTINGS: dict[str, type] = {
    "The run": Run,
    "The recipe": Recipe,
    "Data": Data,
    "Partition": Partition,
    "Checkpoint": Checkpoint,
    "Decision": Deciding,
    "Protect": Protect,
    **{name: methods.find(name).method.options for name in methods.BUILT_IN},
}


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """From a heading to the next one."""
    (found,) = re.findall(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    return str(found)


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the tables that begin with a `name`: the cells after it."""
    found = re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in found}


def quoted(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@pytest.mark.parametrize("title", SETTINGS)
def test_the_settings_are_those_of_the_code(title: str) -> None:
    table = rows(section(page("reference/settings.md"), title))
    fields = {field.name: default(field) for field in dataclasses.fields(SETTINGS[title])}
    assert table.keys() == fields.keys()
    for name, value in fields.items():
        if value is dataclasses.MISSING:
            assert table[name][1] == "required", name
        elif value is not None:
            assert table[name][1] == f"`{json.dumps(value)}`", name


def test_the_options_of_a_partition_belong_to_the_named_kinds() -> None:
    table = rows(section(page("reference/settings.md"), "Partition"))
    every = {kind.strip('"') for kind in quoted(table["kind"][0])}
    named = {key: every if cells[2] == "all" else quoted(cells[2]) for key, cells in table.items()}
    assert named.pop("kind") == every
    assert named == {key: set(kinds) for key, kinds in FITS.items()}


def test_the_models_are_those_of_the_code() -> None:
    table = rows(page("reference/models.md"))
    options = {option for name in models.names() for option in models.options(name)}
    assert set(table) - {"model"} == {*models.names(), *options}
    for name in models.names():
        assert quoted(table[name][-1]) == set(models.options(name))


@pytest.mark.parametrize("name", models.names())
def test_the_defaults_of_the_models_are_those_of_the_code(name: str) -> None:
    table = rows(page("reference/models.md"))
    for option in models.options(name):
        value = inspect.signature(BUILDERS[name]).parameters[option].default
        assert table[option][1] == f"`{json.dumps(value)}`"


def test_the_measures_are_those_of_the_code() -> None:
    table = rows(page("reference/measures.md"))
    told = {
        name: [cells[0], cells[1].replace(" ★", ""), cells[2]]
        for name, cells in table.items()
        if name in MEASURES
    }
    assert told == {
        name: [
            measure.title,
            ", ".join(SAID[kind] for kind in measure.kinds),
            "higher" if measure.higher else "lower",
        ]
        for name, measure in MEASURES.items()
    }


@pytest.mark.parametrize("name", models.names())
def test_the_smallest_image_is_the_smallest(name: str) -> None:
    size = int(rows(page("reference/models.md"))[name][1].partition("×")[0])
    with torch.device("meta"):
        models.network(name, (1, size, size), 8)
        if size > 1:
            with pytest.raises(ConfigError):
                models.network(name, (1, size - 1, size - 1), 8)


def test_the_leakage_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page("guides/leakage.md")
    code, shown = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shutil.copy(ROOT / "examples" / "my_method.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "leakage.md", "exec"), {})
    assert capsys.readouterr().out == shown
