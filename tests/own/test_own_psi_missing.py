"""Without the package that finds common rows, a run says so in a sentence, before anything else."""

from __future__ import annotations

import gc
import sys
import warnings
from pathlib import Path

import pytest
from test_own_runs import write

import colonnade
from colonnade.deploy.doctor import examine_run
from colonnade.errors import MethodError


def test_a_run_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rbcl", None)
    file = write(tmp_path)
    (check,) = (one for one in examine_run(file) if one.about == "alignment")
    assert check.verdict == "problem" and "not installed" in check.found
    assert "pip install '.[psi]'" in check.move
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no coroutine that was never awaited
        with pytest.raises(MethodError, match=r"not installed .* pip install '\.\[psi\]'"):
            colonnade.run(file, out=tmp_path / "out")
        gc.collect()
    assert not (tmp_path / "out").exists()
