"""Files that were damaged: configuration, federation, policy and checkpoint; typed errors only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from federations import load_federation, toy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from colonnade import config
from colonnade.errors import ColonnadeError
from colonnade.methods import splitnn
from colonnade.wire import store
from colonnade.wire.policy import Policy

DEEP = 3000  # brackets within brackets: more than Python's stack likes


def good_files() -> dict[str, bytes]:
    """One of each, as they should be."""
    parties = {
        "bank": {"address": "bank.example.org:7443", "signing_key": "ab" * 32},
        "shop": {"signing_key": "cd" * 32},
    }
    run = toy("splitnn")
    policy = Policy.template(splitnn.METHOD.kinds)
    federation = {"name": "ours", "on_lost": "stop", "run": {"method": "splitnn", "epochs": 3}}
    return {
        "run.toml": tomli_w.dumps(run).encode(),
        "federation.toml": tomli_w.dumps(federation | {"parties": parties}).encode(),
        "policy.toml": policy.encode(),
    }


LOADERS: dict[str, Callable[[Path], Any]] = {
    "run.toml": config.load,
    "federation.toml": load_federation,
    "policy.toml": Policy.load,
}
GOOD = good_files()


def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Some bytes changed, cut out or put in, anywhere."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 8)))
        data[at:to] = draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from([b"[", b"]", b'"', b"=", b"\n", b"-1", b"1e999", b"nan", b"true"]),
                st.sampled_from([b"[[", b"]]", b"{}", b"1979-05-27", b"\xff", b"'''", b"99999999"]),
            )
        )
    return bytes(data)


@st.composite
def any_file(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from(sorted(LOADERS)))
    return name, damaged(draw, GOOD[name])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_file())
@example(("run.toml", GOOD["run.toml"]))
@example(("federation.toml", GOOD["federation.toml"]))
@example(("policy.toml", GOOD["policy.toml"]))
def test_a_text_file_that_was_damaged(
    tmp_path_factory: pytest.TempPathFactory, given: tuple[str, bytes]
) -> None:
    name, data = given
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data)
    try:
        LOADERS[name](path)
    except ColonnadeError:
        assert data != GOOD[name]


@pytest.mark.parametrize("name", sorted(LOADERS))
@pytest.mark.parametrize("bracket", ["[", "{a="])
def test_brackets_without_an_end(name: str, bracket: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a = " + bracket * DEEP)
    with pytest.raises(ColonnadeError):
        LOADERS[name](tmp_path / name)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = {"kept": {"model": {"weight": torch.arange(6.0)}}, "state": {}, "steps": 3, "log": [1.5]}
    path = tmp_path_factory.mktemp("checkpoint") / "good"
    store.save(tree, path)
    return path


@st.composite
def damage(draw: st.DrawFn) -> tuple[str, Callable[[bytes], bytes]]:
    kind = draw(st.sampled_from(["json", "safetensors"]))
    seed = draw(st.binary(min_size=8, max_size=64))

    def change(good: bytes) -> bytes:
        data = bytearray(good)
        for one, other in zip(seed[::2], seed[1::2], strict=False):
            at = one * len(data) // 256
            if other % 3 == 0:
                data[at : at + other % 16] = b""
            elif other % 3 == 1:
                data[at:at] = bytes([other]) * (other % 5)
            elif data:
                data[at % len(data)] = other
        return bytes(data)

    return kind, change


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damage())
def test_a_checkpoint_that_was_damaged(
    checkpoint: Path, what: tuple[str, Callable[[bytes], bytes]]
) -> None:
    spoilt = checkpoint.with_name("spoilt")
    for kind in ("json", "safetensors"):
        data = checkpoint.with_suffix(f".{kind}").read_bytes()
        changed = what[1](data) if kind == what[0] else data
        spoilt.with_suffix(f".{kind}").write_bytes(changed)
    with suppress(ColonnadeError):
        store.load(spoilt)


def test_a_checkpoint_of_brackets(checkpoint: Path) -> None:
    deep = checkpoint.with_name("deep")
    deep.with_suffix(".safetensors").write_bytes(
        checkpoint.with_suffix(".safetensors").read_bytes()
    )
    for text in ("[" * 100_000, '{"list": [' * 5000 + "]}" * 5000):
        deep.with_suffix(".json").write_text(text)
        with pytest.raises(ColonnadeError):
            store.load(deep)
