"""The processes of an engine on this machine: looked through while others start and end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from colonnade.deploy.nvflare import job
from colonnade.deploy.nvflare.machine import Engine


class Started:
    """A process that somebody looks at in the very moment in which something else happens."""

    def __init__(self, meanwhile: Any = lambda: None) -> None:
        self._meanwhile = meanwhile

    @property
    def pid(self) -> int:
        self._meanwhile()
        return os.getpid()


def test_who_watches_is_not_disturbed_by_a_site_that_starts_or_by_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that watches was thrown out: dictionary changed size during iteration."""
    pytest.importorskip("psutil")
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **more: Started())
    (tmp_path / job.site_of("shop")).mkdir()
    engine = Engine(tmp_path, ())
    late = Started(lambda: engine._start("shop", "client"))
    engine.processes = {"bank": late, "post": Started()}  # type: ignore[dict-item]
    engine.jobs()
    assert set(engine.processes) == {"bank", "post", "shop"}
