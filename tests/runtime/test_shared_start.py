"""Runs that begin alike share their start."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from colonnade.runtime.checkpoint import SharedStart


def test_of_two_runs_that_train_the_same_start_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one, in another process, takes its draft away, however far it had come."""
    member = SimpleNamespace(name="party1", position=("local", 0, 0), snapshot=lambda: {"a": 1})
    other = SimpleNamespace(**vars(member) | {"name": "party2"})
    started = []
    for number in range(2):
        monkeypatch.setattr(os, "getpid", functools.partial(int, number))
        started.append(SharedStart(tmp_path / "start", "local", ["party1", "party2"]))
        started[-1].keep(cast(Any, member))
    fast, slow = started
    assert len(list(tmp_path.iterdir())) == 2 and not fast.snapshots()
    fast.keep(cast(Any, other))
    slow.keep(cast(Any, other))
    assert slow.snapshots() == {"party1": {"a": 1}, "party2": {"a": 1}}
    assert [path.name for path in tmp_path.iterdir()] == ["start"]
