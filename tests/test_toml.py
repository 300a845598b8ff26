"""Files and tables: every kind of mistake, and that all of them are told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest

from colonnade import toml
from colonnade.errors import ConfigError, FederationError, nearest, unknown
from colonnade.toml import Bounds


@dataclass(frozen=True)
class Oven:
    """What a table says."""

    name: str
    degrees: Annotated[int, Bounds(least=50, most=250)] = 180
    share: Annotated[float, Bounds(above=0, below=1)] | None = None
    minutes: Mapping[str, Annotated[int, Bounds(least=1)]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        toml.check_bounds(self)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = splitnn", "line 1: not a value: write text in quotation marks"),
        ("a = 1\na = 2\n", "line 2: a key is there twice: remove one"),
        ("[a]\n\n[a]", "line 3: [a] is there twice: rename one"),
        ("[parties.bank]\n[parties.bank]", "line 2: [parties.bank] is there twice"),
        ("method\n", "line 1: a line is a [table] or key = value"),
        ('a = "x', "at its end: Unterminated string"),
        ("[a\n", "line 1: Expected ']'"),
    ],
)
def test_text_that_is_not_toml(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        toml.load(path)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{path} is not valid TOML, {said}")


def test_newer_parsers_have_fields(tmp_path: Path) -> None:
    problem = toml.tomllib.TOMLDecodeError("Invalid value (at line 9, column 1)")
    problem.msg, problem.lineno = "Invalid value", 7  # type: ignore[attr-defined]
    assert toml._explained(problem).startswith(", line 7: not a value")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="No such file"):
        toml.load(tmp_path / "none.toml", FederationError)
    with pytest.raises(ConfigError, match="Is a directory"):
        toml.load(tmp_path)
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"  - site\.toml: not a text file in UTF-8"):
        toml.load(path, called="site.toml")
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        toml.load(path)


def test_a_table_becomes_a_dataclass() -> None:
    problems: list[str] = []
    table = {"name": "big", "degrees": 50, "share": 0.5, "minutes": {"bread": 40}}
    assert toml.read(Oven, table, "", problems) == Oven("big", 50, 0.5, {"bread": 40})
    assert not problems


def test_all_mistakes_of_a_table_at_once() -> None:
    problems: list[str] = []
    table = {"degres": 1, "degrees": 300, "share": 1, "minutes": {"bread": 0, "cake": 2}}
    assert toml.read(Oven, table, "oven.", problems) is None
    assert problems == [
        "no key 'degres' in [oven]: did you mean 'degrees'?",
        "oven.degrees = 300: from 50 to 250",
        "oven.share = 1.0: above 0 and below 1",
        "oven.minutes.bread = 0: at least 1",
        "oven.name is missing: it must be a text",
    ]


def test_bounds_hold_in_python_too() -> None:
    with pytest.raises(ValueError, match=r"^degrees = 10: from 50 to 250$"):
        Oven("small", 10)


def test_a_bare_word_is_a_text() -> None:
    assert [toml.value_of(text) for text in ("3", "true", "[1]", "mnist", "a b")] == [
        3, True, [1], "mnist", "a b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("epoch", "epochs"),
        ("LR", "lr"),
        ("learning_rate", "lr"),
        ("khan", "microarray-khan"),
        ("dimension", "dim"),
        ("xyz", None),
    ],
)
def test_the_nearest_name(name: str, meant: str | None) -> None:
    assert nearest(name, ["epochs", "lr", "microarray-khan", "dim"]) == meant


def test_without_a_near_name_all_are_listed() -> None:
    assert unknown("xyz", ["b", "a"], "in [run]") == "no key 'xyz' in [run]: one of a, b"
    assert unknown("xyz", [], what="row") == "no row 'xyz': one of none"
    assert unknown("xyz", map(str, range(100)), "here").endswith(", and 60 more")
