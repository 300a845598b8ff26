"""A party's own folder: what an attempt that never began leaves to the next one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_doctor import Two, two  # noqa: F401

from colonnade.config import federation
from colonnade.deploy import member
from colonnade.deploy.setup import Setup, prepare
from colonnade.errors import ConfigError, RunError
from colonnade.wire.policy import Policy


def setup(two: Two, name: str = "shop", limits: str = "", **run: object) -> Setup:  # noqa: F811
    two.write(run={"method": "splitnn", "epochs": 3, **run})
    shared = federation.load(two.file)
    (two.folder / "policy.toml").write_text(f"[allow.embedding]\n{limits}\n")
    rows = two.mine(name).rows
    assert rows is not None
    return prepare(
        shared, name, rows(shared), two.keys(name), Policy.load(two.folder / "policy.toml")
    )


def test_a_refused_attempt_does_not_block_the_next_one(two: Two) -> None:  # noqa: F811
    """Both correct the file that they disagreed on, and type the same command again."""
    out = two.folder / "run"
    member._opened(out, setup(two))
    (out / "log.txt").write_text("refused: epochs is 3 here and 4 there")
    corrected = setup(two, epochs=4)
    assert member._opened(out, corrected) == {"run": "", "attempt": 0}
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["config_sha256"] == corrected.settings.sha256()
    assert "epochs = 4" in (out / "config.toml").read_text()


def test_a_run_that_has_begun_is_not_replaced(two: Two) -> None:  # noqa: F811
    out = two.folder / "run"
    begun = setup(two)
    member._opened(out, begun)
    manifest = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(manifest | {"run": "ab12"}))
    assert member._opened(out, begun)["run"] == "ab12"
    with pytest.raises(RunError, match=r"another federation file.*give another --out"):
        member._opened(out, setup(two, epochs=4))


def test_what_the_policy_would_stop_does_not_begin(two: Two) -> None:  # noqa: F811
    out: Path = two.folder / "run"
    with pytest.raises(ConfigError, match=r"3 epochs release a row 3 times.*`releases` = 3"):
        member.take_part(setup(two, limits="releases = 2"), out)
    assert not out.exists()
