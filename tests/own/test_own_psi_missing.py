"""Without a package that a run needs, it and the doctor say so first, with a command that works."""

from __future__ import annotations

import gc
import importlib.util
import sys
import warnings
from pathlib import Path

import pytest
from test_own_runs import write

import colonnade
from colonnade.deploy.doctor import examine_run
from colonnade.errors import MethodError
from colonnade.version import installing


def test_a_run_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rbcl", None)
    file = write(tmp_path)
    (check,) = (one for one in examine_run(file) if one.about == "alignment")
    assert check.verdict == "problem" and "not installed" in check.found
    assert check.move == installing("psi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no coroutine that was never awaited
        with pytest.raises(MethodError, match=r"not installed .* -m pip install .*\[psi\]"):
            colonnade.run(file, out=tmp_path / "out")
        gc.collect()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": '"heteronn"', "heteronn": '{ encryption = "paillier" }'}, "'gmpy2'"),
        ({"method": '"fedemb"', "fedemb": "{ epsilon = 1.0 }"}, "dp-accounting"),
    ],
)
def test_the_doctor_misses_other_packages_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], said: str
) -> None:
    """Not in the middle of a run: those of encryption, and of a privacy budget."""
    found = importlib.util.find_spec
    lost = ("gmpy2", "dp_accounting")
    file = write(tmp_path, **changes)
    if "fedemb" in changes:  # every party has labels
        shop = tmp_path / "shop.csv"
        head, *lines = shop.read_text().splitlines()
        labels = ["good", "bad"] * len(lines)
        both = [f"{a},{b}" for a, b in zip(lines, labels, strict=False)]
        shop.write_text("\n".join([f"{head},verdict", *both]))
        file.write_text(file.read_text() + 'label = "verdict"\n')
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name in lost else found(name, *more),
    )
    problems = [check for check in examine_run(file) if check.verdict == "problem"]
    assert len(problems) == 1 and said in problems[0].found
    assert " -m pip install " in f"{problems[0].found} {problems[0].move}"
