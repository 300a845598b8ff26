"""The policy's file: every rule that it may hold, and what is said of mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import ConfigError
from colonnade.wire import Kind
from colonnade.wire.policy import Allow, Policy

EMBEDDING = Kind("embedding", ("batch", "dim"), reveals="the sender's features")
GRADIENT = Kind("gradient", ("batch", "dim"), reveals="the labels")


def problems(table: Any, where: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Policy.from_table(table, where)
    return caught.value.problems


WHOLE = """
[allow.embedding]
to = ["bank"]
bytes = 500_000_000
width = 128
width_ratio = 1.0
releases = 20
predictions = 5
numbers = 4_000
min_batch = 8
min_prediction = 4
min_members = 3

[allow.gradient]
"""


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(WHOLE)
    policy = Policy.load(path)
    assert policy.allow == {
        "embedding": Allow(("bank",), 500_000_000, 128, 1.0, 20, 5, 4000, 8, 4, 3),
        "gradient": Allow(),
    }
    assert Policy.from_table(tomllib.loads(policy.dumps())) == policy
    assert policy.source == str(path)
    path.write_text("")
    assert Policy.load(path) == Policy({})


@pytest.mark.parametrize(
    ("text", "size"),
    [("500 MB", 500_000_000), ("1.5GB", 1_500_000_000), ("3 kB", 3000), ("7 b", 7), ("2 TB", 2e12)],
)
def test_sizes_in_words(text: str, size: int) -> None:
    assert Policy.from_table({"allow": {"x": {"bytes": text}}}).allow["x"].bytes == size


def test_all_mistakes_at_once() -> None:
    rule = {
        "too": ["bank"], "to": "bank", "bytes": "500 apples", "width": -1, "width_ratio": "x",
        "releases": float("nan"), "min_batch": True, "min_members": 1.5,
    }  # fmt: skip
    assert problems({"alow": {}, "allow": {"embedding": rule, "gradient": 3}}, "policy.") == [
        "no key 'alow' in [policy]: did you mean 'allow'?",
        "no key 'too' in [policy.allow.embedding]: did you mean 'to'?",
        "policy.allow.embedding.to = 'bank': must be a list of members, [\"bank\"]",
        "policy.allow.embedding.bytes = '500 apples': must be a whole number of bytes, or a text "
        'such as "500 MB"',
        "policy.allow.embedding.width = -1: must be a whole number from 0",
        "policy.allow.embedding.width_ratio = 'x': must be a number from 0",
        "policy.allow.embedding.releases = nan: must be a whole number from 0",
        "policy.allow.embedding.min_batch = True: must be a whole number from 0",
        "policy.allow.embedding.min_members = 1.5: must be a whole number from 0",
        "policy.allow.gradient = 3: must be a table, [policy.allow.gradient]",
    ]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"allow": ["embedding"]}, r"must be tables, \[allow\.embedding\]"),
        ({"embedding": {}}, "no key 'embedding' at the top level"),
        ({"allow": {"x": {"to": []}}}, "names nobody"),
        ({"allow": {"x": {"to": [3]}}}, "list of members"),
        ({"allow": {"x": {"bytes": 1 << 63}}}, "whole number"),
        ({"allow": {"x": {"bytes": "9999999999 TB"}}}, "whole number"),
        ({"allow": {"x": {"bytes": "0.5 B"}}}, "less than a byte"),
        ({"allow": {"x": {"width_ratio": float("inf")}}}, "a number from 0"),
        ({"allow": {"x": {"releases": 0.5}}}, "a whole number from 0"),
    ],
)
def test_mistakes(table: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Policy.from_table(table)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    with pytest.raises(ConfigError, match=r"policy\.toml: No such file"):
        Policy.load(path)
    path.write_text("allow = {")
    with pytest.raises(ConfigError, match=r"policy\.toml is not valid TOML"):
        Policy.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a text file"):
        Policy.load(path)
    path.write_text("[allow.embedding]\nwidht = 3")
    with pytest.raises(ConfigError, match=r"policy\.toml: no key 'widht' .* 'width'\?"):
        Policy.load(path)


def test_kinds_are_checked_against_the_method() -> None:
    policy = Policy.from_table({"allow": {"embeding": {}, "gradient": {}}})
    policy.check_kinds(["embeding", "gradient", "more"])
    with pytest.raises(ConfigError, match=r"no Kind 'embeding' to allow.* 'embedding'\?"):
        policy.check_kinds(kind.name for kind in (EMBEDDING, GRADIENT))


def test_a_template_names_a_peer_and_no_limit_that_cannot_hold() -> None:
    text = Policy.template([Kind("keys", (), reveals="nothing", about="nothing")], "shop")
    every = tomllib.loads("\n".join(line.removeprefix("# ") for line in text.splitlines()[3:]))
    assert every["allow"]["keys"].keys() == {"to", "bytes", "width", "min_members"}
    assert every["allow"]["keys"]["to"] == ["shop"]


def test_a_template_names_every_kind_and_what_it_reveals() -> None:
    odd = Kind("größe", (), reveals="two\nlines = 3")
    kinds = [EMBEDDING, GRADIENT, odd]
    text = Policy.template(kinds)
    assert Policy.from_table(tomllib.loads(text)) == Policy.allowing(kinds)
    assert "# embedding (batch × dim) reveals: the sender's features" in text
    every = tomllib.loads("\n".join(line.removeprefix("# ") for line in text.splitlines()[3:15]))
    limits = Policy.from_table({"allow": {"x": every["allow"]["embedding"]}}).allow["x"]
    assert all(limits.table()), "every limit that the template names can be taken as it is"
    assert set(limits.table()) == {
        "to", "bytes", "width", "width_ratio", "releases", "predictions", "numbers", "min_batch",
        "min_prediction", "min_members", "epsilon",
    }  # fmt: skip
