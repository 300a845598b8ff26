"""Networks from the user's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import colonnade
from colonnade import config
from colonnade.errors import ConfigError
from colonnade.plugin import own

NET = """
from torch import nn

def build(shape, out, *, hidden=16):
    width = 1
    for size in shape:
        width *= size
    return nn.Sequential(nn.Flatten(), nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, out))

class Net(nn.Module):
    def __init__(self, shape, out):
        super().__init__()
        self.layer = nn.Linear(shape[0], out)

    def forward(self, x):
        return self.layer(x)

def narrow(shape, out):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], out + 1))

def lazy(shape, out):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(out))

def nothing(shape, out):
    return None

number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def settings(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": "splitnn",
        "epochs": 2,
        "batch_size": 32,
        "data": {"name": "digits", "train_rows": 256, "test_rows": 50},
    }
    return base | changes


def test_a_party_may_bring_its_own_network(here: Path) -> None:
    parties = {
        "a": {"model": "net.py:build", "model_options": {"hidden": 24}},
        "b": {"model": "cnn"},
    }
    tree = settings(parties=parties)
    result = colonnade.run(tree, out=here / "run")
    assert "net.py:build" in (here / "run" / "config.toml").read_text()
    assert str(here) not in (here / "run" / "config.toml").read_text()
    (here / "net.py").rename(here / "gone.py")  # the run folder keeps what it needs
    assert len(colonnade.load(here / "run").predict()["a"]) == 50
    again = colonnade.run(here / "run" / "config.toml", out=here / "again")
    assert again.weights_sha256 == result.weights_sha256
    assert again.content["config_sha256"] == result.content["config_sha256"]


def test_a_class_is_a_builder_too(here: Path) -> None:
    tree = settings(model="net.py:Net", data={"name": "breast-cancer"})
    assert colonnade.run(tree, out=here / "run").accuracy is not None


def test_a_change_of_its_file_changes_the_config_hash(here: Path) -> None:
    before = config.load(settings(model="net.py:build"), rule=own).sha256()
    (here / "net.py").write_text(NET + "\n# changed\n")
    assert config.load(settings(model="net.py:build"), rule=own).sha256() != before


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("missing.py:build", {}, "there is no such file"),
        ("net.py:absent", {}, "has nothing callable 'absent'"),
        ("net.py:number", {}, "has nothing callable 'number'"),
        ("net.py:nothing", {}, "returned a NoneType, not an nn.Module"),
        ("net.py:narrow", {}, r"asked for 8 outputs: \(2, 8\)"),
        ("net.py:lazy", {}, "has lazy layers"),
        ("net.py:build", {"depth": 3}, "unexpected keyword argument 'depth'"),
        ("net.py:Net", {}, "party 'party1': .*RuntimeError"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    model: str, options: dict[str, Any], says: str, here: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        colonnade.run(settings(model=model, model_options=options), out=here / "run")
    assert not (here / "run").exists()
